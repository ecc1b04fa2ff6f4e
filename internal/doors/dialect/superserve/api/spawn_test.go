package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/sandbox"
)

// deaf is a service with a command that accepts input only after a signal.
type deaf struct {
	sandbox.Service
	signal chan string
	input  chan string
	heard  chan struct{}
}

func (s *deaf) WriteInput(ctx context.Context, _, _ string, data []byte, end bool) error {
	select {
	case <-s.heard:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.input <- string(data)
	if end {
		close(s.input)
	}
	return nil
}

func (s *deaf) SignalJob(_ context.Context, _, _, name string, _ int64) (*sandbox.Job, error) {
	close(s.heard)
	s.signal <- name
	return &sandbox.Job{}, nil
}

// TestSignalBeforeInput checks that a signal reaches a command that accepts no input, and that the
// command then gets all its input.
func TestSignalBeforeInput(t *testing.T) {
	s := &deaf{signal: make(chan string, 1), input: make(chan string, 4), heard: make(chan struct{})}
	d := New(Config{Service: s, Bound: func(h http.Handler) http.Handler { return h }})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		ctx, cancel := context.WithCancel(r.Context())
		c := d.session(conn, oneID)
		defer c.workers.Wait()
		c.workers.Go(func() { c.input.Run(ctx) })
		c.readInput(ctx, cancel)
	}))
	defer srv.Close()
	conn, _, err := websocket.Dial(t.Context(), srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	for _, m := range []struct {
		kind websocket.MessageType
		data string
	}{
		{websocket.MessageBinary, "\x00a"}, {websocket.MessageBinary, "\x00b"}, {websocket.MessageText, `{"type":"stdin_close"}`},
		{websocket.MessageText, `{"type":"signal","name":"SIGTERM"}`},
	} {
		if err := conn.Write(t.Context(), m.kind, []byte(m.data)); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-s.signal; got != "TERM" {
		t.Errorf("the signal is %q", got)
	}
	got := ""
	for part := range s.input {
		got += part
	}
	if got != "ab" {
		t.Errorf("the input is %q", got)
	}
}
