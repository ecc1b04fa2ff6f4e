package service

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// The verbs of code and of observation, for the tests of isolation and scopes.
func init() {
	ref := sandbox.ContextRef{Language: sandbox.Python}
	for verb, call := range map[string]func(ctx context.Context, s sandbox.Service, sbx string) error{
		"RunCode": func(ctx context.Context, s sandbox.Service, sbx string) error {
			_, err := s.RunCode(ctx, sbx, sandbox.RunCodeRequest{Language: sandbox.Bash, Code: "true"}, nil)
			return err
		},
		"ListContexts": func(ctx context.Context, s sandbox.Service, sbx string) error {
			_, err := s.ListContexts(ctx, sbx)
			return err
		},
		"InterruptContext": func(ctx context.Context, s sandbox.Service, sbx string) error {
			_, err := s.InterruptContext(ctx, sbx, ref)
			return err
		},
		"RestartContext": func(ctx context.Context, s sandbox.Service, sbx string) error {
			_, err := s.RestartContext(ctx, sbx, ref)
			return err
		},
		"DeleteContext": func(ctx context.Context, s sandbox.Service, sbx string) error { return s.DeleteContext(ctx, sbx, ref) },
		"ListProcesses": func(ctx context.Context, s sandbox.Service, sbx string) error {
			_, err := s.ListProcesses(ctx, sbx, sandbox.Page{})
			return err
		},
		"SignalProcess": func(ctx context.Context, s sandbox.Service, sbx string) error {
			return s.SignalProcess(ctx, sbx, 1<<29, "CONT")
		},
		"GetEnv": func(ctx context.Context, s sandbox.Service, sbx string) error {
			_, err := s.GetEnv(ctx, sbx, sandbox.Page{})
			return err
		},
		"SetEnv": func(ctx context.Context, s sandbox.Service, sbx string) error {
			_, err := s.SetEnv(ctx, sbx, sandbox.SetEnvRequest{Set: map[string]string{"EVIL": "1"}})
			return err
		},
		"StatsSeries": func(ctx context.Context, s sandbox.Service, sbx string) error {
			_, err := s.StatsSeries(ctx, sbx, sandbox.StatsSeriesRequest{})
			return err
		},
		"ListDeliveries": func(ctx context.Context, s sandbox.Service, sbx string) error {
			_, err := s.ListDeliveries(ctx, sbx, sandbox.Page{})
			return err
		},
	} {
		onSandbox[verb] = call
		scopeOf[verb] = sandbox.ScopeSandboxesWrite
	}
	for _, verb := range []string{"ListContexts", "ListProcesses", "GetEnv", "StatsSeries", "ListDeliveries"} {
		scopeOf[verb] = sandbox.ScopeSandboxesRead
	}
	notOnSandbox["ListStats"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.ListStats(ctx, sandbox.StatsRequest{})
		return err
	}
	scopeOf["ListStats"] = sandbox.ScopeSandboxesRead
	notOnSandbox["RunIsolated"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.RunIsolated(ctx, sandbox.RunIsolatedRequest{RunCodeRequest: sandbox.RunCodeRequest{Language: sandbox.Bash, Code: "true"}}, nil)
		return err
	}
	scopeOf["RunIsolated"] = sandbox.ScopeSandboxesWrite
}

// bash runs code in the default context of Bash.
func (w *harness) bash(id, code string) *sandbox.CodeResult {
	w.t.Helper()
	r, err := w.RunCode(asRed(w.t), id, sandbox.RunCodeRequest{Language: "sh", Code: code}, nil)
	must(w.t, err)
	return r
}

