package toolbox

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/sandbox"
)

// busy is a service with a terminal whose program reads its input only when the test says
// so.
type busy struct {
	sandbox.Service
	take   chan struct{}
	typed  chan string
	exited chan struct{}
}

func (s *busy) WriteInput(ctx context.Context, _, _ string, data []byte, _ bool) error {
	select {
	case <-s.take:
		s.typed <- string(data)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *busy) Attach(ctx context.Context, _, _ string, _ sandbox.AttachRequest, _ sandbox.JobSink) (*sandbox.Job, error) {
	select {
	case <-s.exited:
		return &sandbox.Job{State: sandbox.JobExited}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// terminal serves a terminal of a service, and signals when it is done with the client.
func terminal(t *testing.T, s *busy) (conn *websocket.Conn, left <-chan struct{}) {
	t.Helper()
	done := make(chan struct{})
	p := &plane{s, slog.New(slog.DiscardHandler)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		p.attach(w, r, &sandbox.Job{ID: "job-1", SandboxID: "sbx-1"}, sandbox.AttachRequest{})
	}))
	t.Cleanup(srv.Close)
	conn, _, err := websocket.Dial(t.Context(), srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	if _, _, err := conn.Read(t.Context()); err != nil { // connected
		t.Fatal(err)
	}
	return conn, done
}

// The connection is read while the program does not read its input: a ping is answered, and
// what a client typed before it closed reaches the program.
func TestTerminalTypingAhead(t *testing.T) {
	s := &busy{take: make(chan struct{}), typed: make(chan string, 2), exited: make(chan struct{})}
	conn, left := terminal(t, s)
	for _, data := range []string{"a", "b"} {
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	reading := conn.CloseRead(t.Context())
	if err := conn.Ping(reading); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseNow(); err != nil {
		t.Fatal(err)
	}
	close(s.take)
	got := ""
	for got != "ab" && len(got) < 2 {
		got += <-s.typed
	}
	if got != "ab" {
		t.Errorf("the program got %q", got)
	}
	<-left
}

// The end of a program is reported although there is unread input.
func TestTerminalEndsWithInput(t *testing.T) {
	s := &busy{take: make(chan struct{}), typed: make(chan string, 1), exited: make(chan struct{})}
	conn, left := terminal(t, s)
	if err := conn.Write(t.Context(), websocket.MessageText, []byte("a")); err != nil {
		t.Fatal(err)
	}
	close(s.exited)
	if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("the connection ends with %v", err)
	}
	close(s.take)
	<-left
}
