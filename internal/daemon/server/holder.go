package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/sandbox"
)

// Running is the daemon of a state directory.
type Running struct {
	PID int
	// OnDemand says that a client has started it, and not a person or the
	// machine's service manager.
	OnDemand bool
}

// FindRunning returns the daemon that has the state directory dir, or nil if none
// runs.
func FindRunning(dir string) (*Running, error) {
	f, err := os.Open(filepath.Join(dir, "serve.lock"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	free, err := tryLock(f)
	if err != nil || free {
		return nil, err
	}
	h, known := holderOf(f)
	if !known {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "a daemon is starting or stopping; try again")
	}
	return &Running{PID: h.pid, OnDemand: h.onDemand}, nil
}

// Stop tells the daemon of dir to end, as SIGTERM does, and waits until it has.
// Sandboxes live on. It returns the daemon, or nil if none ran.
func Stop(ctx context.Context, dir string) (*Running, error) {
	r, err := FindRunning(dir)
	if err != nil || r == nil {
		return nil, err
	}
	// Whoever owns the lock's file says which process that is.
	if err := checkStateDir(dir); err != nil {
		return nil, err
	}
	if err := unix.Kill(r.PID, unix.SIGTERM); err != nil {
		return nil, sandbox.Wrap(sandbox.CodeForbidden, err, "the daemon cannot be told to stop by this user; stop it as the user who runs it")
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		now, err := FindRunning(dir)
		if err == nil && (now == nil || now.PID != r.PID) {
			return r, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, sandbox.Errorf(sandbox.CodeTimeout, "the daemon (process %d) was told to stop and is still finishing calls; try again, or end it with: kill -9 %d", r.PID, r.PID)
		}
	}
}
