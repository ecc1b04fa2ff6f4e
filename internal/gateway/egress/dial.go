package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/cove-sh/cove/sandbox"
)

// dialFailed records why no connection to a host was made. goesOn reports whether the
// flow may go on to other hosts.
func (f *flow) dialFailed(host string, goesOn bool, err error) {
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		f.recordUnreached(host, goesOn, sandbox.NetworkBlocked, refused.Decision)
		return
	}
	f.recordUnreached(host, goesOn, sandbox.NetworkFailed, Decision{Reason: Reason(err)})
}

// outboundConn ends its outbound when it is closed.
type outboundConn struct {
	net.Conn
	f *flow
	w *outbound
}

func (c *outboundConn) Close() error {
	c.f.leave(c.w)
	return nil
}

// CloseWrite closes the sending direction.
func (c *outboundConn) CloseWrite() error { return closeWrite(c.Conn) }

// dialAddr connects to the flow's own address, which is judged by the names pinned to it.
func (f *flow) dialAddr(ctx context.Context) (net.Conn, *outbound, error) {
	c, w, err := f.dialOwn(ctx)
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		f.refuse(refused.Decision)
	} else if err != nil {
		f.failed(err)
	}
	return c, w, err
}

func (f *flow) dialOwn(ctx context.Context) (net.Conn, *outbound, error) {
	if f.alias != "" {
		return f.dialHost(ctx, f.alias, true)
	}
	return f.try(ctx, "", f.attempt(f.pinNames()))
}

// candidates returns the attempts for a host that the policy allows, after an approval
// where the policy needs one. There is one attempt for each address of the host's name;
// the address that the sandbox chose comes first if it is among them. If the name is not
// found, the chosen address itself is an attempt, provided that the policy allows it
// under any name. That never applies to plain HTTP, in which the server does not prove
// its identity.
func (f *flow) candidates(ctx context.Context, host string, tls bool) ([]Attempt, error) {
	s := f.g.state.Load()
	p := s.policy
	own := f.attempt(nil)
	if host == "" && tls && f.alias != "" {
		host = f.alias
	}
	if host == "" {
		if tls {
			own.Names = f.pinNames()
		}
		d := p.Judge(own)
		d.Allow = d.Allow || d.Ask // the dialler asks
		if d.Allow && !own.Addr.IsValid() {
			d = Decision{Match: sandbox.MatchProtocol, Reason: "its destination name is not visible"}
		}
		if !d.Allow {
			return nil, &RefusedError{d}
		}
		return []Attempt{own}, nil
	}
	d, certain := p.decided(own)
	byAddr := tls && certain && d.Allow && own.Addr.IsValid()
	var addrs []netip.Addr
	var err error
	if d = p.resolvable(host); d.Ask {
		named := Attempt{Protocol: f.proto, Port: f.to.Port(), Names: []string{host}, resolved: true}
		d = f.consent(ctx, named)
		s = f.g.state.Load() // it may have changed
	}
	if d.Allow {
		addrs, err = f.g.names.addresses(ctx, host)
	}
	if i := slices.Index(addrs, f.to.Addr()); i > 0 {
		addrs = slices.Clone(addrs)
		addrs[0], addrs[i] = addrs[i], addrs[0]
	}
	if len(addrs) == 0 && d.Allow && publicName(host) && f.g.out.resolves(host) {
		addrs = []netip.Addr{{}} // the proxy resolves the name
	}
	var allowed, asked []Attempt
	for _, a := range addrs {
		at := Attempt{Protocol: f.proto, Addr: a, Port: f.to.Port(), Names: []string{host}, resolved: true}
		d = f.judge(s, at)
		switch {
		case d.Allow:
			allowed = append(allowed, at)
		case d.Ask:
			asked = append(asked, at)
		}
	}
	if len(allowed) == 0 && len(asked) > 0 {
		return asked[:1], nil // the dialler asks, about one address only
	}
	switch {
	case len(allowed) > 0:
		return allowed[:min(len(allowed), maxTried)], nil
	case byAddr:
		own.claimed = host
		return []Attempt{own}, nil
	case !d.Allow:
		return nil, &RefusedError{d}
	case err == nil:
		err = errNoName
	}
	return nil, err
}

// dialHost connects to a host by name or, if host is empty, to the flow's own address.
func (f *flow) dialHost(ctx context.Context, host string, tls bool) (net.Conn, *outbound, error) {
	if host != "" {
		name, ok := hostOf(host)
		if !ok {
			return nil, nil, &RefusedError{Decision{Match: sandbox.MatchProtocol, Reason: "its host is not a name"}}
		}
		host = name
	}
	attempts, err := f.candidates(ctx, host, tls)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range attempts {
		var c net.Conn
		var w *outbound
		if c, w, err = f.try(ctx, host, a); err == nil {
			return c, w, nil
		}
	}
	return nil, nil, err
}

// try judges and dials one address, after an approval if the policy needs one.
func (f *flow) try(ctx context.Context, host string, a Attempt) (net.Conn, *outbound, error) {
	w, d := f.admit(ctx, a)
	if w == nil {
		return nil, nil, &RefusedError{d}
	}
	if a.claimed != "" || d.addrOnly {
		host = "" // the policy did not rely on the name, which a proxy would look up
	}
	if f.hadOutbound() {
		// One connection of the sandbox may need several outbound ones, all of which count.
		if err := f.g.state.Load().perSecond.Wait(ctx); err != nil {
			f.leave(w)
			return nil, nil, err
		}
	}
	c, err := f.g.out.dial(ctx, host, a.Addr, a.Port)
	if err == nil {
		err = f.connected(w, c)
	}
	if err != nil {
		f.leave(w)
		return nil, nil, err
	}
	return c, w, nil
}
