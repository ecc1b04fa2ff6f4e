package cells

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/cgroup"
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
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	ready  *os.File
	said   *json.Decoder // of ready
	exited chan struct{} // closed when it was waited for
	ahead  bool          // it was started ahead of need
}

// takeProcess returns a cell that waits for its shell: the one that was
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

// dismiss ends a cell that has no specification yet.
func (p *process) dismiss() {
	p.stdin.Close()
	p.ready.Close()
}

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// startProcess starts a cell in its own namespaces. It waits for its shell.
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
	readyR, readyW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer readyW.Close()
	cmd := exec.Command(program, "cell")
	cmd.Dir = "/"
	cmd.Args[0] = "cove"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOTRACEBACK=single"}
	cmd.ExtraFiles = []*os.File{readyW}
	cmd.SysProcAttr = namespaces(os.Geteuid(), os.Getegid())
	if protocol < 1 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		readyR.Close()
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		readyR.Close()
		return nil, startError(err)
	}
	p := &process{cmd: cmd, stdin: stdin, ready: readyR, exited: make(chan struct{})}
	p.said = json.NewDecoder(io.LimitReader(readyR, 64<<10))
	e.wg.Go(func() { e.reap(p) })
	return p, nil
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

// handOver gives the cell its specification, the last thing that it reads.
func (p *process) handOver(input []byte) error {
	_, err := p.stdin.Write(input)
	if err := errors.Join(err, p.stdin.Close()); err != nil && !errors.Is(err, unix.EPIPE) { // it tells why itself
		return notStarted(fmt.Errorf("hand the specification to the cell: %w", err))
	}
	return nil
}

// awaitShell waits until the cell's shell is made, and awaitReady until the
// sandbox is ready. An end of ctx closes the pipe, after which neither can be
// called again.
func (p *process) awaitShell(ctx context.Context) error {
	_, err := p.listen(ctx)
	return err
}

func (p *process) awaitReady(ctx context.Context) error {
	defer p.ready.Close()
	for {
		r, err := p.listen(ctx)
		if err != nil || !r.Shell {
			return err
		}
	}
}

// listen returns the next thing that the cell says.
func (p *process) listen(ctx context.Context) (cell.Ready, error) {
	var ready cell.Ready
	done := make(chan error, 1)
	go func() { done <- p.said.Decode(&ready) }()
	select {
	case err := <-done:
		switch {
		case err != nil:
			return ready, notStarted(errCellEnded)
		case ready.Refused != "":
			return ready, sandbox.Errorf(sandbox.CodeInvalid, "%s", ready.Refused)
		case ready.Damaged:
			return ready, damagedError(errors.New(ready.Error))
		case ready.Silent:
			return ready, sandbox.Wrap(sandbox.CodeUnavailable, errors.New(ready.Error),
				"the sandbox did not answer in time after its start; the machine is too busy, or what runs in the sandbox leaves no processor time: try again, with fewer at once")
		case ready.Error != "":
			return ready, notStarted(errors.New(ready.Error))
		}
		return ready, nil
	case <-ctx.Done():
		p.ready.Close()
		return cell.Ready{}, ctx.Err()
	}
}

// errCellEnded says that a cell has ended without a word of why.
var errCellEnded = errors.New("the cell ended before the sandbox ran")

func notStarted(cause error) error {
	return sandbox.Wrap(sandbox.CodeUnavailable, cause, "the sandbox ended while it was being started; try again, the server's log has the details")
}
