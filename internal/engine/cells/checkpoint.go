package cells

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/checkpoint"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/sandbox"
)

var _ engine.Checkpointer = (*Engine)(nil)

// Checkpoint implements [engine.Checkpointer].
func (e *Engine) Checkpoint(ctx context.Context, name, id string, opts engine.CheckpointOptions) (engine.Checkpoint, error) {
	var none engine.Checkpoint
	defer e.occupied()()
	i, err := e.Open(ctx, name)
	if err != nil {
		return none, err
	}
	inst := i.(*instance)
	from, err := readOrigin(inst.dir)
	if err != nil {
		return none, err
	}
	if !opts.FilesOnly {
		loaded, err := e.admitLoad(ctx, inst)
		if err != nil {
			return none, err
		}
		defer loaded()
	}
	draft, err := e.checkpoints.Begin(id)
	if err != nil {
		return none, err
	}
	defer func() {
		if err := draft.Discard(); err != nil {
			e.cfg.Log.Error("remove an incomplete checkpoint", "checkpoint", id, "error", err)
		}
	}()
	// The sandbox continues when this context ends.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := cell.CheckpointRequest{Dir: draft.Dir(), Hold: opts.Commit != nil, FilesOnly: opts.FilesOnly, GoOn: opts.Commit == nil, Early: opts.Early}
	stopped, err := e.write(ctx, inst, &req)
	if err != nil {
		return none, e.notSaved(ctx, name, err)
	}
	if !opts.FilesOnly {
		e.setLeft(inst, 0)
	}
	if opts.Durable && !opts.FilesOnly {
		own, err := runsc.OwnPages(draft.Dir())
		if err != nil {
			return none, e.notSaved(ctx, name, err)
		}
		if err := runsc.SumPages(draft.Dir(), own); err != nil {
			return none, e.notSaved(ctx, name, err)
		}
		draft.NoSum(runsc.PagesFile)
	}
	m, err := draft.Commit(checkpoint.Manifest{
		Checkpoint: engine.Checkpoint{FilesOnly: opts.FilesOnly, Root: from.Root, Resources: from.Resources, CreatedAt: time.Now().UTC(), Label: opts.Label, Owner: opts.Owner},
		Program:    from.Program, Cell: from.Cell, AgentDir: from.AgentDir, CPU: e.cpu(),
	}, opts.Durable)
	if err != nil {
		return none, e.notSaved(ctx, name, err)
	}
	e.keepProgram(from.Program)
	m.Stopped = stopped
	if opts.Commit == nil {
		return m.Checkpoint, nil
	}
	if err := opts.Commit(m.Checkpoint); errors.Is(err, engine.ErrUndecided) {
		return none, err
	} else if err != nil {
		return none, errors.Join(err, e.checkpoints.Remove(id))
	}
	if err := e.Destroy(context.WithoutCancel(ctx), name); err != nil {
		e.cfg.Log.Error("end an instance whose state was saved", "sandbox", name, "error", err)
		e.wg.Go(func() { e.destroyLater(name) })
	}
	return m.Checkpoint, nil
}

// destroyAgain is the interval of destroyLater.
const destroyAgain = time.Second

// destroyLater goes on trying to end an instance that continues elsewhere, until the engine
// is closed.
func (e *Engine) destroyLater(name string) {
	tick := time.NewTicker(destroyAgain)
	defer tick.Stop()
	for e.Destroy(e.ctx, name) != nil {
		select {
		case <-tick.C:
		case <-e.ctx.Done():
			return
		}
	}
}

// write makes a cell write a checkpoint, and returns how long the sandbox was stopped.
// With req.Early, memory may still be missing then, which the cell continues to write.
func (e *Engine) write(ctx context.Context, inst *instance, req *cell.CheckpointRequest) (stopped time.Duration, err error) {
	if !req.Early {
		stopped, rest, err := inst.control.Checkpoint(ctx, *req)
		if err == nil {
			err = rest()
		}
		return stopped, err
	}
	streamCtx, cancel := context.WithCancel(e.ctx)
	stop := context.AfterFunc(ctx, cancel)
	stopped, rest, err := inst.control.Checkpoint(streamCtx, *req)
	if !stop() {
		err = cmp.Or(err, context.Cause(ctx))
	}
	if err != nil {
		cancel()
		return 0, err
	}
	e.noteWriting(inst.id, 1)
	e.wg.Go(func() {
		defer cancel()
		defer e.noteWriting(inst.id, -1)
		if err := rest(); err != nil && e.ctx.Err() == nil {
			e.cfg.Log.Error("write the rest of a checkpoint; sandboxes that need the missing memory end", "sandbox", inst.id, "checkpoint", req.Dir, "error", err)
		}
	})
	return stopped, nil
}

