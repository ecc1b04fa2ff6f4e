package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/mcpserver"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// detachAfter is 45 s in the product; see internal/doors/dialect/native. Progress is sent
// after 1, 3 and 5 seconds.
const detachAfter = 6 * time.Second

// TestCalls tests what calls of tools do with real sandboxes, through each transport.
func TestCalls(t *testing.T) {
	t.Parallel()
	d := daemon(t, covetest.Options{Dev: true})
	for _, o := range doors(d) {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			s := o.open(t)
			box := s.ok("sandbox_create", nil).text("id")
			defer s.ok("sandbox_kill", map[string]any{"sandbox": box})
			t.Run("output", func(t *testing.T) { testOutput(t, s, box) })
			// They are the tools', whatever the revision: "make soak" asks in each.
			if o.revision == statelessRevision || needs.Soak() {
				t.Run("limits", func(t *testing.T) { testLimits(t, s, box) })
			}
		})
	}
}

// TestMoreDetach calls a server which detaches sooner than the product's. In "make test",
// TestDetach of package native and TestParkedCallDetached of package mcpserver stand for it.
func TestMoreDetach(t *testing.T) {
	t.Parallel() // as each subtest: most of it is the wait
	d := daemon(t, covetest.Options{Dev: true})
	cfg := mcpserver.Config{Service: d.Client, Toolsets: []string{dialect.AllToolsets}, DetachAfter: detachAfter}
	url := serveHTTP(t, cfg)
	http := func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: url} }
	stdio := dialecttest.InProcess(t, d, cfg)
	for _, o := range []door{
		{"HTTP, sessions", sessionRevision, http},
		{"HTTP, stateless", statelessRevision, http},
		{"stdio, sessions", sessionRevision, stdio},
		{"stdio, stateless", statelessRevision, stdio},
	} {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			s := o.open(t)
			box := s.ok("sandbox_create", nil).text("id")
			defer s.ok("sandbox_kill", map[string]any{"sandbox": box})
			testDetach(t, s, box)
		})
	}
}

// A command that outlives the call becomes a job that can be followed; until then the
// client gets progress. The command ends when a file exists, which is written afterwards.
func testDetach(t *testing.T, s *session, box string) {
	start := time.Now()
	run := s.ok("sandbox_exec", map[string]any{"sandbox": box, "shell": "echo first; until [ -e handed-over ]; do sleep 0.05; done; echo second; exit 7"})
	if took := time.Since(start); took < detachAfter || took > 30*time.Second {
		t.Errorf("the call took %s, want the %s until it is handed over", took, detachAfter)
	}
	if run.text("state") != "running" || run.text("stdout") != "first\n" || run.text("job_id") == "" || !strings.Contains(run.text("hint"), "job_get") {
		t.Fatalf("%v, want a running job and how to follow it", run)
	}
	if !slices.Contains(s.told(), "running; 6 bytes of output") {
		t.Errorf("no progress was told in %s", detachAfter)
	}
	s.ok("file_write", map[string]any{"sandbox": box, "path": "handed-over", "content": "go on"})
	job := s.ok("job_get", map[string]any{"sandbox": box, "job_id": run.text("job_id"), "wait_ms": 30_000, "stdout_offset": 6})
	if job.text("state") != "exited" || job.number("exit_code") != 7 || job.text("stdout") != "second\n" {
		t.Errorf("%v, want exited with 7 and the rest of the output", job)
	}
}

// Output is sent while a program runs: each program waits for a file that is written once
// its first output has arrived.
func testOutput(t *testing.T, s *session, box string) {
	s.listen()
	const script = "echo first; until [ -e %s ]; do sleep 0.05; done; rm %[1]s; echo second"
	for tool, args := range map[string]map[string]any{
		"sandbox_exec": {"sandbox": box, "shell": fmt.Sprintf(script, "heard-exec")},
		"run_code":     {"sandbox": box, "code": fmt.Sprintf(script, "heard-code"), "language": "bash"},
	} {
		heard := make(chan struct{})
		go func() {
			defer close(heard)
			s.hears(tool + " stdout: first\n")
			name := "heard-" + tool[strings.Index(tool, "_")+1:]
			if res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "file_write", Arguments: map[string]any{"sandbox": box, "path": name, "content": "heard"}}); err != nil || res.IsError {
				t.Errorf("file_write: %v, %v", res, err)
			}
		}()
		run := s.ok(tool, args)
		<-heard
		if run.text("stdout") != "first\nsecond\n" || run.number("exit_code") != 0 {
			t.Errorf("%s: %v", tool, run)
		}
		s.hears(tool + " stdout: second\n")
	}
}

