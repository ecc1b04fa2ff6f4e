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

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

const html = "text/html,application/xhtml+xml"

func TestPrivatePreviewInABrowser(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{})
		d.Sh(t, s.ID, "mkdir -p /tmp/site/deep && echo home > /tmp/site/index.html && echo deep > /tmp/site/deep/page.html")
		p := create(t, d, s.ID, sandbox.CreatePreviewRequest{Port: 8000})
		if want := fmt.Sprintf("http://8000-%s.localhost%s", s.ID, strings.TrimPrefix(d.URL, "http://127.0.0.1")); p.URL != want || p.Key == "" {
			t.Fatalf("preview %+v, want %s with a key", p, want)
		}
		// Nothing listens yet: a page that says so and tries again.
		early := fetch(t, browser(t), p.URL, "Cove-Preview-Key", p.Key, "Accept", html)
		if early.status != 502 || !strings.Contains(early.body, "Nothing listens on port 8000") || !strings.Contains(early.body, "http-equiv=\"refresh\"") {
			t.Errorf("early: %+v", early)
		}
		background(t, d, s.ID, "exec python3 -m http.server -d /tmp/site 8000")
		if got := until(t, browser(t), p.URL, "Cove-Preview-Key", p.Key); got.body != "home\n" {
			t.Errorf("by key: %+v", got)
		}
		if got := fetch(t, browser(t), p.URL); got.status != 401 || strings.Contains(got.body, "home") {
			t.Errorf("with nothing: %+v", got)
		}

		link, err := d.Client.LinkPreview(t.Context(), s.ID, 8000, sandbox.PreviewLinkRequest{Path: "/deep/page.html?x=1"})
		if err != nil {
			t.Fatal(err)
		}
		b := browser(t)
		if got := fetch(t, b, link.URL, "Accept", html); got.body != "deep\n" || got.url.String() != p.URL+"/deep/page.html?x=1" {
			t.Errorf("by link: %+v at %s", got, got.url)
		}
		if got := fetch(t, b, p.URL); got.body != "home\n" {
			t.Errorf("by the cookie that it left: %+v", got)
		}
		form := strings.NewReader("key=" + p.Key + "&to=/deep/page.html")
		b = browser(t)
		res, err := b.Post(p.URL+"/.well-known/cove/preview", "application/x-www-form-urlencoded", form)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if string(body) != "deep\n" {
			t.Errorf("by the form: %s %s", res.Status, body)
		}

		// A new key ends the old one, its cookies and all links.
		renewed := create(t, d, s.ID, sandbox.CreatePreviewRequest{Port: 8000, NewKey: true})
		for what, got := range map[string]answer{
			"cookie": fetch(t, b, p.URL), "link": fetch(t, browser(t), link.URL), "key": fetch(t, browser(t), p.URL, "Cove-Preview-Key", p.Key),
		} {
			if got.status != 403 {
				t.Errorf("the old %s: %+v", what, got)
			}
		}
		if got := fetch(t, browser(t), p.URL, "Cove-Preview-Key", renewed.Key); got.body != "home\n" {
			t.Errorf("by the new key: %+v", got)
		}
		create(t, d, s.ID, sandbox.CreatePreviewRequest{Port: 8000, Access: sandbox.PreviewPublic})
		if got := fetch(t, browser(t), p.URL); got.body != "home\n" {
			t.Errorf("public: %+v", got)
		}
		if err := d.Client.DeletePreview(t.Context(), s.ID, 8000); err != nil {
			t.Fatal(err)
		}
		if got := fetch(t, browser(t), p.URL); got.status != 404 {
			t.Errorf("deleted: %+v", got)
		}
	})
}

func TestWhatPreviewsCarry(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{})
		serveNode(t, d, s.ID, 3000)
		p := create(t, d, s.ID, sandbox.CreatePreviewRequest{Port: 3000})
		key := []string{"Cove-Preview-Key", p.Key}
		until(t, browser(t), p.URL, key...)
		t.Run("headers", func(t *testing.T) { headers(t, p, key) })
		t.Run("events", func(t *testing.T) { events(t, p) })
		t.Run("large", func(t *testing.T) { large(t, p) })
		t.Run("websocket", func(t *testing.T) { sockets(t, d, p) })
	})
}

func headers(t *testing.T, p *sandbox.NewPreview, key []string) {
	got := fetch(t, browser(t), p.URL+"/headers?a=1&cove_preview_key="+p.Key+"&b=%2f", append(key, "Cookie", "cove_preview=x; own=1", "X-Forwarded-For", "6.6.6.6")...)
	var saw struct {
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
	}
	if err := json.Unmarshal([]byte(got.body), &saw); err != nil {
		t.Fatalf("%v in %+v", err, got)
	}
	if saw.URL != "/headers?a=1&b=%2f" || saw.Headers["cookie"] != "own=1" || saw.Headers["x-forwarded-for"] != "127.0.0.1" || "http://"+saw.Headers["host"] != p.URL || strings.Contains(got.body, p.Key) {
		t.Errorf("the sandbox saw %s", got.body)
	}
	if cookies := got.header["Set-Cookie"]; len(cookies) != 1 || cookies[0] != "mine=1; Path=/" {
		t.Errorf("cookies %q", cookies)
	}
}

