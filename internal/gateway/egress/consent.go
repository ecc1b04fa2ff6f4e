package egress

import (
	"context"
	"net/netip"

	"github.com/cove-sh/cove/sandbox"
)

// mayUse waits until a request of the flow may carry a secret to a host, where the policy
// says to ask about that. Nothing of the request leaves the gateway before. A
// [*RefusedError] means that it may not. waited reports whether it waited for an answer.
//
// An answer that applies once is for the requests that wait when it arrives. Later
// requests of the same connection ask again, since the person who allowed the first has
// not seen them.
func (f *flow) mayUse(ctx context.Context, secret, host string) (waited bool, err error) {
	sub := Subject{Protocol: f.proto, Host: host, Port: f.to.Port(), Secret: secret}
	if addr, err := netip.ParseAddr(host); err == nil {
		sub.Host, sub.Address = "", addr
	}
	w := waiter{f: f}
	defer w.end()
	for {
		s := f.g.state.Load()
		r := s.policy.askFor(secret)
		if r == nil {
			return w.q != nil, nil
		}
		no := Decision{Match: sandbox.MatchSecret, Rule: r.text}
		switch held, ok := s.answers[sub]; {
		case !ok || !held.good():
			if w.wait(ctx, s, sub, &no) {
				return true, nil
			}
		case held.Allow:
			return w.q != nil, nil
		default:
			no.Reason = stillRefused
		}
		if no.Reason != "" {
			return w.q != nil, &RefusedError{no}
		}
	}
}
