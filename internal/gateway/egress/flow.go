package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// openAfter is how long a connection lasts before its start is recorded.
const openAfter = time.Second

// flow is one connection or flow of the sandbox, from the attempt to its end.
type flow struct {
	g      *Gateway
	id     int64
	proto  string
	to     netip.AddrPort // as the sandbox chose it
	alias  string         // the name that a synthetic address stands for
	start  time.Time
	ctx    context.Context // of the flow's life: the handler's call
	cancel context.CancelFunc
	// sent and received are bytes as the sandbox sees them.
	sent, received atomic.Int64

	mu sync.Mutex
	// All below are guarded by mu.
	ways    map[*way]struct{}
	guest   *guestConn // nil until it is accepted
	closers []io.Closer
	closed  bool
	open    *time.Timer
	event   sandbox.NetworkEvent
	judged  bool // event has a verdict
	// connectedOnce says that there was a way out.
	connectedOnce bool
	// spoken says that events of its hosts were recorded.
	spoken bool
}

// way is a way out of a flow, as it was judged: to be judged again when the
// policy changes.
type way struct {
	a    Attempt
	conn net.Conn // nil while dialled
}

func newFlow(ctx context.Context, g *Gateway, proto string, to netip.AddrPort) *flow {
	f := &flow{g: g, id: g.serial.Add(1), proto: proto, to: to, start: time.Now(), ways: map[*way]struct{}{}}
	f.ctx, f.cancel = context.WithCancel(ctx)
	f.event = sandbox.NetworkEvent{Kind: sandbox.NetworkConnection, Connection: f.id, Protocol: proto,
		Address: to.Addr().String(), Port: int(to.Port()), Host: g.names.nameOf(to.Addr())}
	return f
}

// named notes the name that the sandbox used.
func (f *flow) named(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.event.Host = host
}

// namedFirst notes the first name that was used.
func (f *flow) namedFirst(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.connectedOnce {
		f.event.Host = host
	}
}

// refuse notes that the flow is refused.
func (f *flow) refuse(d Decision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuseLocked(d)
}

func (f *flow) refuseLocked(d Decision) {
	f.judged = true
	f.event.Verdict, f.event.Match, f.event.Rule, f.event.Reason = sandbox.NetworkBlocked, d.Match, d.Rule, d.Reason
}

// aside notes that there is no way to a host. On a connection that may go on
// with other hosts, it is an event of its own, at once.
func (f *flow) aside(host string, goesOn bool, v sandbox.NetworkVerdict, d Decision) {
	f.mu.Lock()
	if f.event.Verdict == sandbox.NetworkBlocked && f.closed {
		f.mu.Unlock()
		return // by a change of the policy, which says why already
	}
	e := f.event
	e.Verdict, e.Reason = v, d.Reason
	if v == sandbox.NetworkBlocked {
		e.Match, e.Rule = d.Match, d.Rule
	}
	if e.Match == "" {
		e.Match = sandbox.MatchDefault
	}
	if host != "" {
		e.Host = host
	}
	if !goesOn {
		f.event, f.judged = e, true
		f.mu.Unlock()
		return
	}
	f.spoken = true
	f.mu.Unlock()
	// Many attempts may come on one connection: they count as attempts do, so
	// that they do not wash the rest out of the log.
	if f.g.state.Load().perSecond.Wait(f.ctx) == nil {
		f.g.record(e)
	}
}

// note adds a reason to what was allowed.
func (f *flow) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.event.Verdict == sandbox.NetworkAllowed && !f.closed {
		f.event.Reason = Reason(err)
	}
}

// failed notes that the other side could not be reached.
func (f *flow) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.event.Verdict != sandbox.NetworkBlocked {
		f.judged = true
		f.event.Verdict, f.event.Reason = sandbox.NetworkFailed, Reason(err)
	}
}

// enter judges a way out. If it is allowed, it is judged again whenever the
// policy changes, until it is left.
func (f *flow) enter(a Attempt) (*way, Decision) {
	w := &way{a: a}
	f.mu.Lock()
	f.ways[w] = struct{}{} // before the state is read, so that no change of it is missed
	f.mu.Unlock()
	d := f.g.state.Load().policy.Judge(a)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !d.Allow {
		delete(f.ways, w)
		return nil, d
	}
	if f.closed {
		delete(f.ways, w)
		return nil, Decision{Match: f.event.Match, Rule: f.event.Rule, Reason: f.event.Reason}
	}
	if !f.connectedOnce {
		f.judged = true
		f.event.Verdict, f.event.Match, f.event.Rule, f.event.Reason = sandbox.NetworkAllowed, d.Match, d.Rule, ""
		f.event.Address = ""
		if a.Addr.IsValid() {
			f.event.Address = a.Addr.String()
		}
	}
	return w, d
}

