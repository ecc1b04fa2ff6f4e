package envd

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"

	pb "github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/processpb"
	"github.com/cove-sh/cove/sandbox"
)

// headerPing has the interval of keepalives on a silent stream, in seconds.
const headerPing = "Keepalive-Ping-Interval"

const (
	defaultPing = 90 * time.Second
	maxPing     = time.Hour
)

// pingInterval returns the keepalive interval that a client asks for.
func pingInterval(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get(headerPing))
	if err != nil || n <= 0 {
		return defaultPing
	}
	return time.Duration(min(n, int(maxPing/time.Second))) * time.Second
}

// pulse sends messages on a stream, and keepalives while it is silent. It is safe for
// concurrent use, unlike streams.
type pulse struct {
	mu       sync.Mutex
	timer    *time.Timer
	interval time.Duration
	closed   bool // guarded by mu
}

// newPulse starts a pulse; ping sends a keepalive.
func newPulse(h http.Header, ping func() error) *pulse {
	p := &pulse{interval: pingInterval(h)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(p.interval, func() { _ = p.send(ping) }) // the next message reports a client that is gone
	return p
}

// send calls f unless the stream is over.
func (p *pulse) send(f func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	p.timer.Reset(p.interval)
	return f()
}

var errClosed = errors.New("the stream is closed")

// close ensures that nothing more is sent.
func (p *pulse) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.timer.Stop()
}

// follower passes the events of a job to one reader.
type follower struct {
	*pulse
	out      func(*pb.ProcessEvent) error
	terminal bool
	next     map[sandbox.Stream]int64 // offset of the next output
	err      error                    // why the reader gets no more events
}

func newFollower(h http.Header, out func(*pb.ProcessEvent) error) *follower {
	f := &follower{out: out}
	f.pulse = newPulse(h, func() error {
		return out(&pb.ProcessEvent{Event: &pb.ProcessEvent_Keepalive{Keepalive: &pb.ProcessEvent_KeepAlive{}}})
	})
	return f
}

func (f *follower) send(e *pb.ProcessEvent) error {
	return f.pulse.send(func() error { return f.out(e) })
}

// start sends the number of the process.
func (f *follower) start(job *sandbox.Job, from sandbox.AttachRequest) error {
	f.terminal = job.Terminal
	f.next = map[sandbox.Stream]int64{sandbox.Stdout: from.StdoutOffset, sandbox.Stderr: from.StderrOffset}
	return f.send(&pb.ProcessEvent{Event: &pb.ProcessEvent_Start{Start: &pb.ProcessEvent_StartEvent{Pid: uint32(max(0, min(job.PID, math.MaxInt32)))}}})
}

// event is a [sandbox.JobSink].
func (f *follower) event(e sandbox.JobEvent) error {
	if len(e.Data) == 0 {
		return nil
	}
	if e.Offset > f.next[e.Stream] {
		f.err = fail(connect.CodeDataLoss, "output of the command was lost: it was read too slowly; connect to the command again")
		return f.err
	}
	f.next[e.Stream] = e.Offset + int64(len(e.Data))
	data := &pb.ProcessEvent_DataEvent{}
	switch {
	case f.terminal:
		data.Output = &pb.ProcessEvent_DataEvent_Pty{Pty: e.Data}
	case e.Stream == sandbox.Stderr:
		data.Output = &pb.ProcessEvent_DataEvent_Stderr{Stderr: e.Data}
	default:
		data.Output = &pb.ProcessEvent_DataEvent_Stdout{Stdout: e.Data}
	}
	if err := f.send(&pb.ProcessEvent{Event: &pb.ProcessEvent_Data{Data: data}}); err != nil {
		f.err = err
	}
	return f.err
}

func exitStatus(code int) string { return "exit status " + strconv.Itoa(code) }
