package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

// siteOfCheckpoint returns where a checkpoint is: on a node, or else on this machine.
func (f *Fleet) siteOfCheckpoint(id string) (*site, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k := f.checkpoints[id]; k != nil {
		return k.site, nil
	}
	if f.local == nil {
		return nil, errStateGone()
	}
	return f.local, nil
}

func errStateGone() error {
	return sandbox.Errorf(sandbox.CodeNotFound, "the kept state is gone; nothing can be restored from it")
}

func (f *Fleet) keeper(s *site) (engine.Checkpointer, error) {
	e, err := f.engineOf(s)
	if err != nil {
		return nil, err
	}
	if k, ok := e.(engine.Checkpointer); ok {
		return k, nil
	}
	return nil, sandbox.Errorf(sandbox.CodeUnsupported, "%s cannot keep the state of sandboxes", s.name)
}

// Checkpoint implements [engine.Checkpointer].
func (f *Fleet) Checkpoint(ctx context.Context, name, id string, opts engine.CheckpointOptions) (engine.Checkpoint, error) {
	s, _, err := f.at(name)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	keeper, err := f.keeper(s)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	if s == f.local {
		c, err := keeper.Checkpoint(ctx, name, id, opts)
		if err == nil {
			f.keptHere(c)
		}
		return c, err
	}
	record := func(c engine.Checkpoint) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if known := f.checkpoints[id]; known != nil && known.site != s {
			return sandbox.Errorf(sandbox.CodeConflict, "checkpoint %s exists", id)
		}
		return f.setCheckpoint(kept{site: s, Checkpoint: f.own(s, name, c, &opts)})
	}
	if commit := opts.Commit; commit != nil {
		opts.Commit = func(c engine.Checkpoint) error {
			if err := record(c); err != nil {
				return err
			}
			err := commit(f.recorded(c))
			if err != nil && !errors.Is(err, engine.ErrUndecided) {
				f.mu.Lock()
				f.dropCheckpoint(id)
				f.mu.Unlock()
			}
			return err
		}
	}
	c, err := keeper.Checkpoint(ctx, name, id, opts)
	switch {
	case errors.Is(err, remote.ErrUnconfirmed):
		f.abandon(ctx, name)
		return f.recorded(c), nil
	case err != nil:
		return c, err
	case opts.Commit == nil:
		err := record(c)
		return f.recorded(c), err
	}
	f.mu.Lock()
	f.dropInstance(name)
	f.mu.Unlock()
	return f.recorded(c), nil
}

// own returns a node's checkpoint of an instance with what this machine knows better. The
// caller holds f.mu.
func (f *Fleet) own(s *site, instance string, c engine.Checkpoint, opts *engine.CheckpointOptions) engine.Checkpoint {
	c.Owner, c.Label = opts.Owner, opts.Label
	c.Family = s.member.Family
	if i := f.instances[instance]; i != nil && i.Root.Digest != "" {
		c.Root = i.Root
	}
	return c
}

// recorded returns a checkpoint as it was recorded.
func (f *Fleet) recorded(c engine.Checkpoint) engine.Checkpoint {
	f.mu.Lock()
	defer f.mu.Unlock()
	stopped := c.Stopped
	if k := f.checkpoints[c.ID]; k != nil {
		c = k.Checkpoint
		c.Stopped = stopped
	}
	return c
}

// keptHere notes a checkpoint of this machine.
func (f *Fleet) keptHere(c engine.Checkpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k := f.checkpoints[c.ID]; k == nil || k.site == f.local {
		f.checkpoints[c.ID] = &kept{site: f.local, Checkpoint: c}
	}
}

// loadLocal finds the checkpoints of this machine. One that has moved to a node is removed.
func (f *Fleet) loadLocal() error {
	if f.local == nil {
		return nil
	}
	keeper, ok := f.local.local.(engine.Checkpointer)
	if !ok {
		return nil
	}
	list, err := keeper.Checkpoints(context.Background())
	if err != nil {
		return err
	}
	for _, c := range list {
		if k := f.checkpoints[c.ID]; k != nil {
			if err := keeper.RemoveCheckpoint(context.Background(), c.ID); err != nil {
				return err
			}
			continue
		}
		f.checkpoints[c.ID] = &kept{site: f.local, Checkpoint: c}
	}
	return nil
}

