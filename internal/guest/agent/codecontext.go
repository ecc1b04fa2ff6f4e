package agent

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/agent/kernel"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// interruptGrace is how long code may take to react to a caller's interrupt before
	// its interpreter is killed, and endGrace how long it may take when its time is up
	// or its caller has gone: such code ends within a second.
	interruptGrace = 5 * time.Second
	endGrace       = 800 * time.Millisecond
	// startLimit is how long an interpreter may take to start.
	startLimit = time.Minute
)

// codeContext is a named interpreter. A new one may replace it under the same name.
type codeContext struct {
	key contextKey
	// turn holds one value, which the current run takes.
	turn chan struct{}

	seeds uint64 // codeTable.seeds at the last reseed; guarded by turn

	mu      sync.Mutex
	user    account   // guarded by mu
	created time.Time // guarded by mu
	count   int       // guarded by mu; number of the last run
	home    string    // guarded by mu; where the kernel started
	// spare is set while the interpreter has run only the code that warmed it up, in
	// the sandbox that this one is a copy of.
	spare   bool           // guarded by mu
	kernel  *kernel.Kernel // guarded by mu; nil: none
	scratch string         // guarded by mu; directory of the kernel's files
	lost    string         // guarded by mu; why the last kernel ended, until a caller has been told
	deleted string         // guarded by mu; why the context has ended; empty: it has not
	busy    *codeRun       // guarded by mu
	runs    int            // guarded by mu
	queued  int            // guarded by mu
	epoch   int            // guarded by mu; grows with restarts
}

func newCodeContext(key contextKey, acc *account) *codeContext {
	c := &codeContext{key: key, user: *acc, created: time.Now(), turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	return c
}

func (c *codeContext) describe() *agentv1.CodeContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &agentv1.CodeContext{
		Ref:             &agentv1.ContextRef{Language: string(c.key.language), Name: c.key.name},
		State:           agentv1.ContextState_CONTEXT_STATE_DEAD,
		User:            c.user.name,
		Runs:            int32(c.runs),
		Queued:          int32(c.queued),
		CreatedUnixNano: c.created.UnixNano(),
	}
	if c.kernel != nil && !ended(c.kernel) {
		m.State = agentv1.ContextState_CONTEXT_STATE_IDLE
		m.Pid = int32(c.kernel.PID())
		m.Workdir = c.kernel.Dir()
	}
	if c.busy != nil {
		m.State = agentv1.ContextState_CONTEXT_STATE_BUSY
	}
	return m
}

func ended(k *kernel.Kernel) bool { return closed(k.Dead()) }

// wait takes the context's turn, in the order of the callers.
func (c *codeContext) wait(ctx context.Context, epoch int) error {
	select {
	case <-c.turn:
		return c.usable(epoch)
	default:
	}
	c.mu.Lock()
	if c.queued >= sandbox.MaxQueuedRuns {
		c.mu.Unlock()
		return fail(connect.CodeResourceExhausted,
			"%d runs wait for the context %s already; wait for them, or use a context of another name", sandbox.MaxQueuedRuns, c.key)
	}
	c.queued++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.queued--
		c.mu.Unlock()
	}()
	select {
	case <-c.turn:
		return c.usable(epoch)
	case <-ctx.Done():
		return cancelled(ctx)
	}
}

// usable gives the turn back and fails if the context was restarted or deleted while
// the caller waited.
func (c *codeContext) usable(epoch int) error {
	why := c.over(epoch)
	if why == "" {
		return nil
	}
	c.turn <- struct{}{}
	return fail(connect.CodeAborted, "%s while the code waited for it; run it again", why)
}

// currentEpoch returns the epoch to pass to [codeContext.over] later.
func (c *codeContext) currentEpoch() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch
}

// over returns what has happened to the context since the epoch, or "".
func (c *codeContext) over(epoch int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deleted == "" && c.epoch != epoch {
		return restarted
	}
	return c.deleted
}

const restarted = "the context was restarted"

