package auth

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// sessionCookie is the cookie of the console's sessions, and hostSessionCookie its
	// name over HTTPS: no other host can set a cookie with this prefix.
	sessionCookie     = "cove_console"
	hostSessionCookie = "__Host-cove_console"

	// maxCookies bounds the cookies of one name that are tried: pages of other ports
	// can set some.
	maxCookies = 8

	// ConsoleHeader is set to 1 by the console's scripts in each request. A page of
	// another origin cannot, unless the server allowed it.
	ConsoleHeader = "Cove-Console"
)

// IsSessionCookie reports whether a cookie of this name may be a session's. Such a
// cookie goes to no sandbox.
func IsSessionCookie(name string) bool {
	return strings.EqualFold(name, sessionCookie) || strings.EqualFold(name, hostSessionCookie)
}

// sessionTokens returns the tokens in a request's cookies. Where HTTPS is known to be
// spoken, only the cookie counts that nobody else can have set.
func sessionTokens(r *http.Request) []string {
	cookies := r.CookiesNamed(hostSessionCookie)
	if len(cookies) == 0 && r.TLS == nil {
		cookies = r.CookiesNamed(sessionCookie)
	}
	var tokens []string
	for _, c := range cookies[:min(len(cookies), maxCookies)] {
		tokens = append(tokens, c.Value)
	}
	return tokens
}

// overHTTPS reports whether the browser speaks HTTPS, with this server or with a proxy
// in front of it. The origin of the page is what tells of a proxy.
func overHTTPS(r *http.Request) bool {
	return r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

// SetSessionCookie gives the browser the cookie of a session that lasts until a time.
// It is for this host name only, scripts do not see it, and it comes with requests of
// pages of this site only.
func SetSessionCookie(w http.ResponseWriter, r *http.Request, token Secret, until time.Time) {
	setCookie(w, r, http.Cookie{Value: token.Reveal(), Expires: until})
}

// EndSessionCookie takes the cookie from the browser.
func EndSessionCookie(w http.ResponseWriter, r *http.Request) {
	setCookie(w, r, http.Cookie{MaxAge: -1})
}

func setCookie(w http.ResponseWriter, r *http.Request, c http.Cookie) {
	c.Name, c.Path, c.HttpOnly, c.SameSite = sessionCookie, "/", true, http.SameSiteStrictMode
	if overHTTPS(r) {
		c.Name, c.Secure = hostSessionCookie, true
	}
	http.SetCookie(w, &c)
}

// FromOwnPage returns a forbidden error unless a request proves that a page of its own
// origin made it: for requests whose browser says who calls. SameSite does not do that,
// since all ports of a host are one site.
func FromOwnPage(r *http.Request) error {
	if fromOwnPage(r) {
		return nil
	}
	return sandbox.Errorf(sandbox.CodeForbidden, "a session of the console is for the console's own pages; its scripts send the header %s: 1, and programs send an API key", ConsoleHeader)
}

func fromOwnPage(r *http.Request) bool {
	origins, sites := r.Header.Values("Origin"), r.Header.Values("Sec-Fetch-Site")
	own := len(origins) == 1 && ownOrigin(origins[0], r)
	switch {
	case len(origins) > 0 && !own, len(sites) > 1, len(sites) == 1 && sites[0] != "same-origin":
		return false
	case r.Header.Get("Upgrade") != "":
		// A page can open a WebSocket to any origin, and no answer keeps it from
		// reading what comes.
		return own
	}
	return own || len(sites) == 1 || r.Header.Get(ConsoleHeader) == "1"
}

// ownOrigin reports whether an origin is the one that a request was sent to. Without
// TLS there may be a proxy that has ended it.
func ownOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	return strings.EqualFold(u.Host, r.Host) && (u.Scheme == "https" || u.Scheme == "http" && r.TLS == nil)
}
