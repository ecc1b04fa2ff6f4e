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

// takeOverWait bounds how long a daemon that was started on demand may take to
// make room; it finishes the calls it is in.
const takeOverWait = 30 * time.Second

// lastBreathWait bounds how long the lock of a daemon that was killed may be
// held by what it was just starting.
const lastBreathWait = 5 * time.Second

// holder is the daemon that has the lock, as it says of itself in the file.
type holder struct {
	pid      int
	onDemand bool
}

// lockState makes this process the only daemon of a state directory until the
// result is called. The kernel gives the lock back when the process dies. A
// daemon that somebody starts takes over from one that was started on demand:
// sandboxes live on.
func lockState(ctx context.Context, dir string, wait time.Duration, onDemand bool) (unlock func() error, err error) {
	path := filepath.Join(dir, "serve.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state directory: %w", err)
	}
	ok, err := tryLock(f)
	if err == nil && !ok {
		h, known := holderOf(f)
		switch {
		case known && errors.Is(unix.Kill(h.pid, 0), unix.ESRCH):
			// It was killed. A process that it was about to start has the lock
			// until that one executes its program.
			wait = max(wait, lastBreathWait)
		case known && h.onDemand && !onDemand:
			wait = takeOverWait
			_ = unix.Kill(h.pid, unix.SIGTERM)
		}
		err = waitForLock(ctx, f, wait, dir)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	// Who holds it is what others may read; what counts is the lock.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(holder{pid: os.Getpid(), onDemand: onDemand}.String()), 0)
	}
	return f.Close, nil
}

func waitForLock(ctx context.Context, f *os.File, wait time.Duration, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		if ok, err := tryLock(f); err != nil || ok {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			who := ""
			if h, known := holderOf(f); known {
				who = fmt.Sprintf(" (process %d)", h.pid)
			}
			return sandbox.Errorf(sandbox.CodeConflict, "another daemon%s uses the state directory %s; stop it, or choose another directory with --state-dir", who, dir)
		}
	}
}

func tryLock(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, unix.EINTR):
		return false, nil
	}
	return false, fmt.Errorf("lock the state directory: %w", err)
}

// String is what the lock's file holds.
func (h holder) String() string {
	if h.onDemand {
		return strconv.Itoa(h.pid) + " on-demand\n"
	}
	return strconv.Itoa(h.pid) + "\n"
}

func holderOf(f *os.File) (holder, bool) {
	buf := make([]byte, 64)
	n, _ := f.ReadAt(buf, 0)
	fields := strings.Fields(string(buf[:n]))
	if len(fields) == 0 {
		return holder{}, false
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil || pid <= 1 {
		return holder{}, false
	}
	return holder{pid: pid, onDemand: len(fields) > 1 && fields[1] == "on-demand"}, true
}
