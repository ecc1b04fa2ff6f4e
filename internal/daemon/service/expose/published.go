package expose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// defaultAddress is where ports are published if the request names no address.
	defaultAddress = "127.0.0.1"
	// maxPublished bounds the concurrent connections of one sandbox's published ports;
	// more are closed.
	maxPublished = 512
	// firstFreePort is the lowest port for callers who are not the user of the server.
	firstFreePort = 1024
	// publishDial bounds how long a connection waits for its sandbox, which may
	// be paused.
	publishDial = time.Minute
)

// Publisher listens on the ports of the host that lead to sandboxes.
type Publisher struct {
	x    *Exposer
	mu   sync.Mutex
	open map[string]*Published // by sandbox; guarded by mu
}

// Published are the ports of one sandbox.
type Published struct {
	id, team  string
	ports     []sandbox.PublishedPort
	listeners []net.Listener
	slots     chan struct{}

	mu     sync.Mutex
	closed bool                  // guarded by mu
	conns  map[net.Conn]struct{} // guarded by mu
}

// CheckPorts refuses invalid ports and fills in defaults. A caller who is not the user
// of the server gets only loopback and no privileged ports.
func CheckPorts(ports []sandbox.PublishedPort, caller *sandbox.Caller) error {
	if len(ports) > sandbox.MaxPublishedPorts {
		return validate.Errorf("ports has %d entries; publish at most %d", len(ports), sandbox.MaxPublishedPorts)
	}
	for i := range ports {
		p := &ports[i]
		field := fmt.Sprintf("ports[%d]", i)
		p.Address = cmp.Or(p.Address, defaultAddress)
		addr, err := netip.ParseAddr(p.Address)
		if err != nil || addr.Zone() != "" {
			return validate.Errorf("%s.address %s is not an address; use one of the host's, such as %s", field, validate.Quote(p.Address), defaultAddress)
		}
		if err := cmp.Or(validate.Range(field+".host", int64(p.Host), 0, 65535), validate.Port(field+".guest", p.Guest)); err != nil {
			return err
		}
		if caller.KeyID == call.LocalKeyID {
			continue
		}
		if !addr.Unmap().IsLoopback() {
			return sandbox.Errorf(sandbox.CodeForbidden, "%s.address %s is reachable from other machines, which only the user who runs the server may publish to; use %s or a preview", field, p.Address, defaultAddress)
		}
		if p.Host > 0 && p.Host < firstFreePort {
			return sandbox.Errorf(sandbox.CodeForbidden, "%s.host %d is reserved for the user who runs the server; use %d or more, or 0 for any free port", field, p.Host, firstFreePort)
		}
	}
	return nil
}

// Listen opens the ports of a record, and sets in it the numbers of ports that the
// system picks. Nothing is accepted yet. The end of the sandbox closes the ports. After
// an error, none is open.
func (p *Publisher) Listen(ctx context.Context, r *store.Record) (*Published, error) {
	if len(r.Ports) == 0 {
		return nil, nil
	}
	pub := &Published{id: r.ID, team: r.Team, slots: make(chan struct{}, maxPublished), conns: map[net.Conn]struct{}{}}
	for _, port := range r.Ports {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(port.Address, strconv.Itoa(port.Host)))
		if err != nil {
			pub.close()
			return nil, portError(err, port)
		}
		pub.listeners = append(pub.listeners, l)
		if a, ok := l.Addr().(*net.TCPAddr); ok {
			port.Host = a.Port
		}
		pub.ports = append(pub.ports, port)
	}
	r.Ports = pub.ports
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[pub.id] = pub
	return pub, nil
}

// portError explains why it is not possible to listen on a port of the host.
func portError(err error, p sandbox.PublishedPort) error {
	where := net.JoinHostPort(p.Address, strconv.Itoa(p.Host))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return sandbox.Wrap(sandbox.CodeConflict, err, fmt.Sprintf("port %s of the host is in use; choose another, or 0 for any free port", where))
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("the host has no address %s; use one of its addresses, such as %s", p.Address, defaultAddress))
	case errors.Is(err, syscall.EACCES):
		return sandbox.Wrap(sandbox.CodeForbidden, err, fmt.Sprintf("the server may not listen on port %s; use %d or more", where, firstFreePort))
	}
	return call.Unavailable(err, "the server cannot listen on port %s now; choose another", where)
}

// Serve begins to accept connections. It does nothing if pub is nil.
func (p *Publisher) Serve(pub *Published) {
	if pub == nil {
		return
	}
	for i, l := range pub.listeners {
		p.x.cfg.Gate.Go(func() { p.accept(pub, l, pub.ports[i].Guest) }) // or Close closes it
	}
}

