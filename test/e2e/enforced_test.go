package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// proof shows, in a real sandbox, that a field of a request takes effect or is
// refused.
type proof func(t *testing.T, d *covetest.Daemon)

// jsonFields lists the fields of a request by their JSON names; of nested
// structs those of the inner one.
func jsonFields(t reflect.Type) []string {
	var all []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() != reflect.Struct {
			all = append(all, name)
			continue
		}
		for _, inner := range jsonFields(f.Type) {
			all = append(all, strings.TrimPrefix(name+"."+inner, "."))
		}
	}
	return all
}

// everyField runs the proof of each field of a request type, some at a time if they
// are apart from each other. A field without a proof fails, and so does a proof
// without a field.
func everyField[T any](t *testing.T, apart bool, proofs map[string]proof) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		known := map[string]bool{}
		for _, f := range jsonFields(reflect.TypeFor[T]()) {
			known[f] = true
			t.Run(f, func(t *testing.T) {
				if proofs[f] == nil {
					t.Fatalf("nothing shows that %s takes effect or is refused", f)
				}
				if apart {
					t.Parallel()
				}
				proofs[f](t, d)
			})
		}
		for f := range proofs {
			if !known[f] {
				t.Errorf("there is a proof for %s, which %v does not have", f, reflect.TypeFor[T]())
			}
		}
	})
}

// with makes a sandbox for the time of a test.
func with(t *testing.T, d *covetest.Daemon, change ...func(*sandbox.CreateRequest)) *sandbox.Sandbox {
	t.Helper()
	s := d.Create(t, covetest.Small(change...))
	t.Cleanup(func() {
		if _, err := d.Client.Kill(context.WithoutCancel(t.Context()), s.ID); err != nil {
			t.Errorf("kill %s: %v", s.ID, err)
		}
	})
	return s
}

// found checks that exactly one of two filters finds a sandbox.
func found(t *testing.T, d *covetest.Daemon, id string, in, out sandbox.ListRequest) {
	t.Helper()
	for want, req := range map[bool]sandbox.ListRequest{true: in, false: out} {
		list, err := d.Client.List(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		got := false
		for _, s := range list.Items {
			got = got || s.ID == id
		}
		if got != want {
			t.Errorf("%+v finds it: %v, want %v", req, got, want)
		}
	}
}

// processLimit returns how many of 100 processes can run at once.
func processLimit(t *testing.T, d *covetest.Daemon, id string) int {
	t.Helper()
	res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Command: []string{"perl", "-e",
		`my $n = 0; for (1..100) { my $p = fork; last unless defined $p; if (!$p) { sleep 60; exit } push @p, $p; $n++ } kill 9, @p; print $n`}})
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if _, err := fmt.Sscan(res.Stdout, &n); err != nil {
		t.Fatalf("%q, %q: %v", res.Stdout, res.Stderr, err)
	}
	return n
}

// takes reports whether a program gets mib of memory and keeps it for keep seconds: one
// if it fits, and many if the program should be killed, since a busy machine may be
// slow to do that.
func takes(t *testing.T, d *covetest.Daemon, id string, mib, keep int) bool {
	t.Helper()
	res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Command: []string{"perl", "-e",
		`my ($n, $keep) = @ARGV; my @a; for (1 .. $n / 8) { push @a, "x" x (8 << 20) } sleep $keep; print "got it"`, fmt.Sprint(mib), fmt.Sprint(keep)}, TimeoutMS: 300_000})
	if err != nil {
		t.Fatal(err)
	}
	got := res.Stdout == "got it"
	if !got && res.Job.EndCause != sandbox.EndOutOfMemory {
		t.Errorf("a program of %d MiB ended with %+v, stderr %q; want out_of_memory", mib, res.Job, res.Stderr)
	}
	return got
}

