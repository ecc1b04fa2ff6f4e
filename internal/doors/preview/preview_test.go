package preview

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/sandbox"
)

const at = "http://" + label + ".localhost"

func TestPrivatePreviewByKeyLinkAndCookie(t *testing.T) {
	inside := new(seen)
	_, front := newHarness(t, inside)
	page := []string{"Accept", "text/html"}

	if got := get(t, browser(t, front), at+"/"); got.status != 401 || got.header.Get(errorHeader) != "unauthenticated" {
		t.Errorf("with nothing: %+v", got)
	}
	if got := get(t, browser(t, front), at+"/", keyHeader, "wrong"); got.status != 403 {
		t.Errorf("with a wrong key: %+v", got)
	}
	if got := get(t, browser(t, front), at+"/a?x=1", keyHeader, goodKey); got.body != "inside" {
		t.Errorf("with the key in the header: %+v", got)
	}
	if got := get(t, browser(t, front), at+"/a?x=1&cove_preview_key="+goodKey+"&y=%2f"); got.body != "inside" || inside.last.RequestURI != "/a?x=1&y=%2f" {
		t.Errorf("a program with the key in the query: %+v, the sandbox saw %s", got, inside.last.RequestURI)
	}
	for _, query := range []string{"cove_preview_key=" + goodKey, "cove_preview=" + goodLink} {
		c := browser(t, front)
		got := get(t, c, at+"/a/b?x=1&"+query+"&y=2", page...)
		if got.status != 302 || got.header.Get("Location") != "/a/b?x=1&y=2" || got.header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: %+v", query, got)
		}
		set := got.header.Get("Set-Cookie")
		if !strings.Contains(set, "HttpOnly") || !strings.Contains(set, "SameSite=Lax") || strings.Contains(set, "Domain") || strings.Contains(set, "Secure") {
			t.Errorf("%s: cookie %s", query, set)
		}
		if got := get(t, c, at+"/later", page...); got.body != "inside" {
			t.Errorf("%s: the cookie does not open: %+v", query, got)
		}
		if cookies := inside.last.Cookies(); len(cookies) != 0 {
			t.Errorf("%s: the sandbox saw cookies %v", query, cookies)
		}
		if got := get(t, c, "http://3002-sbx-abc.localhost/", page...); got.status != 401 {
			t.Errorf("%s: the cookie opens another preview: %+v", query, got)
		}
	}
	if got := get(t, browser(t, front), "http://3001-sbx-abc.localhost/"); got.body != "inside" {
		t.Errorf("a public one: %+v", got)
	}
}

func TestTheForm(t *testing.T) {
	_, front := newHarness(t, new(seen))
	c := browser(t, front)
	asked := get(t, c, at+"/deep?x=1", "Accept", "text/html")
	if asked.status != 401 || !strings.Contains(asked.body, `name="to" value="/deep?x=1"`) || !strings.Contains(asked.header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
		t.Fatalf("the page: %+v", asked)
	}
	form := []string{"Content-Type", "application/x-www-form-urlencoded", "Origin", at, "Accept", "text/html"}
	if got := send(t, c, "POST", at+unlockPath, "key=wrong&to=/deep", form...); got.status != 403 || !strings.Contains(got.body, `value="/deep"`) {
		t.Errorf("a wrong key: %+v", got)
	}
	got := send(t, c, "POST", at+unlockPath, "key="+goodKey+"&to=/deep%3fx%3d1", form...)
	if got.status != 303 || got.header.Get("Location") != "/deep?x=1" {
		t.Fatalf("the key: %+v", got)
	}
	if got := get(t, c, at+"/deep?x=1"); got.body != "inside" {
		t.Errorf("afterwards: %+v", got)
	}
	if got := send(t, c, "POST", at+unlockPath, "key="+strings.Repeat("x", maxForm), form...); got.status != 400 {
		t.Errorf("a long form: %+v", got)
	}
}

func TestHTTPSCookie(t *testing.T) {
	for _, test := range []struct{ url, want string }{{"https://x", hostCookieName + "="}, {"http://x", cookieName + "="}} {
		rec := recorder()
		setCookie(rec, request(t, at), &sandbox.Preview{URL: test.url}, credential{key: "k"})
		set := rec.Header().Get("Set-Cookie")
		if !strings.HasPrefix(set, test.want) || strings.Contains(set, "Secure") != strings.HasPrefix(test.url, "https") {
			t.Errorf("%s: %s", test.url, set)
		}
	}
}

