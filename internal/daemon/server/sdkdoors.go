package server

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// An sdkDoor serves the requests of another product's SDK, and asks itself who calls.
type sdkDoor interface {
	http.Handler
	// Claims reports whether a request is for this door by its path or its headers.
	Claims(*http.Request) bool
	// ClaimsHost reports whether a request is for this door by its host name. No
	// other handler may see it.
	ClaimsHost(*http.Request) bool
}

// sdkMemory is what the bodies have that the doors for SDKs read as a whole.
var sdkMemory = limits.MemoryBudgetConfig{
	Total: 96 << 20, PerCaller: 48 << 20, MaxBody: 12 << 20, Wait: 10 * time.Second, ReadTimeout: 5 * time.Minute,
}

// sdkDoors are the doors for the SDKs of other products. "cove compat" lists the same ones.
func (s *Server) sdkDoors(p *parts, keys *auth.Keys, bound *perKey, previews http.Handler) []sdkDoor {
	return []sdkDoor{s.newE2B(p, keys, bound, previews), s.newHOPX(p, keys, bound), s.newDaytona(p, keys, bound, previews), s.newSuperserve(p, keys, bound, previews), s.newMicrosandbox(p, keys, bound)}
}

// sdkAddress returns the domain of sandboxes' host names as clients reach it, and
// the base of a door's URLs; each is empty if it is not known.
func (s *Server) sdkAddress(prefix string) (domain, base string) {
	port := int(s.port.Load())
	_, host, ok := strings.Cut(s.cfg.PreviewURL("x", port), "://x.")
	if ok {
		domain, _, _ = strings.Cut(host, "/")
	}
	return domain, s.cfg.UploadURL(prefix, port)
}

// gateOf is what the gate of a product's door is made with.
func (s *Server) gateOf(p *parts, keys *auth.Keys, product string) gate.Config {
	return gate.Config{Keys: s.keysOrDev(keys), Sandboxes: records{p.store}, Secret: derive(p.linkKey, "cove "+product+" tokens")}
}

// trusted reports whether a request comes from the user who runs the daemon. In
// development mode, all do.
func (s *Server) trusted(r *http.Request) bool { return s.cfg.Dev || auth.ViaUnixSocket(r) }

// keysOrDev are the keys, or in development mode whatever is sent.
func (s *Server) keysOrDev(keys *auth.Keys) gate.Keys {
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

// derive makes a key for one purpose of another key.
func derive(key []byte, purpose string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(purpose))
	return h.Sum(nil)
}

// records are the sandboxes of the store, whoever asks: for requests whose caller
// is found by the sandbox.
type records struct{ store store.Store }

// Look implements [gate.Sandboxes].
func (r records) Look(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	found, err := r.store.Sandbox(ctx, id)
	if err != nil {
		return nil, err
	}
	return &found.Sandbox, nil
}

// Living implements [gate.Sandboxes].
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