// In "make test", TestExecEnforcedOrRefused, TestLimitsBite, and TestCreateEnforcedOrRefused of
// package service, stand for it.
func TestMoreCreateEnforcedOrRefused(t *testing.T) {
	everyField[sandbox.CreateRequest](t, true, map[string]proof{
		"network": createNetwork, "secrets": createSecrets, "ports": createPorts, "mounts": createMounts,
		"name": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.Name = "called" })
			d.Shows(t, "called", "hostname", "called")
			found(t, d, s.ID, sandbox.ListRequest{Name: "called"}, sandbox.ListRequest{Name: "other"})
			_, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Name: "called"})
			covetest.WantCode(t, err, sandbox.CodeConflict)
		},
		"namespace": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.Namespace = "ns" })
			found(t, d, s.ID, sandbox.ListRequest{Namespace: "ns"}, sandbox.ListRequest{Namespace: "other"})
		},
		"metadata": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.Metadata = map[string]string{"task": "é 1"} })
			found(t, d, s.ID, sandbox.ListRequest{Metadata: map[string]string{"task": "é 1"}}, sandbox.ListRequest{Metadata: map[string]string{"task": "2"}})
		},
		"template": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.Template = "host" })
			found(t, d, s.ID, sandbox.ListRequest{Template: "host"}, sandbox.ListRequest{Template: "debian"})
			_, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Template: "no-such-template"})
			covetest.WantCode(t, err, sandbox.CodeNotFound)
			// Known, but nobody has built it here.
			if _, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Template: "debian"}); err == nil || !strings.Contains(err.Error(), "build") {
				t.Errorf("a template that is not built: %v", err)
			}
		},
		"resources.vcpus": func(t *testing.T, d *covetest.Daemon) {
			for _, n := range []int{1, 2} {
				s := with(t, d, func(r *sandbox.CreateRequest) { r.Resources.VCPUs = n })
				d.Shows(t, s.ID, "nproc", fmt.Sprint(n))
			}
		},
		"fit_resources": func(t *testing.T, d *covetest.Daemon) {
			big := func(r *sandbox.CreateRequest) { r.Resources.VCPUs = sandbox.MaxVCPUs }
			if _, err := d.Client.Create(t.Context(), covetest.Small(big)); sandbox.CodeOf(err) != sandbox.CodeInvalid && runtime.NumCPU() < sandbox.MaxVCPUs {
				t.Errorf("more processors than there are: %v", err)
			}
			s := with(t, d, big, func(r *sandbox.CreateRequest) { r.FitResources = true })
			d.Shows(t, s.ID, "nproc", fmt.Sprint(s.Resources.VCPUs))
			if s.Resources.VCPUs > runtime.NumCPU() {
				t.Errorf("it has %d processors, the machine %d", s.Resources.VCPUs, runtime.NumCPU())
			}
		},
		"resources.memory_mib": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.Resources.MemoryMiB = 200 })
			d.Shows(t, s.ID, `awk '/MemTotal/ {print $2}' /proc/meminfo`, fmt.Sprint(200<<10))
			if !takes(t, d, s.ID, 120, 1) || takes(t, d, s.ID, 260, 60) {
				t.Error("want 120 MiB to fit, and 260 not to")
			}
		},
		"resources.disk_mib": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.Resources.DiskMiB = 32 })
			d.Shows(t, s.ID, "df -k --output=size / | tail -1", fmt.Sprint(32<<10))
			res, err := d.Exec(t.Context(), s.ID, sandbox.ExecRequest{Shell: "head -c 20M /dev/zero > /workspace/a && head -c 20M /dev/zero > /workspace/b"})
			if err != nil || !strings.Contains(res.Stderr, "No space left") {
				t.Errorf("40 MiB on a disk of 32: %+v, %v", res, err)
			}
		},
		"resources.max_pids": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.Resources.MaxPIDs = 48 })
			if n := processLimit(t, d, s.ID); n > 48 || n < 20 {
				t.Errorf("%d processes at once, want somewhat less than 48", n)
			}
		},
		"env": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.Env = map[string]string{"COVE_X": "a b\n"} })
			d.Shows(t, s.ID, `printf %s "$COVE_X" | od -An -tx1`, "61 20 62 0a")
		},
		"user": func(t *testing.T, d *covetest.Daemon) {
			for user, want := range map[string]string{"root": "0 0", "user": "1000 1000", "4321:4322": "4321 4322"} {
				s := with(t, d, func(r *sandbox.CreateRequest) { r.User = user })
				d.Shows(t, s.ID, `echo $(id -u) $(id -g)`, want)
			}
			_, err := d.Client.Create(t.Context(), covetest.Small(func(r *sandbox.CreateRequest) { r.User = "nobody-knows-me" }))
			if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "nobody-knows-me") {
				t.Errorf("an unknown user: %v (%s), want invalid and its name", err, sandbox.CodeOf(err))
			}
		},
		"workdir": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.WorkDir = "/usr/bin" })
			d.Shows(t, s.ID, "pwd", "/usr/bin")
			if _, err := d.Client.StatFile(t.Context(), s.ID, "env"); err != nil {
				t.Errorf("a relative path: %v", err)
			}
		},
		"lifetime_seconds": func(t *testing.T, d *covetest.Daemon) {
			s := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.LifetimeSeconds = ptr(int64(1)) }))
			ends(t, d, s.ID, *s.ExpiresAt, "its lifetime of 1s ended")
		},
		"idle_timeout_seconds": func(t *testing.T, d *covetest.Daemon) {
			s := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.IdleTimeoutSeconds = ptr(int64(1)) }))
			ends(t, d, s.ID, s.LastActiveAt.Add(time.Second), "it was idle for 1s")
		},
		"snapshot": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d)
			d.Sh(t, s.ID, "echo kept > /tmp/kept")
			snap, err := d.Client.CreateSnapshot(t.Context(), s.ID, sandbox.CreateSnapshotRequest{})
			if err != nil {
				t.Fatal(err)
			}
			made, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Snapshot: snap.ID})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Client.Kill(context.WithoutCancel(t.Context()), made.ID)
			d.Shows(t, made.ID, "cat /tmp/kept", "kept")
			_, err = d.Client.Create(t.Context(), sandbox.CreateRequest{Snapshot: "none"})
			covetest.WantCode(t, err, sandbox.CodeNotFound)
		},
		"history": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.History = 2 })
			hasSteps(t, d, s.ID, 2)
			_, err := d.Client.Create(t.Context(), sandbox.CreateRequest{History: sandbox.MaxHistory + 1})
			covetest.WantCode(t, err, sandbox.CodeInvalid)
		},
		"checkpoint_interval_seconds": func(t *testing.T, d *covetest.Daemon) {
			s := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.CheckpointIntervalSeconds = ptr(int64(60)) }))
			keeps(t, d, s.ID, true)
			_, err := d.Client.Create(t.Context(), sandbox.CreateRequest{CheckpointIntervalSeconds: ptr(int64(59))})
			covetest.WantCode(t, err, sandbox.CodeInvalid)
		},
		"dedicated": func(t *testing.T, d *covetest.Daemon) { // TestDedicated has nodes for it
			_, err := d.Client.Create(t.Context(), covetest.Small(func(r *sandbox.CreateRequest) { r.Dedicated = ptr(true) }))
			covetest.WantCode(t, err, sandbox.CodeUnsupported)
		},
		"paused_lifetime_seconds": func(t *testing.T, d *covetest.Daemon) {
			s := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.PausedLifetimeSeconds = 1 }))
			if _, err := d.Client.Pause(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			endsPaused(t, d, s.ID)
		},
		"on_timeout": func(t *testing.T, d *covetest.Daemon) {
			p := with(t, d, func(r *sandbox.CreateRequest) { r.OnTimeout, r.IdleTimeoutSeconds = sandbox.ActionPause, ptr(int64(1)) })
			pauses(t, d, p.ID)
			_, err := d.Client.Create(t.Context(), sandbox.CreateRequest{OnTimeout: "explode"})
			covetest.WantCode(t, err, sandbox.CodeInvalid)
			if s := with(t, d, func(r *sandbox.CreateRequest) { r.OnTimeout = sandbox.ActionKill }); s.OnTimeout != sandbox.ActionKill {
				t.Errorf("on timeout %s", s.OnTimeout)
			}
		},
	})
}

