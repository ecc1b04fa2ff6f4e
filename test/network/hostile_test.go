package network

import (
	"context"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// Attack: root inside stops the agent, so that neither a stricter policy nor the
// end of a secret gets through.
func TestStoppedAgentKeepsNothing(t *testing.T) {
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		secret, err := d.Client.CreateSecret(t.Context(), sandbox.CreateSecretRequest{
			Name: "kept", Value: sandbox.NewSecretValue("value-0123456789abcdef"), Hosts: []string{"api.example.com"}, Auth: &sandbox.SecretAuth{Type: "header", Prefix: "Bearer "},
		})
		if err != nil {
			t.Fatal(err)
		}
		id := d.Create(t, sandbox.CreateRequest{Secrets: map[string]string{"TOKEN": secret.Name}}).ID
		works(t, d, id, curl("http://evil.test/"))
		_, err = d.Exec(t.Context(), id, sandbox.ExecRequest{Background: true, User: "root", Shell: `
(sleep 2; kill -STOP 1) &
while sleep 0.3; do curl -s --max-time 2 http://evil.test/; curl -s --max-time 2 -H "Authorization: Bearer $TOKEN" https://api.example.com/; done`})
		if err != nil {
			t.Fatal(err)
		}
		silent := func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := d.Client.Exec(ctx, id, sandbox.ExecRequest{Shell: "true"}, nil)
			return err != nil
		}
		for begun := time.Now(); !silent(); time.Sleep(100 * time.Millisecond) {
			if time.Since(begun) > 30*time.Second {
				t.Fatal("the agent still answers: the attack has not begun")
			}
		}
		if _, err := d.Client.SetNetwork(t.Context(), id, strict); err != nil {
			t.Errorf("set a stricter policy: %v", err)
		}
		if err := d.Client.DeleteSecret(t.Context(), secret.ID); err != nil {
			t.Errorf("delete the secret: %v", err)
		}
		since := time.Now()
		time.Sleep(3 * time.Second)
		tried := func() bool {
			log, err := d.Client.NetworkLog(t.Context(), id, sandbox.NetworkLogRequest{Since: &since, Page: sandbox.Page{Limit: 200}})
			if err != nil {
				t.Fatal(err)
			}
			blocked := 0
			for _, ev := range log.Items {
				switch {
				case ev.Verdict == sandbox.NetworkBlocked:
					blocked++
				case ev.Host == "evil.test", ev.Secret != "":
					t.Fatalf("after the change: %+v", ev)
				}
			}
			return blocked > 0
		}
		if !covetest.Eventually(30*time.Second, tried) {
			t.Error("nothing was tried, or nothing was blocked")
		}
		d.Shows(t, create(t, d, sandbox.NetworkPolicy{}), "echo fine", "fine")
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		if _, err := d.Client.Kill(ctx, id); err != nil {
			t.Errorf("kill: %v", err)
		}
	})
}