// ready starts an interpreter if there is none. lost is why the previous one ended, if
// no caller has been told yet.
//
// Preconditions: the caller has the turn.
func (a *Agent) ready(ctx context.Context, c *codeContext, p *codePlan) (k *kernel.Kernel, lost string, err error) {
	c.mu.Lock()
	k = c.kernel
	c.mu.Unlock()
	if k != nil && !ended(k) {
		return k, "", nil
	}
	if k != nil {
		c.drop(k, k.End().Reason)
	}
	user := c.owner()
	scratch := ""
	if c.key.language == sandbox.Bash {
		if scratch, err = a.scratch(&user, false); err != nil {
			return nil, "", err
		}
	}
	start, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := afterRunning(startLimit, func() { cancel(context.DeadlineExceeded) })
	defer timer.stop()
	k, err = kernel.Start(start, kernel.Config{
		Language: c.key.language, Spawn: a.spawner(p, &user), Scratch: scratch,
		UID: int(user.uid), GID: int(user.gid), Env: p.env, EndGrace: a.kernelGrace,
	})
	if err != nil {
		_ = os.RemoveAll(scratch)
		return nil, "", a.explainKernel(ctx, c.key.language, err)
	}
	a.code.hold(k, c.key.String())
	c.mu.Lock()
	c.kernel, c.scratch, c.home = k, scratch, p.home
	lost, c.lost = c.lost, ""
	dead := c.deleted != ""
	c.mu.Unlock()
	if dead {
		k.Kill()
	}
	return k, lost, nil
}

// explainKernel makes the error for an interpreter that did not start.
func (a *Agent) explainKernel(ctx context.Context, l sandbox.Language, err error) error {
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		return ce
	}
	switch {
	case ctx.Err() != nil:
		return cancelled(ctx)
	case errors.Is(err, context.Canceled):
		return fail(connect.CodeDeadlineExceeded, "the interpreter for %s did not start within %s; the sandbox may need more memory or processors", l, startLimit)
	}
	return fail(connect.CodeFailedPrecondition, "the interpreter for %s does not start: %v", l, err)
}

// drop forgets a kernel that has ended. The next caller is told the reason if the
// kernel had run any code: otherwise nothing is lost.
func (c *codeContext) drop(k *kernel.Kernel, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kernel != k {
		return
	}
	_ = os.RemoveAll(c.scratch)
	c.kernel, c.scratch = nil, ""
	if c.count > 0 {
		c.lost = reason
	}
}

// removeFiles removes the files of the context's interpreter, which has ended.
func (c *codeContext) removeFiles() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = os.RemoveAll(c.scratch)
	c.scratch = ""
}

// runIn waits for a context's turn and runs code in it.
func (a *Agent) runIn(ctx context.Context, c *codeContext, p *codePlan, box *kernel.Outbox) (*agentv1.CodeResult, error) {
	epoch := c.currentEpoch()
	if err := c.wait(ctx, epoch); err != nil {
		return nil, err
	}
	defer func() { c.turn <- struct{}{} }()
	home := c.take(p)
	k, lost, err := a.ready(ctx, c, p)
	if err != nil {
		return nil, err
	}
	count := c.next()
	var seed []byte
	seed, c.seeds = a.code.seed(c.seeds)
	if p.env[noReseed] != "" {
		seed = nil
	}
	k.Prepare()
	r := newCodeRun(k)
	c.setBusy(r)
	defer c.setBusy(nil)
	if why := c.over(epoch); why != "" { // while the interpreter started
		r.killFor(why)
	}
	done := r.limit(ctx, p.timeout, a.endGrace)
	outcome, err := k.Run(&kernel.Run{
		Count: count, Code: p.code, Env: p.env, SetEnv: p.setEnv, Home: home, Dir: p.dir,
		Stdin: p.stdin, Given: p.given, Reseed: seed,
	}, box)
	done()
	if errors.Is(err, kernel.ErrRefused) {
		return nil, invalid("the working directory %s cannot be used (%v); make it first or choose another", p.dir, err)
	} else if err != nil {
		return nil, fail(connect.CodeInternal, "run code: %v", err)
	}
	result := r.result(outcome, p, box)
	result.Count = int32(count)
	if outcome.Died {
		reason := ""
		if ctx.Err() != nil { // this caller has gone; tell the next one
			reason = r.why(outcome)
		}
		c.drop(k, reason)
		result.Restarted = !p.fresh
	} else if lost != "" {
		result.Restarted, result.Reason = true, "the interpreter had ended since the last run: "+lost
	}
	return result, nil
}

