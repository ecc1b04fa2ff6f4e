package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// startTime bounds how long a daemon may take to answer after its start.
	startTime = 60 * time.Second
	// pollTime is how often to try to connect meanwhile.
	pollTime = 5 * time.Millisecond
	// maxDaemonLog is the size, in bytes, at which the log is rotated.
	maxDaemonLog = 8 << 20
	// logTail is how much of the log a failed start shows, in bytes.
	logTail = 2 << 10
)

// daemon is the local daemon as its clients see it: a socket that answers, or a daemon
// that can be started.
type daemon struct {
	stateDir string
	socket   string
	env      func(string) string
}

// dial connects to the daemon and starts it first if it does not run.
func (d *daemon) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := d.connect(ctx)
	if err == nil || !absent(err) {
		return conn, err
	}
	return d.start(ctx)
}

// connect connects to a running daemon.
func (d *daemon) connect(ctx context.Context) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", d.socket)
	if err != nil {
		return nil, err
	}
	if err := server.CheckServer(conn, d.socket); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// absent reports whether an error of connect says that no daemon runs.
func absent(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
}

// start starts the daemon, unless another process has done so meanwhile, and returns the
// first connection: an idle daemon could end before a second one. A lock on a file
// excludes concurrent starts.
func (d *daemon) start(ctx context.Context) (net.Conn, error) {
	if err := server.PrepareStateDir(d.stateDir); err != nil {
		return nil, err
	}
	lock, err := lockFile(ctx, filepath.Join(d.stateDir, "start.lock"))
	if err != nil {
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("cannot start the local daemon (%v); check the permissions of %s", err, d.stateDir))
	}
	defer lock.Close()
	if conn, err := d.connect(ctx); err == nil {
		return conn, nil
	}
	return d.spawn(ctx)
}

// lockFile waits for an exclusive lock, which closing the file releases.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(pollTime)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// spawn starts the daemon in a session of its own, so that it outlives this
// process and its terminal, and connects to it.
//
// Preconditions: the start lock is held.
func (d *daemon) spawn(ctx context.Context) (net.Conn, error) {
	logPath := filepath.Join(d.stateDir, "serve.log")
	log, err := openLog(logPath)
	if err != nil {
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("cannot start the local daemon (%v); check the permissions of %s", err, d.stateDir))
	}
	defer log.Close()
	before, err := log.Seek(0, 2)
	if err != nil {
		return nil, err
	}
	cmd, err := detachedCommand("serve", "--on-demand", "--state-dir", d.stateDir, "--socket", d.socket)
	if err != nil {
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, "cannot start the local daemon: the executable of this program was not found; start the daemon with: cove serve")
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("cannot start the local daemon (%v); start it with: cove serve", err))
	}
	ended := make(chan error, 1)
	// The daemon usually outlives this program. If it ends first, this goroutine reaps
	// it.
	go func() { ended <- cmd.Wait() }()
	return d.await(ctx, ended, logPath, before)
}

// detachedCommand returns a command that runs this program with other arguments, in a
// session of its own, so that it outlives this process and its terminal. Its environment
// has no settings for clients.
func detachedCommand(args ...string) (*exec.Cmd, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(executable, args...)
	// The program's role can depend on the name by which it is called.
	cmd.Args[0] = os.Args[0]
	cmd.Env = withoutSecrets(os.Environ())
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, nil
}

// await connects to the daemon as soon as it listens, and fails if the daemon ends or is
// too slow.
func (d *daemon) await(ctx context.Context, ended <-chan error, logPath string, before int64) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(pollTime)
	defer tick.Stop()
	for {
		if conn, err := d.connect(ctx); err == nil {
			return conn, nil
		}
		select {
		case <-tick.C:
		case err := <-ended:
			return nil, d.notStarted(fmt.Sprintf("the local daemon exited during startup (%v)", err), logPath, before)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, d.notStarted("the local daemon does not answer after its start", logPath, before)
			}
			return nil, ctx.Err()
		}
	}
}

func (d *daemon) notStarted(what, logPath string, before int64) error {
	message := what + "; see its log, " + logPath
	if tail := readTail(logPath, before); tail != "" {
		message += ", which ends:\n" + tail
	}
	return sandbox.Errorf(sandbox.CodeUnavailable, "%s", message)
}

func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxDaemonLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// readTail returns the end of what was written to a log after an offset.
func readTail(path string, after int64) string {
	data, err := os.ReadFile(path)
	if err != nil || int64(len(data)) <= after {
		return ""
	}
	data = bytes.TrimSpace(data[after:])
	if len(data) > logTail {
		data = data[len(data)-logTail:]
		if _, rest, ok := bytes.Cut(data, []byte("\n")); ok {
			data = rest
		}
	}
	return string(data)
}

// withoutSecrets removes from an environment the variables that are for clients only.
func withoutSecrets(environ []string) []string {
	var kept []string
	for _, pair := range environ {
		if strings.HasPrefix(pair, "COVE_API_KEY=") || strings.HasPrefix(pair, "COVE_URL=") || strings.HasPrefix(pair, "COVE_NAMESPACE=") {
			continue
		}
		kept = append(kept, pair)
	}
	return kept
}