// Checkpoints implements [engine.Checkpointer]. Those of nodes that are away are as they
// were last known.
func (f *Fleet) Checkpoints(ctx context.Context) ([]engine.Checkpoint, error) {
	var all []engine.Checkpoint
	if f.local != nil {
		if k, ok := f.local.local.(engine.Checkpointer); ok {
			var err error
			if all, err = k.Checkpoints(ctx); err != nil {
				return nil, err
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.checkpoints {
		if k.site != f.local {
			all = append(all, k.Checkpoint)
		}
	}
	return all, nil
}

// RemoveCheckpoint implements [engine.Checkpointer]. A node that is away removes it when it
// is back.
func (f *Fleet) RemoveCheckpoint(ctx context.Context, id string) error {
	f.mu.Lock()
	k := f.checkpoints[id]
	if k != nil && k.site != f.local && k.site.remote == nil {
		err := f.markStale(k.site, id)
		f.mu.Unlock()
		return err
	}
	f.mu.Unlock()
	s := f.local
	if k != nil {
		s = k.site
	}
	if s == nil {
		return nil
	}
	keeper, err := f.keeper(s)
	if err != nil {
		return err
	}
	if err := keeper.RemoveCheckpoint(ctx, id); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropCheckpoint(id)
	return nil
}

// siteFile has, in a directory of what was set aside on a node, an [aside]. Earlier versions
// wrote only the name of the node.
const siteFile = "node"

// aside says which node has a checkpoint that was set aside, and what is not taken from that
// node.
type aside struct {
	Node  string          `json:"node"`
	Owner string          `json:"owner,omitempty"`
	Label json.RawMessage `json:"label,omitempty"`
	Root  engine.Root     `json:"root,omitzero"`
	// Family is that of the checkpoint.
	Family string `json:"family,omitempty"`
}

// readAside reads the siteFile of a directory. One that is missing is [fs.ErrNotExist].
func readAside(dir string) (a aside, known bool, err error) {
	data, err := os.ReadFile(filepath.Join(dir, siteFile))
	if err != nil {
		return a, false, err
	}
	if validName.Match(data) {
		return aside{Node: string(data)}, false, nil
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return a, false, fmt.Errorf("%s: %w", filepath.Join(dir, siteFile), err)
	}
	return a, true, nil
}

// SetAside implements [engine.Checkpointer].
func (f *Fleet) SetAside(ctx context.Context, id, to string) error {
	s, err := f.siteOfCheckpoint(id)
	if err != nil {
		return err
	}
	keeper, err := f.keeper(s)
	if err != nil {
		return err
	}
	release, err := f.holdAside(s)
	if err != nil {
		return err
	}
	err = keeper.SetAside(ctx, id, to)
	release(err == nil)
	if err != nil {
		return err
	}
	if s == f.local {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.dropCheckpoint(id)
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	a := aside{Node: s.name}
	if k := f.checkpoints[id]; k != nil {
		a.Owner, a.Label, a.Root, a.Family = k.Checkpoint.Owner, k.Checkpoint.Label, k.Checkpoint.Root, k.Checkpoint.Family
	}
	data, err := json.Marshal(&a)
	if err == nil {
		err = durable.WriteFile(filepath.Join(to, siteFile), data)
	}
	if err != nil {
		return err
	}
	f.dropCheckpoint(id)
	return nil
}

// holdAside keeps a dedicated node from being retired while it has what was set aside. What was
// not set aside does not count.
func (f *Fleet) holdAside(s *site) (release func(done bool), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.member.Retired {
		return nil, errReplaced(s)
	}
	unhold, before := f.hold(s), s.member.AsideAt
	if !s.member.Dedicated {
		return func(bool) { unhold() }, nil
	}
	if err := f.setAsideAt(s, time.Now().UTC()); err != nil {
		s.holds--
		return nil, err
	}
	return func(done bool) {
		if !done {
			f.mu.Lock()
			if err := f.setAsideAt(s, before); err != nil {
				f.log.Warn("a dedicated node counts as one with a checkpoint that was set aside", "node", s.name, "error", err)
			}
			f.mu.Unlock()
		}
		unhold()
	}, nil
}

// setAsideAt records when a checkpoint was last set aside on a node. The caller holds f.mu.
func (f *Fleet) setAsideAt(s *site, at time.Time) error {
	m := s.member
	m.AsideAt = at
	return f.setMember(s, m)
}

func errReplaced(s *site) error {
	return sandbox.Errorf(sandbox.CodeUnavailable, "node %s, which has the state, is being replaced; try again in a while", s.name)
}

// BringBack implements [engine.Checkpointer].
func (f *Fleet) BringBack(ctx context.Context, id, from string) (engine.Checkpoint, error) {
	s := f.local
	was, known, err := readAside(from)
	if err == nil {
		f.mu.Lock()
		s, err = f.site(was.Node)
		f.mu.Unlock()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return engine.Checkpoint{}, err
	}
	if s == nil {
		return engine.Checkpoint{}, sandbox.Errorf(sandbox.CodeUnsupported, "it is of the server's machine, which runs no sandboxes (--nodes-only)")
	}
	f.mu.Lock()
	retired, release := s.member.Retired, f.hold(s)
	f.mu.Unlock()
	defer release()
	if retired {
		return engine.Checkpoint{}, errReplaced(s)
	}
	keeper, err := f.keeper(s)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	c, err := keeper.BringBack(ctx, id, from)
	if err != nil {
		return c, err
	}
	if known {
		c.Owner, c.Label, c.Root, c.Family = was.Owner, was.Label, was.Root, was.Family
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return c, f.setCheckpoint(kept{site: s, Checkpoint: c})
}

// Changes implements [engine.Checkpointer].
func (f *Fleet) Changes(ctx context.Context, of engine.Source) (io.ReadCloser, error) {
	s, _, err := f.atSource(of)
	if err != nil {
		return nil, err
	}
	keeper, err := f.keeper(s)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	release := f.hold(s)
	f.mu.Unlock()
	r, err := keeper.Changes(ctx, of)
	if err != nil {
		release()
		return nil, err
	}
	return &heldReader{r, sync.OnceFunc(release)}, nil
}

// Warm implements [engine.Checkpointer]: each place keeps instances of its own checkpoints.
func (f *Fleet) Warm(specs []engine.WarmSpec) {
	f.mu.Lock()
	by := map[*site][]engine.WarmSpec{}
	for _, w := range specs {
		s := f.local
		if k := f.checkpoints[w.Checkpoint]; k != nil {
			s = k.site
		}
		by[s] = append(by[s], w)
	}
	var there []*remote.Engine
	var lists [][]engine.WarmSpec
	for _, s := range f.sites {
		changed := len(s.warm) > 0 || len(by[s]) > 0
		s.warm = by[s]
		if changed && s.remote != nil {
			there, lists = append(there, s.remote), append(lists, by[s])
		}
	}
	f.mu.Unlock()
	if f.local != nil {
		if k, ok := f.local.local.(engine.Checkpointer); ok {
			k.Warm(by[f.local])
		}
	}
	for i, e := range there {
		e.Warm(lists[i])
	}
}
