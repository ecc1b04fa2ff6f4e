package preview

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/sandbox"
)

// Where a visitor's credentials are. They are not passed to a sandbox.
const (
	keyHeader  = sandbox.PreviewKeyHeader
	keyQuery   = sandbox.PreviewKeyParam
	linkQuery  = sandbox.PreviewLinkParam
	cookieName = "cove_preview"
	// hostCookieName is the cookie's name over HTTPS. No other host can set a cookie with
	// this prefix.
	hostCookieName = "__Host-cove_preview"
	// unlockPath receives the form of the page that asks for a key.
	unlockPath = "/.well-known/cove/preview"

	maxCredential = 1024
	// maxCredentials bounds the credentials that are tried for one request. There can be
	// several cookies of the same name: one that another host has set must not displace
	// the real one.
	maxCredentials = 8
	maxForm        = 4 << 10
)

type origin int

const (
	fromNowhere origin = iota
	fromHeader
	fromQuery
	fromCookie
)

// credential is a key or the signed part of a link.
type credential struct {
	key, link string
	from      origin
}

// credentials returns the credentials in a request.
func credentials(r *http.Request) []credential {
	var found []credential
	add := func(c credential) {
		if n := len(c.key) + len(c.link); n > 0 && n <= maxCredential && len(found) < maxCredentials {
			found = append(found, c)
		}
	}
	for _, v := range r.Header.Values(keyHeader) {
		add(credential{key: v, from: fromHeader})
	}
	for piece := range strings.SplitSeq(r.URL.RawQuery, "&") {
		name, value, _ := strings.Cut(piece, "=")
		value, err := url.QueryUnescape(value)
		switch {
		case err != nil:
		// Only the literal names: a credential must be recognized wherever a browser
		// repeats it.
		case name == keyQuery:
			add(credential{key: value, from: fromQuery})
		case name == linkQuery:
			add(credential{link: value, from: fromQuery})
		}
	}
	for _, c := range slices.Concat(r.CookiesNamed(cookieName), r.CookiesNamed(hostCookieName)) {
		add(decodeCookie(c.Value))
	}
	return found
}

// cleanQuery removes credentials from a query.
func cleanQuery(raw string) string { return WithoutParams(raw, keyQuery, linkQuery) }

// WithoutParams removes parameters from a query, however their names are encoded, and
// does not change the rest.
func WithoutParams(raw string, names ...string) string {
	var kept []string
	for piece := range strings.SplitSeq(raw, "&") {
		name, _, _ := strings.Cut(piece, "=")
		name, err := url.QueryUnescape(name)
		if err != nil || !slices.Contains(names, name) {
			kept = append(kept, piece)
		}
	}
	return strings.Join(kept, "&")
}

// namesCredential reports whether a referrer contains the name of a credential, in any
// encoding, or cannot be parsed.
func namesCredential(referer string) bool {
	if _, err := url.Parse(referer); err != nil {
		return true
	}
	for text := referer; ; {
		if strings.Contains(strings.ToLower(text), linkQuery) { // the key's name begins with it
			return true
		}
		plain, err := url.QueryUnescape(text)
		if err != nil {
			return true
		}
		if len(plain) == len(text) { // nothing is escaped any more
			return false
		}
		text = plain
	}
}

// cleanCookies removes the server's own cookies from a header: the proxy's, and the
// console's, which comes from a browser that has it for all ports of a host name.
func cleanCookies(h http.Header) {
	lines := h["Cookie"]
	if len(lines) == 0 {
		return
	}
	var kept []string
	for _, line := range lines {
		for piece := range strings.SplitSeq(line, ";") {
			piece = strings.TrimSpace(piece)
			name, _, _ := strings.Cut(piece, "=")
			if piece != "" && !ourCookie(name) {
				kept = append(kept, piece)
			}
		}
	}
	if len(kept) == 0 {
		h.Del("Cookie")
		return
	}
	h["Cookie"] = []string{strings.Join(kept, "; ")}
}

func ourCookie(name string) bool {
	name = strings.TrimSpace(name)
	return strings.EqualFold(name, cookieName) || strings.EqualFold(name, hostCookieName) || auth.IsSessionCookie(name)
}

