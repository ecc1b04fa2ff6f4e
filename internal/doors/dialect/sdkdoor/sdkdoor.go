// Package sdkdoor is what the doors for other products' SDKs have in common on HTTP: reading host
// names and bodies, finding routes, sending files, and saying when to try again. Package gate
// authenticates their callers.
package sdkdoor

import (
	"cmp"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// Domain returns the parent domain of sandboxes' host names as [HostName] writes names.
func Domain(configured string) string {
	return cmp.Or(strings.ToLower(strings.Trim(configured, ".")), "localhost")
}

// HostName returns the name in a Host header: in lower case, without port and final dots.
func HostName(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return strings.TrimRight(strings.ToLower(host), ".")
}

// Origin returns the scheme and host with which the client of a request has reached the server,
// since the client trusts that host's certificate. Base is a URL of the server itself: a proxy in
// front of it may use another scheme.
func Origin(r *http.Request, base string) string {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	if own, err := url.Parse(base); err == nil && strings.EqualFold(own.Host, r.Host) {
		scheme = own.Scheme
	}
	return scheme + "://" + r.Host
}

// Port parses a port, 1 to 65535, that is written in one way only: without a sign and
// without zeros before it.
func Port(digits string) (port int, ok bool) {
	n, err := strconv.ParseUint(digits, 10, 16)
	return int(n), err == nil && n != 0 && strconv.FormatUint(n, 10) == digits
}

const (
	idPrefix = "sbx-"
	idRandom = 26
)

// ValidID reports whether s has the form of a sandbox's id, which no name has.
func ValidID(s string) bool {
	random, ok := strings.CutPrefix(s, idPrefix)
	return ok && len(random) == idRandom && strings.Trim(random, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// SetRetryAfter sets the header that says when to try again, if the error has that.
func SetRetryAfter(h http.Header, err error) {
	if known, ok := errors.AsType[*sandbox.Error](err); ok && known.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(known.RetryAfter.Seconds()))))
	}
}

// ReadBody reads the body of a request, up to a limit in bytes, with memory from the budget that
// the doors share. The error for a longer body ends with advice. The request may be a copy of the
// HTTP server's own.
func ReadBody(w http.ResponseWriter, r *http.Request, most int64, advice string) ([]byte, error) {
	if err := limits.HoldBody(r); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "the body has more than %d bytes; %s", most, advice)
	}
	if err != nil && !limits.IsStalled(err) { // the client is gone, which is not a failure of this server
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the body has not come to its end: %v; send it again", err)
	}
	return data, err
}

// SetAttachment describes content of a sandbox, which a browser saves under a name and does
// not run as a page of this server.
func SetAttachment(h http.Header, kind, name string) {
	h.Set("Content-Type", kind)
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": strings.ToValidUTF8(name, "_")}))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Cache-Control", "no-store")
}

// SendFile answers with the file that was found at a path.
func SendFile(w http.ResponseWriter, file *sandbox.FileReader, at string) {
	SetAttachment(w.Header(), "application/octet-stream", path.Base(at))
	if file.Info.Size > 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(file.Info.Size, 10))
	}
	CopyFile(w, file)
}

// CopyFile writes as many bytes of a file as its size says; a size of 0 may be that of a file
// without one, as in /proc. A failure breaks the connection, so that clients notice that something
// is missing.
func CopyFile(w io.Writer, file *sandbox.FileReader) {
	n, err := file.Info.Size, error(nil)
	if n > 0 {
		_, err = io.CopyN(w, file, n) // the file may have grown
	} else {
		_, err = io.Copy(w, file)
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}
