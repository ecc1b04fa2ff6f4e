package code

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// TestMoreDoors takes code, jobs, processes, environment and statistics through the real daemon. In
// "make test", TestKernelsLive and the conversations of all dialects stand for it.
func TestMoreDoors(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := d.Create(t, kernels()).ID
		t.Run("stream", func(t *testing.T) { testStream(t, d, id) })
		t.Run("gone", func(t *testing.T) { testGone(t, d, id) })
		t.Run("isolated", func(t *testing.T) { testIsolated(t, d) })
		t.Run("env", func(t *testing.T) { testEnv(t, d, id) })
		t.Run("processes", func(t *testing.T) { testProcesses(t, d, id) })
		t.Run("stats", func(t *testing.T) { testStats(t, d, id) })
		t.Run("webhook", func(t *testing.T) { testWebhook(t, d, id) })
		t.Run("metrics", func(t *testing.T) { testMetrics(t, d) })
	}, "--webhooks-allow-private", "--dev")
}

func post(ctx context.Context, t *testing.T, d *covetest.Daemon, path, accept, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// testStream reads output while the code still runs, in both forms: the code
// waits for a file that is written when its first words have come.
func testStream(t *testing.T, d *covetest.Daemon, id string) {
	const body = `{"language":"py","timeout_ms":30000,"code":"import os, time\nprint('early', flush=True)\nwhile not os.path.exists('/tmp/heard'): time.sleep(0.01)\nos.remove('/tmp/heard')\n6*7"}`
	for accept, prefix := range map[string]string{"application/x-ndjson": "", "text/event-stream": "data: "} {
		resp := post(t.Context(), t, d, "/v1/sandboxes/"+id+"/code", accept, body)
		if got := resp.Header.Get("Content-Type"); got != accept {
			t.Errorf("content type is %s, want %s", got, accept)
		}
		type line struct {
			Data   []byte
			Output *sandbox.CodeOutput
			Result *sandbox.CodeResult
			Final  bool
		}
		var lines []line
		for s := bufio.NewScanner(resp.Body); s.Scan(); {
			if s.Text() == "" {
				continue
			}
			text, ok := strings.CutPrefix(s.Text(), prefix)
			var l line
			if err := json.Unmarshal([]byte(text), &l); !ok || err != nil {
				t.Fatalf("line %q: %v", s.Text(), err)
			}
			if lines = append(lines, l); len(lines) == 1 {
				d.Sh(t, id, "touch /tmp/heard")
			}
		}
		if len(lines) != 3 || string(lines[0].Data) != "early\n" || lines[1].Output == nil || !lines[2].Final || lines[2].Result.Stdout != "early\n" {
			t.Fatalf("%s: got %+v", accept, lines)
		}
	}
}

// testGone closes the connection while code runs: the code ends, and the interpreter
// keeps its state.
func testGone(t *testing.T, d *covetest.Daemon, id string) {
	for try := 1; ; try++ {
		says(t, d, id, sandbox.Python, "kept = 1", "")
		ctx, cancel := context.WithCancel(t.Context())
		resp := post(ctx, t, d, "/v1/sandboxes/"+id+"/code", "application/x-ndjson",
			`{"language":"py","code":"import time\nprint('begun', flush=True)\nwhile True:\n  open('/tmp/alive','w').write(str(time.time())); time.sleep(.01)"}`)
		_, err := bufio.NewReader(resp.Body).ReadString('\n')
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		// It waits for the end of what ran before.
		r := run(t, d, id, sandbox.Python, "print(kept)")
		if tooSlow(r) && try < interruptTries {
			continue
		}
		if r.Stdout != "1\n" || r.ExitCode != 0 || r.Restarted {
			t.Errorf("afterwards the interpreter says %+v", r)
		}
		break
	}
	before := d.Sh(t, id, "cat /tmp/alive")
	time.Sleep(200 * time.Millisecond)
	if after := d.Sh(t, id, "cat /tmp/alive"); after != before {
		t.Error("the code runs on after its caller has gone")
	}
}

func testIsolated(t *testing.T, d *covetest.Daemon) {
	list := func() int {
		all, err := d.Client.List(t.Context(), sandbox.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return len(all.Items)
	}
	before := list()
	var streamed strings.Builder
	r, err := d.Client.RunIsolated(t.Context(), sandbox.RunIsolatedRequest{RunCodeRequest: sandbox.RunCodeRequest{Language: "py", Code: "print(6*7)"}},
		func(e sandbox.CodeEvent) error { streamed.Write(e.Data); return nil })
	if err != nil || r.Stdout != "42\n" || streamed.String() != "42\n" {
		t.Fatalf("got %+v, %q, %v", r, streamed.String(), err)
	}
	if s, err := d.Client.Get(t.Context(), r.SandboxID); err != nil || s.State != sandbox.StateKilled {
		t.Errorf("its sandbox is %+v, %v", s, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = d.Client.RunIsolated(ctx, sandbox.RunIsolatedRequest{RunCodeRequest: sandbox.RunCodeRequest{Language: "py", Code: "print(1, flush=True)\nwhile True: pass"}},
		func(sandbox.CodeEvent) error { cancel(); return nil })
	covetest.WantCode(t, err, sandbox.CodeCancelled)
	for end := time.Now().Add(20 * time.Second); list() != before; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d sandboxes are left, there were %d", list(), before)
		}
	}
}

func testEnv(t *testing.T, d *covetest.Daemon, id string) {
	if _, err := d.Client.SetEnv(t.Context(), id, sandbox.SetEnvRequest{Set: map[string]string{"COLOUR": "blue"}}); err != nil {
		t.Fatal(err)
	}
	d.Shows(t, id, "echo $COLOUR", "blue")
	says(t, d, id, sandbox.Python, "import os; print(os.environ['COLOUR'])", "blue\n")
	if _, err := d.Client.SetEnv(t.Context(), id, sandbox.SetEnvRequest{Unset: []string{"COLOUR"}}); err != nil {
		t.Fatal(err)
	}
	says(t, d, id, sandbox.Python, "print(os.environ.get('COLOUR'))", "None\n")
}

func testProcesses(t *testing.T, d *covetest.Daemon, id string) {
	job, err := d.Client.Exec(t.Context(), id, sandbox.ExecRequest{Command: []string{"sleep", "300"}, Background: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err := d.Client.ListProcesses(t.Context(), id, sandbox.Page{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range list.Items {
		seen[p.Context] = true
		if p.Job == job.ID {
			seen["job"] = true
			if p.PID != job.PID || len(p.Command) != 2 || p.Command[1] != "300" {
				t.Errorf("the job is %+v", p)
			}
		}
	}
	if !seen["job"] || !seen["python/default"] {
		t.Errorf("processes are %+v", list.Items)
	}
	if err := d.Client.SignalProcess(t.Context(), id, job.PID, "KILL"); err != nil {
		t.Fatal(err)
	}
	if job, err = d.Client.Attach(t.Context(), id, job.ID, sandbox.AttachRequest{}, nil); err != nil || job.Signal != "KILL" {
		t.Errorf("afterwards: %+v, %v", job, err)
	}
	covetest.WantCode(t, d.Client.SignalProcess(t.Context(), id, 1, "KILL"), sandbox.CodeInvalid)
}

func testStats(t *testing.T, d *covetest.Daemon, id string) {
	var s sandbox.SandboxStats
	covetest.Eventually(30*time.Second, func() bool {
		all, err := d.Client.ListStats(t.Context(), sandbox.StatsRequest{Namespace: "*"})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all.Items, func(s sandbox.SandboxStats) bool { return s.ID == id })
		if i < 0 {
			t.Fatalf("the sandbox is not among %+v", all.Items)
		}
		s = all.Items[i]
		return s.Stats == nil || s.Stats.Processes > 0 // 0: it is too busy to say
	})
	if s.State != sandbox.StateRunning || s.Stats == nil || s.Stats.MemoryBytes == 0 || s.Stats.Processes == 0 || s.CPUPercent <= 0 {
		t.Errorf("got %+v, %+v", s, s.Stats)
	}
	var err error
	var series *sandbox.List[sandbox.StatsPoint]
	whole := func(p sandbox.StatsPoint) bool { // at other times it was too busy to count
		return p.MemoryBytes > 0 && p.Processes > 0 && time.Since(p.Time) < time.Hour
	}
	if !covetest.Eventually(30*time.Second, func() bool { // a point every ten seconds
		series, err = d.Client.StatsSeries(t.Context(), id, sandbox.StatsSeriesRequest{})
		return err != nil || slices.ContainsFunc(series.Items, whole)
	}) || err != nil {
		t.Fatalf("there is no whole point of the past: %+v, %v", series, err)
	}
}

func testWebhook(t *testing.T, d *covetest.Daemon, id string) {
	told := make(chan string, 8)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		told <- r.Header.Get("Webhook-Signature") + " " + string(body)
	}))
	defer srv.Close()
	job, err := d.Client.Exec(t.Context(), id, sandbox.ExecRequest{
		Code: &sandbox.JobCode{Language: "py", Code: "print('worked')"}, Background: true,
		Webhook: &sandbox.Webhook{URL: srv.URL, Secret: sandbox.NewSecretValue("0123456789abcdef")},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-told:
		for _, want := range []string{"v1,", job.ID, id, `"stdout_tail":"worked\n"`, `"exit_code":0`} {
			if !strings.Contains(got, want) {
				t.Errorf("told %s, want %s", got, want)
			}
		}
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was told")
	}
}

func testMetrics(t *testing.T, d *covetest.Daemon) {
	resp, err := http.Get(d.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v", resp.StatusCode, err)
	}
	for _, want := range []string{`cove_sandboxes{state="running"} 1`, `cove_verb_seconds_count{code="ok",verb="code.run"}`, `cove_http_request_seconds_count{door="rest"`, "cove_sandboxes_network_in_bytes_total ", "go_goroutines"} {
		if !strings.Contains(string(body), want) {
			t.Errorf("there is no %s in %s", want, fmt.Sprint(len(body), " bytes"))
		}
	}
}
