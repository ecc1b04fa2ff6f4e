package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/cove-sh/cove/internal/testing/needs"
)

// hostile is HTML that a sandbox has made. It says what it was able to do, and then
// tries to leave with that.
const hostile = `<h1>output</h1><img src="ELSEWHERE/image"><link rel="stylesheet" href="ELSEWHERE/style"><script src="ELSEWHERE/script"></script>
<iframe src="ELSEWHERE/frame"></iframe><form action="ELSEWHERE/form"></form>
<script>(async () => {
  const did = [];
  const attempt = async (name, act) => { try { await act(); did.push(name); } catch {} };
  await attempt("script", () => 1);
  await attempt("cookie", () => document.cookie);
  await attempt("storage", () => localStorage.length);
  await attempt("parent", () => parent.document.title);
  await attempt("fetch", () => fetch("/v1/version"));
  await attempt("fetch elsewhere", () => fetch("ELSEWHERE/fetch", { mode: "no-cors" }));
  await attempt("socket", () => new Promise((yes, no) => { const s = new WebSocket("ws://" + location.host + "/socket"); s.onopen = yes; s.onerror = no; }));
  await attempt("top", () => { top.location = "ELSEWHERE/top"; });
  await attempt("popup", () => { if (!open("ELSEWHERE/popup")) throw 0; });
  await attempt("origin", () => { if (origin !== "null") return; throw 0; });
  document.querySelector("form").submit();
  parent.postMessage({ type: "did", did }, "*");
  location = "ELSEWHERE/leave";
})()</script>`

// embedder is the console's script: it shows the output, and reports the messages that
// it gets to the test.
const embedder = `
const tell = (what) => fetch("/said", { method: "POST", body: JSON.stringify(what) });
const frame = document.createElement("iframe");
frame.setAttribute("sandbox", "allow-scripts");
frame.src = "/console/frame";
let sized = "";
addEventListener("message", ({ data, source, origin }) => {
  if (source !== frame.contentWindow || origin !== "null") tell(["a message of " + origin]);
  if (data.type === "size" && data.height > 20 && !sized) tell([sized = "sized"]);
  if (data.type === "ready") source.postMessage({ type: "render", mime: "text/html", data: HOSTILE }, "*");
  if (data.type === "did") tell(["did", ...data.did]);
});
// The page's own policy keeps the frame here. It says so when the frame tries to leave.
document.addEventListener("securitypolicyviolation", (event) => tell(["kept by " + event.effectiveDirective]));
document.body.append(frame);
`

// Attack: output of a sandbox, as HTML with scripts, in a real browser.
func TestHostileOutputInABrowser(t *testing.T) {
	needs.Command(t, "chromium")
	var reached atomic.Value
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reached.Store(r.URL.Path) }))
	t.Cleanup(elsewhere.Close)
	html, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	with := func(text, name, value string) string { return strings.ReplaceAll(text, name, value) }
	d := door(fstest.MapFS{
		"index.html":    {Data: []byte(`<!doctype html><body><script src="/console/assets/a-1.js"></script>`)},
		"assets/a-1.js": {Data: []byte(with(with(embedder, "HOSTILE", string(html)), "ELSEWHERE", elsewhere.URL))},
	})
	said := make(chan []string, 16)
	mux := http.NewServeMux()
	mux.Handle(Path, d)
	mux.HandleFunc("POST /said", func(_ http.ResponseWriter, r *http.Request) {
		var what []string
		if err := json.NewDecoder(r.Body).Decode(&what); err != nil {
			what = []string{err.Error()}
		}
		said <- what
	})
	mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/favicon.ico" {
			said <- []string{fmt.Sprintf("asked for %s with the cookies %q", r.URL.Path, r.Header.Get("Cookie"))}
		}
	})
	front := httptest.NewServer(mux)
	t.Cleanup(front.Close)

	cmd := exec.CommandContext(t.Context(), "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
		"--user-data-dir="+t.TempDir(), "--remote-debugging-port=0", front.URL+Path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	want := []string{"did script", "kept by frame-src", "sized"} // in any order
	var heard []string
	for len(heard) < len(want) {
		select {
		case what := <-said:
			heard = append(heard, strings.Join(what, " "))
		case <-time.After(time.Minute):
			t.Fatalf("the browser said %q and no more, want %q", heard, want)
		}
	}
	if slices.Sort(heard); !slices.Equal(heard, want) {
		t.Errorf("the browser said %q, want %q", heard, want)
	}
	if path := reached.Load(); path != nil {
		t.Errorf("the output reached another server: %v", path)
	}
}
