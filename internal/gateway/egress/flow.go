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

// openAfter is how long a connection must last before its start is recorded.
const openAfter = time.Second

// flow is one TCP connection or UDP flow of the sandbox, from its attempt to its end.
type flow struct {
	g      *Gateway
	id     int64
	proto  string
	to     netip.AddrPort // the address that the sandbox chose
	alias  string         // the name that a synthetic address stands for
	start  time.Time
	ctx    context.Context // the handler's call; ends with the flow
	cancel context.CancelFunc
	// sent and received count bytes from the sandbox's point of view.
	sent, received atomic.Int64

	mu sync.Mutex
	// The fields below are guarded by mu.
	outbounds map[*outbound]struct{}
	guest     *guestConn // nil until the sandbox's connection is accepted
	closers   []io.Closer
	closed    bool
	open      *time.Timer
	event     sandbox.NetworkEvent
	judged    bool // event has a verdict
	// connectedOnce reports whether an outbound connection was made.
	connectedOnce bool
	// logged reports whether a separate event was recorded for one of its hosts.
	logged bool
	// answered are the subjects that were allowed while the flow waited.
	answered map[Subject]bool
}

// outbound is an outgoing connection of a flow with the attempt that was judged, so that
// it can be judged again when the policy changes.
type outbound struct {
	a    Attempt
	conn net.Conn // nil while dialling
}

func newFlow(ctx context.Context, g *Gateway, proto string, to netip.AddrPort) *flow {
	f := &flow{g: g, id: g.serial.Add(1), proto: proto, to: to, start: time.Now(), outbounds: map[*outbound]struct{}{}}
	f.ctx, f.cancel = context.WithCancel(ctx)
	f.event = sandbox.NetworkEvent{Kind: sandbox.NetworkConnection, Connection: f.id, Protocol: proto,
		Address: to.Addr().String(), Port: int(to.Port()), Host: g.names.nameOf(to.Addr())}
	return f
}

// named records the name that the sandbox used.
func (f *flow) named(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.event.Host = host
}

// namedFirst records the first name that the sandbox used.
func (f *flow) namedFirst(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.connectedOnce {
		f.event.Host = host
	}
}

// refuse records that the flow is refused.
func (f *flow) refuse(d Decision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuseLocked(d)
}

func (f *flow) refuseLocked(d Decision) {
	f.judged = true
	f.event.Verdict, f.event.Match, f.event.Rule, f.event.Reason = sandbox.NetworkBlocked, d.Match, d.Rule, d.Reason
}

// recordUnreached records that a host was not reached. On a flow that may go on with other hosts,
// this is a separate event, recorded at once.
func (f *flow) recordUnreached(host string, goesOn bool, v sandbox.NetworkVerdict, d Decision) {
	f.mu.Lock()
	if f.event.Verdict == sandbox.NetworkBlocked && f.closed {
		f.mu.Unlock()
		return // the policy changed, and the event already says so
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
	f.logged = true
	f.mu.Unlock()
	// One connection may make many attempts. They count against the same rate as
	// connections, so that they do not push other events out of the log.
	if f.g.state.Load().perSecond.Wait(f.ctx) == nil {
		f.g.record(e)
	}
}

// note adds a reason to the event of an allowed connection.
func (f *flow) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.event.Verdict == sandbox.NetworkAllowed && !f.closed {
		f.event.Reason = Reason(err)
	}
}

// failed records that the destination could not be reached.
func (f *flow) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.event.Verdict != sandbox.NetworkBlocked {
		f.judged = true
		f.event.Verdict, f.event.Reason = sandbox.NetworkFailed, Reason(err)
	}
}

// enter judges an outbound connection. An allowed one is judged again whenever the
// policy changes, until [flow.leave].
func (f *flow) enter(a Attempt) (*outbound, Decision) {
	w := &outbound{a: a}
	f.mu.Lock()
	f.outbounds[w] = struct{}{} // before the state is read, so that it misses no change
	f.mu.Unlock()
	d := f.judge(f.g.state.Load(), a)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !d.Allow {
		delete(f.outbounds, w)
		return nil, d
	}
	if f.closed {
		delete(f.outbounds, w)
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

// leave ends an outbound connection.
func (f *flow) leave(w *outbound) {
	f.mu.Lock()
	delete(f.outbounds, w)
	conn := w.conn
	f.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// connected sets the connection of an outbound. It fails if the flow was closed in the
// meantime.
func (f *flow) connected(w *outbound, c net.Conn) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.outbounds[w]; !ok || f.closed {
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

// hadOutbound reports whether the flow has had an outbound connection before.
func (f *flow) hadOutbound() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.connectedOnce
}

// rejudge closes the flow if the new policy refuses one of its outbound connections.
func (f *flow) rejudge(s *state) {
	f.mu.Lock()
	for w := range f.outbounds {
		if d := f.judgeLocked(s, w.a); !d.Allow {
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

// learn records the name in the first bytes of a connection that was allowed without one.
// From then on the connection is judged by that name if the name is known to have this
// address, and by the address alone otherwise.
func (f *flow) learn(w *outbound, name string) {
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

// watch closes gone if the sandbox closes a connection that nothing reads, until stop is
// called. Datagrams are not read ahead, and have no end.
func (f *flow) watch() (gone <-chan struct{}, stop func()) {
	f.mu.Lock()
	guest := f.guest
	f.mu.Unlock()
	if guest == nil || f.proto != "tcp" {
		return nil, func() {}
	}
	return guest.watch()
}

// own closes c when the flow is closed, possibly at once.
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

// close closes all connections of the flow, which ends its handler.
func (f *flow) close() {
	f.mu.Lock()
	f.closed = true
	closers := f.closers
	f.closers = nil
	for w := range f.outbounds {
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
	// The events of hosts that were not reached are recorded already.
	said := f.logged && !f.connectedOnce && (!f.judged || e.Verdict == sandbox.NetworkAllowed)
	f.mu.Unlock()
	if !said {
		f.g.record(e)
	}
	f.g.remove(f)
}

// recordOpen records a connection that lasts. It holds the lock that end needs, so that
// the event of the end comes later.
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

// eventLocked returns the event of the flow. The caller must hold f.mu.
func (f *flow) eventLocked() sandbox.NetworkEvent {
	e := f.event
	e.BytesOut, e.BytesIn = f.sent.Load(), f.received.Load()
	e.DurationMS = time.Since(f.start).Milliseconds()
	return e
}

// Reason describes a connection's error for the log and the sandbox, without the host's
// addresses and servers.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	op, isOp := errors.AsType[*net.OpError](err)
	_, isDNS := errors.AsType[*net.DNSError](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "timed out"
	case isDNS:
		return "a name on the way out cannot be looked up"
	case isOp && op.Timeout():
		return "timed out"
	case isOp:
		return op.Err.Error()
	}
	return err.Error()
}
