package limits

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// MinBodyRate is the lowest rate at which a client may send a body: Bytes in each Per
// that the server spends waiting for it. Time in which nothing reads the body does not
// count. A body, or the rest of one, that is smaller than Bytes has a whole Per.
type MinBodyRate struct {
	Bytes int64
	Per   time.Duration
}

// DefaultMinBodyRate is the rate that SECURITY.md states: about half a KiB a second, and
// enough slack for a link that is down for most of a minute.
var DefaultMinBodyRate = MinBodyRate{Bytes: 32 << 10, Per: time.Minute}

// ErrStalled is the cause of the error from reading a body that arrived too slowly. It
// is a timeout in the sense of package net.
var ErrStalled error = stalled{}

type stalled struct{}

func (stalled) Error() string   { return "the body came too slowly" }
func (stalled) Timeout() bool   { return true }
func (stalled) Temporary() bool { return false }

// IsStalled reports whether err comes from a body that arrived too slowly. The response's
// status is then 408.
func IsStalled(err error) bool { return errors.Is(err, ErrStalled) }

// StalledMessage is the message for a client whose request failed for this reason.
const StalledMessage = "the body of the request came too slowly and was given up; send it again, over a connection that does not stall"

// Handler applies the rate to the bodies of next's requests, except to those for which
// free returns true. A nil free exempts none.
func (p MinBodyRate) Handler(next http.Handler, free func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody || free != nil && free(r) {
			next.ServeHTTP(w, r)
			return
		}
		b := &body{ReadCloser: r.Body, w: w, rc: http.NewResponseController(w), rate: p, left: p.Per, keeps: r.ProtoMajor == 1}
		// Before it responds, the HTTP server itself reads what the handler left of the body:
		// that needs a deadline too.
		b.leave(time.Now().Add(p.Per))
		// The server inspects the body of its own request, so only a copy gets another body.
		r = r.WithContext(r.Context())
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// body is a body with a minimum rate. Like any body, it is read by one goroutine at a
// time.
type body struct {
	io.ReadCloser
	w    http.ResponseWriter
	rc   *http.ResponseController
	rate MinBodyRate
	// keeps reports that a deadline that passes while nothing reads is harmless, as in
	// HTTP/1, where the deadline is the connection's.
	keeps bool

	got   int64         // bytes since the rate was last met
	left  time.Duration // remaining wait for the rest of rate.Bytes
	until time.Time     // if set, the deadline of the whole body
	err   error
}

// leave sets the deadline for other readers of the body. An error means only that this
// connection has no deadlines, here and in the rest of this file.
func (b *body) leave(t time.Time) {
	if b.keeps {
		_ = b.rc.SetReadDeadline(t)
	} else {
		_ = b.rc.SetReadDeadline(time.Time{})
	}
}

func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	began := time.Now()
	end := began.Add(b.left)
	if !b.until.IsZero() && b.until.Before(end) {
		end = b.until
	}
	_ = b.rc.SetReadDeadline(end)
	n, err := b.ReadCloser.Read(p)
	b.left -= time.Since(began)
	if b.got += int64(n); b.got >= b.rate.Bytes {
		b.got, b.left = 0, b.rate.Per
	}
	switch {
	case err == nil:
		b.leave(end)
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.err = sandbox.Wrap(sandbox.CodeTimeout, fmt.Errorf("%w: %w", ErrStalled, err), StalledMessage)
		// Nothing should wait for the rest, and the connection cannot be used again.
		b.leave(time.Unix(1, 0))
		b.w.Header().Set("Connection", "close")
		return n, b.err
	default:
		// After the end of the body the server continues to read, to notice a client that
		// disconnects: a deadline would end the request.
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

// within limits the total time of a body that passed through [MinBodyRate.Handler].
func within(rc io.ReadCloser, d time.Duration) {
	if b, ok := rc.(*body); ok {
		b.until = time.Now().Add(d)
	}
}

// Drain reads the rest of a body for up to d, so that a client that is still sending can
// read the response. It fails unless the body ends properly in that time; the connection
// must not be used again then.
func Drain(w http.ResponseWriter, r *http.Request, d time.Duration) error {
	if b, ok := r.Body.(*body); ok {
		b.until = time.Now().Add(d)
	} else {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d))
	}
	_, err := io.Copy(io.Discard, r.Body)
	return err
}
