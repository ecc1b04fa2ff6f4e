// Package preview is the reverse proxy that serves ports of sandboxes at URLs:
// http://3000-sbx-abc.localhost:7777 is port 3000 of sandbox sbx-abc. It shares its
// listeners with REST and MCP and handles every request whose host name is below the
// domain of previews. It can only connect to the port to which [sandbox.Previews] has
// admitted the visitor.
//
// Neither visitors nor the programs in sandboxes are trusted: requests and responses are
// parsed and written anew, the visitor's credentials are removed from requests, and a
// sandbox cannot set cookies for other host names.
package preview

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxVisits bounds the concurrent requests to a preview, including streams and
	// WebSockets.
	maxVisits = 512
	// maxFailures bounds the invalid keys and links that one address may send in a row for one
	// preview or live view; it may send one more each refillEvery.
	maxFailures = 60
	refillEvery = time.Second
	// dialTimeout bounds connecting to the port, including waking the sandbox.
	dialTimeout = 30 * time.Second
	// answerTimeout is how long a program may take to begin its answer.
	// Development servers compile first, and long polls wait.
	answerTimeout = 2 * time.Minute
	// recheckTime is how often the visitor of a long request is admitted again: when a
	// link expires, its streams end.
	recheckTime = 15 * time.Second
)

// Config configures a [Proxy].
type Config struct {
	// Previews admits visitors and opens connections.
	Previews sandbox.Previews
	// Views does the same for live views of computers; nil disables them.
	Views Views
	// Domain is the parent domain of the host names of previews, without a leading dot;
	// empty is "localhost".
	Domain string
	// Names are host names below Domain that are not previews, such as the server's own.
	Names []string
	// Log is required.
	Log *slog.Logger
}

// Proxy serves previews. It is safe for concurrent use.
type Proxy struct {
	previews sandbox.Previews
	views    Views
	domain   string
	others   map[string]bool
	log      *slog.Logger
	forward  *httputil.ReverseProxy
	visits   counter
	waiting  counter // of visitors who are being admitted, by label
	viewers  counter
	files    fs.FS // of the page of live views
	limiter  *limits.LoginLimiter
	accepted limits.Accepted
	recheck  time.Duration
	patience time.Duration
}

// New returns a proxy.
func New(cfg Config) *Proxy {
	p := &Proxy{
		previews: cfg.Previews,
		views:    cfg.Views,
		domain:   cmp.Or(strings.ToLower(strings.Trim(cfg.Domain, ".")), "localhost"),
		others:   make(map[string]bool),
		log:      cfg.Log,
		visits:   counter{most: maxVisits},
		waiting:  counter{most: maxVisits},
		viewers:  counter{most: maxViewers},
		files:    viewFiles,
		limiter:  limits.NewLoginLimiter(limits.LoginLimiterConfig{Burst: maxFailures, Refill: refillEvery}),
		recheck:  recheckTime,
		patience: wakePatience,
	}
	for _, name := range cfg.Names {
		p.others[strings.ToLower(name)] = true
	}
	p.forward = p.newForward()
	return p
}

// ServeHTTP answers a request for which [Proxy.Claims] is true.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace {
		p.fail(w, r, place{}, problem{status: http.StatusMethodNotAllowed, code: "method_not_allowed", title: "Not here", detail: "Previews do not answer " + r.Method + " requests."})
		return
	}
	if id, ok := p.viewOf(r.Host); ok && p.views != nil {
		p.serveView(w, r, id)
		return
	}
	at, ok := p.place(r.Host)
	if !ok {
		p.fail(w, r, place{}, unknownPlace)
		return
	}
	if validates(r) {
		p.fail(w, r, at, noProof)
		return
	}
	if r.Method == http.MethodPost && r.URL.Path == unlockPath {
		p.unlock(w, r, at)
		return
	}
	p.visit(w, r, at)
}

// visit admits the visitor and forwards the request.
func (p *Proxy) visit(w http.ResponseWriter, r *http.Request, at place) {
	brought := credentials(r)
	found, used, err := p.admit(r.Context(), w, r, at, brought)
	switch {
	case errors.Is(err, errAnswered):
		return
	case err != nil:
		p.refuse(w, r, at, err, len(brought) > 0)
		return
	}
	private := found.Access != sandbox.PreviewPublic
	if private && used.from == fromQuery && navigates(r) {
		setCookie(w, r, found, used)
		redirect(w, r, cleanTarget(r.URL))
		return
	}
	if private && used.from == fromCookie && !sameSandbox(r, at, p) {
		p.fail(w, r, at, foreignOrigin)
		return
	}
	if !p.visits.enter(found.ID) {
		p.fail(w, r, at, tooMany)
		return
	}
	defer p.visits.leave(found.ID)
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), tripKey{}, &trip{preview: found, at: at, neighbor: p.neighbor(r, at)}))
	defer cancel()
	visit := sandbox.PreviewVisit{Label: at.label, Key: used.key, Link: used.link}
	stop := p.watch(ctx, cancel, visit)
	defer stop()
	p.forward.ServeHTTP(&finalWriter{w}, r.WithContext(ctx))
}

// watch ends a long request when its visitor loses access.
func (p *Proxy) watch(ctx context.Context, end context.CancelFunc, visit sandbox.PreviewVisit) (stop func()) {
	var check func()
	timer := time.AfterFunc(time.Hour, func() { check() })
	timer.Stop()
	check = func() {
		if ctx.Err() != nil {
			return
		}
		_, err := p.previews.VisitPreview(ctx, visit)
		switch sandbox.CodeOf(err) {
		case sandbox.CodeNotFound, sandbox.CodeForbidden:
			end()
		default:
			timer.Reset(p.recheck)
		}
	}
	timer.Reset(p.recheck)
	return func() { timer.Stop() }
}
