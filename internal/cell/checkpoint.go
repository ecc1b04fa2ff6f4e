package cell

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/wire/cellv1"
)

// FilesTar is the name of the file that holds a checkpoint's changed files.
const FilesTar = "files.tar"

// errEnding says that there is no state to be read any more.
var errEnding = connect.NewError(connect.CodeFailedPrecondition, errors.New("the sandbox is ending"))

// Checkpoint implements the Cell protocol.
func (c *cell) Checkpoint(ctx context.Context, req *connect.Request[cellv1.CheckpointRequest], stream *connect.ServerStream[cellv1.CheckpointEvent]) error {
	release, err := c.exclusively(ctx)
	if err != nil {
		return err
	}
	defer release()
	began := time.Now()
	if req.Msg.Hold || req.Msg.FilesOnly {
		if err := c.sb.Pause(); err != nil {
			return err
		}
	}
	err = c.save(req.Msg)
	if req.Msg.Hold && err == nil {
		err = stream.Send(&cellv1.CheckpointEvent{StoppedNanos: int64(time.Since(began))})
		if err == nil {
			c.log.Info("sandbox is held", "saved in", time.Since(began))
			select {
			case <-ctx.Done():
			case <-c.ended:
			case <-c.gone:
			}
		}
	}
	if req.Msg.Hold || req.Msg.FilesOnly {
		err = errors.Join(err, c.letGo())
	}
	if err != nil {
		c.log.Warn("checkpoint", "err", err)
		return err
	}
	if !req.Msg.Hold {
		return stream.Send(&cellv1.CheckpointEvent{StoppedNanos: int64(time.Since(began))})
	}
	return nil
}

// save writes what a checkpoint holds.
func (c *cell) save(req *cellv1.CheckpointRequest) error {
	if !req.FilesOnly {
		return c.sb.Checkpoint(req.Dir)
	}
	f, err := os.OpenFile(filepath.Join(req.Dir, FilesTar), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(c.sb.WriteChanges(f), f.Close())
}

// exclusively waits until nobody else reads the sandbox's state.
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

// letGo lets a sandbox that stands still go on, unless it is ending.
func (c *cell) letGo() error {
	c.mu.Lock()
	ending := c.status.Phase != cellv1.Phase_PHASE_RUNNING
	c.mu.Unlock()
	if ending {
		return nil
	}
	err := c.sb.Resume()
	select {
	case <-c.ended:
		return nil // its end is reported otherwise
	default:
		return err
	}
}

// tellChanges answers each connection to the socket with what the sandbox has
// changed. The sandbox stands still meanwhile, so that the answer is of one
// instant.
func (c *cell) tellChanges(l net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer conn.Close()
			if err := c.writeChanges(conn); err != nil {
				c.log.Warn("tell changes", "err", err)
			}
		})
	}
}

func (c *cell) writeChanges(conn net.Conn) error {
	release, err := c.exclusively(context.Background())
	if err != nil {
		return err
	}
	defer release()
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("unexpected connection %T", conn)
	}
	// gVisor writes to the socket itself.
	f, err := uc.File()
	if err != nil {
		return err
	}
	defer f.Close()
	if err := c.sb.Pause(); err != nil {
		return err
	}
	return errors.Join(c.sb.WriteChanges(f), c.letGo())
}
