package kernel

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// idleBytes bounds how much of each stream's output between two runs is kept for the
	// next run.
	idleBytes = 64 << 10
	// endGrace is how long a kernel that has closed its connection may take to end before
	// it is killed.
	endGrace = 200 * time.Millisecond
	// exitDisconnected is the exit code of a driver that has lost its connection.
	exitDisconnected = 70
	// exitKilled is the exit code of a process that was killed.
	exitKilled = 128 + int(unix.SIGKILL)
)

const disconnected = "its connection with the sandbox was closed; code must leave file descriptors alone that it has not opened"

// Process is a started interpreter, the first of a session.
type Process interface {
	PID() int
	// Interrupt sends SIGINT to its process group, Kill SIGKILL to its session.
	Interrupt()
	Kill()
	// Done is closed when it has ended; End then returns how.
	Done() <-chan struct{}
	End() End
}

// End is how a process ended.
type End struct {
	// Code is its exit code, or 128 and the number of the signal.
	Code int
	// Reason says why, in words, such as "it was killed: the sandbox is out of memory".
	Reason string
}

// Spawn starts the first program of names that exists, with arguments. The files
// become its descriptors 0, 1, and so on; the caller closes them.
type Spawn func(names, args []string, files []*os.File) (Process, error)

// Config describes a kernel.
type Config struct {
	Language sandbox.Language
	Spawn    Spawn
	// Scratch is a directory in which this process makes files that the interpreter's
	// user can read.
	Scratch string
	// UID and GID are the interpreter's user.
	UID, GID int
	// Env is its environment at the start.
	Env map[string]string
	// EndGrace is how long the kernel may take to end after it has closed its connection,
	// before it is killed; 0 means 200 ms.
	EndGrace time.Duration

	files fs.FS // in place of the drivers, in tests
}

// Run is a piece of code to run.
type Run struct {
	Count  int
	Code   string
	Env    map[string]string // default environment as of now
	SetEnv map[string]string // for this run
	Home   string            // directory to change to first, for good; empty: none
	Dir    string            // directory for this run; empty: the current one
	Stdin  []byte
	Given  bool // there is standard input
	Reseed []byte
}

// Outcome is how a run ended.
type Outcome struct {
	Error       *agentv1.CodeError
	Exit        int
	Interrupted bool
	// Died is set if the interpreter has ended; End says how.
	Died bool
	End  End
}

// ErrRefused is the error of a run that did not begin.
var ErrRefused = errors.New("refused")

// Kernel is one interpreter. Its methods are safe for concurrent use, except Run,
// which may be called once at a time.
type Kernel struct {
	worker
	cfg     Config
	codec   codec
	in      *os.File
	out     *os.File
	ack     *os.File // nil: the driver waits for none
	mark    *os.File // says which run is interrupted; nil: the driver does not look
	results chan *message
	dead    chan struct{} // closed when the process has ended and all its messages are read
	fault   string        // why it was killed; set before dead is closed

	mu   sync.Mutex
	dir  string    // guarded by mu; its working directory, as last reported
	run  int64     // guarded by mu; the number of the current run, or the last
	box  *Outbox   // guarded by mu; of the current run
	idle [2][]byte // guarded by mu; written between runs

	begins bool // the driver says when it begins code
	begun  bool // guarded by mu; it has begun the current run's
	early  bool // guarded by mu; the current run is to be interrupted when it has
}

