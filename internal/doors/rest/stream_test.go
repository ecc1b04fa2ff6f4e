package rest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/sandbox"
)

// harness is a service with one sandbox, its interface and a client.
type harness struct {
	sandbox.Service
	ctx  context.Context // of the local caller, for the service itself
	url  string
	c    *client.Client
	name string
}

func newHarness(t *testing.T, wrap func(sandbox.Service) sandbox.Service) *harness {
	t.Helper()
	svc := newService(t)
	w := &harness{Service: svc, ctx: sandbox.WithCaller(t.Context(), sandbox.LocalCaller())}
	var door sandbox.Service = svc
	if wrap != nil {
		door = wrap(svc)
	}
	srv := httptest.NewServer(asLocal(rest.New(rest.Config{Service: door})))
	t.Cleanup(srv.Close)
	var err error
	if w.c, err = client.New(client.Config{URL: srv.URL, HTTPClient: srv.Client()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.c.Close() })
	sb, err := svc.Create(w.ctx, sandbox.CreateRequest{Name: "work"})
	if err != nil {
		t.Fatal(err)
	}
	w.url, w.name = srv.URL+"/v1/sandboxes/"+sb.ID, sb.ID
	return w
}

// waitEnded waits until the newest job has ended.
func (w *harness) waitEnded(t *testing.T) *sandbox.Job {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		jobs, err := w.ListJobs(w.ctx, w.name, sandbox.Page{})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(jobs.Items); n > 0 && jobs.Items[n-1].State == sandbox.JobExited {
			return &jobs.Items[n-1]
		}
		if time.Now().After(deadline) {
			t.Fatalf("the job does not end: %+v", jobs.Items)
		}
	}
}

func TestExecInOnePiece(t *testing.T) {
	w := newHarness(t, nil)
	big := strings.Repeat("ü", sandbox.MaxOutputRead) // twice the limit, cut within a letter
	for _, c := range []struct {
		name, shell string
		want        rest.ExecResult
	}{
		{"text", "printf 'ü\n'; printf e >&2; exit 4", rest.ExecResult{Stdout: "ü\n", Stderr: "e", Encoding: "utf-8"}},
		{"bytes", `printf '\377'; printf e >&2`, rest.ExecResult{Stdout: "/w==", Stderr: base64.StdEncoding.EncodeToString([]byte("e")), Encoding: "base64"}},
		{"half a letter", `printf '\303'`, rest.ExecResult{Stdout: "ww==", Encoding: "base64"}},
		{"long", "printf x; yes üüüüüüüü | tr -d '\\n' | head -c " + "2097152", rest.ExecResult{Stdout: "x" + big[:sandbox.MaxOutputRead-2], StdoutTruncated: true, Encoding: "utf-8"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			body, err := json.Marshal(sandbox.ExecRequest{Shell: c.shell})
			if err != nil {
				t.Fatal(err)
			}
			resp, data := fetch(t, http.MethodPost, w.url+"/exec", "application/json", string(body))
			if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/json" {
				t.Fatalf("%s %s", resp.Status, data)
			}
			var got rest.ExecResult
			if err := json.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			if got.Job.State != sandbox.JobExited {
				t.Errorf("job %+v", got.Job)
			}
			got.Job = sandbox.Job{}
			if got.Stdout != c.want.Stdout || got.Stderr != c.want.Stderr || got.Encoding != c.want.Encoding || got.StdoutTruncated != c.want.StdoutTruncated {
				t.Errorf("got %d bytes %.40q…, %q, %s, truncated %v; want %d bytes %.40q…, %q, %s, truncated %v",
					len(got.Stdout), got.Stdout, got.Stderr, got.Encoding, got.StdoutTruncated,
					len(c.want.Stdout), c.want.Stdout, c.want.Stderr, c.want.Encoding, c.want.StdoutTruncated)
			}
		})
	}
}

func TestDisconnectKills(t *testing.T) {
	w := newHarness(t, nil)
	for _, accept := range []string{"application/json", "application/x-ndjson"} {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/exec", strings.NewReader(`{"shell":"echo up; exec sleep 60"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", accept)
		answered := make(chan error, 1)
		go func() {
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			answered <- err
		}()
		waitRunning(t, w)
		cancel()
		if err := <-answered; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: answered with %v", accept, err)
		}
		if job := w.waitEnded(t); job.Signal == "" {
			t.Errorf("%s: the command was not killed: %+v", accept, job)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// waitRunning waits until the newest job runs and has written something.
func waitRunning(t *testing.T, w *harness) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		jobs, err := w.ListJobs(w.ctx, w.name, sandbox.Page{})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(jobs.Items); n > 0 && jobs.Items[n-1].State == sandbox.JobRunning && jobs.Items[n-1].StdoutBytes > 0 {
			return
		}
	}
	t.Fatal("no job runs")
}

