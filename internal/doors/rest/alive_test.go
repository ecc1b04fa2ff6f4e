package rest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// A stream of server-sent events that is silent says that it lives, once it has begun;
// other streams have no comments.
func TestSilentStreamsLive(t *testing.T) {
	for _, c := range []struct {
		events bool
		want   string
	}{
		{true, "data: 1\n\n:\n\n:\n\ndata: 2\n\n"},
		{false, "1\n2\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := httptest.NewRecorder()
			out := &lines{w: w, rc: http.NewResponseController(w), events: c.events}
			err := out.during(t.Context(), func(_ context.Context, out *lines) error {
				time.Sleep(2*aliveEvery + time.Second)
				if w.Body.Len() > 0 {
					t.Errorf("before the first event there is %q", w.Body)
				}
				if err := out.send(1); err != nil {
					return err
				}
				time.Sleep(2 * aliveEvery)
				return out.send(2)
			})
			if err != nil || w.Body.String() != c.want {
				t.Errorf("%q, %v; want %q", w.Body, err, c.want)
			}
		})
	}
}
