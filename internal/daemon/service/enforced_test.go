package service

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// fields lists the fields of a request by their JSON names, including those of nested
// structs.
func fields(t reflect.Type) []string {
	var all []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() == reflect.Struct {
			for _, inner := range fields(f.Type) {
				all = append(all, strings.TrimPrefix(name+"."+inner, "."))
			}
			continue
		}
		all = append(all, name)
	}
	return all
}

// everyField runs, for each field of a request type, the proof that the field takes
// effect or is refused. A field without a proof fails the test.
func everyField[T any](t *testing.T, proofs map[string]func(*testing.T, *harness)) {
	known := map[string]bool{}
	for _, f := range fields(reflect.TypeFor[T]()) {
		known[f] = true
		t.Run(f, func(t *testing.T) {
			proof := proofs[f]
			if proof == nil {
				t.Fatalf("nothing proves that %s takes effect or is refused", f)
			}
			proof(t, newHarness(t))
		})
	}
	for f := range proofs {
		if !known[f] {
			t.Errorf("there is a proof for %s, which %v does not have", f, reflect.TypeFor[T]())
		}
	}
}

// expire makes the lifetime of a sandbox end.
func (w *harness) expire(ref string) *sandbox.Sandbox {
	w.t.Helper()
	id := w.get(ref).ID
	_, err := w.store.UpdateSandbox(w.t.Context(), id, store.Change{Apply: func(r *store.Record) error {
		r.ExpiresAt = ptr(time.Now().Add(-time.Second))
		return nil
	}})
	must(w.t, err)
	must(w.t, w.Expire(w.t.Context(), id))
	return w.get(id)
}

// shell runs a line and returns its output.
func (w *harness) shell(id, line string) string {
	w.t.Helper()
	return w.output(id, sandbox.ExecRequest{Shell: line})
}

func (w *harness) output(id string, req sandbox.ExecRequest) string {
	w.t.Helper()
	var out strings.Builder
	_, err := w.Exec(asRed(w.t), id, req, func(e sandbox.JobEvent) error {
		out.Write(e.Data)
		return nil
	})
	must(w.t, err)
	return strings.TrimSpace(out.String())
}

