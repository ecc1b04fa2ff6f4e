package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/guest/agent/kernel"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// exitGrace bounds the wait for a job's last output while a process that the job
// left behind holds its streams open.
const exitGrace = 100 * time.Millisecond

// job is one command, in a session of its own.
type job struct {
	id       string
	argv     []string // shortened
	user     string
	workdir  string
	language string // of the code; empty for a command
	tag      string
	terminal bool
	started  time.Time
	pid      int

	out   output
	pumps []*pump
	in    *input   // nil: standard input is empty
	tty   *os.File // the agent's side of the terminal; nil: none

	// done is closed when the job has ended and its output so far has been read.
	done chan struct{}
	// final is the length of each stream at that moment; set before done is closed.
	final [2]int64
	// onDone closes done. onQuiet is called when no process can write to the job's
	// output any more.
	onDone, onQuiet func()

	mu      sync.Mutex
	gone    bool               // guarded by mu; the process has been waited for
	ended   time.Time          // guarded by mu
	status  syscall.WaitStatus // guarded by mu; valid once gone
	cause   agentv1.EndCause   // guarded by mu
	sent    [65]bool           // guarded by mu; the signals that callers have sent
	timeout *runTimer          // guarded by mu
	kill    *runTimer          // guarded by mu
}

func newJob(p *plan) *job {
	j := &job{
		id:       p.id,
		argv:     shorten(p.argv),
		user:     p.user.name,
		workdir:  p.workdir,
		language: p.language,
		tag:      p.tag,
		terminal: p.terminal != nil,
		done:     make(chan struct{}),
	}
	if p.shown != nil {
		j.argv = shorten(p.shown)
	}
	j.out.init(p.keep, p.spool)
	return j
}

// shorten copies argv, cut to what is displayed: the table keeps many jobs, for long.
func shorten(argv []string) []string {
	const maxArgs, maxArg = 64, 2048
	short := make([]string, 0, min(len(argv), maxArgs+1))
	for i, arg := range argv {
		if i == maxArgs {
			return append(short, fmt.Sprintf("… (%d more)", len(argv)-i))
		}
		short = append(short, strings.Clone(clip.Text(arg, maxArg)))
	}
	return short
}

// start runs the plan as j. After an error nothing of it remains.
func (a *Agent) start(j *job, p *plan) (err error) {
	var pipes kernel.Pipes
	defer func() { pipes.Close(err) }()
	attr := p.attr()
	var stdin *os.File
	if p.terminal != nil {
		tty, err := openTerminal(p, &pipes)
		if err != nil {
			return fail(connect.CodeFailedPrecondition, "the sandbox has no terminals (%v); run the command without one", err)
		}
		j.tty, stdin = pipes.Own[0], pipes.Own[0]
		attr.Sys.Setctty = true
		attr.Files = []uintptr{tty, tty, tty}
	} else if stdin, err = a.openPipes(p, attr, &pipes); err != nil {
		return fileError("start", p.argv[0], err)
	}
	if err := j.makePumps(pipes.Own); err != nil {
		return fileError("start", p.argv[0], err)
	}
	if stdin != nil {
		j.in = newInput(stdin, j.terminal)
	}
	j.started = time.Now()
	// Held so that reaped finds the job complete, however soon the process ends.
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.pid, err = a.startChild(j, p, attr); err != nil {
		return err
	}
	if p.timeout > 0 {
		j.timeout = afterRunning(p.timeout, func() { j.end(agentv1.EndCause_END_CAUSE_TIMEOUT) })
	}
	for _, pump := range j.pumps {
		go pump.run()
	}
	if j.in != nil {
		j.in.first(p.stdin, p.open)
	}
	return nil
}

// openTerminal makes a terminal: its master is for the agent and its slave, whose
// descriptor it returns, for the child.
func openTerminal(p *plan, pipes *kernel.Pipes) (tty uintptr, err error) {
	master, slave, err := pty.Open()
	if err != nil {
		return 0, err
	}
	pipes.Own, pipes.Child = append(pipes.Own, master), append(pipes.Child, slave)
	if err := pty.Setsize(master, winsize(p.terminal)); err != nil {
		return 0, err
	}
	tty = slave.Fd() // blocking, as programs expect
	// Programs open the terminal again by its name.
	_ = unix.Fchown(int(tty), int(p.user.uid), int(p.user.gid))
	_ = unix.Fchmod(int(tty), 0o620)
	return tty, nil
}

func winsize(t *agentv1.TerminalSize) *pty.Winsize {
	w := &pty.Winsize{Cols: uint16(t.GetCols()), Rows: uint16(t.GetRows())}
	if w.Cols == 0 {
		w.Cols = 80
	}
	if w.Rows == 0 {
		w.Rows = 24
	}
	return w
}

// openPipes makes the standard streams. The agent's first two files read what the job
// writes; stdin writes what the job reads, and is nil if that is nothing.
func (a *Agent) openPipes(p *plan, attr *syscall.ProcAttr, pipes *kernel.Pipes) (stdin *os.File, err error) {
	attr.Files = []uintptr{a.null.Fd(), 0, 0}
	for i := 1; i <= 2; i++ {
		_, w, err := pipes.Add(0)
		if err != nil {
			return nil, err
		}
		attr.Files[i] = w.Fd()
	}
	if len(p.stdin) == 0 && !p.open {
		return nil, nil
	}
	w, r, err := pipes.Add(1)
	if err != nil {
		return nil, err
	}
	attr.Files[0] = r.Fd()
	return w, nil
}