// The limits of what goes in and out, each with what to do instead.
func testLimits(t *testing.T, s *session, box string) {
	file := func(name string, more ...any) map[string]any {
		args := map[string]any{"sandbox": box, "path": name}
		for i := 0; i < len(more); i += 2 {
			args[more[i].(string)] = more[i+1]
		}
		return args
	}
	if got := s.ok("file_write", file("big", "content", strings.Repeat("x", 8<<20))).number("size_bytes"); got != 8<<20 {
		t.Errorf("8 MiB became %v bytes", got)
	}
	s.refused("file_write", file("bigger", "content", strings.Repeat("x", 8<<20+1)), "too_large", "append")
	s.refused("file_read", file("bigger"), "not_found")
	s.refused("file_read", file("big"), "too_large", "over 1 MiB", "offset and limit")
	slice := s.ok("file_read", file("big", "offset", 8<<20-10, "limit", 1<<20))
	if slice.text("content") != "xxxxxxxxxx" || slice["truncated"] != false {
		t.Errorf("the end of the file is %v", slice)
	}

	// Code is not handed over, so this may take its time.
	made := s.ok("run_code", map[string]any{"sandbox": box, "language": "bash", "code": "mkdir many && ln -s /etc/passwd many/link && head -c 11000000 /dev/urandom > many/noise"})
	if made.number("exit_code") != 0 {
		t.Fatalf("a directory is not made: %v", made)
	}
	run := s.ok("sandbox_exec", map[string]any{"sandbox": box, "shell": "head -c 3000000 /dev/zero | tr '\\0' o; head -c 2000000 /dev/zero | tr '\\0' e >&2"})
	if run.number("stdout_bytes") != 3e6 || run.number("stderr_bytes") != 2e6 || run["truncated"] != true {
		t.Errorf("counts %v and %v, truncated %v", run["stdout_bytes"], run["stderr_bytes"], run["truncated"])
	}
	for _, name := range []string{"stdout", "stderr"} {
		if n := len(run.text(name)); n < 32<<10 || n > 33<<10 {
			t.Errorf("%s has %d bytes, want 32 KiB and a note", name, n)
		}
	}
	s.refused("dir_download", file("many"), "too_large", "7 MiB")
	s.ok("file_delete", file("many/noise"))
	s.ok("file_write", file("many/kept", "content", "kept"))
	zip := s.ok("dir_download", file("many"))
	if zip.number("size_bytes") > 1000 || zip.text("mime_type") != "application/zip" {
		t.Errorf("%v, want a small ZIP file", zip)
	}
}

// tools/list is the same on every connection and in both eras.
func TestToolsAreTheSameEverywhere(t *testing.T) {
	d := daemon(t, covetest.Options{Dev: true})
	var first string
	for _, o := range append(doors(d), doors(d)...) {
		list, err := o.open(t).ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.MarshalIndent(list.Tools, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(data)
		} else if diff := cmp.Diff(first, string(data)); diff != "" {
			t.Errorf("%s differs: %s", o.name, diff)
		}
	}
}

// web sends messages unchanged.
type web struct {
	t       *testing.T
	url     string
	headers map[string]string
}

func (w *web) do(ctx context.Context, method, body string) *http.Response {
	w.t.Helper()
	res, err := w.try(ctx, method, body)
	if err != nil {
		w.t.Fatal(err)
	}
	res.Body.Close()
	return res
}

func (w *web) try(ctx context.Context, method, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for name, value := range w.headers {
		if name == "Host" {
			req.Host = value
		}
		req.Header.Set(name, value)
	}
	return http.DefaultClient.Do(req)
}

func (w *web) post(body string) {
	w.t.Helper()
	if res := w.do(w.t.Context(), http.MethodPost, body); res.StatusCode >= 300 {
		w.t.Errorf("%s for %s", res.Status, body)
	}
}

// initialize begins a session.
func (w *web) initialize() {
	w.t.Helper()
	first, second, _ := strings.Cut(hello, "\n")
	res, err := w.try(w.t.Context(), http.MethodPost, first)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	w.headers = map[string]string{"Mcp-Session-Id": res.Header.Get("Mcp-Session-Id"), "Mcp-Protocol-Version": sessionRevision}
	w.post(second)
}

// begin posts a message and reads the answer until hangUp is called or the
// test ends.
func (w *web) begin(body string) (hangUp context.CancelFunc) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := w.try(ctx, http.MethodPost, body); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
	})
	return cancel
}
