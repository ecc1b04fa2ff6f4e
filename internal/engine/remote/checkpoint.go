package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cove-sh/cove/internal/engine"
)

// ErrUnconfirmed means that a checkpoint was committed, but that the connection ended
// before the node said that it has ended the instance. The checkpoint is kept; the
// instance must not be among those that are kept when the node is settled.
var ErrUnconfirmed = errors.New("the node has not confirmed that a saved instance has ended")

// Checkpoint implements [engine.Checkpointer]. With opts.Commit, the error may be
// [ErrUnconfirmed], with the checkpoint.
func (e *Engine) Checkpoint(ctx context.Context, name, id string, opts engine.CheckpointOptions) (engine.Checkpoint, error) {
	req := checkpointRequest{
		Instance: name, Checkpoint: id, FilesOnly: opts.FilesOnly, Durable: opts.Durable, Early: opts.Early, Label: opts.Label, Commit: opts.Commit != nil,
	}
	var committed *engine.Checkpoint
	var refused error
	commit := func(c *engine.Checkpoint) error {
		if c.ID != id {
			return errors.New("it is not the checkpoint that was asked for")
		}
		mine := cleanCheckpoint(*c)
		mine.Owner = opts.Owner
		if refused = opts.Commit(mine); refused == nil {
			committed = c
		}
		return refused
	}
	if opts.Commit == nil {
		commit = nil
	}
	res, err := talk[checkpointed](ctx, e, "Checkpoint", &req, answers{commit: commit})
	switch {
	case refused != nil:
		return engine.Checkpoint{}, refused
	case err != nil && committed != nil:
		return cleanCheckpoint(*committed), errors.Join(ErrUnconfirmed, err)
	case err == nil && (res.Checkpoint.ID != id || opts.Commit != nil && committed == nil):
		err = e.explain(ctx, fmt.Errorf("%w: not the checkpoint that was asked for", errFrame))
	}
	if err != nil {
		return engine.Checkpoint{}, err
	}
	c := cleanCheckpoint(res.Checkpoint)
	c.Owner = opts.Owner
	c.Stopped = max(0, res.Stopped)
	return c, nil
}

// cleanCheckpoint removes what a node must not decide: places on this machine, and whose the
// checkpoint is.
func cleanCheckpoint(c engine.Checkpoint) engine.Checkpoint {
	c.Owner, c.Root = "", engine.Root{Digest: cleanTo(c.Root.Digest, 128)}
	c.SizeBytes = cleanSize(c.SizeBytes)
	return c
}

// cleanSize bounds what a node says of the size of a checkpoint, which is added up.
func cleanSize(bytes int64) int64 { return min(max(0, bytes), maxExportFile) }

// Checkpoints implements [engine.Checkpointer].
func (e *Engine) Checkpoints(ctx context.Context) ([]engine.Checkpoint, error) {
	all, err := call[[]engine.Checkpoint](ctx, e, "Checkpoints", empty{})
	for i, c := range all {
		all[i] = cleanCheckpoint(c)
	}
	return all, err
}

// removeTimeout bounds the wait for a node to remove a checkpoint.
const removeTimeout = time.Minute

// RemoveCheckpoint implements [engine.Checkpointer]. It does not wait longer than a minute.
func (e *Engine) RemoveCheckpoint(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, removeTimeout, errSlow)
	defer cancel()
	_, err := call[empty](ctx, e, "RemoveCheckpoint", byID{id})
	return err
}

// asideFile says, in a directory of this machine, that the node has its content.
const asideFile = "node.json"

// SetAside implements [engine.Checkpointer]. The content stays on the node; the directory
// here names the place.
func (e *Engine) SetAside(ctx context.Context, id, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(asideRequest{id, to})
	if err == nil {
		err = os.WriteFile(filepath.Join(to, asideFile), data, 0o600)
	}
	if err == nil {
		_, err = call[empty](ctx, e, "SetAside", asideRequest{id, to})
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(to))
	}
	return nil
}

// BringBack implements [engine.Checkpointer].
func (e *Engine) BringBack(ctx context.Context, id, from string) (engine.Checkpoint, error) {
	var was asideRequest
	data, err := os.ReadFile(filepath.Join(from, asideFile))
	if err == nil {
		err = json.Unmarshal(data, &was)
	}
	if err != nil {
		return engine.Checkpoint{}, err
	}
	c, err := call[engine.Checkpoint](ctx, e, "BringBack", asideRequest{id, was.Place})
	if err != nil {
		return engine.Checkpoint{}, err
	}
	return cleanCheckpoint(c), os.RemoveAll(from)
}

// Changes implements [engine.Checkpointer].
func (e *Engine) Changes(ctx context.Context, of engine.Source) (io.ReadCloser, error) {
	f, end, err := e.start(ctx, "Changes", of)
	if err != nil {
		return nil, err
	}
	c := newConn(f, end)
	stop := context.AfterFunc(ctx, func() { c.Close() })
	return closer{c, func() error { stop(); return c.Close() }}, nil
}

type closer struct {
	io.Reader
	close func() error
}

func (c closer) Close() error { return c.close() }

// warmTimeout bounds the wait for a node to take its list.
const warmTimeout = 10 * time.Second

// Warm implements [engine.Checkpointer].
func (e *Engine) Warm(specs []engine.WarmSpec) {
	list, failed := []warmSpec{}, map[string]func(error){}
	for _, s := range specs {
		list = append(list, warmSpec{s.Checkpoint, rootOf(&s.Root), s.Resources, s.Max})
		if s.Failed != nil {
			failed[s.Checkpoint] = s.Failed
		}
	}
	e.mu.Lock()
	e.warm = failed
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(e.ctx, warmTimeout)
	defer cancel()
	_, _ = call[empty](ctx, e, "Warm", list) // a node without it boots afresh
}
