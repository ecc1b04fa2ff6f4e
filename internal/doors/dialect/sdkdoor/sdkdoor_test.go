package sdkdoor_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/limits"
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
	for broken, want := range map[error]sandbox.Code{io.ErrUnexpectedEOF: sandbox.CodeInvalid, limits.ErrStalled: sandbox.CodeInternal} {
		r := httptest.NewRequest("POST", "/", io.MultiReader(strings.NewReader("12"), iotest.ErrReader(broken)))
		if _, err := sdkdoor.ReadBody(httptest.NewRecorder(), r, 4, "send less"); sandbox.CodeOf(err) != want || limits.IsStalled(err) != (broken == limits.ErrStalled) {
			t.Errorf("%v: %v", broken, err)
		}
	}
}

// A file that has grown is sent up to its old length, and one of unknown length to its end.
// The connection is broken if a file has shrunk.
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
