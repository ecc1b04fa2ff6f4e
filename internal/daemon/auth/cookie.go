package auth

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// sessionCookie is the cookie of console sessions, and hostSessionCookie is its name
	// over HTTPS: no other host can set a cookie with this prefix.
	sessionCookie     = "cove_console"
	hostSessionCookie = hostPrefix + sessionCookie
	// signOnCookie is the cookie of a sign-in that is in progress at an identity provider,
	// and hostSignOnCookie is its name over HTTPS.
	signOnCookie     = "cove_console_sso"
	hostSignOnCookie = hostPrefix + signOnCookie

	// maxCookies bounds how many cookies of one name are tried: pages on other ports can
	// set some.
	maxCookies = 8

	// ConsoleHeader is a header that the console's scripts set to 1 in each request. A page
	// of another origin cannot set it, unless the server allows that.
	ConsoleHeader = "Cove-Console"
)

// IsSessionCookie reports whether a cookie of this name may belong to a session, or to a
// sign-in in progress. Such a cookie is never forwarded to a sandbox.
func IsSessionCookie(name string) bool {
	return slices.ContainsFunc([]string{sessionCookie, hostSessionCookie, signOnCookie, hostSignOnCookie}, func(own string) bool {
		return strings.EqualFold(name, own)
	})
}

// sessionTokens returns the tokens in a request's session cookies. If the request came over
// TLS or has a cookie of the kind that no other host can set, only that kind counts.
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

// OverHTTPS reports whether the browser uses HTTPS, either to this server or to a proxy in
// front of it. A proxy shows only in the Origin header.
func OverHTTPS(r *http.Request) bool {
	return r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

// SetSessionCookie gives the browser the cookie of a session that lasts until the given
// time; https reports whether the browser uses HTTPS. The cookie is limited to this host
// name, hidden from scripts, and sent only with requests from pages of this site.
func SetSessionCookie(w http.ResponseWriter, https bool, token Secret, until time.Time) {
	setCookie(w, https, http.Cookie{Name: sessionCookie, Value: token.Reveal(), Expires: until, SameSite: http.SameSiteStrictMode})
}

// EndSessionCookie removes the session cookie from the browser.
func EndSessionCookie(w http.ResponseWriter, https bool) {
	setCookie(w, https, http.Cookie{Name: sessionCookie, MaxAge: -1, SameSite: http.SameSiteStrictMode})
}

// SetSignOnCookie gives the browser the cookie that binds a single sign-on attempt to it.
// The browser sends it when the identity provider, which is another site, redirects back,
// but with no other request from another site.
func SetSignOnCookie(w http.ResponseWriter, https bool, token Secret, until time.Time) {
	setCookie(w, https, http.Cookie{Name: signOnCookie, Value: token.Reveal(), Expires: until, SameSite: http.SameSiteLaxMode})
}

// SignOnToken returns the token in the sign-on cookie, or "" unless the browser sent
// exactly one.
func SignOnToken(r *http.Request, https bool) string {
	name := signOnCookie
	if https {
		name = hostSignOnCookie
	}
	if found := r.CookiesNamed(name); len(found) == 1 {
		return found[0].Value
	}
	return ""
}

// EndSignOnCookie removes the sign-on cookie from the browser.
func EndSignOnCookie(w http.ResponseWriter, https bool) {
	setCookie(w, https, http.Cookie{Name: signOnCookie, MaxAge: -1, SameSite: http.SameSiteLaxMode})
}

// hostPrefix is the prefix of cookies that browsers accept only over HTTPS and only from
// the host itself.
const hostPrefix = "__Host-"

func setCookie(w http.ResponseWriter, https bool, c http.Cookie) {
	c.Path, c.HttpOnly = "/", true
	if https {
		c.Name, c.Secure = hostPrefix+c.Name, true
	}
	http.SetCookie(w, &c)
}

// FromOwnPage returns a forbidden error unless the request proves that a page of its own
// origin made it. It guards requests that are authenticated by a cookie. SameSite is not
// enough, since all ports of a host are one site.
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
		// A page can open a WebSocket to any origin, and no response header keeps it from
		// reading the messages.
		return own
	}
	return own || len(sites) == 1 || r.Header.Get(ConsoleHeader) == "1"
}

// ownOrigin reports whether an origin is the one that a request was sent to. Without TLS, a
// proxy may have terminated it.
func ownOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	return strings.EqualFold(u.Host, r.Host) && (u.Scheme == "https" || u.Scheme == "http" && r.TLS == nil)
}
