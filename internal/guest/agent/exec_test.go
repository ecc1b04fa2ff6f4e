package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

func TestExec(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2=%v", h2), func(t *testing.T) {
			s := startWith(t, Config{}, h2)
			r := s.exec(t, &agentv1.ExecRequest{
				Shell: `printf '%s|' "$A" "$B" "$PWD"; echo oops >&2; exit 7`,
				Env:   map[string]string{"A": "a b", "B": "ü"},
			})
			if got, want := r.stdout.String(), "a b|ü|"+s.dir+"|"; got != want {
				t.Errorf("stdout: got %q, want %q", got, want)
			}
			if got, want := r.stderr.String(), "oops\n"; got != want {
				t.Errorf("stderr: got %q, want %q", got, want)
			}
			j := r.last
			if j.GetExitCode() != 7 || j.GetSignal() != 0 || j.GetEndCause() != 0 ||
				j.GetState() != agentv1.JobState_JOB_STATE_EXITED || j.GetStderrBytes() != 5 ||
				j.GetEndedUnixNano() < j.GetStartedUnixNano() || j.GetPid() != r.started.GetPid() {
				t.Errorf("job: %v", j)
			}
		})
	}
}

func TestExecStdin(t *testing.T) {
	s := start(t)
	for _, size := range []int{0, 10, 5000, 3 << 20} {
		in := bytes.Repeat([]byte("x"), size)
		r := s.exec(t, &agentv1.ExecRequest{Argv: []string{"wc", "-c"}, Stdin: in})
		if got := strings.TrimSpace(r.stdout.String()); got != strconv.Itoa(size) {
			t.Errorf("stdin of %d bytes: the job read %s", size, got)
		}
	}
	// A job that does not read its input is not an error.
	if r := s.exec(t, &agentv1.ExecRequest{Argv: []string{"true"}, Stdin: make([]byte, 3<<20)}); r.last.GetExitCode() != 0 {
		t.Errorf("job: %v", r.last)
	}
}

func TestExecEnvironment(t *testing.T) {
	s := start(t)
	hostname, user := "box-1", strconv.Itoa(os.Getuid())
	_, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{
		Hostname: &hostname, User: &user,
		Env: map[string]string{"A": "1", "B": "1", "HOME": "/configured"},
	}))
	if err != nil {
		t.Fatal(err)
	}
	r := s.exec(t, &agentv1.ExecRequest{Argv: []string{"env"}, Env: map[string]string{"B": "2", "PATH": os.Getenv("PATH")}})
	env := map[string]string{}
	for line := range strings.Lines(r.stdout.String()) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[k] = v
	}
	for k, want := range map[string]string{"A": "1", "B": "2", "HOME": "/configured", "HOSTNAME": "box-1", "PATH": os.Getenv("PATH")} {
		if env[k] != want {
			t.Errorf("%s: got %q, want %q", k, env[k], want)
		}
	}
	if len(env) != 8 { // and USER, LOGNAME, SHELL: nothing of the agent's own
		t.Errorf("environment: %v", env)
	}
	// Absent fields stay; replace_env forgets the old ones.
	if _, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{ReplaceEnv: true, Env: map[string]string{"C": "3"}})); err != nil {
		t.Fatal(err)
	}
	r = s.sh(t, `echo "$A-$C-$HOSTNAME"`)
	if got := r.stdout.String(); got != "-3-box-1\n" {
		t.Errorf("after replacing the environment: got %q", got)
	}
}

