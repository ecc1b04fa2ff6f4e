package cell

import (
	"context"
	"errors"
	"net"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/cell/runsc"
)

// errEnding says that there is no state to read any more.
var errEnding = connect.NewError(connect.CodeFailedPrecondition, errors.New("the sandbox is ending"))

func (c *cell) checkpoint(ctx context.Context, req *CheckpointRequest, send func(*checkpointWritten) error) error {
	release, err := c.exclusively(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := c.loadAll(ctx, req.FilesOnly); err != nil {
		return err
	}
	if err := c.roomToSave(req.Dir); err != nil {
		return err
	}
	if !req.FilesOnly {
		if err := c.sb.Settle(req.Dir); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := c.sb.Pause(); err != nil {
		return err
	}
	err = c.save(req)
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
		return err
	}
	if !req.Hold {
		return send(&checkpointWritten{StoppedNanos: int64(time.Since(began))})
	}
	return nil
}

// roomToSave refuses a checkpoint that would fill the disk under gVisor.
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

// save writes the files of a checkpoint. The sandbox is paused, so that files and memory
// are of one instant.
func (c *cell) save(req *CheckpointRequest) error {
	if req.FilesOnly {
		return c.sb.SaveFiles(req.Dir)
	}
	began := time.Now()
	// The tree comes first, since gVisor collects garbage after a checkpoint.
	if err := c.sb.SaveTree(req.Dir); err != nil {
		return err
	}
	treeSaved := time.Now()
	err := c.sb.Checkpoint(req.Dir)
	c.log.Info("checkpoint", "tree", treeSaved.Sub(began), "state", time.Since(treeSaved))
	return err
}

// exclusively waits until nobody else reads the sandbox's state. The caller calls the
// result when it is done.
func (c *cell) exclusively(ctx context.Context) (func(), error) {
	select {
	case c.saving <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.gone:
		return nil, errEnding
	}
	return func() { <-c.saving }, nil
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
// is paused meanwhile, so that the stream is of one instant.
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