// notSaved explains why the state of an instance could not be saved.
func (e *Engine) notSaved(ctx context.Context, name string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	state := e.inspect(ctx, name)
	e.cfg.Log.Error("write checkpoint", "sandbox", name, "error", err, "log", e.logTail(name))
	if state == stateEnded {
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the sandbox ended while its state was being saved; nothing was kept")
	}
	goesOn := "the sandbox goes on as it was"
	if state == stateSilent {
		goesOn = "the agent in the sandbox has not answered since"
	}
	refused, isRefusal := errors.AsType[*connect.Error](err)
	switch {
	case isRefusal && refused.Code() == connect.CodeResourceExhausted:
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the server's disk is full: "+refused.Message()+"; "+goesOn+": delete snapshots or sandboxes and try again")
	case isRefusal && refused.Code() == connect.CodeOutOfRange:
		return noRoom(sandbox.CodeQuotaExceeded, "%s; %s: kill or pause sandboxes that are no longer needed, or retry later", refused.Message(), goesOn)
	case isRefusal && refused.Code() == connect.CodeDataLoss:
		return sandbox.Wrap(sandbox.CodeUnavailable, err, refused.Message()+", so its state cannot be saved; what it has loaded works, and a program that needs that part is ended: copy its files out, or kill it")
	case isFull(err):
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the server's disk is full; "+goesOn+": delete snapshots or sandboxes and try again")
	}
	return sandbox.Wrap(sandbox.CodeUnavailable, err, "the state of the sandbox could not be saved; "+goesOn+": try again, see the server's log for details")
}

// state is the result of inspect.
type state int

const (
	stateAlive  state = iota // the agent has answered
	stateEnded               // the cell has ended
	stateSilent              // neither within inspectTimeout
)

// inspectTimeout limits the time of inspect. A cell ends much sooner if its gVisor has died.
const inspectTimeout = 5 * time.Second

// inspect waits for an answer of an instance's agent, or for the end of its cell, even if
// ctx has ended.
func (e *Engine) inspect(ctx context.Context, name string) state {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), inspectTimeout)
	defer cancel()
	agent := agentclient.New(name, func(ctx context.Context) (net.Conn, error) {
		return cell.Dial(ctx, e.cellDir(name), cell.AgentSocket)
	})
	defer agent.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := agent.Health(ctx); err == nil {
			return stateAlive
		}
		if !e.alive(name) {
			return stateEnded
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return stateSilent
		}
	}
}

// Checkpoints implements [engine.Checkpointer].
func (e *Engine) Checkpoints(context.Context) ([]engine.Checkpoint, error) {
	whole, broken, err := e.checkpoints.List()
	if err != nil {
		return nil, err
	}
	list := make([]engine.Checkpoint, 0, len(whole)+len(broken))
	for _, m := range whole {
		if !e.isLeaving(m.ID) {
			list = append(list, m.Checkpoint)
		}
	}
	for _, id := range broken {
		list = append(list, engine.Checkpoint{ID: id})
	}
	return list, nil
}

// RemoveCheckpoint implements [engine.Checkpointer].
func (e *Engine) RemoveCheckpoint(ctx context.Context, id string) error {
	if done, err := e.removePartial(ctx, id); done {
		return err
	}
	return e.checkpoints.Remove(id)
}

// programFile is the file name of a checkpoint's program in the directory of a checkpoint
// that was set aside.
const programFile = "program"

