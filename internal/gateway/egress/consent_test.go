package egress

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

func TestRulesAboutSecrets(t *testing.T) {
	for line, ok := range map[string]bool{
		"ask secret:github": true, "ask secret:*": true, "ask secret:a.b_c-1": true,
		"allow secret:github": false, "deny secret:github": false, "ask secret:": false, "ask secret:GitHub": false, "ask secret:*b": false, "ask secret:a:b": false,
		"ask secret:github tcp": false, "ask secret:github - 443": false,
	} {
		err := Check(rules("open", line))
		if (err == nil) != ok || err != nil && sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", line, err)
		}
	}
	for _, p := range []sandbox.NetworkPolicy{{AllowOut: []string{"secret:github"}}, {DenyOut: []string{"secret:github"}}} {
		if err := Check(p); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%+v: %v", p, err)
		}
	}
	// Such a rule does not affect connections and names.
	p := mustCompile(t, rules("open", "ask secret:*"))
	if d := p.Judge(Attempt{Protocol: "tcp", Addr: netip.MustParseAddr(publicAddr), Port: 443}); !d.Allow || d.Ask {
		t.Errorf("a connection is judged %+v", d)
	}
	if d := p.resolvable("good.example"); !d.Allow {
		t.Errorf("a name is judged %+v", d)
	}
	p = mustCompile(t, rules("none", "ask secret:one"))
	if p.askFor("one") == nil || p.askFor("two") != nil {
		t.Error("the rule is for another secret")
	}
}

// usingSecret returns a flow to good.example and its mayUse, called on a goroutine.
func usingSecret(t *testing.T, in *internet) (*flow, func(ctx context.Context, secret, host string) chan error) {
	t.Helper()
	f := newFlow(t.Context(), in.g, "tcp", netip.MustParseAddrPort(publicAddr+":443"))
	return f, func(ctx context.Context, secret, host string) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := f.mayUse(ctx, secret, host)
			done <- err
		}()
		return done
	}
}

func TestAskForSecret(t *testing.T) {
	in, changed := askingInternet(t, rules("open", "ask secret:github"))
	f, use := usingSecret(t, in)
	if waited, err := f.mayUse(t.Context(), "another", "good.example"); err != nil || waited {
		t.Errorf("a secret of which no rule speaks: %v", err)
	}
	refused := func(when string, err error) {
		t.Helper()
		var r *RefusedError
		if !errors.As(err, &r) || r.Decision.Allow || r.Decision.Match != sandbox.MatchSecret || r.Decision.Rule != "ask secret:github" {
			t.Errorf("%s: %v", when, err)
		}
	}
	// Two requests share one question, and both continue when it is allowed.
	a := use(t.Context(), "github", "good.example")
	q := in.question(changed, 1)
	b := use(t.Context(), "github", "good.example")
	for q.Waiting < 2 {
		q = in.question(changed, 1)
	}
	if want := (Subject{Protocol: "tcp", Host: "good.example", Port: 443, Secret: "github"}); q.Subject != want {
		t.Errorf("asked about %+v", q.Subject)
	}
	in.quiet("before the answer")
	if err := in.g.AnswerQuestion(q.ID, true); err != nil {
		t.Fatal(err)
	}
	for _, done := range []chan error{a, b} {
		if err := <-done; err != nil {
			t.Errorf("after a yes: %v", err)
		}
	}
	// An answer applies once, for the same connection too; a refusal is a refusal.
	a = use(t.Context(), "github", "good.example")
	if err := in.g.AnswerQuestion(in.question(changed, 1).ID, false); err != nil {
		t.Fatal(err)
	}
	refused("after a no", <-a)
	// A caller that gives up does not keep the question open.
	ctx, cancel := context.WithCancel(t.Context())
	a = use(ctx, "github", "good.example")
	in.question(changed, 1)
	cancel()
	refused("who gave up", <-a)
	in.question(changed, 0)
	// Nothing reads while a request with a body waits.
	ours, theirs := pair(t)
	defer ours.Close()
	f.guest = newGuestConn(f, ours)
	a = use(t.Context(), "github", "good.example")
	in.question(changed, 1)
	theirs.Close()
	refused("who has closed the connection", <-a)
	in.question(changed, 0)
	f.guest = nil
	// The end of the connection ends the question.
	a = use(t.Context(), "github", "good.example")
	in.question(changed, 1)
	f.cancel()
	refused("after the connection's end", <-a)
	in.question(changed, 0)
}

func TestHeldAnswersForSecrets(t *testing.T) {
	in, changed := askingInternet(t, rules("open", "ask secret:*"))
	_, use := usingSecret(t, in)
	set := func(answers ...Answer) {
		t.Helper()
		if err := in.g.Set(Network{SandboxID: "sbx_test", Policy: rules("open", "ask secret:*"), Answers: answers}); err != nil {
			t.Fatal(err)
		}
	}
	a := use(t.Context(), "github", "good.example")
	q := in.question(changed, 1)
	// An answer for the connection, or for another secret, host or port, does not apply.
	other := q.Subject
	other.Secret = ""
	another, elsewhere, port := q.Subject, q.Subject, q.Subject
	another.Secret, elsewhere.Host, port.Port = "gitlab", "other.example", 8443
	set(Answer{Subject: other, Allow: true}, Answer{Subject: another, Allow: true}, Answer{Subject: elsewhere, Allow: true}, Answer{Subject: port, Allow: true})
	select {
	case err := <-a:
		t.Fatalf("it went on: %v", err)
	default:
	}
	if got := in.question(changed, 1); got.ID != q.ID {
		t.Errorf("the question became another: %+v", got)
	}
	set(Answer{Subject: q.Subject, Allow: true})
	if err := <-a; err != nil {
		t.Errorf("with an answer that holds: %v", err)
	}
	if err := <-use(t.Context(), "github", "good.example"); err != nil {
		t.Errorf("the next one: %v", err)
	}
	set(Answer{Subject: q.Subject})
	if err := <-use(t.Context(), "github", "good.example"); err == nil || !strings.Contains(err.Error(), "still holds") {
		t.Errorf("with a refusal that holds: %v", err)
	}
	// An address is asked about as an address.
	set()
	a = use(t.Context(), "github", publicAddr)
	if got := in.question(changed, 1); got.Host != "" || got.Address != netip.MustParseAddr(publicAddr) {
		t.Errorf("asked about %+v", got.Subject)
	}
	// If the policy no longer asks, the request continues.
	in.set(rules("open"))
	if err := <-a; err != nil {
		t.Errorf("without the rule: %v", err)
	}
}