// hasSteps runs three commands and counts the steps that are kept.
func hasSteps(t *testing.T, d *covetest.Daemon, id string, want int) {
	t.Helper()
	for range 3 {
		d.Sh(t, id, "true")
	}
	list, err := d.Client.ListSnapshots(t.Context(), sandbox.ListSnapshotsRequest{Sandbox: id, Automatic: true})
	if err != nil || len(list.Items) != want {
		t.Errorf("the steps are %+v, %v; want %d", list, err, want)
	}
}

// pauses waits until a sandbox that is not used is paused, and uses it then.
func pauses(t *testing.T, d *covetest.Daemon, id string) {
	t.Helper()
	over := func() bool {
		got, err := d.Client.Get(t.Context(), id)
		return err == nil && got.State == sandbox.StatePaused
	}
	if !covetest.Eventually(time.Second+late, over) {
		t.Errorf("the sandbox is not paused after %v", time.Second+late)
	}
	d.Shows(t, id, "echo awake", "awake")
}

// endsPaused waits until a sandbox that stays paused has ended.
func endsPaused(t *testing.T, d *covetest.Daemon, id string) {
	t.Helper()
	var got *sandbox.Sandbox
	if !covetest.Eventually(time.Second+late, func() bool {
		var err error
		got, err = d.Client.Get(t.Context(), id)
		return err == nil && got.State == sandbox.StateKilled
	}) || got.Reason != "it was paused for 1s" {
		t.Errorf("a sandbox that stays paused: %+v", got)
	}
}

