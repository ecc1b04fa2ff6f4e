package service

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// headersFor is a policy that sends a secret to a host.
func headersFor(to, secret string) *sandbox.NetworkPolicy {
	return &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen, Headers: []sandbox.HeaderRule{{To: to, Set: map[string]string{"authorization": "Bearer ${secret:" + secret + "}"}}}}
}

// wantHeader checks that the gateway of a sandbox sends a value to a host, and that the
// value appears nowhere inside.
func (w *harness) wantHeader(what, ref, host, value string) {
	w.t.Helper()
	sbx := w.get(ref)
	n, values := w.state.Network(w.record(sbx.ID).Instance)
	if len(n.Bindings) != 1 || len(n.Headers) != 1 || len(values) != 1 {
		w.t.Errorf("%s: the gateway of %s has %+v, %+v and %d values", what, ref, n.Bindings, n.Headers, len(values))
		return
	}
	b := n.Bindings[0]
	want := []sandbox.HeaderRule{{To: host, Set: map[string]string{"Authorization": "Bearer " + b.Placeholder}}}
	if diff := cmp.Diff(want, n.Headers); diff != "" {
		w.t.Errorf("%s: %s", what, diff)
	}
	if !slices.Equal(b.Hosts, []string{host}) || values[b.Placeholder] != value {
		w.t.Errorf("%s: the secret is for %s with the value %q, want %s and %q", what, b.Hosts, values[b.Placeholder], host, value)
	}
	if sbx.Secrets != nil {
		w.t.Errorf("%s: the sandbox shows the secrets %v", what, sbx.Secrets)
	}
	if env := environment(new(w.record(sbx.ID))); slices.Contains(slices.Collect(maps.Values(env)), b.Placeholder) || env[""] != "" {
		w.t.Errorf("%s: the environment has the placeholder", what)
	}
}

// The secrets in the headers of a policy follow the policy through every change.
func TestHeaderSecrets(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	w.secret("a", "value-a")
	any, err := w.CreateSecret(ctx, sandbox.CreateSecretRequest{Name: "any", Value: sandbox.NewSecretValue("value-any"), Hosts: []string{sandbox.AnyHost}})
	must(t, err)
	w.create(sandbox.CreateRequest{Name: "x", Network: headersFor("API.example.com", "a")})
	w.wantHeader("create", "x", "api.example.com", "value-a")
	w.fork("x", sandbox.ForkRequest{Name: "f"})
	w.wantHeader("fork", "f", "api.example.com", "value-a")
	w.snapshot("x", "s")
	w.create(sandbox.CreateRequest{Name: "again", Snapshot: "s"})
	w.wantHeader("snapshot", "again", "api.example.com", "value-a")
	w.create(sandbox.CreateRequest{Name: "other", Snapshot: "s", Network: headersFor("*.b.example", "any")})
	w.wantHeader("snapshot with another policy", "other", "*.b.example", "value-any")
	_, err = w.SetNetwork(ctx, "x", *headersFor("c.example", "any"))
	must(t, err)
	w.wantHeader("another policy", "x", "c.example", "value-any")
	_, err = w.RotateSecret(ctx, "any", sandbox.RotateSecretRequest{Value: sandbox.NewSecretValue("value-new"), Metadata: map[string]string{"k": "v"}})
	must(t, err)
	w.wantHeader("rotate", "x", "c.example", "value-new")
	if s, err := w.GetSecret(ctx, "any"); err != nil || s.Metadata["k"] != "v" || s.Version != any.Version+1 {
		t.Errorf("%+v, %v", s, err)
	}
	w.pause("x")
	_, err = w.Resume(ctx, "x", sandbox.ResumeRequest{})
	must(t, err)
	w.wantHeader("resume", "x", "c.example", "value-new")
	w.restart()
	w.wantHeader("restart", "x", "c.example", "value-new")

	must(t, w.DeleteSecret(ctx, "any"))
	n, values := w.state.Network(w.record(w.get("x").ID).Instance)
	if len(n.Bindings) != 1 || !n.Bindings[0].Revoked || len(values) != 0 {
		t.Errorf("after the delete: %+v, %d values", n.Bindings, len(values))
	}
	w.snapshot("x", "revoked")
	w.create(sandbox.CreateRequest{Name: "late", Snapshot: "revoked"}) // its requests are refused, not those of the sandbox
	_, err = w.SetNetwork(ctx, "x", sandbox.NetworkPolicy{})
	must(t, err)
	if n, _ := w.state.Network(w.record(w.get("x").ID).Instance); n.Intercepts() {
		t.Errorf("without headers: %+v", n)
	}
	w.agree()
}

func TestHeaderSecretsThatMayNotBe(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	w.secret("a", "value-a") // for api.example.com
	_, err := w.CreateSecret(ctx, sandbox.CreateSecretRequest{Name: "any", Value: sandbox.NewSecretValue("value-any"), Hosts: []string{sandbox.AnyHost}})
	must(t, err)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	for _, to := range []string{"evil.example", "*.example.com", "example.com", "api.example.com.evil.example"} {
		_, err := w.SetNetwork(ctx, "x", *headersFor(to, "a"))
		wantCode(t, err, sandbox.CodeInvalid)
		_, err = w.Create(ctx, sandbox.CreateRequest{Network: headersFor(to, "a")})
		wantCode(t, err, sandbox.CodeInvalid)
	}
	_, err = w.SetNetwork(ctx, "x", *headersFor("api.example.com", "none"))
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = w.SetNetwork(as(t.Context(), "blue"), x.ID, *headersFor("api.example.com", "a"))
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = w.Create(as(t.Context(), "blue"), sandbox.CreateRequest{Network: headersFor("api.example.com", "a")})
	wantCode(t, err, sandbox.CodeNotFound)
	// With a placeholder, code in the sandbox would choose where the value goes.
	_, err = w.AttachSecret(ctx, "x", "any", "A")
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = w.Create(ctx, sandbox.CreateRequest{Secrets: map[string]string{"A": "any"}})
	wantCode(t, err, sandbox.CodeInvalid)
	if n, _ := w.state.Network(w.record(x.ID).Instance); n.Intercepts() {
		t.Errorf("after the refusals: %+v", n)
	}
}
