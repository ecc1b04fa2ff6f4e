package preview

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// errorHeader marks a response of the proxy itself. Its value is the problem's code.
const errorHeader = "Cove-Preview-Error"

// drainTimeout bounds how long the HTTP server reads a body that is not used.
const drainTimeout = 2 * time.Second

// problem is a response of the proxy in place of the sandbox's.
type problem struct {
	status int
	code   string
	title  string
	detail string
	// hint says what the owner of the sandbox can do.
	hint string
	// command is a helpful command.
	command string
	// again is after how many seconds a browser retries.
	again int
	// form adds a form for a key.
	form bool
}

var (
	unknownPlace  = problem{status: http.StatusNotFound, code: "not_found", title: "No such preview", detail: "The address of a preview is PORT-SANDBOX before the domain, such as 3000-sbx-abc.", command: "cove preview ls"}
	tooMany       = problem{status: http.StatusServiceUnavailable, code: "quota_exceeded", title: "Too many visitors", detail: fmt.Sprintf("This preview has %d requests under way, which is the most.", maxVisits), again: 5}
	foreignOrigin = problem{status: http.StatusForbidden, code: "forbidden", title: "Not from there", detail: "A page of another site sent this request. This preview is private, and your cookie is for pages of this sandbox only; a program sends the key in the header " + keyHeader + "."}
	badForm       = problem{status: http.StatusBadRequest, code: "invalid", title: "That went wrong", detail: "The form could not be read. Go back and try again."}
	waking        = problem{status: http.StatusServiceUnavailable, code: "waking", title: "Waking up", detail: "The sandbox was paused and is coming back with everything that ran in it.", again: 2}
	gone          = problem{status: http.StatusBadGateway, code: "unavailable", title: "Over", detail: "The request was ended."}
	slow          = problem{status: http.StatusGatewayTimeout, code: "timeout", title: "No answer", detail: "The program in the sandbox took the request but did not answer in time.", hint: "See what it is doing."}
	garbled       = problem{status: http.StatusBadGateway, code: "bad_answer", title: "That was no answer", detail: "The program in the sandbox took the connection, but its answer is not HTTP, or it broke off.", hint: "Previews carry HTTP. For anything else there is port forwarding."}
)

// refuse tells a visitor why they are not admitted or the port cannot be reached.
func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request, at place, err error, brought bool) {
	p.fail(w, r, at, p.explain(at, err, brought))
}

func (p *Proxy) explain(at place, err error, brought bool) problem {
	if often, ok := errors.AsType[*tooManyAttempts](err); ok {
		return often.problem()
	}
	code := sandbox.CodeOf(err)
	switch code {
	case sandbox.CodeForbidden, sandbox.CodeUnauthenticated:
		if brought {
			return problem{status: http.StatusForbidden, code: string(code), title: "That does not open it", form: true,
				detail: "The key or link is not valid for this preview, or not any more. Ask for a new one."}
		}
		return problem{status: http.StatusUnauthorized, code: "unauthenticated", title: "This preview is private", form: true,
			detail: "Open it with a link that you were given, or with its key. Programs send the key in the header " + keyHeader + "."}
	case sandbox.CodeNotFound:
		return problem{status: http.StatusNotFound, code: string(code), title: "Nothing here",
			detail: "The sandbox is gone, or this port of it is not shared.", hint: "If it is yours and still there, share the port:", command: fmt.Sprintf("cove preview create %s %d", at.sandbox, at.port)}
	case sandbox.CodeNotRunning:
		pr := problem{status: http.StatusServiceUnavailable, code: string(code), title: "The sandbox is not running", detail: sentence(sandbox.MessageOf(err))}
		if strings.Contains(pr.detail, "paused") {
			pr.hint, pr.command = "If it is yours, wake it:", "cove resume "+at.sandbox
		}
		return pr
	case sandbox.CodeUnavailable:
		return problem{status: http.StatusBadGateway, code: "not_listening", title: fmt.Sprintf("Nothing listens on port %d", at.port),
			detail: "The sandbox runs, but no program in it takes connections on this port yet.", hint: "Start a server there; this page looks again by itself.", again: 3}
	case sandbox.CodeQuotaExceeded:
		return tooMany
	case sandbox.CodeTimeout, sandbox.CodeCancelled:
		return problem{status: http.StatusGatewayTimeout, code: string(sandbox.CodeTimeout), title: "No answer", detail: "The sandbox did not answer in time.", again: 5}
	}
	p.log.Warn("preview failed", "label", at.label, "code", string(code), "error", err)
	return problem{status: http.StatusBadGateway, code: string(code), title: "That went wrong", detail: "The preview cannot be shown; see the server's log for details.", again: 10}
}

