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
	var q *asking
	defer func() { f.g.asker.leave(q) }()
	for {
		s := f.g.state.Load()
		r := s.policy.askFor(secret)
		if r == nil {
			return q != nil, nil
		}
		refused := func(match sandbox.NetworkMatch, why string) (bool, error) {
			return q != nil, &RefusedError{Decision{Match: match, Rule: r.text, Reason: why}}
		}
		if held, ok := s.answers[sub]; ok && held.good() {
			if held.Allow {
				return q != nil, nil
			}
			return refused(sandbox.MatchSecret, "it was refused when the policy asked, and that answer still holds")
		}
		if q == nil {
			var why string
			if q, why = f.g.asker.join(sub, s.askFor); q == nil {
				return refused(sandbox.MatchLimit, why)
			}
		}
		select {
		case <-q.done:
			if q.refusal != "" {
				return refused(sandbox.MatchSecret, q.refusal)
			}
			return true, nil
		case <-s.over: // the policy or the answers have changed
		case <-ctx.Done():
			return refused(sandbox.MatchSecret, gaveUp)
		case <-f.ctx.Done():
			return refused(sandbox.MatchSecret, gaveUp)
		}
	}
}