func TestExecEnforcedOrRefused(t *testing.T) {
	// one is the sandbox of all proofs on a daemon.
	one := func(t *testing.T, d *covetest.Daemon) string {
		s, err := d.Client.Get(t.Context(), "one")
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			s = d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Name = "one" }))
		} else if err != nil {
			t.Fatal(err)
		}
		return s.ID
	}
	run := func(t *testing.T, d *covetest.Daemon, req sandbox.ExecRequest) covetest.Result {
		t.Helper()
		res, err := d.Exec(t.Context(), one(t, d), req)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	says := func(req sandbox.ExecRequest, want string) proof {
		return func(t *testing.T, d *covetest.Daemon) {
			if res := run(t, d, req); strings.TrimSpace(res.Stdout) != want {
				t.Errorf("stdout %q, stderr %q; want %q", res.Stdout, res.Stderr, want)
			}
		}
	}
	everyField[sandbox.ExecRequest](t, false, map[string]proof{
		"webhook": execWebhook,
		"code":    says(sandbox.ExecRequest{Code: &sandbox.JobCode{Language: sandbox.Python, Code: "print(6 * 7)"}}, "42"),
		"command": says(sandbox.ExecRequest{Command: []string{"printf", "%s|", "a b", "$HOME", "", "*"}}, "a b|$HOME||*|"),
		"shell":   says(sandbox.ExecRequest{Shell: `x="a b"; echo ${BASH_VERSION:+bash} "$x" | tr a-z A-Z`}, "BASH A B"),
		"env":     says(sandbox.ExecRequest{Shell: `echo "$X-$HOME"`, Env: map[string]string{"X": "y", "HOME": "/h"}}, "y-/h"),
		"workdir": says(sandbox.ExecRequest{Shell: "pwd", WorkDir: "/usr/lib"}, "/usr/lib"),
		"user":    says(sandbox.ExecRequest{Shell: "id -u; whoami", User: "root"}, "0\nroot"),
		"timeout_ms": func(t *testing.T, d *covetest.Daemon) {
			longEnough(t, 400*time.Millisecond, func(n time.Duration) bool {
				began := time.Now()
				res := run(t, d, sandbox.ExecRequest{Shell: "echo partial; sleep 4242 & sleep 4242", TimeoutMS: n.Milliseconds()})
				if res.Job.EndCause != sandbox.EndTimeout || res.Stdout != "partial\n" && res.Stdout != "" || time.Since(began) > n+covetest.DetectionLimit {
					t.Errorf("after %v: %+v, stdout %q", time.Since(began), res.Job, res.Stdout)
				}
				return res.Stdout != "" // or the shell had not begun when its time was over
			})
			nobody(t, d, one(t, d), "sleep 4242")
		},
		"stdin": says(sandbox.ExecRequest{Command: []string{"tr", "a-z", "A-Z"}, Stdin: []byte("input")}, "INPUT"),
		"open_stdin": func(t *testing.T, d *covetest.Daemon) {
			id := one(t, d)
			job, err := d.Client.Exec(t.Context(), id, sandbox.ExecRequest{Command: []string{"cat"}, Stdin: []byte("a"), OpenStdin: true, Background: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Client.WriteInput(t.Context(), id, job.ID, []byte("b"), true); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			job, err = d.Client.Attach(t.Context(), id, job.ID, sandbox.AttachRequest{}, func(ev sandbox.JobEvent) error { out.Write(ev.Data); return nil })
			if err != nil || out.String() != "ab" || job.State != sandbox.JobExited {
				t.Errorf("%+v, %v, wrote %q", job, err, out.String())
			}
		},
		"background": func(t *testing.T, d *covetest.Daemon) {
			began := time.Now()
			res := run(t, d, sandbox.ExecRequest{Command: []string{"sleep", "30"}, Background: true})
			if res.Job.State != sandbox.JobRunning || time.Since(began) > covetest.DetectionLimit {
				t.Errorf("after %v: %+v", time.Since(began), res.Job)
			}
			job, err := d.Client.SignalJob(t.Context(), one(t, d), res.Job.ID, "KILL", 0)
			if err != nil {
				t.Errorf("%+v, %v", job, err)
			}
		},
		"detach_after_ms": func(t *testing.T, d *covetest.Daemon) {
			longEnough(t, 300*time.Millisecond, func(n time.Duration) bool {
				// It waits for a file, so that it cannot end before it is detached.
				res := run(t, d, sandbox.ExecRequest{
					Shell: "echo early; until rm /tmp/go 2>/dev/null; do sleep 0.05; done; echo late", DetachAfterMS: n.Milliseconds(), TimeoutMS: 120_000,
				})
				if res.Job.State != sandbox.JobRunning || res.Stdout != "early\n" && res.Stdout != "" {
					t.Errorf("as it was detached: %+v, stdout %q", res.Job, res.Stdout)
				}
				d.Sh(t, one(t, d), "touch /tmp/go")
				var out strings.Builder
				job, err := d.Client.Attach(t.Context(), one(t, d), res.Job.ID, sandbox.AttachRequest{}, func(ev sandbox.JobEvent) error { out.Write(ev.Data); return nil })
				if err != nil || job.ExitCode != 0 || out.String() != "early\nlate\n" {
					t.Errorf("%+v, %v, wrote %q", job, err, out.String())
				}
				return res.Stdout != "" // or the shell had not begun as it was detached
			})
		},
		"tag": func(t *testing.T, d *covetest.Daemon) {
			res := run(t, d, sandbox.ExecRequest{Shell: "true", Tag: "mine"})
			job, err := d.Client.GetJob(t.Context(), one(t, d), res.Job.ID)
			if err != nil || job.Tag != "mine" {
				t.Errorf("%+v, %v", job, err)
			}
		},
		"keep_bytes": func(t *testing.T, d *covetest.Daemon) {
			res := run(t, d, sandbox.ExecRequest{Shell: "seq 1 10000", KeepBytes: 100})
			kept := int64(0)
			for at := int64(0); at < res.Job.StdoutBytes; {
				out, err := d.Client.ReadOutput(t.Context(), one(t, d), res.Job.ID, sandbox.OutputRequest{Stream: sandbox.Stdout, Offset: at})
				if err != nil {
					t.Fatal(err)
				}
				kept += int64(len(out.Data))
				at = out.Offset + int64(len(out.Data))
				if len(out.Data) == 0 {
					break
				}
			}
			if kept < 50 || kept > 100 {
				t.Errorf("%d of %d bytes are kept, want 100", kept, res.Job.StdoutBytes)
			}
		},
		"terminal": func(t *testing.T, d *covetest.Daemon) {
			says(sandbox.ExecRequest{Shell: "stty size; test -t 0 && test -t 1 && echo tty", Terminal: &sandbox.TerminalSize{Cols: 91, Rows: 17}}, "17 91\r\ntty")(t, d)
			_, err := d.Exec(t.Context(), one(t, d), sandbox.ExecRequest{Shell: "true", Terminal: &sandbox.TerminalSize{Cols: 91}})
			covetest.WantCode(t, err, sandbox.CodeInvalid)
		},
	})
}

// nobody checks that no process of this command line is left in a sandbox.
func nobody(t *testing.T, d *covetest.Daemon, id, args string) {
	t.Helper()
	var seen string
	gone := func() bool {
		res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Shell: `for p in /proc/[0-9]*; do tr "\0" " " < $p/cmdline 2>/dev/null; echo; done`})
		seen = res.Stdout
		for line := range strings.Lines(seen) {
			if strings.TrimSpace(line) == args {
				return false
			}
		}
		return err == nil
	}
	if !covetest.Eventually(30*time.Second, gone) {
		t.Errorf("%q still runs:\n%s", args, seen)
	}
}

