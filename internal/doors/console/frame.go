package console

import (
	_ "embed" // the page
	"net/http"
)

// frame.html displays HTML and pictures that programs in sandboxes have made. The page
// that contains the frame sends it the content.
//
//go:embed frame.html
var framePage []byte

// framePolicy gives the frame an origin of its own, however it is opened, without cookies
// and storage. The frame can run the scripts that it is sent, but reaches no network: it
// loads only data and blob URLs, and the policy of the console's page keeps it from
// navigating elsewhere.
const framePolicy = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; " +
	"img-src data: blob:; font-src data:; media-src data: blob:; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"

func serveFrame(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", framePolicy)
	h.Set("X-Frame-Options", "SAMEORIGIN")
	h.Set("X-DNS-Prefetch-Control", "off") // names in links are a way out too
	h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), display-capture=(), clipboard-read=(), clipboard-write=(), fullscreen=()")
	h.Set("Content-Type", kinds[".html"])
	_, _ = w.Write(framePage) // the browser may be gone
}
