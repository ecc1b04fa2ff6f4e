package limits_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cove-sh/cove/internal/limits"
)

// TestReceive checks that a refused upload is answered before all of it was sent, and
// that its connection is not reused, unlike that of an accepted upload.
func TestReceive(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limits.Receive(w, r, func() (string, error) {
			if r.URL.Path == "/refuse" {
				return "", errors.New("refused")
			}
			first := make([]byte, 3)
			_, err := io.ReadFull(r.Body, first) // the rest is never read
			return string(first), err
		}, func(v string) { _, _ = io.WriteString(w, v) }, func(err error) { http.Error(w, err.Error(), http.StatusBadRequest) })
	}))
	defer server.Close()
	for _, c := range []struct {
		path, body, says string
		status           int
		closes           bool
	}{
		{"/take", "abcdef", "abc", http.StatusOK, false},
		{"/refuse", "", "refused", http.StatusBadRequest, true}, // the body never arrives
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n%s", c.path, c.body)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", c.path, err)
		}
		says := make([]byte, len(c.says))
		if _, err := io.ReadFull(resp.Body, says); err != nil || string(says) != c.says || resp.StatusCode != c.status || resp.Close != c.closes {
			t.Errorf("%s: %d %q, closes %v, %v", c.path, resp.StatusCode, says, resp.Close, err)
		}
	}
}
