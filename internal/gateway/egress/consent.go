package egress

import (
	"context"
	"net/netip"

	"github.com/cove-sh/cove/sandbox"
)

// mayUse waits until a request of the flow may carry a secret to a host, where the policy
// says to ask about that. Nothing of the request has left the gateway before. A
// [*RefusedError] says that it may not.
//
// It says whether it has waited for an answer.
//
// An answer for once is for the requests that wait when it comes: later ones of the same
// connection ask again, since whoever allows one has not seen the others.
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