func TestRunCode(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Env: map[string]string{"FROM": "sandbox"}})
	w.bash(sbx.ID, "x=6; echo lost")
	got := w.bash(sbx.ID, `echo "$((x*7)) $FROM"`)
	if got.Stdout != "42 sandbox\n" || got.Count != 2 || got.Context != validate.DefaultContext || got.Language != sandbox.Bash || got.SandboxID != sbx.ID || got.ExitCode != 0 {
		t.Errorf("got %+v", got)
	}
	other, err := w.RunCode(asRed(t), sbx.ID, sandbox.RunCodeRequest{Language: sandbox.Bash, Context: "b", Code: `echo "[$x]"`}, nil)
	must(t, err)
	fresh, err := w.RunCode(asRed(t), sbx.ID, sandbox.RunCodeRequest{Language: sandbox.Bash, Fresh: true, Code: `echo "[$x]"`}, nil)
	must(t, err)
	if other.Stdout != "[]\n" || fresh.Stdout != "[]\n" || fresh.Context != "" {
		t.Errorf("the state went over: %+v, %+v", other, fresh)
	}
	list, err := w.ListContexts(asRed(t), sbx.ID)
	must(t, err)
	var names []string
	for _, c := range list.Items {
		names = append(names, string(c.Language)+"/"+c.Name)
	}
	if diff := cmp.Diff([]string{"bash/default", "bash/b"}, names); diff != "" {
		t.Error(diff)
	}
	if _, err := w.RestartContext(asRed(t), sbx.ID, sandbox.ContextRef{Language: "shell"}); err != nil {
		t.Error(err)
	}
	if got := w.bash(sbx.ID, `echo "[$x]"`); got.Stdout != "[]\n" {
		t.Errorf("after a restart: %+v", got)
	}
	must(t, w.DeleteContext(asRed(t), sbx.ID, sandbox.ContextRef{Language: sandbox.Bash, Name: "b"}))
	must(t, w.DeleteContext(asRed(t), sbx.ID, sandbox.ContextRef{Language: sandbox.Bash, Name: "b"}))
}

// TestRunCodeStreams gets output while the code runs, and the result last.
func TestRunCodeStreams(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	var events []string
	r, err := w.RunCode(asRed(t), sbx.ID, sandbox.RunCodeRequest{Language: sandbox.Bash, Code: "echo one; " + untilGo + "; echo two >&2; exit 3"}, func(e sandbox.CodeEvent) error {
		switch {
		case e.Result != nil:
			events = append(events, "result")
		default:
			events = append(events, string(e.Stream)+" "+string(e.Data))
		}
		if len(events) == 1 {
			return w.goOn(sbx.ID)
		}
		return nil
	})
	must(t, err)
	if diff := cmp.Diff([]string{"stdout one\n", "stderr two\n", "result"}, events); diff != "" {
		t.Error(diff)
	}
	if r.ExitCode != 3 || r.Stdout != "one\n" || r.Stderr != "two\n" {
		t.Errorf("got %+v", r)
	}
}

// TestRunCodeEnds cancels code, and makes a sink fail: the code ends and its context
// can still be used.
func TestRunCodeEnds(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	mine := errors.New("the caller's own error")
	for name, stop := range map[string]func(cancel func()) error{
		"cancelled":  func(cancel func()) error { cancel(); return nil },
		"sink fails": func(func()) error { return mine },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(asRed(t))
			defer cancel()
			_, err := w.RunCode(ctx, sbx.ID, sandbox.RunCodeRequest{Language: sandbox.Bash, Code: "touch runs; echo begun; while :; do sleep 0.05; done; touch never"},
				func(sandbox.CodeEvent) error { return stop(cancel) })
			if name == "cancelled" {
				wantCode(t, err, sandbox.CodeCancelled)
			} else if err != mine {
				t.Errorf("got %v", err)
			}
			if got := w.bash(sbx.ID, "echo again"); got.Stdout != "again\n" {
				t.Errorf("afterwards: %+v", got)
			}
		})
	}
}

func TestRunCodeTimeout(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	w.bash(sbx.ID, "kept=1")
	r, err := w.RunCode(asRed(t), sbx.ID, sandbox.RunCodeRequest{Language: sandbox.Bash, Code: "echo begun; sleep 60", TimeoutMS: 2000}, nil)
	must(t, err)
	if !r.TimedOut || r.ExitCode != 124 || r.Stdout != "begun\n" {
		t.Errorf("got %+v", r)
	}
}

