package kernel

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// idleBytes is how much of each stream is kept of what is written between
	// two runs, for the next one.
	idleBytes = 64 << 10
	// endGrace is how long a kernel that has closed its connection may take to
	// end before it is killed.
	endGrace = 200 * time.Millisecond
)

// exitDisconnected is how a driver ends that cannot talk any more.
const exitDisconnected = 70

// exitKilled is how a process ends that is killed.
const exitKilled = 128 + int(unix.SIGKILL)

const disconnected = "its connection with the sandbox was closed; code must leave file descriptors alone that it has not opened"

// Process is a started interpreter, the first of a session.
type Process interface {
	PID() int
	// Interrupt sends SIGINT to its process group, Kill SIGKILL to its session.
	Interrupt()
	Kill()
	// Done is closed when it has ended; End tells then how.
	Done() <-chan struct{}
	End() End
}

// End is how a process ended.
type End struct {
	// Code is its exit code, or 128 and the number of the signal.
	Code int
	// Reason says it in words: "it was killed: the sandbox is out of memory".
	Reason string
}

// Spawn starts the first program of names that there is, with arguments. The
// files become its descriptors 0, 1, and so on; they remain the caller's.
type Spawn func(names, args []string, files []*os.File) (Process, error)

// Config describes a kernel.
type Config struct {
	Language sandbox.Language
	Spawn    Spawn
	// Scratch is a directory that the interpreter's user can read, and in which
	// this process makes files.
	Scratch string
	// UID and GID are the interpreter's user.
	UID, GID int
	// Env is its environment at the start.
	Env map[string]string
	// EndGrace is how long it may take to end once it has closed its
	// connection, before it is killed; 0: 200 ms.
	EndGrace time.Duration
}

// Run is a piece of code to run.
type Run struct {
	Count  int
	Code   string
	Env    map[string]string // default environment as of now
	SetEnv map[string]string // for this run
	Home   string            // where to go first, for good; empty: nowhere
	Dir    string            // for this run; empty: where it is
	Stdin  []byte
	Given  bool // there is standard input
	Reseed []byte
}

// Outcome is how a run ended.
type Outcome struct {
	Error       *agentv1.CodeError
	Exit        int
	Interrupted bool
	// Died says that the interpreter has ended, and End how.
	Died bool
	End  End
}

// ErrRefused says that a run did not begin.
var ErrRefused = errors.New("refused")

// Kernel is one interpreter. Its methods are safe for concurrent use, but for
// Run, of which one may run at a time.
type Kernel struct {
	cfg     Config
	codec   codec
	proc    Process
	in      *os.File
	out     *os.File
	ack     *os.File // nil: none is waited for
	streams [2]*stream
	readers sync.WaitGroup
	results chan *message
	dead    chan struct{} // closed when the process has ended and all it said is read
	fault   string        // what it was killed for; set before dead is closed

	mu   sync.Mutex
	dir  string    // guarded by mu; its working directory, as last told
	run  int64     // guarded by mu
	box  *Outbox   // guarded by mu; of the present run
	idle [2][]byte // guarded by mu; written between runs
}