func TestStreamHasAnEnd(t *testing.T) {
	w := newHarness(t, nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/exec", strings.NewReader(`{"shell":"echo x"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	defer resp.Body.Close()
	var last operation.JobLine
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if last.Final {
			t.Error("a line comes after the final one")
		}
		last = operation.JobLine{}
		if err := json.Unmarshal(lines.Bytes(), &last); err != nil {
			t.Fatalf("line %s: %v", lines.Bytes(), err)
		}
	}
	if !last.Final || last.Job == nil || last.Job.State != sandbox.JobExited {
		t.Errorf("the last line is %+v", last)
	}
}

// halfway is a service whose contents break off.
type halfway struct {
	sandbox.Service
	after int64
	err   error
}

func (h halfway) broken() io.ReadCloser {
	return io.NopCloser(io.MultiReader(io.LimitReader(zeros{}, h.after), failingReader{h.err}))
}

func (h halfway) ReadFile(context.Context, string, sandbox.ReadFileRequest) (*sandbox.FileReader, error) {
	return &sandbox.FileReader{Info: sandbox.FileInfo{Name: "\u00fc\U0001F600\n", Size: 1 << 20}, ReadCloser: h.broken()}, nil
}

func (h halfway) ArchiveDir(context.Context, string, string, int64) (io.ReadCloser, error) {
	return h.broken(), nil
}

func (h halfway) Exec(_ context.Context, _ string, _ sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	return nil, errors.Join(sink(sandbox.JobEvent{Job: &sandbox.Job{ID: "job-1"}}), h.err)
}

func (h halfway) WatchFiles(_ context.Context, _ string, _ sandbox.WatchRequest, sink func(sandbox.WatchEvent) error) error {
	return errors.Join(sink(sandbox.WatchEvent{Kind: sandbox.WatchReady}), h.err)
}

func (h halfway) Try(_ context.Context, _ string, _ sandbox.TryRequest, sink func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	return nil, errors.Join(sink(sandbox.TryEvent{Done: 1, Total: 2}), h.err)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestBreakingOffIsNeverAnEnd(t *testing.T) {
	failure := sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox has failed; create a new one")
	for _, after := range []int64{0, 100, 1 << 20} {
		for name, err := range map[string]error{"domain": failure, "cut": io.ErrUnexpectedEOF} {
			url, c := serve(t, halfway{after: after, err: err})
			code := sandbox.CodeNotRunning
			if name == "cut" {
				code = sandbox.CodeInternal
			}
			for _, path := range []string{"content", "archive"} {
				// A plain client sees a status, or the connection break.
				resp, rerr := http.Get(url + "/v1/sandboxes/x/files/" + path + "?path=p")
				if rerr == nil {
					_, rerr = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				if rerr == nil && resp.StatusCode == http.StatusOK {
					t.Errorf("%s of %s after %d: a plain client takes it for whole", path, name, after)
				}
				// Ours sees the error itself.
				r, rerr := c.ArchiveDir(t.Context(), "x", "p", 0)
				if path == "content" {
					var f *sandbox.FileReader
					f, rerr = c.ReadFile(t.Context(), "x", sandbox.ReadFileRequest{Path: "p"})
					r = f
					if rerr == nil && f.Info.Name != "\u00fc\U0001F600\n" {
						t.Errorf("name %q", f.Info.Name)
					}
				}
				if rerr == nil {
					_, rerr = io.Copy(io.Discard, r)
					r.Close()
				}
				if sandbox.CodeOf(rerr) != code || rerr.Error() != sandbox.MessageOf(err) {
					t.Errorf("%s of %s after %d: got %v, want %s: %s", path, name, after, rerr, code, sandbox.MessageOf(err))
				}
			}
		}
	}
	_, c := serve(t, halfway{err: failure})
	if _, err := c.Exec(t.Context(), "x", sandbox.ExecRequest{}, nil); sandbox.CodeOf(err) != sandbox.CodeNotRunning {
		t.Errorf("exec that breaks off: %v", err)
	}
	if err := c.WatchFiles(t.Context(), "x", sandbox.WatchRequest{Path: "p"}, func(sandbox.WatchEvent) error { return nil }); sandbox.CodeOf(err) != sandbox.CodeNotRunning {
		t.Errorf("watch that breaks off: %v", err)
	}
	if _, err := c.Try(t.Context(), "x", sandbox.TryRequest{}, nil); sandbox.CodeOf(err) != sandbox.CodeNotRunning {
		t.Errorf("try that breaks off: %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestCutStreams(t *testing.T) {
	// A server, or something in between, that ends streams early.
	for name, body := range map[string]string{
		"nothing":     "",
		"no end":      `{"job":{"id":"job-1"}}` + "\n",
		"half a line": `{"job":{"id":"jo`,
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
		c, err := client.New(client.Config{URL: srv.URL})
		if err != nil {
			t.Fatal(err)
		}
		if job, err := c.Exec(t.Context(), "x", sandbox.ExecRequest{}, nil); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%s: got %v, %v; want unavailable", name, job, err)
		}
		if result, err := c.Try(t.Context(), "x", sandbox.TryRequest{}, nil); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%s: the try got %v, %v; want unavailable", name, result, err)
		}
		c.Close()
		srv.Close()
	}
}

func TestRefusedUploadIsAnswered(t *testing.T) {
	w := newHarness(t, nil)
	// Far more than any buffer holds.
	content := io.LimitReader(zeros{}, 1<<30)
	_, err := w.c.WriteFile(t.Context(), "nobody", sandbox.WriteFileRequest{Path: "x"}, content)
	if sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("got %v, want not_found", err)
	}
	// The same from a client that sends without waiting for the start.
	resp, body := fetch(t, http.MethodPut, strings.Replace(w.url, w.name, "nobody", 1)+"/files/content?path=x", "application/octet-stream", strings.Repeat("x", 8<<20))
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("got %s %s", resp.Status, body)
	}
}