func TestWhatTheSandboxSees(t *testing.T) {
	inside := new(seen)
	_, front := newHarness(t, inside)
	got := send(t, browser(t, front), "PUT", at+"/p//q/..%2f?a;b&c=%zz", "body",
		keyHeader, goodKey, "Cookie", "a=1; cove_preview=x; __Host-cove_preview=y; b=2", "X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "evil",
		"X-Forwarded-Port", "1", "Forwarded", "for=6.6.6.6", "X-Real-Ip", "6.6.6.6", "X_Forwarded_For", "6.6.6.6", "cove_preview_key", goodKey, "Referer", at+"/?cove_preview_key="+goodKey, "Connection", "X-Hop", "X-Hop", "1", "Upgrade", "h2c", "X-Mine", "kept")
	if got.body != "inside" {
		t.Fatalf("%+v", got)
	}
	r := inside.last
	if r.RequestURI != "/p//q/..%2f?a;b&c=%zz" || r.Host != label+".localhost" || inside.body != "body" {
		t.Errorf("saw %s of %s with %q", r.RequestURI, r.Host, inside.body)
	}
	for name := range r.Header {
		if strings.Contains(name, "_") {
			t.Errorf("saw %s", name)
		}
	}
	want := map[string]string{"Cookie": "a=1; b=2", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": label + ".localhost", "X-Forwarded-Proto": "http",
		"X-Forwarded-Port": "", "Forwarded": "", "X-Real-Ip": "", "Referer": "", "X-Hop": "", "Upgrade": "", keyHeader: "", "X-Mine": "kept"}
	for name, value := range want {
		if got := r.Header.Get(name); got != value {
			t.Errorf("%s: got %q, want %q", name, got, value)
		}
	}
}

func TestStreams(t *testing.T) {
	step := make(chan struct{})
	w, front := newHarness(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-step:
			case <-r.Context().Done():
				return
			}
		}
	}))
	req := request(t, at+"/")
	req.Header.Set(keyHeader, goodKey)
	res, err := browser(t, front).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for i := range 2 {
		for lines.Scan() && lines.Text() == "" {
		}
		if lines.Text() != fmt.Sprintf("data: %d", i) {
			t.Fatalf("event %d: %q", i, lines.Text())
		}
		step <- struct{}{}
	}
	// A preview that is deleted takes its streams along.
	w.mu.Lock()
	w.removed[label] = true
	w.mu.Unlock()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, res.Body)
		ended <- err
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the stream of a deleted preview goes on")
	}
}

func TestLargeBodiesBothWays(t *testing.T) {
	const size = 64 << 20
	_, front := newHarness(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hash := sha256.New()
		n, _ := io.Copy(hash, r.Body)
		w.Header().Set("X-Sum", fmt.Sprintf("%d %x", n, hash.Sum(nil)))
		_, _ = io.CopyN(w, zeros{}, size)
	}))
	req, err := http.NewRequestWithContext(t.Context(), "POST", at+"/", io.LimitReader(zeros{}, size))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(keyHeader, goodKey)
	res, err := browser(t, front).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	hash := sha256.New()
	n, err := io.Copy(hash, res.Body)
	if err != nil || n != size || res.Header.Get("X-Sum") != fmt.Sprintf("%d %x", size, hash.Sum(nil)) {
		t.Errorf("%d bytes down, %v; up %s", n, err, res.Header.Get("X-Sum"))
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestWebSocket(t *testing.T) {
	_, front := newHarness(t, echo())
	for name, header := range map[string]http.Header{
		"by key":                           {keyHeader: {goodKey}},
		"by cookie":                        {"Cookie": {cookieName + "=" + encodeCookie(credential{link: goodLink})}, "Origin": {at}},
		"from another port of the sandbox": {"Cookie": {cookieName + "=" + encodeCookie(credential{key: goodKey})}, "Origin": {"http://8080-sbx-abc.localhost"}},
	} {
		conn, _, err := websocket.Dial(t.Context(), at+"/", &websocket.DialOptions{HTTPClient: browser(t, front), HTTPHeader: header})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		message := bytes.Repeat([]byte("m"), 30_000)
		if err := conn.Write(t.Context(), websocket.MessageBinary, message); err != nil {
			t.Fatal(err)
		}
		if _, got, err := conn.Read(t.Context()); err != nil || !bytes.Equal(got, message) {
			t.Errorf("%s: %d bytes back, %v", name, len(got), err)
		}
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}
}

func echo() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer conn.CloseNow()
		kind, data, err := conn.Read(r.Context())
		if err == nil {
			_ = conn.Write(r.Context(), kind, data)
		}
		_, _, _ = conn.Read(r.Context())
	})
}