// Start starts an interpreter and waits until it is ready.
func Start(ctx context.Context, cfg Config) (_ *Kernel, err error) {
	k := &Kernel{cfg: cfg, results: make(chan *message, 1), dead: make(chan struct{})}
	if cfg.files == nil {
		cfg.files = drivers
	}
	d, err := driverOf(cfg.files, cfg.Language, cfg.Env)
	if err != nil {
		return nil, err
	}
	k.codec, k.begins = d.codec(k), d.begins
	if err := k.spawn(d); err != nil {
		return nil, err
	}
	go k.serve()
	k.read()
	// The write below may block forever: the interpreter need not read.
	stop := context.AfterFunc(ctx, k.proc.Kill)
	defer stop()
	if _, err := k.in.Write(d.hello); err == nil {
		select {
		case m := <-k.results:
			if m.Type == "ready" {
				k.drain()
				k.takeIdle()
				return k, nil
			}
		case <-k.dead:
		}
	}
	k.proc.Kill()
	<-k.dead
	defer k.Abandon()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	_, stderr := k.takeIdle()
	return nil, fmt.Errorf("%s ended before it was ready (%s)%s", cfg.Language, k.End().Reason, tail(stderr))
}

func tail(stderr []byte) string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(stderr[max(0, len(stderr)-2000):]), ""))
	if text == "" {
		return ""
	}
	return ": " + text
}

// spawn makes the pipes and starts the process.
func (k *Kernel) spawn(d *driver) (err error) {
	var p Pipes
	defer func() { p.Close(err) }()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	p.Child = append(p.Child, null)
	streams, err := k.addStreams(&p, k.output)
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	files := make([]*os.File, 7)
	files[0], files[1], files[2] = null, streams[0], streams[1]
	if d.mark >= 0 {
		if k.mark, files[d.mark], err = p.addShared("interrupted-run"); err != nil {
			return fmt.Errorf("make a file for interrupts: %w", err)
		}
	}
	for _, end := range []struct {
		fd, mine int
		to       **os.File
	}{{d.in, 1, &k.in}, {d.out, 0, &k.out}, {d.ack, 1, &k.ack}} {
		if end.fd < 0 {
			continue
		}
		if *end.to, files[end.fd], err = p.Add(end.mine); err != nil {
			return fmt.Errorf("make a pipe: %w", err)
		}
	}
	for files[len(files)-1] == nil {
		files = files[:len(files)-1]
	}
	k.proc, err = k.cfg.Spawn(d.names, d.args, files)
	return err
}

// output receives what was written to a stream.
func (k *Kernel) output(stream int, data []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.box != nil {
		k.box.Write(stream, data)
		return
	}
	room := idleBytes - len(k.idle[stream])
	k.idle[stream] = append(k.idle[stream], data[:min(room, len(data))]...)
}

// takeIdle returns, and forgets, what was written between runs.
func (k *Kernel) takeIdle() (stdout, stderr []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	stdout, stderr = k.idle[0], k.idle[1]
	k.idle = [2][]byte{}
	return stdout, stderr
}

// serve reads messages until the process has ended. It kills a process that closes its
// connection but does not end.
func (k *Kernel) serve() {
	defer close(k.dead)
	over := make(chan struct{})
	var why string
	go func() {
		defer close(over)
		why = k.readMessages()
	}()
	select {
	case <-over:
		select {
		case <-k.proc.Done():
		case <-time.After(cmp.Or(k.cfg.EndGrace, endGrace)):
			k.proc.Kill()
			<-k.proc.Done()
			if k.proc.End().Code == exitKilled { // it did not end by itself
				k.fault = why
			}
		}
	case <-k.proc.Done():
	}
	_ = k.in.Close()
	for _, f := range []*os.File{k.ack, k.mark} {
		if f != nil {
			_ = f.Close()
		}
	}
	// Messages sent before its end are still read. The read may never reach end of file: a
	// child of the process may hold the other end.
	_ = k.out.SetReadDeadline(time.Unix(1, 0))
	<-over
	_ = k.out.Close()
	k.drain()
}

// readMessages handles messages, and returns why there are no more.
func (k *Kernel) readMessages() string {
	r := bufio.NewReaderSize(&lateReader{file: k.out}, 4096)
	for {
		m, err := k.codec.read(r)
		switch {
		case errors.Is(err, errProtocol):
			return "it has sent an invalid message to the sandbox"
		case err != nil:
			return disconnected
		}
		k.handle(m)
	}
}