// SetAside implements [engine.Checkpointer].
func (e *Engine) SetAside(_ context.Context, id, to string) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("invalid checkpoint id %q", id)
	}
	from := e.checkpoints.Path(id)
	if isPartial(from) {
		return errArriving(nil)
	}
	if m, err := e.checkpoints.Manifest(id); err == nil && m.Program != "" && !m.FilesOnly {
		// The engine removes programs that none of its checkpoints needs. A hard link costs
		// nothing. Without the program, the files can still be read.
		_ = os.Remove(filepath.Join(from, programFile))
		if err := os.Link(filepath.Join(e.programsDir(), m.Program), filepath.Join(from, programFile)); err != nil {
			e.cfg.Log.Warn("keep the program of a checkpoint that is set aside", "checkpoint", id, "error", err)
		}
	}
	return os.Rename(from, to)
}

// BringBack implements [engine.Checkpointer].
func (e *Engine) BringBack(_ context.Context, id, from string) (engine.Checkpoint, error) {
	var none engine.Checkpoint
	if !validID.MatchString(id) {
		return none, fmt.Errorf("invalid checkpoint id %q", id)
	}
	path := e.checkpoints.Path(id)
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE); err != nil {
		return none, fmt.Errorf("bring checkpoint %s back: %w", id, err)
	}
	m, err := e.checkpoints.Manifest(id)
	switch {
	case errors.Is(err, checkpoint.ErrDamaged):
		err = damagedError(err)
	case err == nil:
		err = e.verify(&m, true)
	}
	if err == nil {
		err = e.returnProgram(filepath.Join(path, programFile), m.Program)
	}
	if err == nil {
		err = e.checkpoints.Sync(id)
	}
	if err != nil {
		return none, errors.Join(err, os.Rename(path, from))
	}
	return m.Checkpoint, nil
}

// returnProgram moves back a program that was set aside with a checkpoint, unless the
// program is still there.
func (e *Engine) returnProgram(kept, name string) error {
	if name != "" {
		err := os.Link(kept, filepath.Join(e.programsDir(), name))
		if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("bring the program of a checkpoint back: %w", err)
		}
	}
	if err := os.Remove(kept); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// standbyFor returns the spec of a standby to continue from a checkpoint: it runs the
// program that made the checkpoint.
func (e *Engine) standbyFor(m *checkpoint.Manifest, root engine.Root, r sandbox.Resources) standbySpec {
	agent := m.AgentDir
	if filepath.Base(filepath.Dir(agent)) == "agent" { // its place in this state directory
		agent = filepath.Join(e.cfg.Dir, "agent", filepath.Base(agent))
	}
	return standbySpec{Root: root, Resources: r, Program: m.Program, Cell: m.Cell, AgentDir: agent}
}

// manifest reads the manifest of a checkpoint for a use ("restored" or "read"). The error
// is for callers.
func (e *Engine) manifest(id, use string) (checkpoint.Manifest, error) {
	m, err := e.checkpoints.Manifest(id)
	switch {
	case errors.Is(err, checkpoint.ErrDamaged):
		err = damagedError(err)
	case errors.Is(err, fs.ErrNotExist):
		err = sandbox.Wrap(sandbox.CodeNotFound, err, "the kept state is gone; nothing can be "+use+" from it")
	case machine.Scarce(err):
		err = sandbox.Wrap(sandbox.CodeUnavailable, err, "the server has too little memory or too few file descriptors to look at the kept state now; try again in a moment")
	case err != nil:
		err = sandbox.Wrap(sandbox.CodeUnsupported, err, "this version of cove cannot read the kept state; use the version that kept it, see the server's log for details")
	}
	return m, err
}

// restorable returns the manifest of a checkpoint that can be restored on this machine.
func (e *Engine) restorable(id string, filesOnly bool) (checkpoint.Manifest, error) {
	m, err := e.manifest(id, "restored")
	if err != nil || filesOnly {
		return m, err
	}
	if m.FilesOnly {
		return m, fmt.Errorf("checkpoint %s has no memory", id)
	}
	if missing := m.MissingCPU(e.cpu()); len(missing) > 0 {
		return m, sandbox.Errorf(sandbox.CodeUnsupported, "its memory was kept on a processor that has %s, which this machine's lacks; restart it from its files only (files_only)", strings.Join(missing[:min(5, len(missing))], ", "))
	}
	if err := intact(filepath.Join(e.programsDir(), m.Program)); err != nil {
		return m, sandbox.Wrap(sandbox.CodeUnsupported, err, "the version of cove that kept its memory is gone; restart it from its files only (files_only)")
	}
	return m, nil
}

