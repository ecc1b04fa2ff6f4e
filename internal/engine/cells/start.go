package cells

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/machine/cgroup"
	"github.com/cove-sh/cove/sandbox"
)

// The cgroup's limits exceed the sandbox's. The headroom is for the cell, for gVisor's
// two processes and their threads, and for memory over the sandbox's limit: the agent
// then ends the largest program, but may have to wait for a processor. On two processors
// with 20 runnable threads, programs used over 150 MiB meanwhile. Beyond the headroom,
// the kernel ends the whole sandbox.
const (
	memoryHeadroom = 512 << 20
	pidsHeadroom   = 1024
	// pidsPerPID is how many threads of the host a process of the sandbox may use. Two or
	// three are usual, and those of ended processes remain for a while. gVisor ends if it
	// cannot create a thread.
	pidsPerPID = 4
)

func groupLimits(r sandbox.Resources) cgroup.Limits {
	var l cgroup.Limits
	if r.MemoryMiB > 0 {
		l.MemoryBytes = r.MemoryMiB<<20 + memoryHeadroom
	}
	if r.MaxPIDs > 0 {
		l.PIDs = r.MaxPIDs*pidsPerPID + pidsHeadroom
	}
	l.CPUs = float64(r.VCPUs)
	return l
}

// unenforced describes the limits that nothing outside the sandbox enforces, given what
// the host's cgroups lack. Without cgroups, processors are limited by affinity, and
// processes by gVisor's kernel, as the disk is.
func unenforced(missing []string) []string {
	if slices.ContainsFunc(missing, func(m string) bool { return strings.HasPrefix(m, "memory:") }) {
		return []string{"memory: the agent inside keeps the sandbox to it, but the host's kernel does not (run as root, or have a memory cgroup delegated)"}
	}
	return nil
}

// process is a cell that this process has started.
type process struct {
	cmd      *exec.Cmd
	protocol int
	conn     net.Conn      // the cell has the other end
	exited   chan struct{} // closed when the process has been waited for
	ahead    bool          // it was started before it was needed
	named    bool          // a directory names it, so that removeCell ends it; guarded by Engine.mu
}

// takeProcess returns a cell that waits to become a standby: the spare, or a new one.
func (e *Engine) takeProcess() (*process, error) {
	e.mu.Lock()
	p := e.spare
	e.spare = nil
	taken := p != nil && !p.hasExited()
	if taken {
		e.spareFaults = faults{}
	}
	e.mu.Unlock()
	if taken {
		return p, nil
	}
	return e.startProcess(e.program, cell.Protocol)
}

// refill starts a spare if there is none: starting the process takes a sixth of the time
// of a sandbox's creation. It returns when to try again, or zero.
func (e *Engine) refill() (again time.Time) {
	e.mu.Lock()
	e.resting = false
	have, again := e.spare != nil, e.spareFaults.again
	e.mu.Unlock()
	switch {
	case have || e.ctx.Err() != nil:
		return time.Time{}
	case again.After(time.Now()):
		return again
	}
	p, err := e.startProcess(e.program, cell.Protocol)
	if err != nil {
		return time.Time{} // the next Create returns the same error
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ctx.Err() != nil || e.spare != nil:
		p.dismiss()
	case p.hasExited(): // before it was the spare, where lost looks for it
		e.spareFaults.failed(time.Now())
		return e.spareFaults.again
	default:
		p.ahead = true
		e.spare = p
	}
	return time.Time{}
}

// dismiss ends a cell that has no sandbox yet.
func (p *process) dismiss() { p.conn.Close() }

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// startProcess starts a cell in its own namespaces. The cell waits to become a standby.
func (e *Engine) startProcess(program string, protocol int) (*process, error) {
	const tries = 20
	for i := 1; ; i++ {
		p, err := e.tryProcess(program, protocol)
		// If the program was just written, a child that another goroutine is starting may hold
		// the file open until it executes its own program (see go.dev/issue/22315).
		if !errors.Is(err, unix.ETXTBSY) || i == tries {
			return p, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (e *Engine) tryProcess(program string, protocol int) (*process, error) {
	conn, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(program, "cell")
	cmd.Dir = "/"
	cmd.Args[0] = "cove"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOTRACEBACK=single"}
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = namespaces(os.Geteuid(), os.Getegid())
	if protocol < 2 {
		cmd.Stdin = theirs
	}
	if protocol < 1 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, startError(err)
	}
	p := &process{cmd: cmd, protocol: protocol, conn: conn, exited: make(chan struct{})}
	e.wg.Go(func() { e.reap(p) })
	return p, nil
}

// socketPair returns the two ends of a connection. A child inherits the second.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make the cell's connection: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "cell"), os.NewFile(uintptr(fds[1]), "engine")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
	}
	return conn, theirs, err
}

// reap waits for the process, and removes what it leaves behind if it was not taken. When the
// engine is closed it ends a cell that no directory names, since nobody would find it. Another
// is removed with its directory, or lives on, and its next parent waits for it.
func (e *Engine) reap(p *process) {
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	select {
	case <-p.exited:
		e.lost(p)
		return
	case <-e.ctx.Done():
	}
	e.mu.Lock()
	named := p.named
	e.mu.Unlock()
	if named {
		return
	}
	p.dismiss()
	_ = p.cmd.Process.Kill() // it may not listen to its connection yet
	<-p.exited
}

// namespaces returns the cell's own namespaces. The network is the host's, through which
// the sandbox's connections go. In the process-id namespace the cell is process 1, so
// everything that it starts ends with it. An ordinary user is root in a user namespace
// that maps only this user.
func namespaces(uid, gid int) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	if uid != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	}
	return attr
}

// startError returns the error for callers if the kernel refuses to start the cell.
func startError(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
		return sandbox.Wrap(sandbox.CodeUnsupported, err,
			"this machine does not let this user make namespaces; run \"cove doctor\" to see what is missing")
	}
	return fmt.Errorf("start cell: %w", err)
}

// startFailure returns the error for callers if a cell did not become a standby or sandbox.
func startFailure(err error) error {
	if !connect.IsWireError(err) {
		return notStarted(errors.Join(errCellEnded, err))
	}
	refused, _ := errors.AsType[*connect.Error](err)
	cause := errors.New(refused.Message())
	switch refused.Code() {
	case connect.CodeInvalidArgument:
		return sandbox.Errorf(sandbox.CodeInvalid, "%s", refused.Message())
	case connect.CodeDataLoss:
		return damagedError(cause)
	case connect.CodeAborted:
		return sandbox.Wrap(sandbox.CodeUnavailable, cause, cause.Error()+": fork again")
	case connect.CodeDeadlineExceeded:
		return sandbox.Wrap(sandbox.CodeUnavailable, cause,
			"the sandbox did not answer in time after its start; the machine is too busy, or what runs in the sandbox leaves no processor time: try again, with fewer at once")
	}
	return notStarted(cause)
}

// errCellEnded means that a cell has ended without an error of its own.
var errCellEnded = errors.New("the cell ended before the sandbox ran")

func notStarted(cause error) error {
	return sandbox.Wrap(sandbox.CodeUnavailable, cause, "the sandbox ended while it was being started; try again, see the server's log for details")
}