// encodeCookie returns the value of a cookie: "k" and a key, or "l" and a link, in base64.
// So the cookie is valid for as long as the key or link.
func encodeCookie(c credential) string {
	text := "l" + c.link
	if c.key != "" {
		text = "k" + c.key
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

// AddLink adds the signed part of a link to a request, as the cookie that the link leaves in
// a browser does.
func AddLink(r *http.Request, link string) {
	r.AddCookie(&http.Cookie{Name: cookieName, Value: encodeCookie(credential{link: link})})
}

func decodeCookie(value string) credential {
	if len(value) > 2*maxCredential {
		return credential{}
	}
	data, err := base64.RawURLEncoding.DecodeString(value)
	switch {
	case err != nil || len(data) < 2:
		return credential{}
	case data[0] == 'k':
		return credential{key: string(data[1:]), from: fromCookie}
	case data[0] == 'l':
		return credential{link: string(data[1:]), from: fromCookie}
	}
	return credential{}
}

// setCookie stores the credential in the browser until that is closed, for this host name
// only.
func setCookie(w http.ResponseWriter, r *http.Request, found *sandbox.Preview, c credential) {
	secure := r.TLS != nil || strings.HasPrefix(found.URL, "https:")
	name := cookieName
	if secure {
		name = hostCookieName
	}
	http.SetCookie(w, &http.Cookie{Name: name, Value: encodeCookie(c), Path: "/", HttpOnly: true, Secure: secure, SameSite: http.SameSiteLaxMode})
}

// errTooMany means that too many visitors are waiting.
var errTooMany = sandbox.Errorf(sandbox.CodeQuotaExceeded, "too many visitors")

// errAnswered means that the request was answered.
var errAnswered = errors.New("answered")

// wakePatience is how long a browser waits for a sandbox to wake before it gets a page
// about that.
const wakePatience = 4 * time.Second

// admit tries the credentials until one is accepted.
func (p *Proxy) admit(ctx context.Context, w http.ResponseWriter, r *http.Request, at place, brought []credential) (*sandbox.Preview, credential, error) {
	type result struct {
		preview *sandbox.Preview
		used    credential
		err     error
	}
	// The sandbox goes on waking if the browser disconnects or is told to retry.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTimeout)
	if !p.waiting.enter(at.label) {
		cancel()
		return nil, credential{}, errTooMany
	}
	done := make(chan result, 1)
	go func() {
		preview, used, err := p.try(ctx, r, at, brought)
		cancel()
		p.waiting.leave(at.label) // before the result is announced
		done <- result{preview, used, err}
	}()
	var impatient <-chan time.Time
	if navigates(r) {
		timer := time.NewTimer(p.patience)
		defer timer.Stop()
		impatient = timer.C
	}
	select {
	case res := <-done:
		return res.preview, res.used, res.err
	case <-impatient:
		p.fail(w, r, at, waking)
		return nil, credential{}, errAnswered
	case <-r.Context().Done():
		return nil, credential{}, errAnswered
	}
}

func (p *Proxy) try(ctx context.Context, r *http.Request, at place, brought []credential) (*sandbox.Preview, credential, error) {
	if len(brought) == 0 {
		brought = []credential{{}}
	}
	var refused error
	for _, c := range brought {
		a := attemptAt(r, at.label, c.key, c.link)
		if err := p.allow(a); err != nil {
			return nil, c, err
		}
		found, err := p.previews.VisitPreview(ctx, sandbox.PreviewVisit{Label: at.label, Key: c.key, Link: c.link})
		p.note(a, err)
		switch code := sandbox.CodeOf(err); {
		case err == nil:
			return found, c, nil
		case code != sandbox.CodeForbidden && code != sandbox.CodeUnauthenticated:
			return nil, c, err
		}
		refused = err
	}
	return nil, credential{}, refused
}

// unlock handles the form of the page that asks for a key.
func (p *Proxy) unlock(w http.ResponseWriter, r *http.Request, at place) {
	if !sameSandbox(r, at, p) {
		p.fail(w, r, at, foreignOrigin)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(dialTimeout)); err != nil {
		p.log.Debug("preview: no deadline for a form", "error", err)
	}
	if err := r.ParseForm(); err != nil {
		p.fail(w, r, at, badForm)
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	used := credential{key: strings.TrimSpace(r.PostForm.Get("key"))}
	if used.key == "" || len(used.key) > maxCredential {
		p.refuse(w, r, at, sandbox.Errorf(sandbox.CodeForbidden, "no key"), true)
		return
	}
	found, used, err := p.admit(r.Context(), w, r, at, []credential{used})
	switch {
	case errors.Is(err, errAnswered):
	case err != nil:
		p.refuse(w, r, at, err, true)
	default:
		setCookie(w, r, found, used)
		redirect(w, r, localTarget(r.PostForm.Get("to")))
	}
}

// cleanTarget returns the path and query of u without credentials.
func cleanTarget(u *url.URL) string {
	target := localPath(u.EscapedPath())
	if q := cleanQuery(u.RawQuery); q != "" {
		target += "?" + q
	}
	return target
}

// localTarget returns the target from a form, or "/" if it is not on this host.
func localTarget(to string) string {
	u, err := url.ParseRequestURI(to)
	if err != nil || u.Scheme != "" || u.Host != "" {
		return "/"
	}
	return cleanTarget(u)
}

// localPath returns a path that no browser takes for another host, as it would take two
// slashes at the beginning; a backslash counts as a slash.
func localPath(path string) string {
	return "/" + strings.TrimLeft(strings.ReplaceAll(path, `\`, "%5C"), "/")
}

func redirect(w http.ResponseWriter, r *http.Request, target string) {
	h := w.Header()
	h.Set("Location", target)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	status := http.StatusFound
	if r.Method == http.MethodPost {
		status = http.StatusSeeOther
	}
	w.WriteHeader(status)
}
