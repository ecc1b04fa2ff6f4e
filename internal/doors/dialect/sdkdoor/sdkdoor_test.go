package sdkdoor_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/sandbox"
)

func TestHostName(t *testing.T) {
	for host, want := range map[string]string{
		"A.Example": "a.example", "a.example:80": "a.example", "a.example.:80": "a.example", "a.example..": "a.example",
		"[::1]:80": "[::1]", "[::1]": "[::1]", "": "",
	} {
		if got := sdkdoor.HostName(host); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
	for configured, want := range map[string]string{"": "localhost", ".": "localhost", ".Example.com.": "example.com"} {
		if got := sdkdoor.Domain(configured); got != want {
			t.Errorf("domain %q: %q, want %q", configured, got, want)
		}
	}
}

func TestPort(t *testing.T) {
	for digits, want := range map[string]int{"1": 1, "3000": 3000, "65535": 65535, "0": 0, "03": 0, "+3": 0, "65536": 0, "": 0, "3x": 0} {
		if got, ok := sdkdoor.Port(digits); ok != (want != 0) || ok && got != want {
			t.Errorf("%q: %d, %v", digits, got, ok)
		}
	}
}

func TestValidID(t *testing.T) {
	random := strings.Repeat("a1", 13)
	for id, want := range map[string]bool{
		"sbx-" + random: true, "sbx-" + random + "a": false, "sbx-" + random[1:]: false, "sbx-A" + random[1:]: false, "sbx-a-" + random[2:]: false, "sbx" + random: false, random: false, "": false,
	} {
		if sdkdoor.ValidID(id) != want {
			t.Errorf("%q: %v", id, !want)
		}
	}
}

func TestSetRetryAfter(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{&sandbox.Error{Code: sandbox.CodeUnavailable, RetryAfter: 1500 * time.Millisecond}, "2"},
		{fmt.Errorf("call: %w", &sandbox.Error{RetryAfter: time.Second}), "1"},
		{&sandbox.Error{Code: sandbox.CodeInvalid}, ""},
		{errors.New("x"), ""},
	} {
		h := http.Header{}
		sdkdoor.SetRetryAfter(h, c.err)
		if got := h.Get("Retry-After"); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

func TestReadBody(t *testing.T) {
	for body, fits := range map[string]bool{"": true, "1234": true, "12345": false} {
		data, err := sdkdoor.ReadBody(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body)), 4, "send less")
		if fits && (err != nil || string(data) != body) {
			t.Errorf("%q: %q, %v", body, data, err)
		}
		if !fits && (sandbox.CodeOf(err) != sandbox.CodeTooLarge || !strings.Contains(err.Error(), "4 bytes; send less")) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// A file that has grown is sent as long as it was, one of unknown length to its end, and the
// connection breaks over one that has shrunk.
func TestSendFile(t *testing.T) {
	for _, c := range []struct {
		name          string
		size          int64
		content, want string
		length        string
		cut           bool
	}{
		{"as it was", 3, "abc", "abc", "3", false},
		{"grown", 3, "abcdef", "abc", "3", false},
		{"unknown", 0, "abc", "abc", "", false},
		{"shrunk", 3, "a", "a", "3", true},
	} {
		w := httptest.NewRecorder()
		cut := func() (cut bool) {
			defer func() { cut = recover() != nil }()
			sdkdoor.SendFile(w, &sandbox.FileReader{Info: sandbox.FileInfo{Size: c.size}, ReadCloser: io.NopCloser(strings.NewReader(c.content))}, "/a/b c\xff")
			return false
		}()
		h := w.Header()
		if cut != c.cut || w.Body.String() != c.want || h.Get("Content-Length") != c.length || h.Get("Content-Disposition") != `attachment; filename="b c_"` || h.Get("Content-Security-Policy") != "sandbox" {
			t.Errorf("%s: cut %v, %q, %v", c.name, cut, w.Body, h)
		}
	}
}

// A refused upload is answered before all of it was sent, and its connection is not used
// again; that of one that was taken is.
func TestReceive(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sdkdoor.Receive(w, r, func() (string, error) {
			if r.URL.Path == "/refuse" {
				return "", errors.New("refused")
			}
			first := make([]byte, 3)
			_, err := io.ReadFull(r.Body, first) // the rest is for nobody
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
		{"/refuse", "", "refused", http.StatusBadRequest, true}, // the body never comes
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
