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

// Pace is the slowest that a body may come: Bytes in each Time that the server
// waits for it. Time in which nobody reads the body does not count, and neither
// does the rest of a body that is smaller.
type Pace struct {
	Bytes int64
	Time  time.Duration
}

// DefaultPace is what SECURITY.md promises: about half a KiB in a second, and
// room for a link that is gone for most of a minute.
var DefaultPace = Pace{Bytes: 32 << 10, Time: time.Minute}

// ErrStalled is the cause of the error that reading a body returns which came
// too slowly. It is a timeout of package net.
var ErrStalled error = stalled{}

type stalled struct{}

func (stalled) Error() string   { return "the body came too slowly" }
func (stalled) Timeout() bool   { return true }
func (stalled) Temporary() bool { return false }

// IsStalled reports whether an error is that of a body which came too slowly.
// The answer's status is 408.
func IsStalled(err error) bool { return errors.Is(err, ErrStalled) }

// StalledMessage tells a client what became of its request.
const StalledMessage = "the body of the request came too slowly and was given up; send it again, over a connection that does not stall"

// Handler bounds the bodies of the requests that next gets, but for those that
// free names; nil names none.
func (p Pace) Handler(next http.Handler, free func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody || free != nil && free(r) {
			next.ServeHTTP(w, r)
			return
		}
		b := &body{ReadCloser: r.Body, w: w, rc: http.NewResponseController(w), pace: p, left: p.Time, keeps: r.ProtoMajor == 1}
		// The server itself reads what a handler leaves of a body, before it
		// answers: that must end too.
		b.between(time.Now().Add(p.Time))
		// The server looks at the body of its own request.
		r = r.WithContext(r.Context())
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// body is a body that has to keep a pace. As any other it is read by one
// goroutine at a time.
type body struct {
	io.ReadCloser
	w    http.ResponseWriter
	rc   *http.ResponseController
	pace Pace
	// keeps says that a deadline that passes while nobody reads does no harm, as
	// in HTTP/1, where it is the connection's.
	keeps bool

	got   int64         // since the pace was last kept
	left  time.Duration // to wait for the rest of pace.Bytes
	until time.Time     // if set, for all of the body
	err   error
}

// between sets the deadline of what is read of the body by others. Errors only
// say that this connection has no deadlines, as in all of this file.
func (b *body) between(t time.Time) {
	if b.keeps {
		_ = b.rc.SetReadDeadline(t)
	} else {
		_ = b.rc.SetReadDeadline(time.Time{})
	}
}

// Read implements [io.Reader].
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
	if b.got += int64(n); b.got >= b.pace.Bytes {
		b.got, b.left = 0, b.pace.Time
	}
	switch {
	case err == nil:
		b.between(end)
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.err = sandbox.Wrap(sandbox.CodeTimeout, fmt.Errorf("%w: %w", ErrStalled, err), StalledMessage)
		// Nobody is to wait for the rest, and the connection is of no use.
		b.between(time.Unix(1, 0))
		b.w.Header().Set("Connection", "close")
		return n, b.err
	default:
		// From the body's end on the server reads to see whether the client is
		// there: a deadline would end the request.
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

// within bounds all of a body that [Pace.Handler] has seen.
func within(rc io.ReadCloser, d time.Duration) {
	if b, ok := rc.(*body); ok {
		b.until = time.Now().Add(d)
	}
}

// Drain reads what is left of a body for a while, so that a client which still
// sends gets to see the answer that was written. The connection ends after it.
func Drain(w http.ResponseWriter, r *http.Request, d time.Duration) {
	if b, ok := r.Body.(*body); ok {
		b.until = time.Now().Add(d)
	} else {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d))
	}
	_, _ = io.Copy(io.Discard, r.Body)
}