// Start starts an interpreter and waits until it is ready.
func Start(ctx context.Context, cfg Config) (_ *Kernel, err error) {
	k := &Kernel{cfg: cfg, results: make(chan *message, 1), dead: make(chan struct{})}
	d, err := driverOf(cfg.Language, cfg.Env)
	if err != nil {
		return nil, err
	}
	k.codec = d.codec(k)
	if err := k.spawn(d); err != nil {
		return nil, err
	}
	go k.read()
	for _, s := range k.streams {
		k.readers.Go(s.run)
	}
	// The interpreter may never read.
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
	var own, child []*os.File
	defer func() {
		CloseAll(child)
		if err != nil {
			CloseAll(own)
		}
	}()
	pipes := func(mine int) (*os.File, *os.File, error) {
		a, b, err := Pipe(mine)
		if err == nil {
			own, child = append(own, a), append(child, b)
		}
		return a, b, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	child = append(child, null)
	files := make([]*os.File, 6)
	files[0] = null
	for _, end := range []struct {
		fd, mine int
		to       **os.File
	}{{1, 0, nil}, {2, 0, nil}, {d.in, 1, &k.in}, {d.out, 0, &k.out}, {d.ack, 1, &k.ack}} {
		if end.fd < 0 {
			continue
		}
		mine, theirs, err := pipes(end.mine)
		if err != nil {
			return fmt.Errorf("make a pipe: %w", err)
		}
		files[end.fd] = theirs
		if end.to != nil {
			*end.to = mine
			continue
		}
		i := end.fd - 1
		if k.streams[i], err = newStream(mine, func(data []byte) { k.output(i, data) }); err != nil {
			return err
		}
	}
	for files[len(files)-1] == nil {
		files = files[:len(files)-1]
	}
	k.proc, err = k.cfg.Spawn(d.names, d.args, files)
	return err
}

// Pipe makes a pipe. It returns the end with index mine (0 reads, 1 writes), which
// is non-blocking, and the other end, which blocks, as programs expect.
func Pipe(mine int) (own, other *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(p[mine], true); err != nil {
		_, _ = unix.Close(p[0]), unix.Close(p[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(p[mine]), "pipe"), os.NewFile(uintptr(p[1-mine]), "pipe"), nil
}

// CloseAll closes files and ignores their errors.
func CloseAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// output takes what was written to a stream.
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

// takeIdle returns and forgets what was written between runs.
func (k *Kernel) takeIdle() (stdout, stderr []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	stdout, stderr = k.idle[0], k.idle[1]
	k.idle = [2][]byte{}
	return stdout, stderr
}

func (k *Kernel) drain() {
	for _, s := range k.streams {
		s.drain()
	}
}

// read receives what the driver says, until the process has ended.
func (k *Kernel) read() {
	defer close(k.dead)
	over := make(chan struct{})
	var why string
	go func() {
		defer close(over)
		why = k.listen()
	}()
	select {
	case <-over:
		select {
		case <-k.proc.Done():
		case <-time.After(cmp.Or(k.cfg.EndGrace, endGrace)):
			k.proc.Kill()
			<-k.proc.Done()
			if k.proc.End().Code == exitKilled { // and not about to end by itself
				k.fault = why
			}
		}
	case <-k.proc.Done():
	}
	_ = k.in.Close()
	if k.ack != nil {
		_ = k.ack.Close()
	}
	// What it said before it ended is there to be read; a child of it may hold
	// the other end for ever.
	_ = k.out.SetReadDeadline(time.Unix(1, 0))
	<-over
	_ = k.out.Close()
	k.drain()
}

// listen reads messages and returns why it stopped.
func (k *Kernel) listen() string {
	r := bufio.NewReaderSize(&spoken{file: k.out}, 4096)
	for {
		m, err := k.codec.read(r)
		if err != nil {
			if errors.Is(err, errFrameSize) || m != nil {
				return "it has sent what makes no sense to the sandbox"
			}
			return disconnected
		}
		k.hear(m)
	}
}

// hear acts on a message. What was not asked for is ignored.
func (k *Kernel) hear(m *message) {
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

// Run runs code and puts what it writes and shows into box. It returns when
// the code, or the kernel, has ended.
func (k *Kernel) Run(r *Run, box *Outbox) (*Outcome, error) {
	k.begin(box)
	defer k.finish()
	select {
	case <-k.results: // of a run that was given up
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
	case m := <-k.results: // its last word
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
	return &Outcome{Error: m.problem(), Exit: m.Exit, Interrupted: m.Interrupted}, nil
}

// begin makes box the one that output goes to.
func (k *Kernel) begin(box *Outbox) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.run++
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

// Interrupt does what ^C does.
func (k *Kernel) Interrupt() { k.proc.Interrupt() }

// Insist reports whether an interrupt may have to be repeated: a shell ignores
// one when the command that it waits for ends by itself just then.
func (k *Kernel) Insist() bool { return k.cfg.Language == sandbox.Bash }

// Kill ends the interpreter and all processes of its session.
func (k *Kernel) Kill() { k.proc.Kill() }

// PID is the interpreter's process.
func (k *Kernel) PID() int { return k.proc.PID() }

// Dir is its working directory as of the end of the last run, or empty.
func (k *Kernel) Dir() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.dir
}

// Dead is closed when the interpreter has ended.
func (k *Kernel) Dead() <-chan struct{} { return k.dead }

// End tells how the interpreter has ended.
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

// Quiet returns when no process can write to the kernel's streams any more.
func (k *Kernel) Quiet() { k.readers.Wait() }

// Abandon stops reading what processes write that the kernel has left behind.
func (k *Kernel) Abandon() {
	for _, s := range k.streams {
		_ = s.file.Close()
	}
}