// sentence turns an error message into a sentence.
func sentence(message string) string {
	if message == "" {
		return ""
	}
	return strings.ToUpper(message[:1]) + message[1:] + "."
}

//go:embed page.html
var pageText string

var (
	pageTemplate = template.Must(template.New("page").Parse(pageText))
	// pagePolicy allows the page its own style and its form, and nothing else.
	pagePolicy = "default-src 'none'; style-src 'sha256-" + styleHash(pageText) + "'; form-action 'self'; base-uri 'none'"
)

func styleHash(page string) string {
	_, style, _ := strings.Cut(page, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// fail answers with a problem, in the format that the request accepts.
func (p *Proxy) fail(w http.ResponseWriter, r *http.Request, at place, pr problem) {
	h := w.Header()
	clear(h)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	// Without a referrer the form would have no origin.
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Robots-Tag", "noindex")
	h.Set(errorHeader, pr.code)
	h.Add("Vary", "Accept")
	if pr.again > 0 {
		h.Set("Retry-After", strconv.Itoa(pr.again))
	}
	switch pr.status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", keyHeader)
	case http.StatusMethodNotAllowed:
		h.Set("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
	}
	body := pr.text()
	switch {
	case wantsHTML(r):
		body = pr.html(h, r, at)
	case strings.Contains(r.Header.Get("Accept"), "json"):
		body = pr.json(h)
	default:
		h.Set("Content-Type", "text/plain; charset=utf-8")
	}
	// The rest of the request's body is not used, so do not wait for it.
	if r.ContentLength != 0 && r.ProtoMajor == 1 {
		h.Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTimeout))
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(pr.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}

func wantsHTML(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

func (pr problem) text() []byte {
	lines := []string{pr.title + ".", pr.detail, pr.hint, pr.command}
	lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" })
	return []byte(strings.Join(lines, "\n") + "\n")
}

// json encodes the problem like those of REST.
func (pr problem) json(h http.Header) []byte {
	body, err := json.Marshal(map[string]any{
		"type": "about:blank", "title": pr.title, "status": pr.status,
		"detail": strings.TrimSpace(pr.detail + " " + strings.TrimSpace(pr.hint+" "+pr.command)), "code": pr.code,
	})
	if err != nil {
		panic(err) // numbers and strings only
	}
	h.Set("Content-Type", "application/problem+json")
	return body
}

func (pr problem) html(h http.Header, r *http.Request, at place) []byte {
	h.Set("Content-Type", "text/html; charset=utf-8")
	policy := pagePolicy
	if pr.form {
		// Other pages must not frame the form for the key.
		policy += "; frame-ancestors 'none'"
	}
	h.Set("Content-Security-Policy", policy)
	again := pr.again
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		again = 0
	}
	var page bytes.Buffer
	err := pageTemplate.Execute(&page, map[string]any{
		"Title": pr.title, "Detail": pr.detail, "Hint": pr.hint, "Command": pr.command, "Again": again,
		"Form": pr.form, "Unlock": unlockPath, "To": returnTarget(r), "Label": at.label, "Status": pr.status, "Code": pr.code,
		"Busy": pr.code == waking.code || pr.code == "not_listening",
	})
	if err != nil {
		return pr.text()
	}
	return page.Bytes()
}

// returnTarget returns the target that the visitor requested, for a redirect after the
// form.
func returnTarget(r *http.Request) string {
	if r.Method == http.MethodPost && r.URL.Path == unlockPath {
		return localTarget(r.PostForm.Get("to"))
	}
	return cleanTarget(r.URL)
}
