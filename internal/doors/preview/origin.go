package preview

import (
	"net/http"
	"net/url"
	"strings"
)

// navigates reports whether a request is a browser's navigation to a page.
func navigates(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" {
		return mode == "navigate"
	}
	return wantsHTML(r) && !isWebSocket(r)
}

// sameSandbox reports whether a request may use its cookie. To a browser, previews of
// different sandboxes are one site, so SameSite does not prevent the pages of one sandbox
// from sending requests with cookies to another. Pages of other ports of the same sandbox
// may do that.
func sameSandbox(r *http.Request, at place, p *Proxy) bool {
	if origins := r.Header.Values("Origin"); len(origins) > 0 {
		return len(origins) == 1 && p.ownOrigin(origins[0], at)
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-site", "cross-site":
		return navigates(r) && (!framed(r) || p.neighbor(r, at) != "")
	}
	return true
}

// framed reports whether a browser opens a page in a frame.
func framed(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Dest") {
	case "iframe", "frame", "embed", "object", "fencedframe":
		return true
	}
	return false
}

// neighbor returns the origin of the page that sent a request, if it belongs to the same
// sandbox, or "". A page can hide its address but cannot forge one.
func (p *Proxy) neighbor(r *http.Request, at place) string {
	from, err := url.Parse(r.Header.Get("Referer"))
	if err != nil {
		return ""
	}
	origin := from.Scheme + "://" + from.Host
	if !p.ownOrigin(origin, at) {
		return ""
	}
	return origin
}

func (p *Proxy) ownOrigin(origin string, at place) bool {
	u, err := url.Parse(origin)
	if err != nil || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return false
	}
	from, ok := p.place(u.Host)
	return ok && from.sandbox == at.sandbox
}

// isWebSocket reports whether a request wants to become a WebSocket.
func isWebSocket(r *http.Request) bool {
	return r.Method == http.MethodGet && r.ProtoMajor == 1 && len(r.Header.Values("Upgrade")) == 1 &&
		strings.EqualFold(r.Header.Get("Upgrade"), "websocket") && r.Header.Get("Sec-Websocket-Key") != ""
}
