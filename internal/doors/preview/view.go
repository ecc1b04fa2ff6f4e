package preview

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"html/template"
	"io/fs"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/doors/preview/rfb"
	"github.com/cove-sh/cove/sandbox"
)

// Views admits visitors of live views and connects them.
type Views interface {
	// HasView reports whether a computer exists, regardless of who may see it.
	HasView(ctx context.Context, sandbox string) bool
	// VisitView returns the view that a link opens. The error is forbidden if the link is
	// not valid, not_found if the computer is gone, and not_running if it does not run;
	// then the view is returned, too.
	VisitView(ctx context.Context, visit sandbox.ViewVisit) (*sandbox.View, error)
	// DialView opens a connection to the computer's VNC server, which ends when the link
	// expires. The caller calls used when the visitor uses the computer.
	DialView(ctx context.Context, visit sandbox.ViewVisit) (conn net.Conn, used func(), err error)
}

const (
	// maxViewers bounds the viewers of one computer who may only watch, and separately
	// those who have control, so that the former cannot lock the latter out.
	maxViewers = 32
	// viewPing is the interval and the timeout of pings to a viewer.
	viewPing = 20 * time.Second
	// maxViewMessage bounds one WebSocket message of a viewer.
	maxViewMessage = 2 << 20
)

// viewPolicy allows the page its own files, its connection, and pictures that it creates.
// It cannot be framed, against clickjacking.
const viewPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

var errTooManyViewers = sandbox.Errorf(sandbox.CodeQuotaExceeded, "%d people watch this computer, which is the most", maxViewers)

// The build puts noVNC into view, which is not committed. A program is built without it
// too.
//
//go:embed view
var viewFiles embed.FS

// viewerFile is noVNC.
const viewerFile = "view/novnc.js"

// HasViewer reports whether the program was built with noVNC. Without it, the page of a
// live view says so.
func HasViewer() bool { return hasViewer(viewFiles) }

func hasViewer(files fs.FS) bool {
	_, err := fs.Stat(files, viewerFile)
	return err == nil
}

var noViewer = problem{
	status: http.StatusNotImplemented, code: string(sandbox.CodeUnsupported), title: "This Cove was built without its live view",
	detail: "The computer works, and so do its screenshots. Its screen is shown here by noVNC, which plain go build and go install do not fetch.",
	hint:   "To have it, install Node.js 20.19 or later with npm, build Cove from its sources, and start bin/cove serve:", command: "make build",
}

var viewPage = template.Must(template.ParseFS(viewFiles, "view/index.html"))

// viewAssets are the static files of the page.
var viewAssets = map[string]string{
	"/view.js": "text/javascript; charset=utf-8", "/view.css": "text/css; charset=utf-8",
	"/novnc.js": "text/javascript; charset=utf-8", "/novnc-LICENSE.txt": "text/plain; charset=utf-8",
}

// viewOf returns the sandbox whose live view has this host name.
func (p *Proxy) viewOf(host string) (string, bool) {
	label, ok := p.label(host)
	if !ok || len(label) > maxLabel {
		return "", false
	}
	id, ok := strings.CutPrefix(label, sandbox.ViewLabel)
	if !ok || id == "" || strings.Trim(id, idChars) != "" {
		return "", false
	}
	return id, true
}

// serveView answers a request for the live view of a sandbox.
func (p *Proxy) serveView(w http.ResponseWriter, r *http.Request, id string) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		p.fail(w, r, place{}, problem{status: http.StatusMethodNotAllowed, code: "method_not_allowed", title: "Not here", detail: "A live view answers GET requests only."})
		return
	}
	if kind, ok := viewAssets[r.URL.Path]; ok {
		p.serveViewAsset(w, r, kind)
		return
	}
	visit := sandbox.ViewVisit{SandboxID: id, Link: r.URL.Query().Get(sandbox.ViewLinkParam)}
	if len(visit.Link) > maxCredential {
		visit.Link = ""
	}
	switch r.URL.Path {
	case "/":
		p.viewPage(w, r, visit)
	case "/state":
		p.viewState(w, r, visit)
	case "/screen":
		p.viewScreen(w, r, visit)
	default:
		p.fail(w, r, place{}, problem{status: http.StatusNotFound, code: "not_found", title: "Nothing here", detail: "A live view is one page, at the address of its link."})
	}
}

