// Package cell is the supervisor of one sandbox: a process of its own that
// starts gVisor, is the sandbox's whole network, relays to the agent inside
// and cleans up.
//
// A cell is started in new mount, process-id, IPC and host name namespaces (and,
// for an ordinary user, a user namespace) in which it is process 1: whatever way
// it ends, the kernel ends all of the sandbox's processes, mounts and links with
// it. It does not need the daemon, which may come and go.
//
// Its network namespace is the host's: what the sandbox may reach, it reaches
// through the cell. gVisor's processes are in others, which the cell makes.
package cell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/netstack"
	"github.com/cove-sh/cove/internal/runsc"
	"github.com/cove-sh/cove/internal/wire/agentv1"
	"github.com/cove-sh/cove/internal/wire/cellv1"
)

// AgentPort is where the agent listens inside.
const AgentPort = 7007

// agentTimeout bounds the wait for the agent's first answer.
const agentTimeout = 20 * time.Second

// lockTimeout bounds the wait for who asks whether the cell lives.
const lockTimeout = 2 * time.Second

const maxFiles = 65536

// cell is one sandbox and what it is made of.
type cell struct {
	shell Shell
	spec  Spec
	log   *slog.Logger
	link  *link
	net   *netstack.Stack
	sb    *runsc.Sandbox
	// userNS is the user namespace of gVisor's processes, or nil.
	userNS *userNS
	// gate hears of values on secrets.
	gate    *gateway
	secrets net.Listener
	// cpus are the processors that the cell was allowed at its start.
	cpus []int
	// fromAgent and toAgent count the bytes of the conversation with the agent.
	fromAgent, toAgent atomic.Uint64
	// trusted says that the sandbox was told to trust its gateway.
	trusted atomic.Bool
	// running says that the shell has restored the sandbox ahead.
	running bool

	// saving is held by whoever stops the sandbox to read its state; it has
	// room for one.
	saving chan struct{}

	mu     sync.Mutex
	status *cellv1.Status // guarded by mu
	// changed is closed and replaced when status changes. Guarded by mu.
	changed chan struct{}
	// watching is how many watch the status and have not been told the last one.
	// Guarded by mu.
	watching int

	stop chan string // the reason of a Stop call; capacity 1
	gone chan struct{}

	// ended is closed when gVisor has ended; why is set before that.
	ended chan struct{}
	why   string
}

// Main is the cell's process. It prepares what is the same for every sandbox,
// reads a [Shell] from standard input and makes it, reads its [Spec], says
// [Ready] on file descriptor 3, and returns the exit code when the sandbox has
// ended and is cleaned up. Standard input that ends too early ends the cell:
// the daemon starts cells ahead of need.
func Main(ctx context.Context) int {
	ready := os.NewFile(3, "ready")
	if ready == nil {
		fmt.Fprintln(os.Stderr, "cove: a cell is started by the daemon, not by hand")
		return 2
	}
	unix.CloseOnExec(3)
	// A core file of gVisor's would hold the sandbox's memory and fill the disk.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	// This process will hold the values of secrets; none other may look.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	say := func(r Ready) { _ = json.NewEncoder(ready).Encode(r) }
	c := &cell{
		status:  &cellv1.Status{Phase: cellv1.Phase_PHASE_STARTING, CellPid: int32(os.Getpid())},
		changed: make(chan struct{}),
		saving:  make(chan struct{}, 1),
		stop:    make(chan string, 1),
		gone:    make(chan struct{}),
		ended:   make(chan struct{}),
	}
	prepareErr := c.prepare()
	input := json.NewDecoder(io.LimitReader(os.Stdin, maxSpecBytes))
	if err := input.Decode(&c.shell); err != nil {
		return 0
	}
	err := errors.Join(prepareErr, logTo(filepath.Join(c.shell.Dir, LogFile)))
	c.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err == nil {
		err = c.makeShell(ctx)
	}
	if err != nil {
		c.destroy()
		return c.fail(err, say)
	}
	say(Ready{Shell: true})
	if err := input.Decode(&c.spec); err != nil {
		c.destroy()
		return 0
	}
	c.status.SandboxId, c.status.Unenforced = c.spec.ID, append(c.status.Unenforced, c.spec.Unenforced...)
	c.log = c.log.With("sandbox", c.spec.ID)
	if err := c.run(ctx, func(r Ready) { say(r); ready.Close() }); err != nil {
		return c.fail(err, say)
	}
	return 0
}

