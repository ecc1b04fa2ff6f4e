package control

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// attached is a service with one sandbox, and secrets whose ids are their names in capitals.
type attached struct {
	sandbox.Service
	secrets map[string]string
	calls   []string
}

func (s *attached) Get(context.Context, string) (*sandbox.Sandbox, error) {
	return &sandbox.Sandbox{ID: "sbx-1", State: sandbox.StateRunning, Secrets: maps.Clone(s.secrets)}, nil
}

func (s *attached) GetSecret(_ context.Context, ref string) (*sandbox.Secret, error) {
	hosts := []string{"a.example"}
	if ref == "any" {
		hosts = []string{sandbox.AnyHost}
	}
	return &sandbox.Secret{ID: strings.ToUpper(ref), Name: strings.ToLower(ref), Hosts: hosts}, nil
}

func (s *attached) AttachSecret(ctx context.Context, box, secret, env string) (*sandbox.Sandbox, error) {
	s.calls = append(s.calls, "attach "+secret+" "+env)
	s.secrets[env] = secret
	return s.Get(ctx, box)
}

func (s *attached) DetachSecret(ctx context.Context, box, env string) (*sandbox.Sandbox, error) {
	s.calls = append(s.calls, "detach "+env)
	delete(s.secrets, env)
	return s.Get(ctx, box)
}

// Secrets that a sandbox already has stay, and one that cannot be attached to a variable
// changes nothing.
func TestSetSecrets(t *testing.T) {
	for _, tt := range []struct {
		secrets string
		status  int
		calls   []string
	}{
		{`[{"A":"one"},{"B":"two"}]`, http.StatusOK, []string{"detach OLD", "attach two B"}},
		{`[{"A":"ONE"}]`, http.StatusOK, []string{"detach OLD"}},
		{`[{"B":"any"}]`, http.StatusBadRequest, nil},
	} {
		svc := &attached{secrets: map[string]string{"A": "one", "OLD": "old"}}
		url := func(*http.Request) string { return "" }
		h := New(Config{Service: svc, Control: url, Toolbox: url, Log: slog.New(slog.DiscardHandler)})
		r := httptest.NewRequest(http.MethodPut, "/sandbox/sbx-1/secrets", strings.NewReader(`{"secrets":`+tt.secrets+`}`))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(sandbox.WithCaller(r.Context(), sandbox.LocalCaller())))
		if diff := cmp.Diff(tt.calls, svc.calls); w.Code != tt.status || diff != "" {
			t.Errorf("%s: %d %s, calls (-want +got):\n%s", tt.secrets, w.Code, w.Body, diff)
		}
	}
}