func TestCreateEnforcedOrRefused(t *testing.T) {
	// made proves that the engine gets what the record says.
	made := func(req sandbox.CreateRequest, check func(*testing.T, *harness, *sandbox.Sandbox) bool) func(*testing.T, *harness) {
		return func(t *testing.T, w *harness) {
			sbx := w.create(req)
			if !check(t, w, w.get(sbx.ID)) {
				t.Errorf("no effect on %+v", sbx)
			}
		}
	}
	resources := func(r sandbox.Resources, pick func(sandbox.Resources) int64, want int64) func(*testing.T, *harness) {
		return made(sandbox.CreateRequest{Resources: r}, func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
			spec, _ := w.state.Spec(s.ID)
			return pick(s.Resources) == want && pick(spec.Resources) == want
		})
	}
	everyField[sandbox.CreateRequest](t, map[string]func(*testing.T, *harness){
		"name": made(sandbox.CreateRequest{Name: "box"}, func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
			spec, _ := w.state.Spec(s.ID)
			return s.Name == "box" && w.get("box").ID == s.ID && spec.Hostname == "box"
		}),
		"namespace": made(sandbox.CreateRequest{Namespace: "ns"}, func(t *testing.T, w *harness, s *sandbox.Sandbox) bool {
			in, err := w.List(asRed(t), sandbox.ListRequest{Namespace: "ns"})
			must(t, err)
			out, err := w.List(asRed(t), sandbox.ListRequest{Namespace: "other"})
			must(t, err)
			return s.Namespace == "ns" && len(in.Items) == 1 && len(out.Items) == 0
		}),
		"metadata": made(sandbox.CreateRequest{Metadata: map[string]string{"k": "v"}}, func(t *testing.T, w *harness, s *sandbox.Sandbox) bool {
			in, err := w.List(asRed(t), sandbox.ListRequest{Metadata: map[string]string{"k": "v"}})
			must(t, err)
			out, err := w.List(asRed(t), sandbox.ListRequest{Metadata: map[string]string{"k": "w"}})
			must(t, err)
			return s.Metadata["k"] == "v" && len(in.Items) == 1 && len(out.Items) == 0
		}),
		"template": made(sandbox.CreateRequest{Template: "full"}, func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
			spec, _ := w.state.Spec(s.ID)
			return s.Template == "full" && spec.Root.Digest == "sha256:full"
		}),
		"resources.vcpus":      resources(sandbox.Resources{VCPUs: 5}, func(r sandbox.Resources) int64 { return int64(r.VCPUs) }, 5),
		"resources.memory_mib": resources(sandbox.Resources{MemoryMiB: 123}, func(r sandbox.Resources) int64 { return r.MemoryMiB }, 123),
		"resources.disk_mib":   resources(sandbox.Resources{DiskMiB: 456}, func(r sandbox.Resources) int64 { return r.DiskMiB }, 456),
		"resources.max_pids":   resources(sandbox.Resources{MaxPIDs: 78}, func(r sandbox.Resources) int64 { return r.MaxPIDs }, 78),
		"fit_resources": func(t *testing.T, _ *harness) {
			w := newHarness(t, func(c *Config) { c.Capacity = upTo(sandbox.Resources{VCPUs: 2}) })
			req := sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 3}}
			_, err := w.Create(asRed(t), req)
			wantCode(t, err, sandbox.CodeInvalid)
			req.FitResources = true
			if s := w.create(req); s.Resources.VCPUs != 2 {
				t.Errorf("it has %+v", s.Resources)
			}
		},
		"env": made(sandbox.CreateRequest{Env: map[string]string{"COVE_X": "a b"}}, func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
			return s.Env["COVE_X"] == "a b" && w.shell(s.ID, `echo "$COVE_X"`) == "a b"
		}),
		"network": made(sandbox.CreateRequest{Network: strict()}, func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
			policy, _ := w.gate(s.ID)
			return cmp.Equal(policy, *strict()) && cmp.Equal(s.Network, strict())
		}),
		"secrets": func(t *testing.T, w *harness) {
			w.secret("a", "v")
			made(sandbox.CreateRequest{Secrets: map[string]string{"A": "a"}}, func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
				return s.Secrets["A"] == "a" && w.told(s.ID)["A"] == "v" && w.shell(s.ID, `echo "$A"`) == w.record(s.ID).Bindings[0].Placeholder
			})(t, w)
		},
		"mounts": func(t *testing.T, w *harness) {
			_, err := w.Create(asRed(t), sandbox.CreateRequest{Mounts: []sandbox.Mount{{Host: "/etc", Target: "/x", ReadOnly: true}}})
			wantCode(t, err, sandbox.CodeForbidden)
			sbx := w.create(sandbox.CreateRequest{Mounts: []sandbox.Mount{{Tmpfs: true, Target: "/x", SizeMiB: 1}}})
			if spec, _ := w.state.Spec(sbx.ID); len(spec.Mounts) != 1 || spec.Mounts[0].SizeBytes != 1<<20 {
				t.Errorf("the instance has %+v", spec.Mounts)
			}
		},
		"ports": func(t *testing.T, w *harness) {
			made(sandbox.CreateRequest{Ports: []sandbox.PublishedPort{{Guest: echo(t)}}}, func(t *testing.T, _ *harness, s *sandbox.Sandbox) bool {
				c, err := knock(t, s.Ports[0].Address, s.Ports[0].Host)
				must(t, err)
				says(t, c)
				return true
			})(t, w)
		},
		"user": made(sandbox.CreateRequest{User: "1000:1000"}, func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
			spec, _ := w.state.Spec(s.ID)
			return s.User == "1000:1000" && spec.User == "1000:1000"
		}),
		"workdir": made(sandbox.CreateRequest{WorkDir: "/data"}, func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
			spec, _ := w.state.Spec(s.ID)
			return s.WorkDir == "/data" && spec.WorkDir == "/data"
		}),
		"lifetime_seconds": made(sandbox.CreateRequest{LifetimeSeconds: ptr(int64(77))}, func(_ *testing.T, _ *harness, s *sandbox.Sandbox) bool {
			return s.LifetimeSeconds == 77 && s.ExpiresAt.Sub(s.CreatedAt) == 77*time.Second
		}),
		"idle_timeout_seconds": made(sandbox.CreateRequest{IdleTimeoutSeconds: ptr(int64(66))}, func(t *testing.T, w *harness, s *sandbox.Sandbox) bool {
			due, err := w.store.DueSandboxes(t.Context(), s.LastActiveAt.Add(66*time.Second))
			must(t, err)
			return s.IdleTimeoutSeconds == 66 && len(due) == 1
		}),
		"checkpoint_interval_seconds": made(minutely(), func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return s.CheckpointIntervalSeconds == 60 && w.handles[s.ID].checkpoints.due(time.Now().Add(time.Minute))
		}),
		"dedicated": func(t *testing.T, w *harness) {
			_, err := w.Create(asRed(t), sandbox.CreateRequest{Dedicated: ptr(true)})
			wantCode(t, err, sandbox.CodeUnsupported)
			if sbx := w.create(sandbox.CreateRequest{Dedicated: ptr(false)}); sbx.Dedicated {
				t.Errorf("%+v is dedicated", sbx)
			}
		},
		"paused_lifetime_seconds": made(sandbox.CreateRequest{PausedLifetimeSeconds: 88}, func(t *testing.T, w *harness, s *sandbox.Sandbox) bool {
			p, err := w.Pause(asRed(t), s.ID)
			must(t, err)
			due, err := w.store.DueSandboxes(t.Context(), p.PausedAt.Add(88*time.Second))
			must(t, err)
			return s.PausedLifetimeSeconds == 88 && s.PausedExpiresAt == nil && p.PausedExpiresAt.Sub(*p.PausedAt) == 88*time.Second && len(due) == 1
		}),
		"on_timeout": func(t *testing.T, w *harness) {
			if sbx := w.create(sandbox.CreateRequest{OnTimeout: sandbox.ActionKill}); sbx.OnTimeout != sandbox.ActionKill {
				t.Errorf("on timeout %s", sbx.OnTimeout)
			}
			if sbx := w.create(sandbox.CreateRequest{OnTimeout: sandbox.ActionPause, LifetimeSeconds: ptr(int64(1))}); sbx.OnTimeout != sandbox.ActionPause || w.expire(sbx.ID).State != sandbox.StatePaused {
				t.Errorf("on timeout %s", sbx.OnTimeout)
			}
		},
		"snapshot": func(t *testing.T, w *harness) {
			old := w.create(sandbox.CreateRequest{Template: "full", Env: map[string]string{"A": "old", "B": "old"}})
			w.shell(old.ID, "echo kept > file")
			snap, err := w.CreateSnapshot(asRed(t), old.ID, sandbox.CreateSnapshotRequest{Name: "s"})
			must(t, err)
			for _, ref := range []string{"s", snap.ID} {
				got := w.create(sandbox.CreateRequest{Snapshot: ref, Env: map[string]string{"B": "new"}})
				if got.Snapshot != snap.ID || got.Template != "full" || got.Resources != old.Resources || got.User != "user" || got.WorkDir != "/workspace" {
					t.Errorf("made %+v", got)
				}
				if got := w.shell(got.ID, "cat file; echo $A $B $LANG"); got != "kept\nold new C.UTF-8" {
					t.Errorf("in it is %q", got)
				}
			}
		},
		"history": func(t *testing.T, w *harness) {
			sbx := w.create(sandbox.CreateRequest{History: 2})
			for range 3 {
				w.shell(sbx.ID, "true")
			}
			if got := len(w.steps(sbx.ID)); sbx.History != 2 || got != 2 {
				t.Errorf("%d steps of %+v", got, sbx)
			}
		},
	})
}