func TestRunCodeRefuses(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	many := map[string]string{"A=B": ""}
	for name, c := range map[string]struct {
		req  sandbox.RunCodeRequest
		code sandbox.Code
	}{
		"no language":      {sandbox.RunCodeRequest{Code: "x"}, sandbox.CodeInvalid},
		"unknown language": {sandbox.RunCodeRequest{Language: "cobol", Code: "x"}, sandbox.CodeInvalid},
		"no code":          {sandbox.RunCodeRequest{Language: "py"}, sandbox.CodeInvalid},
		"much code":        {sandbox.RunCodeRequest{Language: "py", Code: strings.Repeat("#", sandbox.MaxCodeBytes+1)}, sandbox.CodeTooLarge},
		"no text":          {sandbox.RunCodeRequest{Language: "py", Code: "\xff"}, sandbox.CodeInvalid},
		"a NUL":            {sandbox.RunCodeRequest{Language: "py", Code: "a\x00"}, sandbox.CodeInvalid},
		"odd context":      {sandbox.RunCodeRequest{Language: "py", Code: "1", Context: "a/b"}, sandbox.CodeInvalid},
		"long context":     {sandbox.RunCodeRequest{Language: "py", Code: "1", Context: strings.Repeat("a", 64)}, sandbox.CodeInvalid},
		"fresh in context": {sandbox.RunCodeRequest{Language: "py", Code: "1", Context: "a", Fresh: true}, sandbox.CodeInvalid},
		"odd env":          {sandbox.RunCodeRequest{Language: "py", Code: "1", Env: many}, sandbox.CodeInvalid},
		"odd user":         {sandbox.RunCodeRequest{Language: "py", Code: "1", User: "a b"}, sandbox.CodeInvalid},
		"long":             {sandbox.RunCodeRequest{Language: "py", Code: "1", TimeoutMS: sandbox.MaxCodeTimeout.Milliseconds() + 1}, sandbox.CodeInvalid},
		"negative":         {sandbox.RunCodeRequest{Language: "py", Code: "1", TimeoutMS: -1}, sandbox.CodeInvalid},
		"keeps much":       {sandbox.RunCodeRequest{Language: "py", Code: "1", KeepBytes: sandbox.MaxKeepBytes + 1}, sandbox.CodeInvalid},
		"much input":       {sandbox.RunCodeRequest{Language: "py", Code: "1", Stdin: make([]byte, sandbox.MaxStdinBytes+1)}, sandbox.CodeTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.RunCode(asRed(t), sbx.ID, c.req, nil)
			wantCode(t, err, c.code)
			_, err = w.RunIsolated(asRed(t), sandbox.RunIsolatedRequest{RunCodeRequest: c.req}, nil)
			wantCode(t, err, c.code)
		})
	}
	_, err := w.RunIsolated(asRed(t), sandbox.RunIsolatedRequest{RunCodeRequest: sandbox.RunCodeRequest{Language: "py", Code: "1", Context: "a"}}, nil)
	wantCode(t, err, sandbox.CodeInvalid)
}

// TestRunIsolated runs code in a sandbox that is gone when the call returns, whether
// the code succeeds or not.
func TestRunIsolated(t *testing.T) {
	w := newHarness(t)
	mine := errors.New("the caller's own error")
	for _, c := range []struct {
		name, code string
		stop       func(cancel func()) error
		want       func(*sandbox.CodeResult, error) bool
	}{
		{"works", "echo hi", nil, func(r *sandbox.CodeResult, err error) bool {
			return err == nil && r.Stdout == "hi\n" && r.SandboxID != "" && r.Context == ""
		}},
		{"fails", "exit 5", nil, func(r *sandbox.CodeResult, err error) bool { return err == nil && r.ExitCode == 5 }},
		{"cancelled", "echo begun; sleep 60", func(cancel func()) error { cancel(); return nil },
			func(_ *sandbox.CodeResult, err error) bool { return sandbox.CodeOf(err) == sandbox.CodeCancelled }},
		{"sink fails", "echo begun; sleep 60", func(func()) error { return mine }, func(_ *sandbox.CodeResult, err error) bool { return err == mine }},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(asRed(t))
			defer cancel()
			r, err := w.RunIsolated(ctx, sandbox.RunIsolatedRequest{RunCodeRequest: sandbox.RunCodeRequest{Language: sandbox.Bash, Code: c.code, TimeoutMS: 90_000}},
				func(e sandbox.CodeEvent) error {
					if c.stop != nil {
						return c.stop(cancel)
					}
					return nil
				})
			if !c.want(r, err) {
				t.Errorf("got %+v, %v", r, err)
			}
			list, err := w.List(asRed(t), sandbox.ListRequest{})
			must(t, err)
			if len(list.Items) != 0 {
				t.Errorf("left: %+v", list.Items)
			}
		})
	}
	all, err := w.List(asRed(t), sandbox.ListRequest{States: []sandbox.State{sandbox.StateKilled}})
	must(t, err)
	for _, sbx := range all.Items {
		// A crash of the daemon in between must not leave it for ever.
		if sbx.LifetimeSeconds != 150 {
			t.Errorf("its lifetime is %d s", sbx.LifetimeSeconds)
		}
	}
	w.agree()
}

