// Package cell is the supervisor of one sandbox: a process that starts gVisor, carries
// all of the sandbox's network traffic, relays to the agent in the sandbox, and cleans
// up.
//
// A cell is started in new mount, process-id, IPC and host name namespaces (and, for an
// ordinary user, a user namespace), and is process 1 there. However it ends, the kernel
// ends all of the sandbox's processes, mounts and links with it. A cell does not need the
// daemon, which may restart at any time.
//
// The cell is in the host's network namespace. gVisor's processes are in network
// namespaces that the cell makes, so the sandbox reaches the network only through the
// cell.
package cell

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/netstack"
	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/machine/procfs"
)

// lockTimeout is how long the cell waits for another process to finish testing its lock.
const lockTimeout = 2 * time.Second

const maxFiles = 65536

// cell is one sandbox with its processes, network and sockets.
type cell struct {
	standby Standby
	spec    Spec
	ctx     context.Context // ends when the machine shuts down
	log     *slog.Logger
	// setUpErr is the error of setting up the process, or nil.
	setUpErr error
	link     *link
	net      *netstack.Stack
	agent    agentClient
	sb       *runsc.Sandbox
	// userNS is the user namespace of gVisor's processes, or nil.
	userNS *userNS
	// gate receives the values of secrets.
	gate    *gateway
	secrets net.Listener
	// cpus are the processors that the cell may use when it starts.
	cpus []int
	// fromAgent and toAgent count the bytes exchanged with the agent.
	fromAgent, toAgent atomic.Uint64
	// unloaded is how much memory of a restored sandbox is not loaded yet, in bytes.
	unloaded atomic.Int64
	// trusted reports whether the sandbox has been told to trust its gateway.
	trusted atomic.Bool
	// configured reports whether the agent has answered and therefore listens.
	configured atomic.Bool
	// running reports whether the sandbox was already restored when the standby was
	// prepared.
	running bool
	// taken is set by whichever comes first: the call that starts the standby, or the loss
	// of the engine's connection, which ends it.
	taken atomic.Bool
	// fence stops the sandbox while its lease has run out.
	fence fence
	// begun receives nil when the sandbox runs, or the error if it cannot be started. Its
	// capacity is one.
	begun  chan error
	unlock func()
	http   *http.Server
	// sockets are the cell's listeners, and wg counts the goroutines that serve them.
	sockets []net.Listener
	wg      sync.WaitGroup

	// saving is a semaphore of one, held while the sandbox is stopped to read its state.
	saving chan struct{}
	// writing is a semaphore of maxWriting, held until a checkpoint is completely written: all
	// of it, or one if others can be written at the same time. It is acquired before saving.
	writing *semaphore.Weighted
	// unwritten is how much the checkpoints being written lack, in bytes.
	unwritten atomic.Int64
	// answers are the connections of other cells to which a checkpoint's memory is sent.
	answers sync.WaitGroup
	// needed counts the checkpoints being written from which others continue.
	needed atomic.Int64
	// memoryLimit is how many bytes the programs of the sandbox may use, or 0.
	memoryLimit atomic.Int64

	mu     sync.Mutex
	status Status // guarded by mu; its slice is never modified in place
	// changed is closed and replaced when status changes. Guarded by mu.
	changed chan struct{}
	// watching is how many callers watch the status and have not received the latest one.
	// Guarded by mu.
	watching int

	stop chan string // the reason of a Stop call; capacity 1
	gone chan struct{}

	// ended is closed when gVisor has ended; why is set before that.
	ended chan struct{}
	why   string
}

func newCell(ctx context.Context) *cell {
	c := &cell{
		ctx: ctx, log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		status:  Status{Phase: PhaseStarting},
		changed: make(chan struct{}),
		begun:   make(chan error, 1),
		saving:  make(chan struct{}, 1),
		writing: semaphore.NewWeighted(maxWriting),
		stop:    make(chan string, 1),
		gone:    make(chan struct{}),
		ended:   make(chan struct{}),
	}
	c.fence.now = BootTime
	c.fence.stop, c.fence.goOn = func() error { return c.sb.Stop() }, func() error { return c.sb.GoOn() }
	c.agent = c.newAgentClient()
	c.http = &http.Server{Handler: c.control()}
	return c
}

// Main runs the cell's process. It prepares what is the same for every sandbox, then
// serves the control protocol on file descriptor 3. It returns the exit code when the
// sandbox has ended and is cleaned up. Cells are started before they are needed: a cell
// that is not a sandbox yet ends when that connection ends.
func Main(ctx context.Context) int {
	f := os.NewFile(3, "engine")
	engine, err := net.FileConn(f)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cove: a cell is started by the daemon, not by hand")
		return 2
	}
	f.Close()
	// A core file of gVisor would contain the sandbox's memory and could fill the disk.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	// This process will hold the values of secrets; no other process may read its
	// memory.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	c := newCell(ctx)
	c.setUpErr = c.setUpProcess()
	lost := make(chan struct{})
	c.http.ConnState = func(conn net.Conn, s http.ConnState) {
		if conn == engine && s == http.StateClosed {
			close(lost)
		}
	}
	l := make(inherited, 1)
	l <- engine
	go c.http.Serve(l) //nolint:errcheck // it ends with the process
	return c.supervise(lost)
}

// logTo makes a file the standard error of this process.
func logTo(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Dup3(int(f.Fd()), unix.Stderr, 0)
}

