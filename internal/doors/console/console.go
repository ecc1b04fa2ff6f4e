// Package console is the door for browsers: it serves the console, the web page on which
// people see and control their sandboxes, signs them in, and ends their sessions. For
// everything else the page uses REST like any other client, with the session's cookie
// instead of a key.
//
// The page is built from the directory console of the repository, and embedded. A
// program that was built without it says so at the page's address.
package console

import (
	"context"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// Path is where the console is, below the server's address.
	Path = "/console/"
	// LinkPath is where the user who runs the daemon requests a link for signing in:
	// POST, over the Unix socket, answered with a [Link].
	LinkPath = Path + "links"
	// LinkFragment begins the fragment of a link's URL, before the token. Browsers do
	// not send fragments to servers.
	LinkFragment = "#link="

	framePath    = Path + "frame"
	sessionPath  = Path + "session"
	sessionsPath = Path + "sessions"
)

// Store lists and ends sessions.
type Store interface {
	// ListSessions returns one page of a team's sessions that have not expired, newest
	// first; of one key, unless keyID is empty.
	ListSessions(ctx context.Context, team, keyID string, p sandbox.Page) (*sandbox.List[sandbox.ConsoleSession], error)
	// EndSession ends a session of a team, and of one key unless keyID is empty, or is
	// not_found.
	EndSession(ctx context.Context, team, keyID, id string) error
}

// Config is what the door needs. All fields but Open and SignOn are required.
type Config struct {
	Store    Store
	Sessions *auth.Sessions
	// Keys finds out whose an API key is.
	Keys  auth.Authenticator
	Links *auth.Links
	// SignOn is single sign-on; nil is none.
	SignOn SignOn
	// Trusted reports whether a request is of the user who runs the daemon. Only this
	// user gets links.
	Trusted func(*http.Request) bool
	// Open signs everybody in as that user: development mode.
	Open bool
	// Address returns the base of the server's URLs, without a slash at the end, or ""
	// if browsers cannot reach it.
	Address func() string
	// Audit records who signed in and out.
	Audit func(ctx context.Context, e sandbox.AuditEvent) error
	// Refuse answers with an error without reading the rest of the request.
	Refuse auth.ErrorWriter
	// Status returns the HTTP status of an error.
	Status func(error) int
	// Version is Cove's version.
	Version string
	Log     *slog.Logger
}

// Door serves all paths below [Path]. It is safe for concurrent use.
type Door struct {
	cfg     Config
	mux     *http.ServeMux
	signOns *limits.LoginLimiter
}

// New returns a door.
func New(cfg Config) *Door { return newDoor(cfg, built()) }

// newDoor returns a door with the front end's files, or without a front end if dist is
// nil.
func newDoor(cfg Config, dist fs.FS) *Door {
	d := &Door{cfg: cfg, mux: http.NewServeMux(), signOns: newSignOnLimiter()}
	d.mux.Handle(Path, newPages(dist))
	d.mux.HandleFunc("GET "+framePath, serveFrame)
	d.mux.HandleFunc(framePath, methodNotAllowed("GET, HEAD"))
	d.mux.HandleFunc("POST "+sessionPath, d.signIn)
	d.mux.HandleFunc("GET "+sessionPath, d.bySession(d.showSession))
	d.mux.HandleFunc("DELETE "+sessionPath, d.bySession(d.signOut))
	d.mux.HandleFunc(sessionPath, methodNotAllowed("GET, HEAD, POST, DELETE"))
	d.mux.HandleFunc("GET "+sessionsPath, d.bySession(d.listSessions))
	d.mux.HandleFunc(sessionsPath, methodNotAllowed("GET, HEAD"))
	d.mux.HandleFunc("DELETE "+sessionsPath+"/{id}", d.bySession(d.endSession))
	d.mux.HandleFunc(sessionsPath+"/{id}", methodNotAllowed("DELETE"))
	d.mux.HandleFunc("GET "+SignOnPath, d.showSignOn)
	d.mux.HandleFunc("POST "+SignOnPath, d.beginSignOn)
	d.mux.HandleFunc(SignOnPath, methodNotAllowed("GET, HEAD, POST"))
	d.mux.HandleFunc("GET "+SignOnReturnPath, d.endSignOn)
	d.mux.HandleFunc(SignOnReturnPath, methodNotAllowed("GET"))
	d.mux.HandleFunc("POST "+LinkPath, d.makeLink)
	d.mux.HandleFunc(LinkPath, methodNotAllowed("POST"))
	return d
}

// Claims reports whether a request is for this door, by its path.
func Claims(r *http.Request) bool {
	return r.URL.Path+"/" == Path || strings.HasPrefix(r.URL.Path, Path)
}

// ServeHTTP answers a request for which [Claims] is true.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	protect(w.Header())
	d.mux.ServeHTTP(w, r)
}

func methodNotAllowed(allow string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", allow)
		http.Error(w, "use "+allow, http.StatusMethodNotAllowed)
	}
}
