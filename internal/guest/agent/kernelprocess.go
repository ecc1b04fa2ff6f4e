package agent

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/agent/kernel"
)

// kernelProcess is an interpreter, in a session of its own. It implements
// [kernel.Process].
type kernelProcess struct {
	pid  int
	done chan struct{}

	mu     sync.Mutex
	gone   bool               // guarded by mu; the process has been waited for
	status syscall.WaitStatus // guarded by mu; valid once gone
	blame  string             // guarded by mu; what it was killed for
}

// startKernel starts a program for code. On an error nothing is left of it.
func (a *Agent) startKernel(p *plan, files []*os.File) (*kernelProcess, error) {
	attr := &syscall.ProcAttr{
		Dir: p.workdir,
		Env: p.env,
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: credential(&p.user)},
	}
	for _, f := range files {
		attr.Files = append(attr.Files, f.Fd())
	}
	kp := &kernelProcess{done: make(chan struct{})}
	fork := func() (int, error) { return a.fork(p.path, p.argv, attr) }
	// Held so that an end that comes at once finds it complete.
	kp.mu.Lock()
	defer kp.mu.Unlock()
	var err error
	if a.reaper != nil {
		kp.pid, err = a.reaper.start(kp, fork)
	} else {
		kp.pid, err = fork()
	}
	if err != nil {
		return nil, explainStart(p, err)
	}
	if a.reaper == nil {
		go kp.wait()
	}
	a.code.started(kp)
	return kp, nil
}

// wait reaps the process when there is no reaper to do it.
func (p *kernelProcess) wait() {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.pid, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		p.reaped(status)
		p.finish()
		return
	}
}

// reaped implements [child].
func (p *kernelProcess) reaped(status syscall.WaitStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone, p.status = true, status
}

// finish implements [child].
func (p *kernelProcess) finish() { close(p.done) }

// PID implements [kernel.Process].
func (p *kernelProcess) PID() int { return p.pid }

// Done implements [kernel.Process].
func (p *kernelProcess) Done() <-chan struct{} { return p.done }

// Interrupt implements [kernel.Process].
func (p *kernelProcess) Interrupt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		_ = unix.Kill(-p.pid, unix.SIGINT)
	}
}

// Kill implements [kernel.Process].
func (p *kernelProcess) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone || leaderless(p.pid) {
		signalSession(p.pid, unix.SIGKILL)
	}
}

// killFor is Kill, and says why.
func (p *kernelProcess) killFor(reason string) {
	p.blameFor(reason)
	p.Kill()
}

// blameFor records why the process is about to end.
func (p *kernelProcess) blameFor(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone && p.blame == "" {
		p.blame = reason
	}
}

// End implements [kernel.Process].
func (p *kernelProcess) End() kernel.End {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.status.Signaled() {
		return kernel.End{
			Code:   p.status.ExitStatus(),
			Reason: fmt.Sprintf("the code ended its interpreter, with exit code %d", p.status.ExitStatus()),
		}
	}
	sig := p.status.Signal()
	end := kernel.End{Code: 128 + int(sig), Reason: p.blame}
	if end.Reason == "" {
		end.Reason = fmt.Sprintf("the interpreter was ended by signal %d (%s)", int(sig), unix.SignalName(sig))
	}
	return end
}
