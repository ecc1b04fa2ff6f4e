package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/guest/agent/kernel"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

const (
	exitTimeout     = 124
	exitInterrupted = 130
)

// runner is the kernel or program that runs code.
type runner interface {
	Interrupt()
	// Insist reports whether interrupts may be lost.
	Insist() bool
	Kill()
}

// interruptAgain is the time after which an interrupt that may be lost is repeated.
const interruptAgain = 150 * time.Millisecond

// codeRun is one run of code, from its start to its end.
type codeRun struct {
	on      runner
	started time.Time

	mu       sync.Mutex
	over     bool      // guarded by mu
	timedOut bool      // guarded by mu
	stopped  bool      // guarded by mu; interrupted by a caller
	killed   string    // guarded by mu; why the interpreter was killed
	kill     *runTimer // guarded by mu
	again    *runTimer // guarded by mu
}

func newCodeRun(on runner) *codeRun { return &codeRun{on: on, started: time.Now()} }

// limit ends the run when it has taken too long or ctx ends, and kills its interpreter
// if the run does not end within grace. The caller calls done after the run.
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

// end interrupts the code, and kills its interpreter if it does not end within grace.
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

// killFor kills the interpreter. If the run is over, it leaves the interpreter alone
// and returns false.
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

// why returns why the run's interpreter has ended.
func (r *codeRun) why(o *kernel.Outcome) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.killed != "" {
		return "it was killed: " + r.killed
	}
	return o.End.Reason
}

// result makes the result of the run.
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
	if p.fresh || p.key.language == sandbox.Go {
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