// accept relays the connections of one port until it is closed.
func (p *Publisher) accept(pub *Published, l net.Listener, guest int) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// For example, the process has too many open files.
			select {
			case <-p.x.cfg.Gate.Context().Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		select {
		case pub.slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-pub.slots }()
				p.relay(pub, conn, guest)
			})
		default:
			_ = conn.Close()
		}
	}
}

// relay connects one client to the sandbox, which is resumed if it is paused.
func (p *Publisher) relay(pub *Published, near net.Conn, guest int) {
	defer near.Close()
	if !pub.add(near) {
		return
	}
	defer pub.remove(near)
	far, err := p.dial(pub, guest)
	if err != nil {
		p.x.cfg.Log.Debug("relay a published port", "sandbox", pub.id, "port", guest, "error", call.Detailed(err))
		// A reset tells the client that nothing listens.
		if tcp, ok := near.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		return
	}
	defer far.Close()
	if !pub.add(far) {
		return
	}
	defer pub.remove(far)
	splice(near, far)
}

func (p *Publisher) dial(pub *Published, guest int) (net.Conn, error) {
	leave, err := p.x.cfg.Gate.Begin()
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(p.x.cfg.Gate.Context(), publishDial)
	defer cancel()
	h, err := p.x.cfg.Open(ctx, call.Realm{Team: pub.team}, pub.id)
	if err != nil {
		return nil, err
	}
	return p.x.dialPort(ctx, h, guest, true)
}

// splice copies in both directions until both are done or one has failed.
func splice(a, b net.Conn) {
	var wg sync.WaitGroup
	pipe := func(to, from net.Conn) {
		if _, err := io.Copy(to, from); err != nil {
			_, _ = to.Close(), from.Close()
			return
		}
		if closeWrite(to) != nil {
			_, _ = to.Close(), from.Close()
		}
	}
	wg.Go(func() { pipe(a, b) })
	pipe(b, a)
	wg.Wait()
}

// Close ends the ports of a sandbox and their connections, if it has any.
func (p *Publisher) Close(id string) {
	p.mu.Lock()
	pub := p.open[id]
	delete(p.open, id)
	p.mu.Unlock()
	if pub != nil {
		pub.close()
	}
}

// closeAll ends all ports.
func (p *Publisher) closeAll() {
	p.mu.Lock()
	ids := maps.Clone(p.open)
	p.mu.Unlock()
	for id := range ids {
		p.Close(id)
	}
}

// Any reports whether a port is open.
func (p *Publisher) Any() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open) > 0
}

// Reopen listens for all living sandboxes with published ports, after a start or if it
// failed before.
func (p *Publisher) Reopen(ctx context.Context) error {
	f := store.SandboxFilter{States: []sandbox.State{sandbox.StateRunning, sandbox.StatePaused}}
	var errs []error
	for r, err := range store.All(ctx, p.x.cfg.Store.ListSandboxes, f) {
		if err != nil {
			return err
		}
		if err := p.reopenOne(ctx, &r); err != nil {
			errs = append(errs, fmt.Errorf("publish the ports of sandbox %s: %w", r.ID, call.Detailed(err)))
		}
	}
	return errors.Join(errs...)
}

func (p *Publisher) reopenOne(ctx context.Context, r *store.Record) error {
	p.mu.Lock()
	_, open := p.open[r.ID]
	p.mu.Unlock()
	if open || len(r.Ports) == 0 {
		return nil
	}
	pub, err := p.Listen(ctx, r)
	if err != nil {
		return err
	}
	p.Serve(pub)
	// It may have ended since the record was read, which closes what is open.
	now, err := p.x.cfg.Store.Sandbox(ctx, r.ID)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && now.State != sandbox.StateRunning && now.State != sandbox.StatePaused {
		p.Close(r.ID)
		return nil
	}
	return err
}

func (pub *Published) add(c net.Conn) bool {
	pub.mu.Lock()
	defer pub.mu.Unlock()
	if pub.closed {
		return false
	}
	pub.conns[c] = struct{}{}
	return true
}

func (pub *Published) remove(c net.Conn) {
	pub.mu.Lock()
	defer pub.mu.Unlock()
	delete(pub.conns, c)
}

func (pub *Published) close() {
	pub.mu.Lock()
	defer pub.mu.Unlock()
	pub.closed = true
	for _, l := range pub.listeners {
		_ = l.Close()
	}
	for c := range pub.conns {
		_ = c.Close()
	}
}