func (p *Proxy) serveViewAsset(w http.ResponseWriter, r *http.Request, kind string) {
	data, err := fs.ReadFile(p.files, path.Join("view", r.URL.Path))
	if err != nil {
		p.fail(w, r, place{}, noViewer) // all else is embedded in any case
		return
	}
	sum := sha256.Sum256(data)
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", `"`+hex.EncodeToString(sum[:16])+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// visitView admits a visitor, unless they have failed too often.
func (p *Proxy) visitView(r *http.Request, visit sandbox.ViewVisit) (*sandbox.View, error) {
	a := attemptAt(r, sandbox.ViewLabel+visit.SandboxID, "", visit.Link)
	if err := p.allow(a); err != nil {
		return nil, err
	}
	view, err := p.views.VisitView(r.Context(), visit)
	p.note(a, err)
	return view, err
}

// viewPage serves the page, also for a paused computer: the page says so, and shows the
// screen when the computer runs again.
func (p *Proxy) viewPage(w http.ResponseWriter, r *http.Request, visit sandbox.ViewVisit) {
	view, err := p.visitView(r, visit)
	if err != nil && (view == nil || sandbox.CodeOf(err) != sandbox.CodeNotRunning) {
		p.fail(w, r, place{}, viewProblem(err))
		return
	}
	if !hasViewer(p.files) {
		p.fail(w, r, place{}, noViewer)
		return
	}
	var page bytes.Buffer
	err = viewPage.Execute(&page, map[string]any{"Name": view.Name, "Control": view.Control, "Expires": view.ExpiresAt.Format(time.RFC3339)})
	if err != nil {
		panic(err) // impossible: the template is embedded and tested
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", viewPolicy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Robots-Tag", "noindex")
	_, _ = w.Write(page.Bytes())
}

// viewProblem explains to a visitor why there is no live view.
func viewProblem(err error) problem {
	if often, ok := errors.AsType[*tooManyAttempts](err); ok {
		return often.problem()
	}
	code := sandbox.CodeOf(err)
	detail := sentence(sandbox.MessageOf(err))
	switch code {
	case sandbox.CodeForbidden:
		return problem{status: http.StatusForbidden, code: string(code), title: "That does not open it", detail: detail}
	case sandbox.CodeNotFound:
		return problem{status: http.StatusNotFound, code: string(code), title: "Nothing here any more", detail: detail}
	case sandbox.CodeNotRunning:
		return problem{status: http.StatusServiceUnavailable, code: string(code), title: "Nothing to see", detail: detail}
	case sandbox.CodeQuotaExceeded:
		return problem{status: http.StatusServiceUnavailable, code: string(code), title: "Too many viewers", detail: detail}
	case sandbox.CodeUnavailable:
		return problem{status: http.StatusBadGateway, code: string(code), title: "No picture", detail: "The computer runs, but its X server speaks no VNC; templates for live views have Xvnc."}
	}
	return problem{status: http.StatusBadGateway, code: string(sandbox.CodeInternal), title: "That went wrong", detail: "The live view cannot be shown; see the server's log for details."}
}

// viewersKey returns the name by which the viewers of a computer are counted.
func viewersKey(view *sandbox.View) string {
	if view.Control {
		return view.SandboxID + " control"
	}
	return view.SandboxID
}

// viewState reports the state of the view to the page.
func (p *Proxy) viewState(w http.ResponseWriter, r *http.Request, visit sandbox.ViewVisit) {
	answer := map[string]string{"code": "live"}
	view, err := p.visitView(r, visit)
	if err == nil && p.viewers.full(viewersKey(view)) {
		err = errTooManyViewers
	}
	if err != nil {
		pr := viewProblem(err)
		answer = map[string]string{"code": pr.code, "title": pr.title, "detail": pr.detail}
	}
	body, err := json.Marshal(answer)
	if err != nil {
		panic(err) // strings only
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body)
}

// viewScreen relays the screen over a WebSocket, and input from viewers with control. The
// link is the credential, which pages of other sites do not have; their origins are
// refused nevertheless.
func (p *Proxy) viewScreen(w http.ResponseWriter, r *http.Request, visit sandbox.ViewVisit) {
	view, err := p.visitView(r, visit)
	if err != nil {
		p.fail(w, r, place{}, viewProblem(err))
		return
	}
	if !p.viewers.enter(viewersKey(view)) {
		p.fail(w, r, place{}, viewProblem(errTooManyViewers))
		return
	}
	defer p.viewers.leave(viewersKey(view))
	ctx, cancel := context.WithTimeout(r.Context(), dialTimeout)
	server, used, err := p.views.DialView(ctx, visit)
	cancel()
	if err == nil {
		defer server.Close()
		if err = rfb.Greet(server); err != nil {
			err = sandbox.Wrap(sandbox.CodeUnavailable, err, "the computer speaks no VNC")
		}
	}
	if err != nil {
		p.log.Debug("live view: no screen", "sandbox", view.SandboxID, "error", err)
		p.fail(w, r, place{}, viewProblem(err))
		return
	}
	socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // Accept has answered
	}
	defer socket.CloseNow() //nolint:errcheck // the view has ended
	ctx, cancel = context.WithDeadline(r.Context(), view.ExpiresAt)
	defer cancel()
	go pingViewer(ctx, socket, cancel)
	client := websocket.NetConn(ctx, socket, websocket.MessageBinary)
	socket.SetReadLimit(maxViewMessage) // NetConn has removed the limit
	err = rfb.Join(client, server, rfb.Rights{Control: view.Control, Used: used})
	p.log.Debug("live view: over", "sandbox", view.SandboxID, "error", err)
}

// pingViewer ends the view if the viewer does not answer pings.
func pingViewer(ctx context.Context, socket *websocket.Conn, end context.CancelFunc) {
	tick := time.NewTicker(viewPing)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			limited, cancel := context.WithTimeout(ctx, viewPing)
			err := socket.Ping(limited)
			cancel()
			if err != nil {
				end()
				return
			}
		}
	}
}