// setUpProcess sets up what does not depend on the sandbox: the cell's mounts and the
// network.
func (c *cell) setUpProcess() error {
	if err := setUpMounts(); err != nil {
		return err
	}
	var err error
	if c.link, err = setUpLink(); err != nil {
		return err
	}
	if c.net, err = netstack.New(netstack.Config{FD: c.link.fd, LinkAddr: c.link.addr}); err != nil {
		return err
	}
	c.cpus, err = allowedCPUs()
	return err
}

// supervise waits until the sandbox runs and then until it ends, tears it down, and
// returns the exit code. lost is closed when the connection to the engine ends.
func (c *cell) supervise(lost <-chan struct{}) int {
	var err error
	select {
	case err = <-c.begun:
	case <-lost:
		if c.taken.CompareAndSwap(false, true) {
			return 0
		}
		err = <-c.begun
	}
	if err != nil {
		c.closeSockets()
		return 1
	}
	phase, reason := c.waitForEnd()
	c.setPhase(PhaseStopping, reason)
	c.destroy()
	c.setPhase(phase, reason)
	close(c.gone)
	c.awaitWritten()
	c.closeSockets()
	c.unlock()
	return 0
}

// begin turns the standby into the sandbox of the specification and serves it.
func (c *cell) begin(send func(*Status) error) (err error) {
	if c.unlock, err = c.lock(); err != nil {
		return err
	}
	if err := c.openGateway(send); err != nil {
		return err
	}
	if err := c.start(); err != nil {
		return err
	}
	if err := c.serve(); err != nil {
		return err
	}
	c.setPhase(PhaseRunning, "")
	return nil
}

// lock acquires the lock that shows that this cell is alive.
func (c *cell) lock() (func(), error) {
	f, err := os.OpenFile(filepath.Join(c.spec.Dir, LockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// A process that tests whether the cell is alive also holds the lock for a moment.
	for end := time.Now().Add(lockTimeout); ; time.Sleep(time.Millisecond) {
		late := time.Now().After(end)
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if late || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("another cell runs in %s: %w", c.spec.Dir, err)
		}
	}
}

// captureOutput sets this process's standard streams, which the sandbox's first process
// inherits: an empty input, and a pipe into the cell's log. It uses a pipe because gVisor
// would write to a regular file at an offset of its own. Call end to restore the output.
func (c *cell) captureOutput() (end func(), err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	log := os.Stderr
	os.Stdin, os.Stdout, os.Stderr = null, w, w
	go func() {
		defer r.Close()
		copyBounded(log, r, maxOutputLog)
	}()
	return func() {
		os.Stdout, os.Stderr = log, log
		w.Close()
		null.Close()
	}, nil
}

// watchForEnd waits until gVisor has ended, and records why.
func (c *cell) watchForEnd() {
	ws, err := c.sb.Wait()
	switch {
	case errors.Is(c.sb.Damage(), runsc.ErrUnwritten):
		c.log.Error("the parent did not write the checkpoint", "error", c.sb.Damage())
		c.why = c.sb.Damage().Error()
	case errors.Is(c.sb.Damage(), runsc.ErrUnfetched):
		c.log.Error("the rest of the checkpoint is lost", "error", c.sb.Damage())
		c.why = c.sb.Damage().Error()
	case c.sb.Damage() != nil:
		c.log.Error("the checkpoint is damaged", "error", c.sb.Damage())
		c.why = "the kept state that it went on from is damaged on the server's disk; use another snapshot"
	case err != nil:
		c.why = "gVisor ended unexpectedly"
	case ws.Signaled():
		// gVisor's own death is reported like this too.
		c.why = fmt.Sprintf("gVisor, or the sandbox's first process, was ended by signal %d", ws.Signal())
	default:
		c.why = fmt.Sprintf("the sandbox's first process ended with exit code %d", ws.ExitStatus())
	}
	close(c.ended)
}

// watchGofer ends gVisor when its gofer has ended. A restored gVisor does not notice
// that, and would wait for files forever.
func (c *cell) watchGofer() {
	sentry, gofer := c.sb.PIDs()
	fd, err := unix.PidfdOpen(gofer, 0)
	if err != nil {
		c.log.Warn("watch the gofer", "error", err)
		return
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			c.log.Warn("watch the gofer", "error", err)
			return
		}
	}
	select {
	case <-c.ended:
	default:
		_ = unix.Kill(sentry, unix.SIGKILL)
	}
}

// waitForEnd waits until the sandbox is told to end, or ends by itself.
func (c *cell) waitForEnd() (Phase, string) {
	select {
	case reason := <-c.stop:
		return PhaseStopped, reason
	case <-c.ctx.Done():
		return PhaseFailed, "the machine shut down"
	case <-c.ended:
		return PhaseFailed, c.why
	}
}

// destroy ends gVisor and the outgoing connections. Everything else ends with the cell's
// process and namespaces. Callers need not wait while gVisor frees its memory and the
// kernel closes the link, which takes most of the time.
func (c *cell) destroy() {
	if c.sb != nil {
		c.sb.Kill()
	}
	if c.secrets != nil {
		c.secrets.Close()
	}
	if c.gate != nil {
		c.gate.close()
	}
	if c.net != nil {
		c.net.Close()
	}
}

// preferInOOM makes the kernel kill gVisor before the cell when memory runs out, so that
// the cell can report what happened.
func (c *cell) preferInOOM() {
	sentry, gofer := c.sb.PIDs()
	for _, pid := range []int{sentry, gofer} {
		if dir, err := procfs.Dir(pid); err == nil {
			_ = os.WriteFile(filepath.Join(dir, "oom_score_adj"), []byte("800"), 0)
		}
	}
}
