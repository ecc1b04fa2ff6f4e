package cell

import (
	"context"
	"errors"
	"net"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/cell/runsc"
)

// errEnding means that the sandbox is ending and has no state left to read.
var errEnding = connect.NewError(connect.CodeFailedPrecondition, errors.New("the sandbox is ending"))

func (c *cell) checkpoint(ctx context.Context, req *CheckpointRequest, send func(*checkpointWritten) error) error {
	written, err := c.beginWriting(ctx, req)
	if err != nil {
		return err
	}
	defer written()
	stopped, left, err := c.stopAndSave(ctx, req, send)
	if err != nil || req.Hold {
		return err
	}
	if left == nil {
		return send(&checkpointWritten{StoppedNanos: int64(stopped)})
	}
	c.unwritten.Add(left.Bytes())
	defer c.unwritten.Add(-left.Bytes())
	notify := func() { _ = send(&checkpointWritten{StoppedNanos: int64(stopped), More: true}) }
	if req.Early {
		err = c.writeForOthers(req.Dir, left, notify)
	} else {
		notify()
		err = c.writeWhileWanted(ctx, left)
	}
	if err != nil {
		c.log.Warn("checkpoint", "error", err)
		return err
	}
	return send(&checkpointWritten{StoppedNanos: int64(stopped)})
}

// stopAndSave stops the sandbox and saves its state, except for what the result
// describes, if any. With req.Hold it returns when the caller has gone.
func (c *cell) stopAndSave(ctx context.Context, req *CheckpointRequest, send func(*checkpointWritten) error) (stopped time.Duration, left *runsc.Deferred, err error) {
	release, err := c.exclusively(ctx)
	if err != nil {
		return 0, nil, err
	}
	defer release()
	if err := c.prepare(ctx, req); err != nil {
		return 0, nil, err
	}
	began := time.Now()
	if err := c.sb.Pause(); err != nil {
		return 0, nil, err
	}
	left, err = c.save(req)
	if req.Hold && err == nil {
		err = send(&checkpointWritten{StoppedNanos: int64(time.Since(began))})
		if err == nil {
			c.log.Info("sandbox is held", "saved_in", time.Since(began))
			select {
			case <-ctx.Done():
			case <-c.ended:
			case <-c.gone:
			}
		}
	}
	if err := errors.Join(err, c.resume()); err != nil {
		c.log.Warn("checkpoint", "error", err)
		if left != nil {
			err = errors.Join(err, left.Close())
		}
		return 0, nil, err
	}
	return time.Since(began), left, nil
}

// prepare does what a checkpoint needs before the sandbox is stopped.
func (c *cell) prepare(ctx context.Context, req *CheckpointRequest) error {
	if err := c.loadAll(ctx, req.FilesOnly); err != nil {
		return err
	}
	if err := c.roomToSave(req.Dir); err != nil {
		return err
	}
	if req.FilesOnly {
		return nil
	}
	return errors.Join(c.sb.Settle(req.Dir), c.sb.PrepareCheckpoint())
}

// roomToSave refuses a checkpoint that would fill the disk that gVisor uses.
func (c *cell) roomToSave(dir string) error {
	st, err := c.memoryStats()
	if err != nil {
		return err
	}
	err = c.sb.RoomToSave(dir, st.MemoryBytes)
	if _, ok := errors.AsType[*runsc.RoomError](err); ok {
		return connect.NewError(connect.CodeResourceExhausted, err)
	}
	return err
}

// save writes the files of a checkpoint, except for what the result describes, if any. The
// sandbox is paused, so files and memory are from the same instant.
func (c *cell) save(req *CheckpointRequest) (*runsc.Deferred, error) {
	if req.FilesOnly {
		return nil, c.sb.SaveFiles(req.Dir)
	}
	began := time.Now()
	// Save the tree first: gVisor collects garbage after a checkpoint.
	if err := c.sb.SaveTree(req.Dir); err != nil {
		return nil, err
	}
	treeSaved := time.Now()
	var later runsc.CopyRoom
	if req.GoOn && !req.Hold {
		later = c.roomToCopy(req.Dir)
	}
	left, err := c.sb.CheckpointEarly(req.Dir, later)
	c.log.Info("checkpoint", "tree", treeSaved.Sub(began), "state", time.Since(treeSaved), "room_to_copy", later.Memory, "disk_to_copy", later.Disk)
	return left, err
}

// exclusively waits until nothing else reads the sandbox's state. The caller calls the
// returned function when done.
func (c *cell) exclusively(ctx context.Context) (func(), error) { return c.acquire(ctx, c.saving) }

// acquire acquires a semaphore of one. The caller calls the returned function to release
// it.
func (c *cell) acquire(ctx context.Context, semaphore chan struct{}) (func(), error) {
	select {
	case semaphore <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.gone:
		return nil, errEnding
	}
	return func() { <-semaphore }, nil
}

// resume continues a paused sandbox, unless it is ending.
func (c *cell) resume() error {
	c.mu.Lock()
	ending := c.status.Phase != PhaseRunning
	c.mu.Unlock()
	if ending {
		return nil
	}
	err := c.sb.Resume()
	select {
	case <-c.ended:
		return nil // its end is reported elsewhere
	default:
		return err
	}
}

// serveChanges writes the files that the sandbox has changed to a connection. The sandbox
// is paused meanwhile, so the stream shows one instant.
func (c *cell) serveChanges(conn net.Conn) {
	if err := c.writeChanges(conn); err != nil {
		c.log.Warn("write changes", "error", err)
	}
}

func (c *cell) writeChanges(conn net.Conn) error {
	release, err := c.exclusively(context.Background())
	if err != nil {
		return err
	}
	defer release()
	if err := c.loadAll(c.ctx, true); err != nil {
		return err
	}
	if err := c.sb.Pause(); err != nil {
		return err
	}
	return errors.Join(c.sb.WriteChanges(conn), c.resume())
}