func TestExecRefused(t *testing.T) {
	s := start(t)
	write := func(name, content string, mode os.FileMode) string {
		p := filepath.Join(s.dir, name)
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	notExec := write("plain", "x", 0o644)
	noLoader := write("noloader", "#!/no/such/interpreter\n", 0o755)
	noFormat := write("noformat", "\x00\x01\x02", 0o755)
	tests := []struct {
		name string
		req  *agentv1.ExecRequest
		code connect.Code
		text string
	}{
		{"nothing", &agentv1.ExecRequest{}, connect.CodeInvalidArgument, "either"},
		{"both", &agentv1.ExecRequest{Argv: []string{"a"}, Shell: "b"}, connect.CodeInvalidArgument, "either"},
		{"empty program", &agentv1.ExecRequest{Argv: []string{""}}, connect.CodeInvalidArgument, "empty"},
		{"nul in argument", &agentv1.ExecRequest{Argv: []string{"echo", "a\x00b"}}, connect.CodeInvalidArgument, "NUL"},
		{"nul in line", &agentv1.ExecRequest{Shell: "a\x00b"}, connect.CodeInvalidArgument, "NUL"},
		{"nul in environment", &agentv1.ExecRequest{Shell: "a", Env: map[string]string{"A": "\x00"}}, connect.CodeInvalidArgument, "NUL"},
		{"bad variable", &agentv1.ExecRequest{Shell: "a", Env: map[string]string{"A=B": ""}}, connect.CodeInvalidArgument, "A=B"},
		{"unknown command", &agentv1.ExecRequest{Argv: []string{"no-such-command"}}, connect.CodeNotFound, "command not found: no-such-command"},
		{"unknown path", &agentv1.ExecRequest{Argv: []string{"/no/such"}}, connect.CodeNotFound, "command not found: /no/such"},
		{"not executable", &agentv1.ExecRequest{Argv: []string{notExec}}, connect.CodePermissionDenied, "executable"},
		{"not executable on PATH", &agentv1.ExecRequest{Argv: []string{"plain"}, Env: map[string]string{"PATH": "."}}, connect.CodePermissionDenied, "executable"},
		{"directory", &agentv1.ExecRequest{Argv: []string{s.dir}}, connect.CodePermissionDenied, "not a file"},
		{"no interpreter", &agentv1.ExecRequest{Argv: []string{noLoader}}, connect.CodeNotFound, "interpreter"},
		{"no format", &agentv1.ExecRequest{Argv: []string{noFormat}}, connect.CodeInvalidArgument, "#!"},
		{"no directory", &agentv1.ExecRequest{Argv: []string{"true"}, Workdir: "/no/such"}, connect.CodeInvalidArgument, "/no/such"},
		{"directory is file", &agentv1.ExecRequest{Argv: []string{"true"}, Workdir: notExec}, connect.CodeInvalidArgument, "not a directory"},
		{"unknown user", &agentv1.ExecRequest{Argv: []string{"true"}, User: "no-such-user"}, connect.CodeInvalidArgument, "no-such-user"},
		{"unknown group", &agentv1.ExecRequest{Argv: []string{"true"}, User: "0:no-such"}, connect.CodeInvalidArgument, "no-such"},
		{"too long", &agentv1.ExecRequest{Argv: []string{"echo", strings.Repeat("x", 3<<20)}}, connect.CodeInvalidArgument, "long"},
		{"long argument", &agentv1.ExecRequest{Argv: []string{"echo", strings.Repeat("x", 1<<20)}}, connect.CodeInvalidArgument, "too long"},
		{"negative timeout", &agentv1.ExecRequest{Argv: []string{"true"}, TimeoutMs: -1}, connect.CodeInvalidArgument, "timeout"},
		{"huge timeout", &agentv1.ExecRequest{Argv: []string{"true"}, TimeoutMs: 1 << 62}, connect.CodeInvalidArgument, "timeout"},
		{"huge keep", &agentv1.ExecRequest{Argv: []string{"true"}, KeepBytes: 1 << 40}, connect.CodeInvalidArgument, "keep_bytes"},
		{"bad id", &agentv1.ExecRequest{Argv: []string{"true"}, JobId: "a/b"}, connect.CodeInvalidArgument, "job id"},
		{"huge terminal", &agentv1.ExecRequest{Argv: []string{"true"}, Terminal: &agentv1.TerminalSize{Cols: 1 << 20}}, connect.CodeInvalidArgument, "65535"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.tryExec(t, tt.req)
			wantCode(t, err, tt.code, tt.text)
		})
	}
	if jobs := s.agent.jobs.list(); len(jobs) != 0 {
		t.Errorf("refused requests left %d jobs", len(jobs))
	}
}

func TestExecUser(t *testing.T) {
	s := start(t)
	if os.Getuid() != 0 {
		_, err := s.tryExec(t, &agentv1.ExecRequest{Argv: []string{"id"}, User: "0"})
		wantCode(t, err, connect.CodePermissionDenied, "cannot be used")
		return
	}
	r := s.exec(t, &agentv1.ExecRequest{Shell: "id -u; id -g; id -G; echo $USER $HOME", User: "12345:23456", Workdir: "/"})
	if got, want := r.stdout.String(), "12345\n23456\n23456\n12345 /\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	_, err := s.tryExec(t, &agentv1.ExecRequest{Argv: []string{"true"}, User: "12345", Workdir: "/root"})
	if fi, serr := os.Stat("/root"); serr == nil && fi.Mode().Perm()&0o001 == 0 {
		wantCode(t, err, connect.CodePermissionDenied, "may not execute")
	}
}