func damagedError(err error) error {
	return sandbox.Wrap(sandbox.CodeUnavailable, err, "the kept state is damaged on the server's disk and cannot be restored; use another snapshot, see the server's log for details")
}

// restore makes an instance that continues from a checkpoint.
func (e *Engine) restore(ctx context.Context, spec engine.Spec) (*instance, error) {
	m, err := e.restorable(spec.Checkpoint, spec.FilesOnly)
	if err != nil {
		return nil, err
	}
	if spec.FilesOnly {
		return e.restoreFiles(ctx, spec, &m)
	}
	dir := e.checkpoints.Path(m.ID)
	want := e.standbyFor(&m, spec.Root, spec.Resources)
	want.Mounts = spec.Mounts
	warm := want
	warm.Restore = dir
	if sb := e.take(warm); sb != nil { // it was verified before
		return e.finish(ctx, sb, spec, "")
	}
	verified := make(chan error, 1)
	// Other builds may not check pages as they load them. The pages of a fresh sandbox are
	// checked first, since it can boot instead if they are damaged.
	lazily := m.Program == filepath.Base(e.program) && runsc.ChecksAsLoaded(dir) && !spec.Fresh
	if !lazily {
		if err := e.awaitFiles(ctx, m.ID); err != nil {
			return nil, err
		}
	}
	go func() { verified <- e.verify(&m, !lazily) }()
	sb := e.take(want)
	if sb == nil {
		if sb, err = e.startStandby(want); err != nil {
			<-verified
			return nil, err
		}
	}
	if err := <-verified; err != nil {
		e.abandon(sb)
		return nil, err
	}
	return e.finish(ctx, sb, spec, dir)
}

// verify compares the files of a durable checkpoint with their checksums, with or without
// the pages. The error is for callers.
func (e *Engine) verify(m *checkpoint.Manifest, pages bool) error {
	err := e.checkpoints.Verify(m)
	if err == nil && pages {
		err = runsc.CheckPages(e.checkpoints.Path(m.ID))
	}
	if err != nil {
		return damagedError(err)
	}
	return nil
}

// finish is finishStandby. If the standby was made before it was needed and has ended,
// finish repeats it with a new one: a process that was killed a moment ago may still seem
// to be alive.
func (e *Engine) finish(ctx context.Context, sb *standby, spec engine.Spec, from string) (*instance, error) {
	inst, err := e.finishStandby(ctx, sb, spec, from)
	if !sb.ahead || ctx.Err() != nil || !errors.Is(err, errCellEnded) {
		return inst, err
	}
	e.cfg.Log.Warn("a standby ended as it was taken; a new one replaces it", "sandbox", spec.ID, "log", e.logTail(spec.ID))
	e.abandon(sb)
	if sb, err = e.startStandby(sb.spec); err != nil {
		return nil, err
	}
	return e.finishStandby(ctx, sb, spec, from)
}

// finishStandby turns a standby into a sandbox. After an error it abandons the standby,
// unless the standby's directory has already become the sandbox's, which the caller
// destroys.
func (e *Engine) finishStandby(ctx context.Context, sb *standby, spec engine.Spec, from string) (*instance, error) {
	before := sb.dir
	inst, err := e.become(ctx, sb, spec, from)
	if err == nil {
		return inst, nil
	}
	kept := ""
	if spec.Checkpoint != "" {
		kept = e.checkpoints.Path(spec.Checkpoint)
	}
	err = e.explainStart(err, kept) // before abandon frees disk space
	if sb.dir == before {
		e.abandon(sb)
	}
	return nil, err
}