// TestRunIsolatedLeaves answers the caller while the remains of its sandbox are still
// being removed, and makes the removal fail.
func TestRunIsolatedLeaves(t *testing.T) {
	w := newHarness(t)
	run := func() string {
		t.Helper()
		r, err := w.RunIsolated(asRed(t), sandbox.RunIsolatedRequest{RunCodeRequest: sandbox.RunCodeRequest{Language: sandbox.Bash, Code: "echo hi"}}, nil)
		must(t, err)
		r2, err := w.Get(asRed(t), r.SandboxID)
		must(t, err)
		if r2.State != sandbox.StateKilled || r2.EndedAt == nil {
			t.Errorf("after the call the sandbox is %s", r2.State)
		}
		return r.SandboxID
	}
	removed := make(chan struct{})
	w.state.Trap(memory.StepDestroy, memory.Before, func(context.Context) error { <-removed; return nil })
	if id := run(); !w.record(id).Held {
		t.Error("nothing says that something is left to remove")
	}
	close(removed)
	w.agree()
	// What cannot be removed is removed by a repair.
	w.state.Fail(memory.StepDestroy, memory.Before, errors.New("busy"))
	id := run()
	wait(t, func() bool { return w.Repair(t.Context()) == nil && !w.record(id).Held }, func() string { return "the sandbox is not removed" })
	w.agree()
	// A sandbox that cannot be ended is destroyed before the caller is answered, and so
	// is one beyond maxLeaving.
	w.state.Fail(memory.StepEnd, memory.Before, errors.New("deaf"))
	run()
	w.agree()
	hold := make(chan struct{})
	leaves := make(chan struct{})
	for range 16 {
		w.state.Trap(memory.StepDestroy, memory.Before, func(context.Context) error { leaves <- struct{}{}; <-hold; return nil })
		run()
		<-leaves
	}
	if id := run(); w.record(id).Held {
		t.Error("more leave at once than may")
	}
	close(hold)
	w.agree()
}

// TestRunCodeWakes runs code in a paused sandbox, and keeps a step of the
// history before code.
func TestRunCodeWakes(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{History: 3})
	w.bash(sbx.ID, "true")
	_, err := w.Pause(asRed(t), sbx.ID)
	must(t, err)
	if got := w.bash(sbx.ID, "echo awake"); got.Stdout != "awake\n" {
		t.Errorf("got %+v", got)
	}
	steps, err := w.ListSnapshots(asRed(t), sandbox.ListSnapshotsRequest{Sandbox: sbx.ID, Automatic: true})
	must(t, err)
	if len(steps.Items) != 2 || steps.Items[0].Label != "before bash code" {
		t.Errorf("steps are %+v", steps.Items)
	}
}

// TestCodeJob runs code as a job.
func TestCodeJob(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	job, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Code: &sandbox.JobCode{Language: "sh", Code: "echo $((6*7)); exit 4"}, Background: true}, nil)
	must(t, err)
	job, err = w.Attach(asRed(t), sbx.ID, job.ID, sandbox.AttachRequest{}, nil)
	must(t, err)
	out, err := w.ReadOutput(asRed(t), sbx.ID, job.ID, sandbox.OutputRequest{Stream: sandbox.Stdout})
	must(t, err)
	if job.ExitCode != 4 || string(out.Data) != "42\n" || job.Language != sandbox.Bash {
		t.Errorf("got %+v, %q", job, out.Data)
	}
	// A command whose first word is a language is still a command.
	if job, err = w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Command: []string{"bash", "/nowhere.sh"}}, nil); err != nil || job.Language != "" {
		t.Errorf("a command is %+v, %v", job, err)
	}
	for _, req := range []sandbox.ExecRequest{
		{Code: &sandbox.JobCode{Language: "sh", Code: "true"}, Shell: "true"},
		{Code: &sandbox.JobCode{Language: "sh", Code: "true"}, Command: []string{"true"}},
		{Code: &sandbox.JobCode{Language: "sh"}},
		{Code: &sandbox.JobCode{Code: "true"}},
	} {
		_, err := w.Exec(asRed(t), sbx.ID, req, nil)
		wantCode(t, err, sandbox.CodeInvalid)
	}
}

// TestCodeIsUse: a sandbox in which code runs is not idle.
func TestCodeIsUse(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{IdleTimeoutSeconds: ptr(int64(1))})
	began, done := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(asRed(t))
	defer cancel()
	go func() {
		_, err := w.RunCode(ctx, sbx.ID, sandbox.RunCodeRequest{Language: sandbox.Bash, Code: "echo begun; sleep 60"}, func(sandbox.CodeEvent) error {
			select {
			case <-began:
			default:
				close(began)
			}
			return nil
		})
		done <- err
	}()
	<-began
	time.Sleep(1100 * time.Millisecond)
	must(t, w.Expire(t.Context(), sbx.ID))
	if got := w.get(sbx.ID); got.State != sandbox.StateRunning {
		t.Errorf("it is %s: %s", got.State, got.Reason)
	}
	cancel()
	wantCode(t, <-done, sandbox.CodeCancelled)
}