// fail tells why the cell ends, and returns its exit code.
func (c *cell) fail(err error, say func(Ready)) int {
	c.log.Error("cell failed", "err", err)
	answer := Ready{Error: err.Error()}
	if r, ok := errors.AsType[refusal](err); ok {
		answer.Refused = string(r)
	}
	answer.Damaged = c.sb != nil && c.sb.Damage() != nil
	answer.Silent = errors.Is(err, errSilent)
	say(answer)
	return 1
}

// maxSpecBytes bounds the specification.
const maxSpecBytes = 4 << 20

// logTo makes a file this process's standard error.
func logTo(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Dup3(int(f.Fd()), unix.Stderr, 0)
}

// prepare sets up what does not depend on the sandbox: mounts of the cell's
// own, and the network.
func (c *cell) prepare() error {
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

// run makes the sandbox, serves it until it ends, and takes it down.
func (c *cell) run(ctx context.Context, say func(Ready)) error {
	unlock, err := c.lock()
	if err != nil {
		c.destroy()
		return err
	}
	defer unlock()
	ctx, cancel := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer cancel()
	if err := c.openGateway(ctx); err != nil {
		c.destroy()
		return err
	}
	if err := c.start(ctx); err != nil {
		c.destroy()
		return err
	}
	srv, err := c.serve()
	if err != nil {
		c.destroy()
		return err
	}
	c.setPhase(cellv1.Phase_PHASE_RUNNING, "")
	c.mu.Lock()
	unenforced := c.status.Unenforced
	c.mu.Unlock()
	say(Ready{Unenforced: unenforced})

	phase, reason := c.waitForEnd(ctx)
	c.setPhase(cellv1.Phase_PHASE_STOPPING, reason)
	c.destroy()
	c.setPhase(phase, reason)
	close(c.gone)
	srv.close()
	return nil
}

// lock takes the lock that tells that this cell lives.
func (c *cell) lock() (func(), error) {
	f, err := os.OpenFile(filepath.Join(c.spec.Dir, LockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// Who asks whether a cell lives holds the lock too, for a moment.
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

// captureOutput makes this process's standard streams what the sandbox's first
// process gets: nothing to read, and a pipe into the cell's log. Pipes, since
// gVisor writes to a regular file at an offset of its own.
func (c *cell) captureOutput() (io.Closer, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	log := os.Stderr
	os.Stdin, os.Stdout = null, w
	stderr := os.Stderr
	os.Stderr = w
	go func() {
		defer r.Close()
		copyBounded(log, r, maxOutputLog)
	}()
	return closerFunc(func() error {
		os.Stdout, os.Stderr = stderr, stderr
		return errors.Join(w.Close(), null.Close())
	}), nil
}

type closerFunc func() error

func (f closerFunc) Close() error { return f() }

// refusal is what the agent has against the request.
type refusal string

func (r refusal) Error() string { return "the agent refuses: " + string(r) }

// greetAgent waits for the agent to answer and tells it what it has to know.
func (c *cell) greetAgent(ctx context.Context) error {
	ctx, cancel := c.whileItRuns(ctx, agentTimeout)
	defer cancel()
	client, closeClient := newAgentClient(c.dialAgentPatiently)
	defer closeClient()
	r := c.spec.Resources
	user, workdir, host := c.spec.User, c.spec.WorkDir, c.spec.Hostname
	memory, pids := r.MemoryMiB<<20, r.MaxPIDs
	req := &agentv1.ConfigureRequest{
		Authority: c.authority(c.spec.Network),
		Hostname:  &host, Env: c.spec.Env, ReplaceEnv: true, User: &user, Workdir: &workdir,
		MemoryLimit: &memory, MaxPids: &pids,
		Fresh: c.spec.Fresh,
	}
	if c.spec.Fresh { // later it is the sandbox's to change
		resolver := netstack.GatewayAddr.String()
		req.Nameserver = &resolver
	}
	if f := c.spec.Fork; f != nil {
		req.Fork = &agentv1.Fork{Index: int32(f.Index), Count: int32(f.Count), SandboxId: f.SandboxID, ParentId: f.ParentID}
	}
	res, err := client.Configure(ctx, connect.NewRequest(req))
	if err != nil {
		return c.notGreeted(err)
	}
	c.trusted.Store(req.Authority != nil)
	c.unenforced(res.Msg.Unenforced...)
	return nil
}

// notGreeted says why the agent did not take its settings.
func (c *cell) notGreeted(err error) error {
	if e, ok := errors.AsType[*connect.Error](err); ok && e.Code() == connect.CodeInvalidArgument {
		return refusal(e.Message())
	}
	select {
	case <-c.ended:
		return errors.New(c.why)
	default:
		if connect.CodeOf(err) == connect.CodeDeadlineExceeded {
			err = errors.Join(errSilent, err)
		}
		return fmt.Errorf("configure the agent: %w", err)
	}
}

// errSilent says that the agent did not answer within [agentTimeout].
var errSilent = errors.New("the agent does not answer")

func (c *cell) unenforced(what ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Unenforced = append(c.status.Unenforced, what...)
}

// watchForEnd waits until gVisor has ended and notes why.
func (c *cell) watchForEnd() {
	ws, err := c.sb.Wait()
	switch {
	case c.sb.Damage() != nil:
		c.log.Error("the checkpoint is damaged", "err", c.sb.Damage())
		c.why = "the kept state that it went on from is damaged on the server's disk; use another snapshot"
	case err != nil:
		c.why = "gVisor ended unexpectedly"
	case ws.Signaled():
		// gVisor answers so for itself too.
		c.why = fmt.Sprintf("gVisor, or the sandbox's first process, was ended by signal %d", ws.Signal())
	default:
		c.why = fmt.Sprintf("the sandbox's first process ended with exit code %d", ws.ExitStatus())
	}
	close(c.ended)
}

// watchGofer ends gVisor when its gofer has ended: a gVisor that was restored
// does not look, and would wait for files for ever.
func (c *cell) watchGofer() {
	sentry, gofer := c.sb.PIDs()
	fd, err := unix.PidfdOpen(gofer, 0)
	if err != nil {
		c.log.Warn("watch the gofer", "err", err)
		return
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			c.log.Warn("watch the gofer", "err", err)
			return
		}
	}
	select {
	case <-c.ended:
	default:
		_ = unix.Kill(sentry, unix.SIGKILL)
	}
}

// waitForEnd waits until the sandbox is told to end, or ends.
func (c *cell) waitForEnd(ctx context.Context) (cellv1.Phase, string) {
	select {
	case reason := <-c.stop:
		return cellv1.Phase_PHASE_STOPPED, reason
	case <-ctx.Done():
		return cellv1.Phase_PHASE_FAILED, "the machine shut down"
	case <-c.ended:
		return cellv1.Phase_PHASE_FAILED, c.why
	}
}

// destroy ends gVisor and the way out. What they leave goes with the cell's
// process and namespaces: that gVisor gives back its memory and the kernel
// closes the link takes most of the time, which nobody needs to wait for.
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

func (c *cell) setPhase(p cellv1.Phase, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Phase, c.status.Reason = p, reason
	close(c.changed)
	c.changed = make(chan struct{})
}

// preferInOOM makes the kernel end gVisor before the cell when memory runs
// out, so that the cell can tell what happened.
func (c *cell) preferInOOM() {
	sentry, gofer := c.sb.PIDs()
	for _, pid := range []int{sentry, gofer} {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("800"), 0)
	}
}