func TestUpdateEnforcedOrRefused(t *testing.T) {
	updated := func(req sandbox.UpdateRequest, check func(*testing.T, *harness, *sandbox.Sandbox) bool) func(*testing.T, *harness) {
		return func(t *testing.T, w *harness) {
			old := w.create(sandbox.CreateRequest{Name: "old", Metadata: map[string]string{"a": "1"}, Env: map[string]string{"A": "1"}})
			got, err := w.Update(asRed(t), "old", req)
			must(t, err)
			stored := w.get(old.ID)
			got.LastActiveAt, stored.LastActiveAt = old.LastActiveAt, old.LastActiveAt
			if diff := cmp.Diff(got, stored); diff != "" {
				t.Errorf("returned and stored differ (-returned +stored):\n%s", diff)
			}
			if !check(t, w, got) {
				t.Errorf("no effect on %+v", got)
			}
		}
	}
	limit := func(req sandbox.UpdateRequest, pick func(sandbox.Resources) int64) func(*testing.T, *harness) {
		return updated(req, func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
			spec, _ := w.state.Spec(s.ID)
			return pick(s.Resources) == 99 && pick(spec.Resources) == 99 || pick(s.Resources) == 9 && pick(spec.Resources) == 9
		})
	}
	everyField[sandbox.UpdateRequest](t, map[string]func(*testing.T, *harness){
		"name": updated(sandbox.UpdateRequest{Name: ptr("new")}, func(t *testing.T, w *harness, s *sandbox.Sandbox) bool {
			_, err := w.Get(asRed(t), "old")
			return s.Name == "new" && w.get("new").ID == s.ID && sandbox.CodeOf(err) == sandbox.CodeNotFound
		}),
		"metadata": updated(sandbox.UpdateRequest{Metadata: map[string]string{"b": "2"}}, func(_ *testing.T, _ *harness, s *sandbox.Sandbox) bool {
			return len(s.Metadata) == 1 && s.Metadata["b"] == "2"
		}),
		"env": updated(sandbox.UpdateRequest{Env: map[string]string{"B": "2"}}, func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
			return len(s.Env) == 1 && w.shell(s.ID, `echo "[$A$B]"`) == "[2]"
		}),
		"vcpus":      limit(sandbox.UpdateRequest{VCPUs: ptr(9)}, func(r sandbox.Resources) int64 { return int64(r.VCPUs) }),
		"memory_mib": limit(sandbox.UpdateRequest{MemoryMiB: ptr(int64(99))}, func(r sandbox.Resources) int64 { return r.MemoryMiB }),
		"max_pids":   limit(sandbox.UpdateRequest{MaxPIDs: ptr(int64(99))}, func(r sandbox.Resources) int64 { return r.MaxPIDs }),
		"lifetime_seconds": updated(sandbox.UpdateRequest{LifetimeSeconds: ptr(int64(5000))}, func(_ *testing.T, _ *harness, s *sandbox.Sandbox) bool {
			left := time.Until(*s.ExpiresAt)
			return s.LifetimeSeconds == 5000 && left > 4900*time.Second && left <= 5000*time.Second
		}),
		"idle_timeout_seconds": updated(sandbox.UpdateRequest{IdleTimeoutSeconds: ptr(int64(5))}, func(t *testing.T, w *harness, s *sandbox.Sandbox) bool {
			due, err := w.store.DueSandboxes(t.Context(), time.Now().Add(time.Minute))
			must(t, err)
			return s.IdleTimeoutSeconds == 5 && len(due) == 1
		}),
		"checkpoint_interval_seconds": updated(sandbox.UpdateRequest{CheckpointIntervalSeconds: ptr(int64(60))}, func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return s.CheckpointIntervalSeconds == 60 && w.handles[s.ID].checkpoints.due(time.Now().Add(time.Minute))
		}),
		"paused_lifetime_seconds": updated(sandbox.UpdateRequest{PausedLifetimeSeconds: ptr(int64(9))}, func(_ *testing.T, _ *harness, s *sandbox.Sandbox) bool {
			return s.PausedLifetimeSeconds == 9
		}),
		"on_timeout": func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "old", LifetimeSeconds: ptr(int64(1))})
			w.create(sandbox.CreateRequest{Name: "other", LifetimeSeconds: ptr(int64(1)), OnTimeout: sandbox.ActionPause})
			_, err := w.Update(asRed(t), "old", sandbox.UpdateRequest{OnTimeout: ptr(sandbox.ActionPause)})
			must(t, err)
			_, err = w.Update(asRed(t), "other", sandbox.UpdateRequest{OnTimeout: ptr(sandbox.ActionKill)})
			must(t, err)
			if a, b := w.expire("old").State, w.expire("other").State; a != sandbox.StatePaused || b != sandbox.StateKilled {
				t.Errorf("at the timeout they became %s and %s", a, b)
			}
		},
		"history": updated(sandbox.UpdateRequest{History: ptr(1)}, func(_ *testing.T, w *harness, s *sandbox.Sandbox) bool {
			w.shell(s.ID, "true")
			w.shell(s.ID, "true")
			return s.History == 1 && len(w.steps(s.ID)) == 1
		}),
	})
}

