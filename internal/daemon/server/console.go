package server

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/doors/console"
	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/sandbox"
)

// newConsole makes the console's door.
func (s *Server) newConsole(p *parts, keys *auth.Keys, sessions *auth.Sessions) *console.Door {
	var signOn console.SignOn // stays nil without single sign-on
	if p.sso != nil {
		signOn = p.sso
	}
	return console.New(console.Config{
		SignOn: signOn,
		Store:  consoleSessions{p.store}, Sessions: sessions, Keys: keys, Links: auth.NewLinks(),
		Trusted: auth.ViaUnixSocket,
		Open:    s.cfg.Dev,
		Address: s.consoleAddress,
		Audit: func(ctx context.Context, e sandbox.AuditEvent) error {
			return p.store.AppendAudit(ctx, []sandbox.AuditEvent{e})
		},
		Refuse:  refuse,
		Status:  rest.StatusOf,
		Version: s.deps.Version,
		Log:     s.log,
	})
}

// takesCookie tells the requests that the console's pages make besides those to its own
// door. No cookie opens another door: what MCP, dialects and previews are asked for comes
// from programs.
func takesCookie(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/v1/") || r.URL.Path == metricsPath
}

// consoleAddress returns the base of the URLs at which a browser of this machine, or of
// others, reaches the server; "" if there is none.
func (s *Server) consoleAddress() string {
	port := int(s.port.Load())
	if known := s.cfg.UploadURL("", port); known != "" || port == 0 {
		return known
	}
	// Others reach it by a name that it was not told. Its own machine needs none.
	host, _, err := net.SplitHostPort(s.cfg.Listen)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if s.cfg.TLS.On() {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// consoleSessions are the sessions of the store.
type consoleSessions struct{ store store.Sessions }

// ListSessions implements [console.Store].
func (c consoleSessions) ListSessions(ctx context.Context, team, keyID string, p sandbox.Page) (*sandbox.List[sandbox.ConsoleSession], error) {
	found, next, err := c.store.ListSessions(ctx, team, keyID, time.Now(), p)
	if err != nil {
		return nil, err
	}
	return &sandbox.List[sandbox.ConsoleSession]{Items: append([]sandbox.ConsoleSession{}, found...), NextCursor: next}, nil
}

// EndSession implements [console.Store].
func (c consoleSessions) EndSession(ctx context.Context, team, keyID, id string) error {
	return c.store.DeleteSession(ctx, team, keyID, id)
}
