package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/gzhttp"
)

// The front end's build writes dist, which is not committed. Committed files whose names
// also begin with "dist" make the pattern match, so the program builds without it.
//
//go:embed dist*
var embedded embed.FS

const (
	indexFile = "index.html"
	// hashedDir holds files whose names have a hash of the content, by Vite's default.
	hashedDir = "assets/"
	// compressFrom is the size, in bytes, from which files are compressed.
	compressFrom = 1 << 10
)

// policy is the content security policy of all pages except the frame: scripts of this
// server only, no connection to any other server, and no display in a frame. Inline
// styles are allowed because xterm.js and CodeMirror set styles from scripts.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; " +
	"connect-src 'self'; font-src 'self'; frame-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

// protect sets the headers of every answer.
func protect(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY") // for browsers that know no frame-ancestors
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// kinds are the media types of files by the ends of their names. The machine's own table
// is not used, because it may give scripts another type.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".mjs": "text/javascript; charset=utf-8",
	".css": "text/css; charset=utf-8", ".json": "application/json", ".map": "application/json", ".webmanifest": "application/manifest+json",
	".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".webp": "image/webp", ".jpg": "image/jpeg",
	".woff2": "font/woff2", ".woff": "font/woff", ".ttf": "font/ttf", ".wasm": "application/wasm", ".txt": "text/plain; charset=utf-8",
}

// pages are the files of the console. Only names that were found at the start are
// served, so that no path leads elsewhere.
type pages struct {
	files map[string]file // by path, relative and clean
}

type file struct {
	data []byte
	kind string
	tag  string
}

// Built reports whether the program was built with the console. Without it, the console's
// address says so.
func Built() bool { return built() != nil }

// built returns the front end's files, or nil if the program was built without it.
func built() fs.FS {
	dist, err := fs.Sub(embedded, "dist")
	if err != nil {
		return nil
	}
	if _, err := fs.Stat(dist, indexFile); err != nil {
		return nil
	}
	return dist
}

// newPages returns the handler of the console's files; dist is nil in a program built
// without the console.
func newPages(dist fs.FS) http.Handler {
	if dist == nil {
		return http.HandlerFunc(serveUnbuilt)
	}
	p := &pages{files: make(map[string]file)}
	err := fs.WalkDir(dist, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := fs.ReadFile(dist, name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		kind := kinds[path.Ext(name)]
		if kind == "" {
			kind = "application/octet-stream"
		}
		p.files[name] = file{data: data, kind: kind, tag: `W/"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
		return nil
	})
	if err != nil {
		panic("read the console's files: " + err.Error()) // they are in the program
	}
	return compressed(p)
}

// compressed compresses text, for browsers that accept it.
func compressed(next http.Handler) http.Handler {
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(compressFrom), gzhttp.ContentTypes([]string{
		"text/html", "text/javascript", "text/css", "text/plain", "application/json", "application/manifest+json", "image/svg+xml", "application/wasm",
	}))
	if err != nil {
		panic("compress the console's files: " + err.Error()) // the settings are constants
	}
	return wrap(next)
}

// ServeHTTP serves the file of a path. For a path without a file it serves the page,
// which knows what to show there.
func (p *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		methodNotAllowed("GET, HEAD")(w, r)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, Path)
	found, ok := p.files[name]
	switch {
	case ok && name != indexFile:
	case strings.HasPrefix(name, hashedDir):
		// A page from before an upgrade may request a file that is gone: it must not get
		// a page in place of a script.
		http.Error(w, "the console has no such file; load the page again", http.StatusNotFound)
		return
	default:
		name, found = indexFile, p.files[indexFile]
	}
	h := w.Header()
	h.Set("Content-Type", found.kind)
	switch {
	case strings.HasPrefix(name, hashedDir):
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	case name != indexFile:
		h.Set("Cache-Control", "no-cache")
	}
	if name != indexFile {
		h.Set("Etag", found.tag)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(found.data))
}

// serveUnbuilt says that there is no console in this program.
func serveUnbuilt(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		methodNotAllowed("GET, HEAD")(w, r)
		return
	}
	page, err := fs.ReadFile(embedded, "dist-missing.html")
	if err != nil {
		panic(errors.Join(errors.New("read the page of a program without the console"), err)) // it is in the program
	}
	w.Header().Set("Content-Type", kinds[".html"])
	w.WriteHeader(http.StatusNotImplemented)
	_, _ = w.Write(page) // the browser may be gone
}
