package server

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/sandbox"
)

// newE2B makes the door for E2B's clients.
func (s *Server) newE2B(p *parts, keys *auth.Keys, bound *perKey, previews http.Handler) *e2b.Door {
	return e2b.New(e2b.Config{
		Service:  p.service,
		Gate:     access.NewGate(access.Config{Keys: s.keysOrDev(keys), Sandboxes: records{p.store}, Secret: derive(p.linkKey, "cove e2b tokens")}),
		Trusted:  func(r *http.Request) bool { return s.cfg.Dev || auth.ViaUnixSocket(r) },
		Bound:    bound.handler,
		Previews: previews,
		Refuse:   hurry,
		Domain:   s.cfg.Previews.Domain,
		Others:   s.cfg.AllowedHosts,
		Address:  s.e2bAddress,
		Log:      s.log,
	})
}

// keysOrDev are the keys, or in development mode whatever is sent.
func (s *Server) keysOrDev(keys *auth.Keys) access.Keys {
	if s.cfg.Dev {
		return devKeys{keys}
	}
	return keys
}

type devKeys struct{ *auth.Keys }

// Authenticate lets everybody in.
func (devKeys) Authenticate(ctx context.Context, secret string) (sandbox.Caller, error) {
	return auth.Local{}.Authenticate(ctx, secret)
}

// e2bAddress returns the domain of sandboxes' host names as clients reach it, and
// the base of the control plane's URLs; each is empty if it is not known.
func (s *Server) e2bAddress() (domain, base string) {
	port := int(s.port.Load())
	_, host, ok := strings.Cut(s.cfg.PreviewURL("x", port), "://x.")
	if ok {
		domain, _, _ = strings.Cut(host, "/")
	}
	return domain, s.cfg.UploadURL(e2b.Prefix, port)
}

// derive makes a key for one purpose of another key.
func derive(key []byte, purpose string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(purpose))
	return h.Sum(nil)
}

// records are the sandboxes of the store, whoever asks: for requests whose caller
// is found by the sandbox.
type records struct{ store store.Store }

// Look implements [access.Sandboxes].
func (r records) Look(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	found, err := r.store.Sandbox(ctx, id)
	if err != nil {
		return nil, err
	}
	return &found.Sandbox, nil
}

// Living implements [access.Sandboxes].
func (r records) Living(ctx context.Context) ([]sandbox.Sandbox, error) {
	var all []sandbox.Sandbox
	f := store.SandboxFilter{States: []sandbox.State{sandbox.StateRunning, sandbox.StatePaused}}
	for record, err := range store.All(ctx, r.store.ListSandboxes, f) {
		if err != nil {
			return nil, err
		}
		all = append(all, record.Sandbox)
	}
	return all, nil
}
