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

// Beyond what the sandbox may use, its cgroup has room for the cell, gVisor's
// two processes and their threads, and for what programs take before the agent,
// which may have to wait for a processor, ends the largest of them: on two
// processors with 20 runnable threads, over 150 MiB. If the room is used up, the
// kernel ends the whole sandbox.
const (
	memoryHeadroom = 512 << 20
	pidsHeadroom   = 1024
	// pidsPerPID is how many threads of the host a process of the sandbox may
	// cost. Two or three are usual; processes that have just ended still cost
	// theirs for a while. When gVisor gets no thread it ends.
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

// unenforced says which limits only the sandbox itself keeps to, given what the
// host's cgroups are missing. Without cgroups, processors are bounded by
// affinity and processes by gVisor's kernel, as the disk always is.
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
	exited   chan struct{} // closed when it was waited for
	ahead    bool          // it was started ahead of need
}

// takeProcess returns a cell that waits to become a standby: the one that was
// started ahead, or a new one.
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

// refill starts a cell ahead of need, if there is none: its start is a sixth
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
		return time.Time{} // the next Create meets the same error and tells it
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ctx.Err() != nil || e.spare != nil:
		p.dismiss()
	case p.hasExited(): // before anybody could find it here
		e.spareFaults.failed(time.Now())
		return e.spareFaults.again
	default:
		p.ahead = true
		e.spare = p
	}
	return time.Time{}
}

// dismiss ends a cell that is no sandbox yet.
func (p *process) dismiss() { p.conn.Close() }

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// startProcess starts a cell in its own namespaces. It waits to become a standby.
func (e *Engine) startProcess(program string, protocol int) (*process, error) {
	const tries = 20
	for i := 1; ; i++ {
		p, err := e.tryProcess(program, protocol)
		// The program was perhaps just written: a process that another
		// goroutine is starting may have the file open until it executes its
		// own (see go.dev/issue/22315).
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

// socketPair returns the two ends of a connection, the second to be inherited.
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

// reap waits for the process, and removes what it leaves if it was not taken. It
// ends when the engine is closed: the cell lives on then, and whoever adopts it
// waits for it.
func (e *Engine) reap(p *process) {
	done := make(chan struct{})
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
		close(done)
	}()
	select {
	case <-done:
		e.lost(p)
	case <-e.ctx.Done():
	}
}

// namespaces puts the cell in namespaces of its own, but for the network, which
// is the sandbox's way out. In the process-id namespace it is process 1, so all that it starts ends with it. An ordinary
// user is root in a user namespace that maps only himself.
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

// startError explains why the kernel refuses the namespaces.
func startError(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
		return sandbox.Wrap(sandbox.CodeUnsupported, err,
			"this machine does not let this user make namespaces; run \"cove doctor\" to see what is missing")
	}
	return fmt.Errorf("start cell: %w", err)
}

// notBegun explains why a cell did not become a standby or a sandbox.
func notBegun(err error) error {
	if !connect.IsWireError(err) {
		return notStarted(errors.Join(errCellEnded, err))
	}
	told, _ := errors.AsType[*connect.Error](err)
	switch told.Code() {
	case connect.CodeInvalidArgument:
		return sandbox.Errorf(sandbox.CodeInvalid, "%s", told.Message())
	case connect.CodeDataLoss:
		return damagedError(errors.New(told.Message()))
	case connect.CodeDeadlineExceeded:
		return sandbox.Wrap(sandbox.CodeUnavailable, errors.New(told.Message()),
			"the sandbox did not answer in time after its start; the machine is too busy, or what runs in the sandbox leaves no processor time: try again, with fewer at once")
	}
	return notStarted(errors.New(told.Message()))
}

// errCellEnded says that a cell has ended without a word of why.
var errCellEnded = errors.New("the cell ended before the sandbox ran")

func notStarted(cause error) error {
	return sandbox.Wrap(sandbox.CodeUnavailable, cause, "the sandbox ended while it was being started; try again, the server's log has the details")
}
