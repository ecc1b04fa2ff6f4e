package door

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/sandbox"
)

// shell is a service with a shell that accepts input only when told to.
type shell struct {
	sandbox.Service
	take  chan struct{}
	typed chan string
	sizes chan sandbox.TerminalSize
}

func (s *shell) WriteInput(ctx context.Context, _, _ string, data []byte, _ bool) error {
	select {
	case <-s.take:
		s.typed <- string(data)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *shell) ResizeTerminal(_ context.Context, _, _ string, size sandbox.TerminalSize) error {
	s.sizes <- size
	return nil
}

// typist connects to a terminal with a shell.
func typist(t *testing.T, s *shell) *websocket.Conn {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		x := &exchange{d: New(Config{Service: s}), w: w, r: r, at: target{sandbox: one}}
		c := x.connection(conn)
		defer c.workers.Wait()
		defer conn.CloseNow()
		c.workers.Go(c.read)
		c.typing()
	}))
	t.Cleanup(srv.Close)
	conn, _, err := websocket.Dial(t.Context(), srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

func say(t *testing.T, conn *websocket.Conn, message string) {
	t.Helper()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(message)); err != nil {
		t.Fatal(err)
	}
}

// TestInputWhileShellIsBusy checks that the terminal accepts other messages while the shell accepts
// no input.
func TestInputWhileShellIsBusy(t *testing.T) {
	s := &shell{take: make(chan struct{}), typed: make(chan string, 2), sizes: make(chan sandbox.TerminalSize, 1)}
	conn := typist(t, s)
	for _, message := range []string{`{"type":"input","data":"a"}`, `{"type":"input","data":"b"}`, `{"type":"resize","cols":90,"rows":30}`} {
		say(t, conn, message)
	}
	if size := <-s.sizes; size != (sandbox.TerminalSize{Cols: 90, Rows: 30}) {
		t.Errorf("the size is %+v", size)
	}
	close(s.take)
	for got := ""; got != "ab"; {
		if got += <-s.typed; !strings.HasPrefix("ab", got) {
			t.Fatalf("the shell got %q", got)
		}
	}
}

// TestWrongMessages checks that each invalid message is reported while more arrive: the
// client's pongs are behind them.
func TestWrongMessages(t *testing.T) {
	s := &shell{take: make(chan struct{}), typed: make(chan string, 1)}
	close(s.take)
	conn := typist(t, s)
	const wrong = 5
	for range wrong {
		say(t, conn, `{"type":"dance"}`)
	}
	say(t, conn, `{"type":"input","data":"a"}`)
	for range wrong {
		_, data, err := conn.Read(t.Context())
		if err != nil || !strings.Contains(string(data), "send input or resize") {
			t.Fatalf("the client is told %s, %v", data, err)
		}
	}
	if got := <-s.typed; got != "a" {
		t.Errorf("the shell got %q", got)
	}
}
