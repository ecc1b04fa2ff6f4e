package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/sandbox"
)

// lockPoll is how often a lock that another daemon holds is tried.
const lockPoll = 20 * time.Millisecond

// lockState makes this process the only daemon of a state directory until the
// result is called. The kernel gives the lock back when the process dies.
func lockState(ctx context.Context, dir string, wait time.Duration) (unlock func() error, err error) {
	path := filepath.Join(dir, "serve.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock the state directory: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			holder := holderOf(f)
			f.Close()
			return nil, sandbox.Errorf(sandbox.CodeConflict, "another daemon%s uses the state directory %s; stop it, or choose another directory with --state-dir", holder, dir)
		}
	}
	// Who holds it is only for people: what counts is the lock.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f.Close, nil
}

func holderOf(f *os.File) string {
	buf := make([]byte, 32)
	n, _ := f.ReadAt(buf, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (process %d)", pid)
}