// A client that goes away in the middle of a call takes its command with it.
func TestClientGoesAway(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := with(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		started := make(chan struct{})
		var once sync.Once
		end := covetest.Call(func() error {
			_, err := d.Client.Exec(ctx, s.ID, sandbox.ExecRequest{Shell: "echo up; sleep 777 & exec sleep 777"}, func(ev sandbox.JobEvent) error {
				if len(ev.Data) > 0 {
					once.Do(func() { close(started) })
				}
				return nil
			})
			return err
		})
		covetest.Wait(t, started)
		cancel()
		left := time.Now()
		if err := end(t); sandbox.CodeOf(err) != sandbox.CodeCancelled {
			t.Errorf("the call says %v, want cancelled", err)
		}
		nobody(t, d, s.ID, "sleep 777")
		t.Logf("seen gone %v after the client went", time.Since(left).Round(time.Millisecond))
		// An upload that is cut off leaves nothing either.
		broken := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), errReader{errors.New("the disk is gone")})
		if _, err := d.Client.WriteFile(t.Context(), s.ID, sandbox.WriteFileRequest{Path: "/workspace/cut"}, broken); err == nil {
			t.Error("a broken upload is said to have worked")
		}
		empty := func() bool { return d.Sh(t, s.ID, "ls -A /workspace") == "" }
		if !covetest.Eventually(30*time.Second, empty) {
			t.Errorf("an upload that was cut off left %s", d.Sh(t, s.ID, "ls -lA /workspace"))
		}
	})
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// keeps checks whether the state of a pause stays after the resume, which it does as an
// automatic checkpoint only. That others are made takes a minute; see package checkpoints.
func keeps(t *testing.T, d *covetest.Daemon, id string, want bool) {
	t.Helper()
	if _, err := d.Client.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	d.Sh(t, id, "true")
	got, err := d.Client.Get(t.Context(), id)
	if err != nil || (got.LastCheckpoint != nil && got.LastCheckpoint.At != nil) != want {
		t.Errorf("kept is %+v, %v", got.LastCheckpoint, err)
	}
}
