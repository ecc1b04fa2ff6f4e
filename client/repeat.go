package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// Bounds of requests that are sent again.
const (
	mostSends  = 6                      // those that servers refuse for a moment are bounded by takeover instead
	sendAgain  = 100 * time.Millisecond // doubled each time
	retryLimit = 5 * time.Second
	// takeover is for how long a request is sent again that servers refuse for a moment,
	// such as one on standby that takes over from another.
	takeover = 15 * time.Second
)

// once is call for a request that must be performed only once, however often it is
// sent: the server recognises it by its key. A request whose connection was lost is
// sent again; the first answer counts. So is one that a server refuses for a moment.
func (c *Client) once(ctx context.Context, info operation.Info, out, sends any, names ...string) error {
	key := rand.Text()
	wait, began := sendAgain, time.Now()
	for tries := 1; ; tries++ {
		req, err := c.request(ctx, info, sends, names)
		if err != nil {
			return err
		}
		req.Header.Set("Idempotency-Key", key)
		err = c.sendKeyed(req, out)
		var lost *lostError
		switch {
		case err == nil:
			return nil
		case sandbox.CodeOf(err) == sandbox.CodeUnavailable && retryAfter(err) > 0 && time.Since(began)+retryAfter(err) < takeover:
			if pause(ctx, retryAfter(err)) {
				continue
			}
		case tries >= mostSends:
		case errors.As(err, &lost):
			if pause(ctx, wait) {
				wait *= 2
				continue
			}
		case tries > 1 && sandbox.CodeOf(err) == sandbox.CodeConflict && retryAfter(err) > 0:
			// The server has not noticed yet that the first was cut off.
			if pause(ctx, min(retryAfter(err), retryLimit)) {
				continue
			}
		}
		if lost != nil {
			err = lost.err
		}
		return err
	}
}

// lostError is the error of a request that may have reached the server and whose answer
// was lost.
type lostError struct{ err error }

func (e *lostError) Error() string { return e.err.Error() }

func (c *Client) sendKeyed(req *http.Request, out any) error {
	ctx := req.Context()
	resp, err := c.http.Do(req)
	if err != nil {
		return c.lost(ctx, err)
	}
	defer resp.Body.Close()
	c.noteVersion(resp)
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return errorOf(resp)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return c.lost(ctx, err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(data))
	return c.decode(ctx, resp, out)
}

// lost makes a [lostError] if a request was cut off, and not if it was never sent or
// its caller gave up.
func (c *Client) lost(ctx context.Context, err error) error {
	told := c.connectionError(ctx, err)
	dial, ok := errors.AsType[*net.OpError](err)
	if ctx.Err() != nil || ok && dial.Op == "dial" || sandbox.CodeOf(told) != sandbox.CodeUnavailable {
		return told
	}
	return &lostError{told}
}

// pause waits for d, and reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
