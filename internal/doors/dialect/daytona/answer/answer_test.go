package answer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

func TestParse(t *testing.T) {
	for text, says := range map[string]string{
		"": "", " \n": "", `{"a":1}`: "", `{"b":1}`: "b: Cove does not serve this field", `{"a":1,"a":2}`: "not valid", `{"a":"x"}`: "not valid", `{`: "not valid", `{"a":1} {`: "more after", `{"` + strings.Repeat("b", 10_000) + `":1}`: "bbb", `{"a":1` + strings.Repeat("0", 10_000) + `}`: "not valid",
	} {
		var v struct {
			A int `json:"a"`
		}
		err := Parse([]byte(text), &v)
		if (err == nil) != (says == "") || err != nil && (!strings.Contains(err.Error(), says) || Of(err).Status != http.StatusBadRequest || len(err.Error()) > 300) {
			t.Errorf("%.100s: %v", text, err)
		}
	}
}

func TestOf(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{sandbox.Errorf(sandbox.CodeNotFound, "x"), 404, "NOT_FOUND"},
		{sandbox.Errorf(sandbox.CodeNotRunning, "x"), 409, "CONFLICT"},
		{sandbox.Errorf(sandbox.CodeQuotaExceeded, "x"), 429, "TOO_MANY_REQUESTS"},
		{sandbox.Errorf(sandbox.CodeUnsupported, "x"), 501, NotImplemented},
		{Fail(410, SessionEnded, "x"), 410, SessionEnded},
		{context.DeadlineExceeded, 408, "REQUEST_TIMEOUT"},
		{errors.New("of the inside"), 500, "INTERNAL_SERVER_ERROR"},
	} {
		f := Of(c.err)
		if f.Status != c.status || f.Code != c.code || strings.Contains(f.Message, "inside") {
			t.Errorf("%v: %+v", c.err, f)
		}
	}
}

// A body that is too large is refused, and so is a path that is not clean.
func TestRouter(t *testing.T) {
	rt := NewRouter(Toolbox, slog.New(slog.DiscardHandler))
	rt.On("POST /take", func(w http.ResponseWriter, r *http.Request) error { return Decode(w, r, new(any)) })
	rt.OnUpload("POST /upload", func(r *http.Request) (int, any, error) {
		data, err := io.ReadAll(r.Body)
		if err == nil && len(data) == 0 {
			err = Invalid("nothing was sent")
		}
		return http.StatusCreated, string(data), err
	})
	for _, c := range []struct {
		method, target string
		body           io.Reader
		status         int
		says           string
	}{
		{"POST", "/take", strings.NewReader(`{"a":1}`), 200, ""},
		{"POST", "/take", strings.NewReader(`"` + strings.Repeat("a", MaxBody) + `"`), 413, "bytes"},
		{"GET", "/take", nil, 501, "GET /take"},
		{"POST", "/upload", strings.NewReader("content"), 201, `"content"`},
		{"POST", "/upload", nil, 400, "nothing was sent"},
		{"POST", "/a/../take", nil, 404, "not clean"},
		{"POST", "/a/%2e%2e/take", nil, 404, "not clean"},
		{"POST", "/a%2F..%2Ftake", nil, 404, "not clean"},
	} {
		w := httptest.NewRecorder()
		rt.ServeHTTP(w, httptest.NewRequest(c.method, c.target, c.body))
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s %s: %d %s", c.method, c.target, w.Code, w.Body)
		}
	}
}
