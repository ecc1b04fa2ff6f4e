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
// [kernel.Process] and [child].
type kernelProcess struct {
	pid  int
	done chan struct{}

	mu     sync.Mutex
	gone   bool               // guarded by mu; the process has been waited for
	status syscall.WaitStatus // guarded by mu; valid once gone
	blame  string             // guarded by mu; why it was killed
}

// startKernel starts a program that runs code. After an error nothing of it remains.
func (a *Agent) startKernel(p *plan, files []*os.File) (*kernelProcess, error) {
	attr := p.attr()
	for _, f := range files {
		attr.Files = append(attr.Files, f.Fd())
	}
	kp := &kernelProcess{done: make(chan struct{})}
	// Held so that reaped finds kp complete, however soon the process ends.
	kp.mu.Lock()
	defer kp.mu.Unlock()
	var err error
	if kp.pid, err = a.startChild(kp, p, attr); err != nil {
		return nil, err
	}
	a.code.started(kp)
	return kp, nil
}

func (p *kernelProcess) reaped(status syscall.WaitStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone, p.status = true, status
}

func (p *kernelProcess) finish() { close(p.done) }

func (p *kernelProcess) PID() int { return p.pid }

func (p *kernelProcess) Done() <-chan struct{} { return p.done }

func (p *kernelProcess) Interrupt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		_ = unix.Kill(-p.pid, unix.SIGINT)
	}
}

func (p *kernelProcess) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone || leaderless(p.pid) {
		signalSession(p.pid, unix.SIGKILL)
	}
}

// killFor kills the session and records why.
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