func TestLargeFilesStream(t *testing.T) {
	w := newHarness(t, nil)
	const size = 32 << 20
	info, err := w.c.WriteFile(t.Context(), w.name, sandbox.WriteFileRequest{Path: "big"}, io.LimitReader(zeros{}, size))
	if err != nil || info.Size != size {
		t.Fatalf("wrote %+v, %v", info, err)
	}
	f, err := w.c.ReadFile(t.Context(), w.name, sandbox.ReadFileRequest{Path: "big"})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := io.Copy(io.Discard, f); n != size || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

func TestTerminal(t *testing.T) {
	w := newHarness(t, nil)
	term, err := w.c.OpenTerminal(t.Context(), w.name, sandbox.ExecRequest{Shell: "cat; echo e >&2; exit 5", OpenStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	want := strings.Repeat("0123456789abcdef", 20_000)
	go func() {
		_, _ = io.WriteString(term, want)
		_ = term.CloseInput()
	}()
	var stdout, stderr bytes.Buffer
	job, err := term.Run(func(ev sandbox.JobEvent) error {
		out := &stdout
		if ev.Stream == sandbox.Stderr {
			out = &stderr
		}
		if len(ev.Data) > 0 && ev.Offset != int64(out.Len()) {
			t.Errorf("offset %d, have %d", ev.Offset, out.Len())
		}
		out.Write(ev.Data)
		return nil
	})
	if err != nil || job.ExitCode != 5 || stdout.String() != want || stderr.String() != "e\n" {
		t.Errorf("job %+v, %v; %d bytes of output, want %d; %q", job, err, stdout.Len(), len(want), stderr.String())
	}
}

func TestTerminalControls(t *testing.T) {
	w := newHarness(t, nil)
	req := sandbox.ExecRequest{
		Shell:    `trap 'stty size; exit 9' INT; stty size; read line; stty size; echo "<$line>"; while :; do sleep 0.01; done`,
		Terminal: &sandbox.TerminalSize{Cols: 80, Rows: 24}, OpenStdin: true,
	}
	term, err := w.c.OpenTerminal(t.Context(), w.name, req)
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	var out strings.Builder
	step := 0
	job, err := term.Run(func(ev sandbox.JobEvent) error {
		out.Write(ev.Data)
		switch text := out.String(); {
		case step == 0 && strings.Contains(text, "24 80"):
			step++
			if err := term.Resize(sandbox.TerminalSize{Cols: 100, Rows: 40}); err != nil {
				return err
			}
			_, err := io.WriteString(term, "typed\n")
			return err
		case step == 1 && strings.Contains(text, "<typed>"):
			step++
			return term.Signal("INT")
		}
		return nil
	})
	if err != nil || job.ExitCode != 9 || strings.Count(out.String(), "40 100") != 2 {
		t.Errorf("job %+v, %v, output %q", job, err, out.String())
	}
}

// A signal reaches a command that does not read its input, of which there is more than
// fits into a pipe.
func TestTerminalInputAhead(t *testing.T) {
	w := newHarness(t, nil)
	term, err := w.c.OpenTerminal(t.Context(), w.name, sandbox.ExecRequest{
		Shell: `trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done`, OpenStdin: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	job, err := term.Run(func(ev sandbox.JobEvent) error {
		if len(ev.Data) == 0 {
			return nil
		}
		for range 4 {
			if _, err := term.Write(make([]byte, 128<<10)); err != nil {
				return err
			}
		}
		return term.Signal("TERM")
	})
	if err != nil || job.ExitCode != 9 {
		t.Errorf("job %+v, %v", job, err)
	}
}

func TestTerminalEnds(t *testing.T) {
	w := newHarness(t, nil)
	t.Run("closed by the client", func(t *testing.T) {
		term, err := w.c.OpenTerminal(t.Context(), w.name, sandbox.ExecRequest{Shell: "echo up; exec sleep 60"})
		if err != nil {
			t.Fatal(err)
		}
		defer term.Close()
		gone := errors.New("gone")
		if _, err := term.Run(func(ev sandbox.JobEvent) error {
			if len(ev.Data) > 0 {
				return gone
			}
			return nil
		}); !errors.Is(err, gone) {
			t.Error(err)
		}
		if job := w.waitEnded(t); job.Signal == "" {
			t.Errorf("the command was not killed: %+v", job)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		term, err := w.c.OpenTerminal(ctx, w.name, sandbox.ExecRequest{Shell: "echo up; exec sleep 60"})
		if err != nil {
			t.Fatal(err)
		}
		defer term.Close()
		if _, err := term.Run(func(ev sandbox.JobEvent) error {
			if len(ev.Data) > 0 {
				cancel()
			}
			return nil
		}); sandbox.CodeOf(err) != sandbox.CodeCancelled {
			t.Error(err)
		}
		w.waitEnded(t)
	})
	for name, c := range map[string]struct {
		req  sandbox.ExecRequest
		name string
		code sandbox.Code
	}{
		"no sandbox": {sandbox.ExecRequest{Shell: "true"}, "nobody", sandbox.CodeNotFound},
		"no program": {sandbox.ExecRequest{Command: []string{"/no/such"}}, w.name, sandbox.CodeNotFound},
		"nothing":    {sandbox.ExecRequest{}, w.name, sandbox.CodeInvalid},
		"background": {sandbox.ExecRequest{Shell: "true", Background: true}, w.name, sandbox.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			term, err := w.c.OpenTerminal(t.Context(), c.name, c.req)
			if err == nil {
				defer term.Close()
				_, err = term.Run(nil)
			}
			if sandbox.CodeOf(err) != c.code {
				t.Errorf("got %v, want %s", err, c.code)
			}
		})
	}
}

func TestTerminalRefuses(t *testing.T) {
	w := newHarness(t, nil)
	dial := func(header http.Header) (*websocket.Conn, error) {
		conn, _, err := websocket.Dial(t.Context(), w.url+"/terminal", &websocket.DialOptions{HTTPHeader: header})
		return conn, err
	}
	if _, err := dial(http.Header{"Origin": {"https://evil.example"}}); err == nil {
		t.Error("a page of another origin gets a terminal")
	}
	for name, send := range map[string]struct {
		kind websocket.MessageType
		data string
	}{
		"binary":         {websocket.MessageBinary, `{"shell":"true"}`},
		"unknown member": {websocket.MessageText, `{"shell":"true","tty":true}`},
		"no JSON":        {websocket.MessageText, `{`},
		"two values":     {websocket.MessageText, `{"shell":"true"}{}`},
	} {
		conn, err := dial(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Write(t.Context(), send.kind, []byte(send.data)); err != nil {
			t.Fatal(err)
		}
		var line operation.JobLine
		_, data, err := conn.Read(t.Context())
		if err == nil {
			err = json.Unmarshal(data, &line)
		}
		if err != nil || line.Error == nil || line.Error.Code != sandbox.CodeInvalid {
			t.Errorf("%s: got %s, %v", name, data, err)
		}
		conn.CloseNow()
	}
	http.DefaultClient.CloseIdleConnections()
}
