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
	// sessionCookie is the cookie of the console's sessions, and hostSessionCookie its
	// name over HTTPS: no other host can set a cookie with this prefix.
	sessionCookie     = "cove_console"
	hostSessionCookie = hostPrefix + sessionCookie
	// signOnCookie is that of a sign-in that has gone to an identity provider, and
	// hostSignOnCookie its name over HTTPS.
	signOnCookie     = "cove_console_sso"
	hostSignOnCookie = hostPrefix + signOnCookie

	// maxCookies bounds the cookies of one name that are tried: pages of other ports
	// can set some.
	maxCookies = 8

	// ConsoleHeader is set to 1 by the console's scripts in each request. A page of
	// another origin cannot, unless the server allowed it.
	ConsoleHeader = "Cove-Console"
)

// IsSessionCookie reports whether a cookie of this name may be a session's, or that of
// somebody who is about to sign in. Such a cookie goes to no sandbox.
func IsSessionCookie(name string) bool {
	return slices.ContainsFunc([]string{sessionCookie, hostSessionCookie, signOnCookie, hostSignOnCookie}, func(own string) bool {
		return strings.EqualFold(name, own)
	})
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

// OverHTTPS reports whether the browser speaks HTTPS, with this server or with a proxy
// in front of it. The origin of the page is what tells of a proxy.
func OverHTTPS(r *http.Request) bool {
	return r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

// SetSessionCookie gives the browser the cookie of a session that lasts until a time;
// https says whether it speaks HTTPS. The cookie is for this host name only, scripts do
// not see it, and it comes with requests of pages of this site only.
func SetSessionCookie(w http.ResponseWriter, https bool, token Secret, until time.Time) {
	setCookie(w, https, http.Cookie{Name: sessionCookie, Value: token.Reveal(), Expires: until, SameSite: http.SameSiteStrictMode})
}

// EndSessionCookie takes the cookie from the browser.
func EndSessionCookie(w http.ResponseWriter, https bool) {
	setCookie(w, https, http.Cookie{Name: sessionCookie, MaxAge: -1, SameSite: http.SameSiteStrictMode})
}

// SetSignOnCookie gives the browser the cookie that binds a sign-in by single sign-on to
// it. It comes with the browser when the identity provider, which is another site, sends
// it back, but with no other request of another site.
func SetSignOnCookie(w http.ResponseWriter, https bool, token Secret, until time.Time) {
	setCookie(w, https, http.Cookie{Name: signOnCookie, Value: token.Reveal(), Expires: until, SameSite: http.SameSiteLaxMode})
}

// SignOnToken returns the token of that cookie, or "" if the browser has not exactly one.
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

// EndSignOnCookie takes the cookie from the browser.
func EndSignOnCookie(w http.ResponseWriter, https bool) {
	setCookie(w, https, http.Cookie{Name: signOnCookie, MaxAge: -1, SameSite: http.SameSiteLaxMode})
}

// hostPrefix begins the names of cookies that browsers take over HTTPS only, from the
// host itself.
const hostPrefix = "__Host-"

func setCookie(w http.ResponseWriter, https bool, c http.Cookie) {
	c.Path, c.HttpOnly = "/", true
	if https {
		c.Name, c.Secure = hostPrefix+c.Name, true
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