// handle acts on a message. It ignores messages that are not about the current run.
func (k *Kernel) handle(m *message) {
	if m.Type == "begun" {
		k.beginsCode(m.Run)
		return
	}
	k.drain()
	k.mu.Lock()
	box := k.box
	current := m.Run == k.run
	if current && m.Dir != "" {
		k.dir = m.Dir
	}
	k.mu.Unlock()
	if m.Type != "rich" {
		if current {
			select {
			case k.results <- m:
			default:
			}
		}
		return
	}
	if current && box != nil {
		box.Add(m.rich())
	}
	if k.ack != nil {
		_, _ = k.ack.Write([]byte{1})
	}
}

// beginsCode lets interrupts through to the code of a run, if it is the current one.
func (k *Kernel) beginsCode(run int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if run != k.run {
		return
	}
	k.begun = true
	if k.early {
		k.proc.Interrupt()
	}
}

// Prepare begins a run: from now on, interrupts are for the code that Run is called with
// next, even if they come before the interpreter has begun it.
func (k *Kernel) Prepare() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.run++
	k.begun, k.early = false, false
}

// Interrupt interrupts the code of the run that was prepared last, as ^C does. The driver
// ignores a signal that comes when it runs no code. Of code that it is about to run, the
// mark tells it that the code was interrupted; without a mark, the signal waits until the
// driver has begun the code.
func (k *Kernel) Interrupt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mark != nil {
		_, _ = k.mark.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(k.run)), 0)
	}
	if k.begins && !k.begun {
		k.early = true
		return
	}
	k.proc.Interrupt()
}

// Run runs code and puts what it writes and shows into box. It returns when
// the code, or the kernel, has ended.
//
// Preconditions: Prepare was called since the last run.
func (k *Kernel) Run(r *Run, box *Outbox) (*Outcome, error) {
	k.begin(box)
	defer k.finish()
	select {
	case <-k.results: // result of an abandoned run
	default:
	}
	data, err := k.codec.run(r)
	if err != nil {
		return nil, err
	}
	if _, err := k.in.Write(data); err != nil {
		k.proc.Kill() // it has closed the connection, or has ended
	}
	defer k.codec.tidy()
	select {
	case m := <-k.results:
		return result(m)
	case <-k.dead:
	}
	select {
	case m := <-k.results: // sent before it ended
		if o, err := result(m); err == nil {
			return o, nil
		}
	default:
	}
	end := k.End()
	return &Outcome{Exit: end.Code, Died: true, End: end}, nil
}

func result(m *message) (*Outcome, error) {
	if m.Type == "refused" {
		return nil, fmt.Errorf("%w: %s", ErrRefused, m.Why)
	}
	return &Outcome{Error: m.codeError(), Exit: m.Exit, Interrupted: m.Interrupted}, nil
}

// begin directs output to box, starting with the output since the last run.
func (k *Kernel) begin(box *Outbox) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.box = box
	for i, data := range k.idle {
		if len(data) > 0 {
			box.Write(i, data)
		}
	}
	k.idle = [2][]byte{}
}

func (k *Kernel) finish() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.box = nil
}

// Insist reports whether an interrupt may have to be repeated: a shell ignores an interrupt
// if the command that it waits for ends by itself at that moment, and Node.js one that comes
// just before it runs a script that does not return, after the driver has looked.
func (k *Kernel) Insist() bool { return k.cfg.Language != sandbox.Python }

// Dir returns the interpreter's working directory at the end of the last run, or "".
func (k *Kernel) Dir() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.dir
}

// Dead is closed when the interpreter has ended.
func (k *Kernel) Dead() <-chan struct{} { return k.dead }

// End returns how the interpreter has ended.
//
// Preconditions: Dead is closed.
func (k *Kernel) End() End {
	<-k.dead
	end := k.proc.End()
	switch {
	case k.fault != "":
		end.Reason = k.fault
	case end.Code == exitDisconnected:
		end.Reason = disconnected
	}
	return end
}