// makePumps makes the readers of the terminal, own[0], or of the two pipes.
func (j *job) makePumps(own []*os.File) error {
	files := own[:1]
	if !j.terminal {
		files = own[:2]
	} else {
		j.out.end(1)
	}
	for i, f := range files {
		p, err := newPump(&j.out, i, f)
		if err != nil {
			return err
		}
		j.pumps = append(j.pumps, p)
	}
	return nil
}

// reaped records the end of the process, whose pid may be reused from now on.
func (j *job) reaped(status syscall.WaitStatus) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gone = true
	j.status = status
	j.ended = time.Now()
	j.timeout.stop()
	j.kill.stop()
	switch {
	case !status.Signaled() && (status.ExitStatus() == 0 ||
		j.cause != agentv1.EndCause_END_CAUSE_OUT_OF_MEMORY && j.cause != agentv1.EndCause_END_CAUSE_PROCESS_LIMIT):
		j.cause = agentv1.EndCause_END_CAUSE_UNSPECIFIED
	case j.cause == agentv1.EndCause_END_CAUSE_UNSPECIFIED && j.sent[status.Signal()]:
		j.cause = agentv1.EndCause_END_CAUSE_SIGNAL
	}
}

// finish reads the last output and closes done.
func (j *job) finish() {
	if j.in != nil {
		j.in.abort()
	}
	j.out.release()
	grace := time.NewTimer(exitGrace)
	defer grace.Stop()
	for _, p := range j.pumps {
		select {
		case <-p.settled:
		case <-grace.C:
			grace.Reset(0)
			p.drain()
		}
	}
	for _, p := range j.pumps {
		<-p.settled
	}
	j.final[0], j.final[1], _ = j.out.totals()
	j.onDone()
	if j.out.ended() {
		j.quiet()
		return
	}
	go j.quiet() // processes that the job left behind may still write
}

// quiet waits until both streams have ended.
func (j *job) quiet() {
	for _, p := range j.pumps {
		<-p.ended
	}
	j.closeFiles()
	j.onQuiet()
}

func (j *job) closeFiles() {
	for _, p := range j.pumps {
		_ = p.file.Close()
	}
}

// abandon stops reading the output of processes that the job has left behind.
func (j *job) abandon() {
	j.out.drop()
	j.closeFiles()
}

// end kills the job's session and records cause.
func (j *job) end(cause agentv1.EndCause) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gone {
		return
	}
	if j.cause == agentv1.EndCause_END_CAUSE_UNSPECIFIED {
		j.cause = cause
	}
	signalSession(j.pid, unix.SIGKILL)
}

// blame records why the job is about to end, for callers that kill one of its
// processes themselves.
func (j *job) blame(cause agentv1.EndCause) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.gone && j.cause == agentv1.EndCause_END_CAUSE_UNSPECIFIED {
		j.cause = cause
	}
}

// killAll kills what is left of the job's session, even after the job has ended.
func (j *job) killAll() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.gone || leaderless(j.pid) {
		signalSession(j.pid, unix.SIGKILL)
	}
}

// signal sends sig to the job's session, and SIGKILL after killAfter unless
// that is 0.
func (j *job) signal(sig unix.Signal, killAfter time.Duration) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gone {
		if leaderless(j.pid) && signalSession(j.pid, sig) > 0 {
			return nil
		}
		return fail(connect.CodeFailedPrecondition, "job %s has already ended; start another", j.id)
	}
	j.sent[sig] = true
	signalSession(j.pid, sig)
	if killAfter > 0 && j.kill == nil {
		j.sent[unix.SIGKILL] = true
		j.kill = afterRunning(killAfter, func() { j.end(agentv1.EndCause_END_CAUSE_SIGNAL) })
	}
	return nil
}

// running reports whether done is still open.
func (j *job) running() bool {
	return !closed(j.done)
}

func (j *job) describe() *agentv1.Job {
	running := j.running() // read first: once it is false, the byte counts are final
	m := j.describeStart()
	m.StdoutBytes, m.StderrBytes, _ = j.out.totals()
	if running {
		return m
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	m.State = agentv1.JobState_JOB_STATE_EXITED
	m.EndedUnixNano = j.ended.UnixNano()
	m.EndCause = j.cause
	m.ExitCode = int32(j.status.ExitStatus())
	if j.status.Signaled() {
		m.Signal = int32(j.status.Signal())
		m.ExitCode = 128 + m.Signal
	}
	return m
}

// describeStart describes the job as it was when it started.
func (j *job) describeStart() *agentv1.Job {
	return &agentv1.Job{
		JobId:           j.id,
		State:           agentv1.JobState_JOB_STATE_RUNNING,
		Pid:             int32(j.pid),
		Argv:            slices.Clone(j.argv),
		StartedUnixNano: j.started.UnixNano(),
		Terminal:        j.terminal,
		User:            j.user,
		Workdir:         j.workdir,
		Language:        j.language,
		Tag:             j.tag,
	}
}