// owner is the user that the context's interpreters run as.
func (c *codeContext) owner() account {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.user
}

// next numbers a run.
func (c *codeContext) next() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	return c.count
}

// belongs reports whether the context belongs to acc, or still to nobody.
func (c *codeContext) belongs(acc *account) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spare || acc.uid == c.user.uid && acc.gid == c.user.gid
}

// renew prepares a context whose interpreter was started before the sandbox was
// created for its first caller.
func (c *codeContext) renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count > 1 || c.busy != nil {
		return // it is in use: a sandbox made from a snapshot goes on with it
	}
	c.spare, c.count, c.runs, c.created = true, 0, 0, time.Now()
}

// take gives a spare context to the caller. It returns the directory that the
// interpreter must change to first, or "".
//
// Preconditions: the caller has the turn.
func (c *codeContext) take(p *codePlan) (home string) {
	c.mu.Lock()
	k, user, spare := c.kernel, c.user, c.spare
	if spare {
		c.spare, c.user = false, p.user
		if c.home != p.home {
			home = p.home
		}
	}
	c.mu.Unlock()
	if spare && k != nil && (user.uid != p.user.uid || user.gid != p.user.gid) {
		k.Kill()
		<-k.Dead()
		c.drop(k, "")
		return ""
	}
	return home
}

// noReseed is the variable that keeps random numbers from being reseeded in forks.
const noReseed = "COVE_NO_RESEED"

func (c *codeContext) setBusy(r *codeRun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = r
	if r == nil {
		c.runs++
	}
}

// interrupt ends the current run, as ^C does, and kills the interpreter if the run does
// not end in time.
func (c *codeContext) interrupt(grace time.Duration) {
	c.mu.Lock()
	r := c.busy
	c.mu.Unlock()
	if r != nil {
		r.interrupt(grace)
	}
}

// kill ends the interpreter, with or without a run, and waits until it is gone.
func (c *codeContext) kill(reason string) {
	c.mu.Lock()
	k, r := c.kernel, c.busy
	c.mu.Unlock()
	if (r == nil || !r.killFor(reason)) && k != nil {
		k.Kill()
	}
	if k != nil {
		<-k.Dead()
		c.drop(k, "")
	}
}

// end ends a context for good.
func (c *codeContext) end(reason string) {
	c.mu.Lock()
	c.deleted = reason
	c.mu.Unlock()
	c.kill(reason)
}

// restart replaces the interpreter. Runs that are under way or waiting end.
func (a *Agent) restart(ctx context.Context, c *codeContext) error {
	c.mu.Lock()
	c.epoch++
	c.mu.Unlock()
	c.kill(restarted)
	select {
	case <-c.turn:
	case <-ctx.Done():
		return cancelled(ctx)
	}
	defer func() { c.turn <- struct{}{} }()
	s := a.current()
	user := c.owner()
	p := &codePlan{key: c.key, user: user, home: s.workdir, env: jobEnv(&user, s, &agentv1.ExecRequest{})}
	c.mu.Lock()
	c.lost = "" // the caller asked for it
	c.mu.Unlock()
	_, _, err := a.ready(ctx, c, p)
	return err
}

// spawner returns a function that starts interpreters for acc.
func (a *Agent) spawner(p *codePlan, acc *account) kernel.Spawn {
	return func(names, args []string, files []*os.File) (kernel.Process, error) {
		name, path := findFirst(names, p.env["PATH"], p.home)
		if path == "" {
			return nil, missing(p.key.language, names)
		}
		run := &plan{path: path, argv: append([]string{name}, args...), env: environ(p.env), workdir: p.home, user: *acc}
		kp, err := a.startKernel(run, files)
		if err != nil {
			return nil, err // not a nil process in an interface
		}
		return kp, nil
	}
}

// missing makes the error for a template that cannot run a language.
func missing(l sandbox.Language, names []string) error {
	what := map[sandbox.Language]string{
		sandbox.Python: "Python 3", sandbox.JavaScript: "Node.js", sandbox.TypeScript: "Node.js",
		sandbox.Bash: "bash", sandbox.Go: "the Go toolchain",
	}[l]
	return fail(connect.CodeNotFound, "the sandbox's template has no %s: there is no program %q on PATH; install it, or use a template that has it",
		what, names[0])
}