// leave ends a way out.
func (f *flow) leave(w *way) {
	f.mu.Lock()
	delete(f.ways, w)
	conn := w.conn
	f.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// connected gives a way its connection. It fails if the flow was closed
// meanwhile.
func (f *flow) connected(w *way, c net.Conn) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.ways[w]; !ok || f.closed {
		c.Close()
		return errClosed
	}
	w.conn = c
	if !f.connectedOnce {
		f.connectedOnce = true
		f.open = time.AfterFunc(openAfter-min(openAfter, time.Since(f.start)), f.recordOpen)
	}
	return nil
}

var errClosed = errors.New("the connection was closed by the gateway")

// another tells whether the flow has had a way out already.
func (f *flow) another() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.connectedOnce
}

// judgeAgain closes the flow if one of its ways is refused now.
func (f *flow) judgeAgain(s *state) {
	f.mu.Lock()
	for w := range f.ways {
		if d := s.policy.Judge(w.a); !d.Allow {
			d.Reason = "the policy was changed: " + d.Reason
			f.refuseLocked(d)
			guest := f.guest
			f.mu.Unlock()
			if guest != nil {
				guest.reset()
			}
			f.close()
			return
		}
	}
	f.mu.Unlock()
}

// learn notes the name that the bytes of a connection show, after it was let
// through without one. It says what the connection is judged by from now on:
// the name, if the address is known to be of it, else the address alone.
func (f *flow) learn(w *way, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.event.Host = name
	w.a.claimed = name
	if f.g.names.pinned(w.a.Addr, name) {
		w.a.Names = []string{name}
	} else {
		w.a.Names = nil
	}
}

// own closes c when the flow is closed, which may be now.
func (f *flow) own(c io.Closer) {
	f.mu.Lock()
	closed := f.closed
	if !closed {
		f.closers = append(f.closers, c)
	}
	f.mu.Unlock()
	if closed {
		c.Close()
	}
}

// close closes all connections of the flow; its handler then ends.
func (f *flow) close() {
	f.mu.Lock()
	f.closed = true
	closers := f.closers
	f.closers = nil
	for w := range f.ways {
		if w.conn != nil {
			closers = append(closers, w.conn)
		}
	}
	f.mu.Unlock()
	f.cancel()
	for _, c := range closers {
		c.Close()
	}
}

// end closes the flow and records it.
func (f *flow) end() {
	f.close()
	f.mu.Lock()
	if f.open != nil {
		f.open.Stop()
	}
	e := f.eventLocked()
	if !f.judged {
		e.Verdict, e.Match, e.Rule = sandbox.NetworkFailed, sandbox.MatchDefault, ""
		e.Reason = "the sandbox closed the connection before it said where to"
	}
	// What there is to say of hosts that were not reached was said.
	said := f.spoken && !f.connectedOnce && (!f.judged || e.Verdict == sandbox.NetworkAllowed)
	f.mu.Unlock()
	if !said {
		f.g.record(e)
	}
	f.g.over(f)
}

// recordOpen records a connection that lasts. Its end waits for that, so as not
// to be recorded before its beginning.
func (f *flow) recordOpen() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	e := f.eventLocked()
	e.Open = true
	f.g.record(e)
}

// eventLocked requires f.mu.
func (f *flow) eventLocked() sandbox.NetworkEvent {
	e := f.event
	e.BytesOut, e.BytesIn = f.sent.Load(), f.received.Load()
	e.DurationMS = time.Since(f.start).Milliseconds()
	return e
}

// Reason is an error of a connection in words for the log and the sandbox,
// without the addresses and servers of this side.
func Reason(err error) string {
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.DeadlineExceeded):
		return "timed out"
	case errors.As(err, &dns):
		return "a name on the way out cannot be looked up"
	case errors.As(err, &op):
		if op.Timeout() {
			return "timed out"
		}
		return op.Err.Error()
	}
	return err.Error()
}