func events(t *testing.T, p *sandbox.NewPreview) {
	req, err := http.NewRequestWithContext(t.Context(), "GET", p.URL+"/events?cove_preview_key="+p.Key, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := browser(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for i := 0; i < 5; {
		if !lines.Scan() {
			t.Fatalf("the stream ended after %d events: %v", i, lines.Err())
		}
		if lines.Text() == fmt.Sprintf("data: %d", i) {
			i++
		}
	}
}

func large(t *testing.T, p *sandbox.NewPreview) {
	const size = 200 << 20
	req, err := http.NewRequestWithContext(t.Context(), "POST", p.URL+"/sum", io.LimitReader(zeros{}, size))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Cove-Preview-Key", p.Key)
	res, err := browser(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	sum := sha256.New()
	if _, err := io.CopyN(sum, zeros{}, size); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%d %x", size, sum.Sum(nil)); string(body) != want {
		t.Errorf("up: %s, want %s", body, want)
	}
	if req, err = http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("%s/zeros?n=%d", p.URL, size), nil); err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Cove-Preview-Key", p.Key)
	if res, err = browser(t).Do(req); err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	down := sha256.New()
	if n, err := io.Copy(down, res.Body); err != nil || n != size || !bytes.Equal(down.Sum(nil), sum.Sum(nil)) {
		t.Errorf("down: %d bytes, %v", n, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func sockets(t *testing.T, d *covetest.Daemon, p *sandbox.NewPreview) {
	b := browser(t)
	link, err := d.Client.LinkPreview(t.Context(), p.SandboxID, p.Port, sandbox.PreviewLinkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	fetch(t, b, link.URL, "Accept", html)
	dial := func(origin string) (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(t.Context(), p.URL, &websocket.DialOptions{HTTPClient: b, HTTPHeader: http.Header{"Origin": {origin}}})
	}
	conn, _, err := dial(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	for _, size := range []int{0, 5, 40_000} {
		message := bytes.Repeat([]byte("m"), size)
		if err := conn.Write(t.Context(), websocket.MessageText, message); err != nil {
			t.Fatal(err)
		}
		conn.SetReadLimit(1 << 20)
		if _, got, err := conn.Read(t.Context()); err != nil || !bytes.Equal(got, message) {
			t.Fatalf("%d bytes came back as %d, %v", size, len(got), err)
		}
	}
	// The page of another sandbox, with the same cookies.
	if other, res, err := dial("http://3000-sbx-evil.localhost"); err == nil || res == nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("from another origin: %v, %v", other, err)
	}
	// Deleting the preview closes open connections.
	if err := d.Client.DeletePreview(t.Context(), p.SandboxID, p.Port); err != nil {
		t.Fatal(err)
	}
	cut := make(chan error, 1)
	go func() {
		_, _, err := conn.Read(t.Context())
		cut <- err
	}()
	if !covetest.Eventually(patience, func() bool { return len(cut) == 1 }) {
		t.Error("the WebSocket of a deleted preview goes on")
	}
}

func TestPausedAndEndedSandboxes(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{})
		d.Sh(t, s.ID, "mkdir -p /tmp/site && echo home > /tmp/site/index.html")
		background(t, d, s.ID, "exec python3 -m http.server -d /tmp/site 8000")
		p := create(t, d, s.ID, sandbox.CreatePreviewRequest{Port: 8000, Access: sandbox.PreviewPublic})
		b := browser(t)
		until(t, b, p.URL)
		pause := func() {
			t.Helper()
			if _, err := d.Client.Pause(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
		}
		pause()
		if got := fetch(t, b, p.URL, "Accept", html); got.status != 503 || got.header.Get("Cove-Preview-Error") != "not_running" || !strings.Contains(got.body, "paused") {
			t.Errorf("paused: %+v", got)
		}
		if now, err := d.Client.Get(t.Context(), s.ID); err != nil || now.State != sandbox.StatePaused {
			t.Errorf("a visitor woke it: %+v, %v", now, err)
		}
		create(t, d, s.ID, sandbox.CreatePreviewRequest{Port: 8000, Access: sandbox.PreviewPublic, Wake: true})
		if got := until(t, b, p.URL); got.body != "home\n" {
			t.Errorf("woken: %+v", got)
		}
		// Who may not come in does not wake it either.
		p = create(t, d, s.ID, sandbox.CreatePreviewRequest{Port: 8000, Wake: true})
		pause()
		if got := fetch(t, b, p.URL, "Cove-Preview-Key", "wrong"); got.status != 403 {
			t.Errorf("a wrong key: %+v", got)
		}
		if now, err := d.Client.Get(t.Context(), s.ID); err != nil || now.State != sandbox.StatePaused {
			t.Errorf("a stranger woke it: %+v, %v", now, err)
		}
		if _, err := d.Client.Kill(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if got := fetch(t, b, p.URL, "Cove-Preview-Key", p.Key); got.status != 404 && got.status != 503 || strings.Contains(got.body, "resume") {
			t.Errorf("killed: %+v", got)
		}
	})
}

// Attack: the API by the name of a preview, with the rights that come with the
// daemon's address, and a preview by the name of the API.
func TestNamesAreApart(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Name: "target"})
		serveNode(t, d, s.ID, 3000)
		p := create(t, d, s.ID, sandbox.CreatePreviewRequest{Port: 3000, Access: sandbox.PreviewPublic})
		until(t, browser(t), p.URL)
		for _, path := range []string{"/v1/sandboxes", "/mcp", "/healthz", "/metrics"} {
			if got := fetch(t, browser(t), p.URL+path); !strings.HasPrefix(got.body, "node says hello") {
				t.Errorf("%s of the preview: %+v", path, got)
			}
			unknown := strings.Replace(p.URL, "3000-", "3001-", 1)
			if got := fetch(t, browser(t), unknown+path); got.status != 404 || got.header.Get("Cove-Preview-Error") != "not_found" {
				t.Errorf("%s of a preview that is not there: %+v", path, got)
			}
		}
		if got := fetch(t, browser(t), d.URL+"/v1/sandboxes"); got.status != 200 || !strings.Contains(got.body, s.ID) {
			t.Errorf("the API: %+v", got)
		}
	}, "--dev")
}
