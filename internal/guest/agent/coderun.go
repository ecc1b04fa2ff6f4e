package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/guest/agent/kernel"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

const (
	exitTimeout     = 124
	exitInterrupted = 130
)

// runner is what a run of code can be ended with: a kernel or a program.
type runner interface {
	Interrupt()
	// Insist reports whether interrupts may be lost.
	Insist() bool
	Kill()
}

// interruptAgain is the time between interrupts that may be lost.
const interruptAgain = 150 * time.Millisecond

// codeRun is one run of code, from its start to its end.
type codeRun struct {
	on      runner
	started time.Time

	mu       sync.Mutex
	over     bool      // guarded by mu
	timedOut bool      // guarded by mu
	stopped  bool      // guarded by mu; by a caller
	killed   string    // guarded by mu; why the interpreter was killed
	kill     *runTimer // guarded by mu
	again    *runTimer // guarded by mu
}

func newCodeRun(on runner) *codeRun { return &codeRun{on: on, started: time.Now()} }

// limit ends the run when it has taken too long, or ctx ends, and its
// interpreter when that does not react within grace. What it returns is to be
// called when the run is over.
func (r *codeRun) limit(ctx context.Context, timeout, grace time.Duration) (done func()) {
	stop := context.AfterFunc(ctx, func() { r.interrupt(grace) })
	var timer *runTimer
	if timeout > 0 {
		timer = afterRunning(timeout, func() {
			r.mu.Lock()
			r.timedOut = !r.over
			r.mu.Unlock()
			r.end(grace, fmt.Sprintf("it did not end within %s when its time was up", grace))
		})
	}
	return func() {
		stop()
		timer.stop()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.over = true
		r.kill.stop()
		r.again.stop()
	}
}

// interrupt ends the run on behalf of a caller.
func (r *codeRun) interrupt(grace time.Duration) {
	r.mu.Lock()
	r.stopped = r.stopped || !r.over
	r.mu.Unlock()
	r.end(grace, fmt.Sprintf("it did not react to an interrupt within %s", grace))
}

// end interrupts the code and kills its interpreter if that does not help.
func (r *codeRun) end(grace time.Duration, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	r.on.Interrupt()
	if r.on.Insist() && r.kill == nil {
		r.again = afterRunning(interruptAgain, r.insist)
	}
	r.kill.stop()
	r.kill = afterRunning(grace, func() { r.killFor(reason) })
}

// insist repeats an interrupt until the run is over.
func (r *codeRun) insist() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || r.killed != "" {
		return
	}
	r.on.Interrupt()
	r.again = afterRunning(interruptAgain, r.insist)
}

// killFor kills the interpreter. It reports false if the run is over: then the
// interpreter is left alone.
func (r *codeRun) killFor(reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return false
	}
	if r.killed == "" {
		r.killed = reason
	}
	r.on.Kill()
	return true
}

// why says why an interpreter has ended that the run was in.
func (r *codeRun) why(o *kernel.Outcome) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.killed != "" {
		return "it was killed: " + r.killed
	}
	return o.End.Reason
}

// result says what came of the run.
//
// Preconditions: the run is over.
func (r *codeRun) result(o *kernel.Outcome, p *codePlan, box *kernel.Outbox) *agentv1.CodeResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := &agentv1.CodeResult{
		Error:       o.Error,
		ExitCode:    int32(o.Exit),
		DurationMs:  time.Since(r.started).Milliseconds(),
		Interrupted: o.Interrupted || r.stopped,
	}
	kept := "what the interpreter knows is kept"
	if o.Died {
		m.Reason = o.End.Reason
		if r.killed != "" {
			m.Reason = "the interpreter was killed: " + r.killed
		}
		kept = "what the interpreter knew is lost"
	}
	if p.fresh || p.key.language == "go" {
		kept = "files are kept"
	}
	switch {
	case r.timedOut:
		m.TimedOut, m.Interrupted, m.ExitCode = true, false, exitTimeout
		box.Note(fmt.Sprintf("cove: the code was ended after %s, its time limit; %s\n", p.timeout, kept))
	case m.Interrupted && (m.ExitCode == 0 || o.Died):
		m.ExitCode = exitInterrupted
	}
	return m
}
