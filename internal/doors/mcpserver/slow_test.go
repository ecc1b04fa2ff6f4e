package mcpserver

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/limits"
)

// hostile connects to a handler behind a pace and sends the header of a message
// of that length, "" for chunks, and what comes first of it. It returns the
// status of the answer, 100 if the server wants to read more.
func hostile(t *testing.T, address, key, length, some string) (int, message, *answered) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	how := "Content-Length: " + length
	if length == "" {
		how = "Transfer-Encoding: chunked"
	}
	if _, err := fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Test-Key: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nExpect: 100-continue\r\n%s\r\n\r\n%s", key, how, some); err != nil {
		t.Fatal(err)
	}
	open := &answered{conn, bufio.NewReader(conn)}
	res, err := http.ReadResponse(open.rest, nil)
	if err != nil {
		t.Fatal(err)
	}
	var m message
	if res.StatusCode != http.StatusContinue {
		data, _ := io.ReadAll(res.Body)
		if err := json.Unmarshal(data, &m); err != nil {
			t.Errorf("%s: %s", res.Status, data)
		}
	}
	return res.StatusCode, m, open
}

// answered is a connection of which an answer was read; what follows it may have come with it.
type answered struct {
	net.Conn
	rest *bufio.Reader
}

// Attack: a hundred connections, each with the largest message. The server reads as
// many as it has memory for, and half as many of one key; the others get an error of
// the protocol that says to try again. There is room for small messages.
func TestMemoryOfMessages(t *testing.T) {
	memory := DefaultMemory
	memory.Wait = time.Millisecond
	w := serve(t, Config{Service: newFake(), Memory: &memory})
	address := strings.TrimPrefix(w.url, "http://")
	most := map[string]int{"a": 4, "b": 4, "c": 0}
	var open []net.Conn
	for _, key := range []string{"a", "b", "c"} {
		reading := 0
		for i := range 34 {
			length := fmt.Sprint(maxMessage)
			if i%2 == 1 {
				length = ""
			}
			status, m, conn := hostile(t, address, key, length, "")
			switch status {
			case http.StatusContinue:
				reading++
				open = append(open, conn)
			case http.StatusServiceUnavailable:
				if m.Error == nil || !strings.Contains(m.Error.Message, "try again") {
					t.Errorf("refused with %+v", m)
				}
			default:
				t.Errorf("key %s, connection %d: %d %+v", key, i, status, m)
			}
		}
		if reading != most[key] {
			t.Errorf("%d messages of key %s are read at once, want %d", reading, key, most[key])
		}
	}
	if status, m := w.post("/mcp", initialize); status != http.StatusOK || m.Error != nil {
		t.Errorf("a small message: %d %+v", status, m)
	}
	// Their memory is free again.
	for _, conn := range open {
		_ = conn.Close()
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		status, _, conn := hostile(t, address, "c", fmt.Sprint(maxMessage), "")
		_ = conn.Close()
		if status == http.StatusContinue {
			return
		}
		if time.Now().After(end) {
			t.Fatal("memory of broken connections is not given back")
		}
	}
}

// Attack: a message that begins and stalls.
func TestStalledMessage(t *testing.T) {
	w := serve(t, Config{Service: newFake()})
	srv := httptest.NewServer(limits.MinBodyRate{Bytes: 1 << 30, Per: 100 * time.Millisecond}.Handler(w.handler, nil))
	defer srv.Close()
	for _, length := range []string{"1000", "1000000", ""} {
		status, _, conn := hostile(t, srv.Listener.Addr().String(), "a", length, "")
		if status != http.StatusContinue {
			t.Fatalf("began with %d", status)
		}
		answer, err := io.ReadAll(conn.rest)
		if os.IsTimeout(err) || !strings.HasPrefix(string(answer), "HTTP/1.1 408") || !strings.Contains(string(answer), `"jsonrpc":"2.0"`) {
			t.Errorf("length %q: %q, %v", length, answer, err)
		}
	}
}
