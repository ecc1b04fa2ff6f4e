package envd

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"strings"
	"testing"
)

type answered struct {
	status int
	header http.Header
	body   string
}

func (w *world) do(t *testing.T, method, path string, body io.Reader, header ...string) answered {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{resp.StatusCode, resp.Header, string(data)}
}

func files(p string) string { return "/files?path=" + url.QueryEscape(p) }

// form is a multipart body of files by name, in order.
func form(t *testing.T, pairs ...string) (body *bytes.Buffer, contentType string) {
	t.Helper()
	body = &bytes.Buffer{}
	mw := multipart.NewWriter(body)
	for i := 0; i < len(pairs); i += 2 {
		part, err := mw.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="file"; filename="` + pairs[i] + `"`}})
		if err == nil {
			_, err = io.WriteString(part, pairs[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := mw.Close(); err != nil {
		t.Fatal(err)
	}
	return body, mw.FormDataContentType()
}

func zipped(t *testing.T, text string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestUpload(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	want := func(name, content string) {
		t.Helper()
		if data, err := os.ReadFile(dir + "/" + name); err != nil || string(data) != content {
			t.Errorf("%s is %q, %v", name, data, err)
		}
	}
	a := w.do(t, "POST", files(dir+"/x/raw"), strings.NewReader("raw"), "Content-Type", "application/octet-stream")
	var got []written
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status != 200 || len(got) != 1 || got[0] != (written{dir + "/x/raw", "raw", "file"}) {
		t.Errorf("%+v", a)
	}
	want("x/raw", "raw")
	if a = w.do(t, "POST", files(dir+"/zipped"), zipped(t, "zipped"), "Content-Type", "application/octet-stream", "Content-Encoding", "gzip"); a.status != 200 {
		t.Errorf("%+v", a)
	}
	want("zipped", "zipped")
	body, kind := form(t, dir+"/f/ü one", "1", dir+"/f/two", "22")
	if a = w.do(t, "POST", "/files", body, "Content-Type", kind); a.status != 200 || !strings.Contains(a.body, dir+"/f/two") {
		t.Errorf("%+v", a)
	}
	want("f/ü one", "1")
	want("f/two", "22")
	body, kind = form(t, "ignored/name", "3")
	if a = w.do(t, "POST", files(dir+"/three"), body, "Content-Type", kind); a.status != 200 {
		t.Errorf("%+v", a)
	}
	want("three", "3")
}

func TestUploadRefused(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	twice, twiceKind := form(t, dir+"/a", "1", dir+"/./a", "2")
	one, oneKind := form(t, dir+"/b", "1")
	nameless, namelessKind := form(t, "", "1")
	for name, c := range map[string]struct {
		path   string
		body   io.Reader
		header []string
		status int
		text   string
	}{
		"no path":      {"/files", strings.NewReader("x"), []string{"Content-Type", "application/octet-stream"}, 400, "path"},
		"a directory":  {files(dir), strings.NewReader("x"), []string{"Content-Type", "application/octet-stream"}, 400, "path is a directory: " + dir},
		"no type":      {files(dir + "/x"), strings.NewReader("x"), nil, 400, "unsupported content type"},
		"encoding":     {files(dir + "/x"), strings.NewReader("x"), []string{"Content-Type", "application/octet-stream", "Content-Encoding", "br"}, 400, "br"},
		"no gzip":      {files(dir + "/x"), strings.NewReader("xxxxxxxxxxxxxxxxx"), []string{"Content-Type", "application/octet-stream", "Content-Encoding", "gzip"}, 400, "gzip"},
		"half gzip":    {files(dir + "/x"), io.LimitReader(zipped(t, strings.Repeat("x", 10000)), 20), []string{"Content-Type", "application/octet-stream", "Content-Encoding", "gzip"}, 400, "gzip"},
		"twice":        {"/files", twice, []string{"Content-Type", twiceKind}, 400, "multiple files"},
		"half a form":  {"/files", io.LimitReader(one, int64(one.Len()-20)), []string{"Content-Type", oneKind}, 400, ""},
		"nameless":     {"/files", nameless, []string{"Content-Type", namelessKind}, 400, "filename"},
		"another user": {files(dir+"/x") + "&username=nobody-here", strings.NewReader("x"), []string{"Content-Type", "application/octet-stream"}, 401, "nobody-here"},
		"another home": {files("~root/x"), strings.NewReader("x"), []string{"Content-Type", "application/octet-stream"}, 400, "cannot expand"},
		"NUL":          {files("/tmp/a\x00b"), strings.NewReader("x"), []string{"Content-Type", "application/octet-stream"}, 400, "NUL"},
	} {
		a := w.do(t, "POST", c.path, c.body, c.header...)
		var e struct {
			Code    int
			Message string
		}
		if err := json.Unmarshal([]byte(a.body), &e); err != nil || a.status != c.status || e.Code != c.status || !strings.Contains(e.Message, c.text) {
			t.Errorf("%s: %+v", name, a)
		}
	}
	for _, name := range []string{"/x", "/b"} {
		if _, err := os.Stat(dir + name); err == nil {
			t.Errorf("%s was written", name)
		}
	}
}

func TestDownload(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	big := strings.Repeat("0123456789", 100_000)
	for name, content := range map[string]string{"big.txt": big, "empty": "", "page.html": "<script>"} {
		if err := os.WriteFile(dir+"/"+name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := w.do(t, "GET", files(dir+"/big.txt"), nil)
	if a.status != 200 || a.body != big || a.header.Get("Content-Length") != "1000000" || !strings.HasPrefix(a.header.Get("Content-Disposition"), "inline; filename=big.txt") {
		t.Errorf("%d, %d bytes, %v", a.status, len(a.body), a.header)
	}
	for _, c := range []struct{ ask, want string }{{"bytes=10-14", "01234"}, {"bytes=-3", "789"}, {"bytes=999999-", "9"}} {
		if a := w.do(t, "GET", files(dir+"/big.txt"), nil, "Range", c.ask, "Accept-Encoding", "gzip"); a.status != 206 || a.body != c.want {
			t.Errorf("%s: %d, %q", c.ask, a.status, a.body)
		}
	}
	if a := w.do(t, "GET", files(dir+"/big.txt"), nil, "Range", "bytes=2000000-"); a.status != 416 {
		t.Errorf("%+v", a)
	}
	since := a.header.Get("Last-Modified")
	if a := w.do(t, "GET", files(dir+"/big.txt"), nil, "If-Modified-Since", since); a.status != 304 || a.body != "" {
		t.Errorf("%d", a.status)
	}
	a = w.do(t, "GET", files(dir+"/big.txt"), nil, "Accept-Encoding", "deflate, gzip;q=0.5")
	z, err := gzip.NewReader(strings.NewReader(a.body))
	if err != nil || a.header.Get("Content-Encoding") != "gzip" {
		t.Fatal(err, a.header)
	}
	if data, err := io.ReadAll(z); err != nil || string(data) != big {
		t.Error(len(data), err)
	}
	a = w.do(t, "GET", files(dir+"/empty"), nil, "Accept-Encoding", "gzip")
	if a.status != 200 || a.body != "" || a.header.Get("Content-Length") != "0" || a.header.Get("Content-Encoding") != "" {
		t.Errorf("%+v", a)
	}
	if a := w.do(t, "GET", files("/proc/self/status"), nil); a.status != 200 || !strings.Contains(a.body, "Name:") {
		t.Errorf("%+v", a)
	}
	// Files of a sandbox must not run as pages of the server.
	if a := w.do(t, "GET", files(dir+"/page.html"), nil); a.header.Get("Content-Security-Policy") != "sandbox" || a.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%+v", a)
	}
	for name, c := range map[string]struct {
		path   string
		header []string
		status int
		text   string
	}{
		"missing":     {files(dir + "/none"), nil, 404, "path '" + dir + "/none' does not exist"},
		"a directory": {files(dir), nil, 400, "path '" + dir + "' is a directory"},
		"a device":    {files("/dev/null"), nil, 400, "regular"},
		"no encoding": {files(dir + "/big.txt"), []string{"Accept-Encoding", "br, identity;q=0"}, 406, ""},
		"no user":     {files(dir+"/big.txt") + "&username=nobody-here", nil, 401, "nobody-here"},
	} {
		if a := w.do(t, "GET", c.path, nil, c.header...); a.status != c.status || !strings.Contains(a.body, c.text) {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

func TestWeigh(t *testing.T) {
	for text, want := range map[string][2]bool{
		"": {false, true}, "gzip": {true, true}, "gzip;q=0": {false, true}, "GZIP;Q=0.1": {true, true}, "br": {false, true}, "*": {false, true},
		"*;q=0": {false, false}, "*;q=0, identity": {false, true}, "identity, *;q=0": {false, true}, "gzip, identity;q=0": {true, false}, "gzip;q=nonsense": {false, true},
	} {
		gzipped, identity := acceptedCodings([]string{text})
		if gzipped != want[0] || identity != want[1] {
			t.Errorf("%q: gzip %v, identity %v", text, gzipped, identity)
		}
	}
}

func TestCompose(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	for name, content := range map[string]string{"a": "one ", "b": "", "c": "two"} {
		if err := os.WriteFile(dir+"/"+name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	compose := func(to string, from ...string) answered {
		data, err := json.Marshal(composition{Sources: from, Destination: to})
		if err != nil {
			t.Fatal(err)
		}
		return w.do(t, "POST", "/files/compose", bytes.NewReader(data))
	}
	if a := compose(dir+"/x", dir+"/a", dir+"/none"); a.status != 404 {
		t.Errorf("%+v", a)
	}
	if _, err := os.Stat(dir + "/a"); err != nil {
		t.Error("what failed has deleted a source")
	}
	if a := compose(dir+"/all", dir+"/a", dir+"/b", dir+"/c"); a.status != 200 || !strings.Contains(a.body, dir+"/all") {
		t.Errorf("%+v", a)
	}
	if data, err := os.ReadFile(dir + "/all"); err != nil || string(data) != "one two" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := os.Stat(dir + "/c"); err == nil {
		t.Error("a source is there")
	}
	for _, a := range []answered{compose(dir + "/all"), compose(dir+"/all", dir+"/all"), compose("", dir+"/all"), w.do(t, "POST", "/files/compose", strings.NewReader("{"))} {
		if a.status != 400 {
			t.Errorf("%+v", a)
		}
	}
}

func TestOthers(t *testing.T) {
	w := newWorld(t)
	if a := w.do(t, "GET", "/health", nil); a.status != 204 || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%+v", a)
	}
	if a := w.do(t, "GET", "/envs", nil); a.status != 200 || strings.TrimSpace(a.body) != `{"GIVEN":"1"}` {
		t.Errorf("%+v", a)
	}
	var u usage
	if a := w.do(t, "GET", "/metrics", nil); a.status != 200 || json.Unmarshal([]byte(a.body), &u) != nil || u.Time == 0 || u.CPUCount == 0 {
		t.Errorf("%+v", a)
	}
	for _, path := range []string{"/init", "/freeze", "/upgrade", "/no-such"} {
		if a := w.do(t, "POST", path, nil); a.status != 404 {
			t.Errorf("%s: %+v", path, a)
		}
	}
}

// A sandbox that has ended is not taken for a file that is not there.
func TestGone(t *testing.T) {
	w := newWorld(t)
	if _, err := w.Kill(w.ctx, w.box.ID); err != nil {
		t.Fatal(err)
	}
	if a := w.do(t, "GET", files("/etc/passwd"), nil); a.status != http.StatusBadGateway || !strings.Contains(a.body, "The sandbox was not found") {
		t.Errorf("%+v", a)
	}
	_, err := w.stat(t, "/")
	if err == nil || !strings.Contains(err.Error(), "The sandbox was not found") {
		t.Error(err)
	}
}

// Whatever form is sent, nothing is written outside the paths that it names, and the
// answer has the plane's format.
func FuzzFileName(f *testing.F) {
	f.Add(`form-data; name="file"; filename="a/../b"`)
	f.Add("form-data; filename*=UTF-8''%00")
	f.Fuzz(func(t *testing.T, disposition string) {
		_ = fileName(&multipart.Part{Header: textproto.MIMEHeader{"Content-Disposition": {disposition}}})
	})
}