// TestExecLossless runs a job that writes far more than is kept, to a client
// that reads all of it.
func TestExecLossless(t *testing.T) {
	s := start(t)
	stream, err := s.Exec(t.Context(), connect.NewRequest(&agentv1.ExecRequest{
		Argv: []string{executablePath(t)}, Env: map[string]string{childEnv: "flood"}, KeepBytes: 1000,
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	got := sha256.New()
	var pos int64
	for stream.Receive() {
		if o := stream.Msg().GetOutput(); o != nil {
			if o.GetOffset() != pos {
				t.Fatalf("gap at %d: next is %d", pos, o.GetOffset())
			}
			pos += int64(len(o.GetData()))
			got.Write(o.GetData())
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	want := sha256.New()
	flood(want)
	if pos != floodBytes || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("got %d bytes, want the %d that were written", pos, floodBytes)
	}
}

func executablePath(t testing.TB) string {
	p, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestKeptOutput checks what remains of the output of a job that nobody followed.
func TestKeptOutput(t *testing.T) {
	s := start(t)
	job := s.background(t, &agentv1.ExecRequest{
		Argv: []string{executablePath(t)}, Env: map[string]string{childEnv: "flood"}, KeepBytes: 1024,
	})
	ended := s.wait(t, job.GetJobId())
	if ended.GetStdoutBytes() != floodBytes {
		t.Errorf("counted %d bytes, want %d", ended.GetStdoutBytes(), floodBytes)
	}
	read := func(off, limit int64) *agentv1.ReadOutputResponse {
		res, err := s.ReadOutput(t.Context(), connect.NewRequest(&agentv1.ReadOutputRequest{
			JobId: job.GetJobId(), Stream: agentv1.Stream_STREAM_STDOUT, Offset: off, Limit: limit,
		}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg
	}
	var all bytes.Buffer
	flood(&all)
	for _, tt := range []struct{ off, limit, wantOff, wantLen int64 }{
		{0, 0, 0, 512},
		{100, 10, 100, 10},
		{511, 10, 511, 1},
		{512, 0, floodBytes - 512, 512},
		{floodBytes - 10, 100, floodBytes - 10, 10},
		{floodBytes, 0, floodBytes, 0},
		{floodBytes + 5, 0, floodBytes, 0},
	} {
		m := read(tt.off, tt.limit)
		want := all.Bytes()[tt.wantOff : tt.wantOff+tt.wantLen]
		if m.GetOffset() != tt.wantOff || !bytes.Equal(m.GetData(), want) || m.GetTotalBytes() != floodBytes || m.GetRunning() {
			t.Errorf("read %d+%d: got %d bytes at %d, want %d at %d", tt.off, tt.limit, len(m.GetData()), m.GetOffset(), tt.wantLen, tt.wantOff)
		}
	}
}

// TestTimes ends jobs at their timeout, and detaches from jobs after a time.
func TestTimes(t *testing.T) {
	atOnce(t, map[string]func(*testing.T){
		"timeout": testTimeoutKillsSession, "detach": testDetach, "kill": testSignalThenKill,
	})
}

// enoughMs is such a time, in milliseconds: long enough for the little that a job does
// before, even on a machine that stalls for a moment.
const enoughMs = 3000

func testTimeoutKillsSession(t *testing.T) {
	s := start(t)
	start := time.Now()
	// A background child in the group and one in a group of its own.
	r := s.exec(t, &agentv1.ExecRequest{
		Shell:     `echo partial; sleep 300 & echo $!; set -m; sleep 300 & echo $!; wait`,
		TimeoutMs: enoughMs,
	})
	j := r.last
	if j.GetExitCode() != 137 || j.GetSignal() != 9 || j.GetEndCause() != agentv1.EndCause_END_CAUSE_TIMEOUT {
		t.Errorf("job: %v", j)
	}
	if d := time.Since(start); d > patience { // not when the children end
		t.Errorf("it took %v", d)
	}
	lines := strings.Fields(r.stdout.String())
	if len(lines) != 3 || lines[0] != "partial" {
		t.Fatalf("stdout: %q", r.stdout.String())
	}
	for _, line := range lines[1:] {
		pid, _ := strconv.Atoi(line)
		eventually(t, "process "+line+" is gone", func() bool { return !alive(pid) })
	}
}

// alive reports whether a process exists and is not a zombie.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// TestBackgroundChild leaves a process behind that holds the job's output.
func TestBackgroundChild(t *testing.T) {
	s := start(t)
	fifo := filepath.Join(s.dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	r := s.exec(t, &agentv1.ExecRequest{JobId: "bg", Shell: `(read x <fifo; echo late; sleep 300) & echo early`})
	if got := r.stdout.String(); got != "early\n" {
		t.Errorf("stdout: got %q", got)
	}
	if err := os.WriteFile(fifo, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "late output is kept", func() bool {
		res, err := s.ReadOutput(t.Context(), connect.NewRequest(&agentv1.ReadOutputRequest{JobId: "bg", Stream: agentv1.Stream_STREAM_STDOUT}))
		return err == nil && string(res.Msg.GetData()) == "early\nlate\n"
	})
	// Processes that the ended job left behind can still be signalled.
	if _, err := s.Signal(t.Context(), connect.NewRequest(&agentv1.SignalRequest{JobId: "bg", Signal: 9})); err != nil {
		t.Error(err)
	}
	eventually(t, "nothing is left to signal", func() bool {
		_, err := s.Signal(t.Context(), connect.NewRequest(&agentv1.SignalRequest{JobId: "bg", Signal: 9}))
		return connect.CodeOf(err) == connect.CodeFailedPrecondition
	})
}

func TestStreamBreaksJobGoesOn(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2=%v", h2), func(t *testing.T) {
			s := startWith(t, Config{}, h2)
			job := s.background(t, &agentv1.ExecRequest{
				Shell: `echo one; read x; yes | head -c 300000; echo two >&2`, OpenStdin: true,
			})
			j, err := s.agent.jobs.get(job.GetJobId())
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the agent notices that the stream is gone", func() bool {
				j.out.mu.Lock()
				defer j.out.mu.Unlock()
				return len(j.out.followers) == 0
			})
			_, err = s.WriteInput(t.Context(), connect.NewRequest(&agentv1.WriteInputRequest{JobId: job.GetJobId(), Data: []byte("go\n")}))
			if err != nil {
				t.Fatal(err)
			}
			if ended := s.wait(t, job.GetJobId()); ended.GetExitCode() != 0 || ended.GetStdoutBytes() != 300004 {
				t.Errorf("job: %v", ended)
			}
			stream, err := s.Attach(t.Context(), connect.NewRequest(&agentv1.AttachRequest{JobId: job.GetJobId(), StdoutOffset: 300000, StderrOffset: 1}))
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			r, err := follow(stream, 300000, 1)
			if err != nil || r.gaps != 0 {
				t.Fatal(err, r.gaps)
			}
			if r.stdout.String() != "y\ny\n" || r.stderr.String() != "wo\n" || r.last.GetExitCode() != 0 {
				t.Errorf("attached: got %q, %q, %v", r.stdout.String(), r.stderr.String(), r.last)
			}
		})
	}
}

func testDetach(t *testing.T) {
	s := start(t)
	r := s.exec(t, &agentv1.ExecRequest{JobId: "slow", Shell: "echo hi; exec sleep 300", DetachAfterMs: enoughMs})
	if !r.detached || r.last.GetState() != agentv1.JobState_JOB_STATE_RUNNING || r.stdout.String() != "hi\n" {
		t.Fatalf("exec: %+v", r)
	}
	stream, err := s.Attach(t.Context(), connect.NewRequest(&agentv1.AttachRequest{JobId: "slow", DetachAfterMs: 50}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if r, err := follow(stream); err != nil || !r.detached || r.stdout.String() != "hi\n" {
		t.Errorf("attach: %+v, %v", r, err)
	}
	if _, err := s.Signal(t.Context(), connect.NewRequest(&agentv1.SignalRequest{JobId: "slow", Signal: 15})); err != nil {
		t.Fatal(err)
	}
	j := s.wait(t, "slow")
	if j.GetExitCode() != 143 || j.GetSignal() != 15 || j.GetEndCause() != agentv1.EndCause_END_CAUSE_SIGNAL {
		t.Errorf("job: %v", j)
	}
	_, err = s.Signal(t.Context(), connect.NewRequest(&agentv1.SignalRequest{JobId: "slow", Signal: 15}))
	wantCode(t, err, connect.CodeFailedPrecondition, "ended")
}

func testSignalThenKill(t *testing.T) {
	s := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := s.Exec(ctx, connect.NewRequest(&agentv1.ExecRequest{
		JobId: "stubborn", Shell: `trap 'echo no' TERM; echo ready; while :; do sleep 0.05; done`,
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for stream.Receive() && stream.Msg().GetOutput() == nil {
	}
	if _, err := s.Signal(t.Context(), connect.NewRequest(&agentv1.SignalRequest{JobId: "stubborn", Signal: 15, KillAfterMs: enoughMs})); err != nil {
		t.Fatal(err)
	}
	r, err := follow(stream)
	if err != nil {
		t.Fatal(err)
	}
	if r.last.GetExitCode() != 137 || r.last.GetEndCause() != agentv1.EndCause_END_CAUSE_SIGNAL || !strings.Contains(r.stdout.String(), "no") {
		t.Errorf("job: %v, output %q", r.last, r.stdout.String())
	}
	_, err = s.Signal(t.Context(), connect.NewRequest(&agentv1.SignalRequest{JobId: "stubborn", Signal: 65}))
	wantCode(t, err, connect.CodeInvalidArgument, "65")
}

func TestJobTable(t *testing.T) {
	s := start(t)
	s.exec(t, &agentv1.ExecRequest{JobId: "a", Argv: []string{"true"}})
	_, err := s.tryExec(t, &agentv1.ExecRequest{JobId: "a", Argv: []string{"true"}})
	wantCode(t, err, connect.CodeAlreadyExists, "attach")
	_, err = s.GetJob(t.Context(), connect.NewRequest(&agentv1.GetJobRequest{JobId: "b"}))
	wantCode(t, err, connect.CodeNotFound, `"b"`)
	s.exec(t, &agentv1.ExecRequest{JobId: "c", Argv: []string{"false"}})
	for i := range maxEnded - 1 {
		s.exec(t, &agentv1.ExecRequest{JobId: fmt.Sprint("n", i), Argv: []string{"true"}})
	}
	res, err := s.ListJobs(t.Context(), connect.NewRequest(&agentv1.ListJobsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	jobs := res.Msg.GetJobs()
	if len(jobs) != maxEnded || jobs[0].GetJobId() != "c" || jobs[0].GetExitCode() != 1 {
		t.Errorf("%d jobs, the first is %v", len(jobs), jobs[0])
	}
}

func TestCloseKillsJobs(t *testing.T) {
	a, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.planJob(&agentv1.ExecRequest{Shell: "sleep 300 & exec sleep 300"})
	if err != nil {
		t.Fatal(err)
	}
	j, f, err := a.launch(p)
	if err != nil {
		t.Fatal(err)
	}
	j.out.unfollow(f)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if alive(j.pid) {
		t.Error("the job lives on")
	}
	if _, _, err := a.launch(p); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("start after close: %v", err)
	}
}

// TestCloseWhileJobStarts checks that a job that starts meanwhile is killed too.
func TestCloseWhileJobStarts(t *testing.T) {
	for range 20 {
		a, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.planJob(&agentv1.ExecRequest{Argv: []string{"/bin/sleep", "300"}})
		if err != nil {
			t.Fatal(err)
		}
		var j *job
		over := make(chan struct{})
		go func() {
			defer close(over)
			var f *follower
			if j, f, err = a.launch(p); err == nil {
				j.out.unfollow(f)
			}
		}()
		for begun := false; !begun && !closed(over); runtime.Gosched() {
			a.jobs.mu.Lock()
			begun = len(a.jobs.byID) > 0
			a.jobs.mu.Unlock()
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		<-over
		switch {
		case err != nil && connect.CodeOf(err) != connect.CodeUnavailable:
			t.Error(err)
		case err == nil && alive(j.pid):
			t.Errorf("process %d lives on", j.pid)
		}
	}
}

// TestTableSettles checks that a closed table waits for the jobs that start, for a while.
func TestTableSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, end := range []func(*jobTable, string){
			func(table *jobTable, id string) { table.add(&job{id: id, done: make(chan struct{})}) },
			(*jobTable).release,
		} {
			table := newJobTable()
			id, err := table.reserve("")
			if err != nil {
				t.Fatal(err)
			}
			table.close()
			limit, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := table.settle(limit); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("settled while a job starts: %v", err)
			}
			settled := make(chan error, 1)
			go func() { settled <- table.settle(t.Context()) }()
			synctest.Wait()
			if len(settled) > 0 {
				t.Error("it does not wait for the job")
			}
			end(table, id)
			if err := <-settled; err != nil {
				t.Error(err)
			}
			if _, err := table.reserve(""); err == nil {
				t.Error("a closed table takes a job")
			}
		}
	})
}

func BenchmarkExecTrue(b *testing.B) {
	s := start(b)
	b.Run("agent", func(b *testing.B) {
		for b.Loop() {
			s.exec(b, &agentv1.ExecRequest{Argv: []string{"/bin/true"}})
		}
	})
	b.Run("floor", func(b *testing.B) {
		for b.Loop() {
			pid, err := forkTrue()
			if err != nil {
				b.Fatal(err)
			}
			var ws unix.WaitStatus
			if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// forkTrue is the least that running a program can cost.
func forkTrue() (int, error) {
	return syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{})
}