func TestExecEnforcedOrRefused(t *testing.T) {
	prints := func(want string, req sandbox.ExecRequest) func(*testing.T, *harness) {
		return func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "x"})
			if got := w.output("x", req); got != want {
				t.Errorf("printed %q, want %q", got, want)
			}
		}
	}
	everyField[sandbox.ExecRequest](t, map[string]func(*testing.T, *harness){
		// See also TestWebhook and TestCodeJob.
		"webhook": func(t *testing.T, w *harness) {
			sbx := w.create(sandbox.CreateRequest{})
			_, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "true", Background: true, Webhook: &sandbox.Webhook{URL: "ftp://x"}}, nil)
			wantCode(t, err, sandbox.CodeInvalid)
		},
		"code": func(t *testing.T, w *harness) {
			sbx := w.create(sandbox.CreateRequest{})
			if got := w.output(sbx.ID, sandbox.ExecRequest{Code: &sandbox.JobCode{Language: sandbox.Bash, Code: "echo $((6*7))"}}); got != "42" {
				t.Errorf("got %q", got)
			}
		},
		"command": prints("a  b $HOME", sandbox.ExecRequest{Command: []string{"echo", "a  b $HOME"}}),
		"shell":   prints("3", sandbox.ExecRequest{Shell: "echo $((1+2)) | cat"}),
		"env":     prints("it's", sandbox.ExecRequest{Shell: `echo "$X"`, Env: map[string]string{"X": "it's"}}),
		"workdir": prints("/usr", sandbox.ExecRequest{Shell: "pwd", WorkDir: "/usr"}),
		"user": func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "x"})
			_, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "id", User: "nobody-of-this-name"}, nil)
			wantCode(t, err, sandbox.CodeInvalid)
		},
		"timeout_ms": func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "x"})
			var out strings.Builder
			job, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "echo partial; sleep 60; echo never", TimeoutMS: 2000}, func(e sandbox.JobEvent) error { out.Write(e.Data); return nil })
			must(t, err)
			if job.EndCause != sandbox.EndTimeout || job.State != sandbox.JobExited || out.String() != "partial\n" {
				t.Errorf("%+v printed %q", job, out.String())
			}
		},
		"stdin": prints("text", sandbox.ExecRequest{Command: []string{"cat"}, Stdin: []byte("text")}),
		"open_stdin": func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "x"})
			job, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Command: []string{"cat"}, OpenStdin: true, Background: true}, nil)
			must(t, err)
			must(t, w.WriteInput(asRed(t), "x", job.ID, []byte("typed"), true))
			var out strings.Builder
			_, err = w.Attach(asRed(t), "x", job.ID, sandbox.AttachRequest{}, func(e sandbox.JobEvent) error { out.Write(e.Data); return nil })
			must(t, err)
			if out.String() != "typed" {
				t.Errorf("printed %q", out.String())
			}
		},
		"terminal": prints("55 111", sandbox.ExecRequest{Command: []string{"stty", "size"}, Terminal: &sandbox.TerminalSize{Cols: 111, Rows: 55}}),
		"background": func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "x"})
			job, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "sleep 60", Background: true}, nil)
			must(t, err)
			if job.State != sandbox.JobRunning {
				t.Errorf("%+v", job)
			}
		},
		"detach_after_ms": func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "x"})
			job, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "sleep 60", DetachAfterMS: 100}, nil)
			must(t, err)
			if job.State != sandbox.JobRunning {
				t.Errorf("%+v", job)
			}
			if job, err = w.GetJob(asRed(t), "x", job.ID); err != nil || job.State != sandbox.JobRunning {
				t.Errorf("after it was detached: %+v, %v", job, err)
			}
			// A detached command needs no timeout.
			job, err = w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "sleep 60", TimeoutMS: -1, DetachAfterMS: 1}, nil)
			if err != nil || job.State != sandbox.JobRunning {
				t.Errorf("without a timeout: %+v, %v", job, err)
			}
		},
		"tag": func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "x"})
			job, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Command: []string{"true"}, Tag: "mine"}, nil)
			must(t, err)
			if job, err = w.GetJob(asRed(t), "x", job.ID); err != nil || job.Tag != "mine" {
				t.Errorf("%+v, %v", job, err)
			}
			_, err = w.Exec(asRed(t), "x", sandbox.ExecRequest{Command: []string{"true"}, Tag: strings.Repeat("x", sandbox.MaxTagBytes+1)}, nil)
			wantCode(t, err, sandbox.CodeTooLarge)
		},
		"keep_bytes": func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "x"})
			job, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "head -c 100000 /dev/zero", KeepBytes: 1000}, nil)
			must(t, err)
			out, err := w.ReadOutput(asRed(t), "x", job.ID, sandbox.OutputRequest{Stream: sandbox.Stdout, Offset: 1000})
			must(t, err)
			if out.TotalBytes != 100000 || out.Offset < 99000 || len(out.Data) > 1000 {
				t.Errorf("kept %d bytes at %d of %d", len(out.Data), out.Offset, out.TotalBytes)
			}
		},
	})
}
