package network

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// Headers of a policy are set on the way to their host, with the value of a secret, which
// is nowhere in the sandbox, nor is a placeholder for it.
func TestHeaders(t *testing.T) {
	n := internet.Here(t)
	needs.Command(t, "curl")
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		name, value := "headers-"+t.Name()[len("TestHeaders/"):], "value-of-a-header-0123456789"
		if _, err := d.Client.CreateSecret(t.Context(), sandbox.CreateSecretRequest{Name: name, Value: sandbox.NewSecretValue(value), Hosts: []string{sandbox.AnyHost}}); err != nil {
			t.Fatal(err)
		}
		policy := sandbox.NetworkPolicy{Headers: []sandbox.HeaderRule{{To: "api.example.com", Set: map[string]string{"Authorization": "Bearer ${secret:" + name + "}", "X-Plain": "plain"}}}}
		id := create(t, d, policy)
		count := 0
		sends := func(id, url, authorization, plain string) {
			t.Helper()
			count++
			path := fmt.Sprintf("/%s/%d", id, count)
			said := works(t, d, id, curl(url+path, "-H 'Authorization: own'"))
			got := n.Request(path).Header
			if strings.Join(got["Authorization"], ",") != authorization || strings.Join(got["X-Plain"], ",") != plain {
				t.Errorf("%s got %v", url, got)
			}
			if strings.Contains(said, value) {
				t.Errorf("the sandbox was told the value: %s", said)
			}
		}
		sends(id, "https://api.example.com", "Bearer "+value, "plain")
		sends(id, "https://www.example.com", "own", "")
		sends(id, "http://api.example.com", "own", "")
		forks, err := d.Client.Fork(t.Context(), id, sandbox.ForkRequest{})
		if err != nil {
			t.Fatal(err)
		}
		sends(forks.Items[0].ID, "https://api.example.com", "Bearer "+value, "plain")
		if out, _ := try(t, d, id, "env | grep -c cove_; cat /proc/*/environ 2>/dev/null | grep -ac "+value); out != "0\n0" {
			t.Errorf("in the sandbox: %q", out)
		}
		if found := searchFor(t, d, value); len(found) > 0 {
			t.Errorf("the value is in %v", found)
		}
		policy.Headers = []sandbox.HeaderRule{{To: "*.example.com", Set: map[string]string{"X-Plain": "changed"}}}
		if _, err := d.Client.SetNetwork(t.Context(), id, policy); err != nil {
			t.Fatal(err)
		}
		sends(id, "https://api.example.com", "own", "changed")
		if err := d.Client.DeleteSecret(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if said := works(t, d, forks.Items[0].ID, "curl -sS --max-time 15 https://api.example.com/"); !strings.Contains(said, "credential_revoked") && !strings.Contains(said, "deleted") {
			t.Errorf("with a secret that is gone: %s", said)
		}
	})
}
