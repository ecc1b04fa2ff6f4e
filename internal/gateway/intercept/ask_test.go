package intercept

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/sandbox"
)

// askingHarness is a harness in which each use of a secret waits for an answer.
func askingHarness(t *testing.T) (w *harness, uses chan string, answers chan error) {
	t.Helper()
	w, uses, answers = newHarness(t), make(chan string), make(chan error)
	w.mu.Lock()
	w.ask = func(ctx context.Context, secret, host string) error {
		uses <- secret + " " + host
		select {
		case err := <-answers:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w.mu.Unlock()
	return w, uses, answers
}

type response struct {
	status int
	reason string
	body   string
}

// send sends a request on another goroutine.
func send(t *testing.T, c *http.Client, url string, header ...string) chan response {
	t.Helper()
	done := make(chan response, 1)
	go func() {
		defer close(done)
		res, body := do(t, c, "POST", url, "the body", header...)
		done <- response{res.StatusCode, res.Header.Get(HeaderReason), body}
	}()
	return done
}

// TestAskBeforeUse checks that nothing of a request leaves before it may carry the
// secret, and that nothing ever does if it may not.
func TestAskBeforeUse(t *testing.T) {
	w, uses, answers := askingHarness(t)
	var g got
	w.host(&g, apiHost)
	for _, version := range []int{1, 2} {
		c := w.client(version)
		_, _, before := g.request()
		done := send(t, c, "https://"+apiHost+"/x", "X-Api-Key: "+placeholder)
		if use := <-uses; use != "anthropic "+apiHost {
			t.Errorf("asked about %q", use)
		}
		if _, _, n := g.request(); n != before {
			t.Error("the request was sent before the answer")
		}
		answers <- nil
		if r := <-done; r.status != 200 || r.body != "fine" {
			t.Errorf("HTTP/%d: after a yes: %+v", version, r)
		}
		if r, body, n := g.request(); n != before+1 || r.Header.Get("X-Api-Key") != value || body != "the body" {
			t.Errorf("HTTP/%d: the host got %v, %q", version, r.Header, body)
		}
		// The next request on the same connection asks again.
		done = send(t, c, "https://"+apiHost+"/x", "X-Api-Key: "+placeholder)
		<-uses
		answers <- &egress.RefusedError{Decision: egress.Decision{Reason: "somebody said no"}}
		r := <-done
		if r.status != 403 || r.reason != "credential_not_allowed" || !strings.Contains(r.body, "somebody said no") || strings.Contains(r.body, value) {
			t.Errorf("HTTP/%d: after a no: %+v", version, r)
		}
		if _, _, n := g.request(); n != before+1 {
			t.Error("a request that was refused was sent")
		}
	}
	log := w.requests(4)
	if log[1].Verdict != sandbox.NetworkBlocked || log[1].Secret != "anthropic" || log[1].Status != 403 {
		t.Errorf("the log has %+v", log[1])
	}
	// Requests without a secret do not ask: without the placeholder, for another host, or
	// where the placeholder is not replaced.
	w.host(&g, otherHost)
	w.mu.Lock()
	w.ask = func(_ context.Context, secret, host string) error {
		t.Errorf("asked about %s for %s", secret, host)
		return nil
	}
	w.mu.Unlock()
	for _, c := range []struct{ to, header string }{
		{apiHost + "/", "X-Api-Key: none"},
		{otherHost + "/", "X-Api-Key: " + placeholder},
		{apiHost + "/" + placeholder, "X-Api-Key: none"},
		{apiHost + "/", "User-Agent: " + placeholder},
	} {
		if r := <-send(t, w.client(1), "https://"+c.to, c.header); r.status != 200 {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

// TestSecretChangesWhileAsked checks that a secret that is detached or changed while a
// request waits is not sent, whatever the answer.
func TestSecretChangesWhileAsked(t *testing.T) {
	w, uses, answers := askingHarness(t)
	var g got
	w.host(&g, apiHost)
	c := w.client(1)
	for name, change := range map[string]func(){
		"another value": func() { w.set(secret(), "another-value-0123456789") },
		"another host": func() {
			b := secret()
			b.Hosts = []string{otherHost}
			w.set(b, value)
		},
		"deleted": func() {
			b := secret()
			b.Revoked = true
			w.set(b, value)
		},
		"detached": func() {
			if err := w.x.Set(&engine.Network{}, nil); err != nil {
				t.Fatal(err)
			}
		},
	} {
		w.set(secret(), value)
		done := send(t, c, "https://"+apiHost+"/", "X-Api-Key: "+placeholder)
		<-uses
		change()
		answers <- nil
		if r := <-done; r.status != 503 || r.reason != "credential_changed" {
			t.Errorf("%s: %+v", name, r)
		}
		if _, _, n := g.request(); n != 0 {
			t.Fatalf("%s: the request was sent", name)
		}
	}
	// Setting the same secret again, as every change of the policy does, is not a change.
	w.set(secret(), value)
	done := send(t, c, "https://"+apiHost+"/", "X-Api-Key: "+placeholder)
	<-uses
	w.set(secret(), value)
	answers <- nil
	if r := <-done; r.status != 200 {
		t.Errorf("set again: %+v", r)
	}
}