func TestPages(t *testing.T) {
	w, front := newHarness(t, new(seen))
	c := browser(t, front)
	w.public[label] = true
	for _, test := range []struct {
		name       string
		visit      error
		address    string
		status     int
		code, text string
		again      bool
	}{
		{name: "gone", visit: sandbox.Errorf(sandbox.CodeNotFound, "x"), status: 404, code: "not_found", text: "Nothing here"},
		{name: "paused", visit: sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox of this preview is paused"), status: 503, code: "not_running", text: "cove resume sbx-abc"},
		{name: "key", visit: sandbox.Errorf(sandbox.CodeForbidden, "x"), status: 401, code: "unauthenticated", text: "private"},
		{name: "nothing listens", address: "127.0.0.1:1", status: 502, code: "not_listening", text: "Nothing listens on port 3000", again: true},
		{name: "broken", visit: fmt.Errorf("secret path /var/lib"), status: 502, code: "internal", text: "log for details", again: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w.mu.Lock()
			w.visits[label] = test.visit
			w.ports[label] = test.address
			w.mu.Unlock()
			page := get(t, c, at+"/", "Accept", "text/html,*/*")
			if page.status != test.status || page.header.Get(errorHeader) != test.code || !strings.Contains(page.body, test.text) ||
				!strings.Contains(page.header.Get("Content-Security-Policy"), "default-src 'none'") || page.header.Get("Cache-Control") != "no-store" {
				t.Errorf("page: %+v", page)
			}
			if again := strings.Contains(page.body, "http-equiv"); again != test.again {
				t.Errorf("tries again: %v", again)
			}
			var problem struct{ Code string }
			object := get(t, c, at+"/", "Accept", "application/json")
			if err := json.Unmarshal([]byte(object.body), &problem); err != nil || problem.Code != test.code || object.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("JSON: %v, %+v", err, object)
			}
			plain := get(t, c, at+"/")
			if plain.header.Get("Content-Type") != "text/plain; charset=utf-8" || !strings.Contains(plain.body, test.text) || strings.Contains(plain.body, "/var/lib") {
				t.Errorf("text: %+v", plain)
			}
		})
	}
}

func TestWakingPage(t *testing.T) {
	w, _ := newHarness(t, new(seen))
	w.public[label] = true
	w.hold = make(chan struct{})
	front := serve(t, w, func(p *Proxy) { p.patience = time.Millisecond })
	c := browser(t, front)
	if got := get(t, c, at+"/", "Accept", "text/html"); got.status != 503 || !strings.Contains(got.body, "Waking up") || !strings.Contains(got.body, "http-equiv") {
		t.Errorf("a browser: %+v", got)
	}
	time.AfterFunc(50*time.Millisecond, func() { close(w.hold) })
	if got := get(t, c, at+"/"); got.body != "inside" {
		t.Errorf("a program waits: %+v", got)
	}
}

func TestNoMoreThanSoMany(t *testing.T) {
	block := make(chan struct{})
	entered := make(chan struct{}, 2)
	w, _ := newHarness(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Host, label) {
			entered <- struct{}{}
			<-block
		}
	}))
	front := serve(t, w, func(p *Proxy) { p.visits.most = 2 })
	done := make(chan struct{})
	for range 2 {
		go func() {
			defer func() { done <- struct{}{} }()
			send(t, browser(t, front), "GET", at+"/", "", keyHeader, goodKey)
		}()
		<-entered
	}
	if got := get(t, browser(t, front), at+"/", keyHeader, goodKey); got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Errorf("a third: %+v", got)
	}
	if got := get(t, browser(t, front), "http://3001-sbx-evil.localhost/"); got.status != 200 {
		t.Errorf("another preview: %+v", got)
	}
	close(block)
	<-done
	<-done
}
