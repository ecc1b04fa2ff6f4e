package preview

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// domain is the domain of previews in the test of foreign pages. To a browser all of
// its names are one site, while names below localhost are separate sites.
const domain = "preview.test"

// visit opens an address in a real browser, which ends with the test.
func visit(t *testing.T, address string) {
	t.Helper()
	needs.Command(t, "chromium")
	cmd := exec.Command("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--user-data-dir="+t.TempDir(), "--remote-debugging-port=0", "--host-resolver-rules=MAP *."+domain+" 127.0.0.1", address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
}

// Attack: pages that sandboxes serve, in the browser of a user. A page on another port of
// localhost sends the daemon a request that browsers send without a preflight; a page of
// another sandbox shows a private preview in a frame. In "make test",
// TestForeignPagesAreRefused of package auth, and TestPrivatePreviewsAreNotFramed and
// TestRequestsFromAnotherOrigin of internal/doors/preview, stand for it.
func TestMoreForeignPagesInABrowser(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // for the other user
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte("previews: {domain: "+domain+"}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		said := make(chan string, 16)
		var start string
		listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/start":
				w.Header().Set("Content-Type", "text/html")
				_, _ = w.Write([]byte(start))
			case "/said":
				said <- r.URL.Query().Get("what")
			}
		}))
		t.Cleanup(listener.Close)
		// tells returns a script that reports a text. A page's load waits for it.
		tells := func(what string) string {
			return fmt.Sprintf(`document.write('<img src="%s/said?what=' + encodeURIComponent(%s) + '">')`, listener.URL, what)
		}
		victim, evil := d.Create(t, sandbox.CreateRequest{}), d.Create(t, sandbox.CreateRequest{})
		private := create(t, d, victim.ID, sandbox.CreatePreviewRequest{Port: 8000})
		own := create(t, d, victim.ID, sandbox.CreatePreviewRequest{Port: 8001, Access: sandbox.PreviewPublic})
		foreign := create(t, d, evil.ID, sandbox.CreatePreviewRequest{Port: 8001, Access: sandbox.PreviewPublic})
		link, err := d.Client.LinkPreview(t.Context(), victim.ID, 8000, sandbox.PreviewLinkRequest{})
		if err != nil {
			t.Fatal(err)
		}
		page := `<script>` + tells(`top === self ? "opened" : "framed by " + location.ancestorOrigins[0]`) +
			`; if (top === self) onload = () => { location = "` + foreign.URL + `" }</script>`
		frame := func(next string) string {
			return `<body><script>` + tells(`"a page of " + location.host`) + `; onload = () => { const f = document.createElement("iframe"); f.onload = () => { location = "` + next + `" }; f.src = "` + private.URL + `"; document.body.append(f) }</script>`
		}
		start = fmt.Sprintf(`<script>fetch(%q, {method: "POST", mode: "no-cors", body: new Blob(['{"name":"forged"}'])}).finally(() => { location = %q })</script>`, d.URL+"/v1/sandboxes", link.URL)
		for id, sites := range map[string]map[int]string{
			victim.ID: {8000: page, 8001: frame(listener.URL + "/said?what=end")},
			evil.ID:   {8001: frame(own.URL)},
		} {
			for port, html := range sites {
				file := fmt.Sprintf("/tmp/%d/index.html", port)
				if _, err := d.Client.WriteFile(t.Context(), id, sandbox.WriteFileRequest{Path: file, MakeParents: true}, strings.NewReader(html)); err != nil {
					t.Fatal(err)
				}
				// Browsers cache a page that has not changed for a day for hours, with
				// its headers, so the headers must not be specific to one visit.
				background(t, d, id, fmt.Sprintf("touch -d yesterday %s; exec python3 -m http.server -d /tmp/%d %d", file, port, port))
			}
		}
		until(t, browser(t), private.URL, "Cove-Preview-Key", private.Key)
		until(t, browser(t), own.URL)
		until(t, browser(t), foreign.URL)

		visit(t, listener.URL+"/start")
		var heard []string
		timeout := time.After(patience)
		for !slices.Contains(heard, "end") {
			select {
			case what := <-said:
				heard = append(heard, what)
			case <-timeout:
				t.Fatalf("the pages have not come to their end; they said %q", heard)
			}
		}
		host := func(u string) string { return strings.TrimPrefix(u, "http://") }
		want := []string{"opened", "a page of " + host(foreign.URL), "a page of " + host(own.URL), "framed by " + own.URL, "end"}
		if !slices.Equal(heard, want) {
			t.Errorf("the pages said %q, want %q", heard, want)
		}
		if s, err := d.Client.Get(t.Context(), "forged"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("a page of localhost made the sandbox %+v (%v)", s, err)
		}
	}, "--dev", "--config", config)
}