// restoreFiles boots an instance with the files of a checkpoint.
func (e *Engine) restoreFiles(ctx context.Context, spec engine.Spec, m *checkpoint.Manifest) (*instance, error) {
	if err := e.awaitFiles(ctx, m.ID); err != nil {
		return nil, err
	}
	if err := e.verify(m, true); err != nil {
		return nil, err
	}
	want := e.blankSpec(spec.Root, spec.Resources)
	want.Mounts = spec.Mounts
	want.FilesFrom = e.checkpoints.Path(m.ID)
	sb, err := e.startStandby(want)
	if err != nil {
		return nil, err
	}
	return e.finish(ctx, sb, spec, "")
}

// Changes implements [engine.Checkpointer].
func (e *Engine) Changes(ctx context.Context, of engine.Source) (io.ReadCloser, error) {
	if of.Checkpoint != "" {
		return e.keptChanges(ctx, of.Checkpoint)
	}
	// gVisor dies if the disk becomes full while it scans for changes.
	if !e.hasBytes(runsc.ScanBytes) {
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, unix.ENOSPC, "the server's disk is full, so that what was changed cannot be read: delete snapshots or sandboxes and try again")
	}
	i, err := e.Open(ctx, of.Instance)
	if err != nil {
		return nil, err
	}
	conn, err := cell.Dial(ctx, i.(*instance).dir, cell.ChangesSocket)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return &changes{ReadCloser: conn, release: func() { stop() }}, nil
}

// keptChanges returns the changes stored in a checkpoint.
func (e *Engine) keptChanges(ctx context.Context, id string) (io.ReadCloser, error) {
	m, err := e.manifest(id, "read")
	if err != nil {
		return nil, err
	}
	if err := e.awaitFiles(ctx, id); err != nil {
		return nil, err
	}
	if err := e.verify(&m, true); err != nil {
		return nil, err
	}
	r, err := runsc.Changes(e.checkpoints.Path(id), e.standbyDir(), m.Resources.DiskMiB<<20)
	if err != nil {
		return nil, damagedError(err)
	}
	return r, nil
}

// awaitFiles waits until all files of a checkpoint are complete, which others read that do
// not ask the cell that writes it, or who fetches it. The error is for callers.
func (e *Engine) awaitFiles(ctx context.Context, id string) error {
	err := cell.AwaitWritten(ctx, e.checkpoints.Path(id))
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, runsc.ErrUnfetched):
		return damagedError(err)
	case isPartial(e.checkpoints.Path(id)):
		return errArriving(err)
	case errors.Is(err, runsc.ErrUnwritten):
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the files as of the fork are lost: the sandbox that was forked ended before they were written, or there was no disk space for them")
	}
	return err
}

// errArriving means that a checkpoint is not complete yet.
func errArriving(cause error) error {
	return sandbox.Wrap(sandbox.CodeUnavailable, cause, "the kept state is still being fetched from the object store; try again in a while")
}

// changes is a tar stream that must have the format's end: a connection that breaks
// between two files must not be mistaken for a complete stream.
type changes struct {
	io.ReadCloser
	release func()
	zeros   int // zero bytes at the end of the data read so far, if fewer than endBytes
}

// endBytes is the number of zero bytes that end a tar stream.
const endBytes = 1024

func (c *changes) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	tail := p[max(0, n-endBytes):n]
	zeros := len(tail) - len(bytes.TrimRight(tail, "\x00"))
	if zeros == len(tail) {
		zeros += c.zeros
	}
	c.zeros = min(zeros, endBytes)
	if errors.Is(err, io.EOF) && c.zeros < endBytes {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (c *changes) Close() error {
	c.release()
	return c.ReadCloser.Close()
}

// keepProgram copies the program that made a checkpoint if it is a hard link to the file
// that the user started: an upgrade that writes to that file would change it.
func (e *Engine) keepProgram(name string) {
	path := filepath.Join(e.programsDir(), name)
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil || st.Nlink == 1 || !isUsers(name, &st) || intact(path) != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.copying[name] || e.ctx.Err() != nil {
		return
	}
	e.copying[name] = true
	e.wg.Go(func() {
		if err := copyProgram(path); err != nil {
			e.cfg.Log.Error("keep the program that made a checkpoint", "error", err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.copying, name)
	})
}

func copyProgram(path string) error {
	src, err := os.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	return copyTo(path, src)
}
