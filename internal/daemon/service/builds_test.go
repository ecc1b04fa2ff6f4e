package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// steps returns a spec with these commands.
func steps(run ...string) *sandbox.TemplateSpec {
	s := &sandbox.TemplateSpec{From: sandbox.TemplateSource{Debian: "bookworm"}}
	for _, r := range run {
		s.Run = append(s.Run, sandbox.TemplateStep{Run: r})
	}
	return s
}

// follow returns a build when it has ended, with its log.
func (w *harness) follow(id string) (*sandbox.Build, string, []string) {
	w.t.Helper()
	var log strings.Builder
	var titles []string
	b, err := w.FollowBuild(asRed(w.t), id, func(e sandbox.BuildEvent) error {
		if e.Step != "" && (len(titles) == 0 || titles[len(titles)-1] != e.Step) {
			titles = append(titles, e.Step)
		}
		log.WriteString(e.Log)
		return nil
	})
	must(w.t, err)
	return b, log.String(), titles
}

// beginBuild starts a build.
func (w *harness) beginBuild(req sandbox.BuildTemplateRequest) *sandbox.Build {
	w.t.Helper()
	b, err := w.StartBuild(asRed(w.t), req)
	must(w.t, err)
	return b
}

func TestBuildSteps(t *testing.T) {
	w := newHarness(t)
	spec := steps("echo one > first; echo to the log", "echo two > second; echo $A >> second; cat second >&2")
	spec.Run[1].Env = map[string]string{"A": "b=c"}
	spec.Ports = []int{8080}
	started := w.beginBuild(sandbox.BuildTemplateRequest{Name: "mine", Spec: spec})
	if started.State != sandbox.BuildRunning || started.Template != "mine" || !strings.HasPrefix(started.ID, ids.Build) {
		t.Errorf("started %+v", started)
	}
	done, log, titles := w.follow(started.ID)
	if done.State != sandbox.BuildReady || done.Version != 1 || done.Fraction != 1 || done.EndedAt == nil || done.Reason != "" {
		t.Errorf("done %+v", done)
	}
	for _, part := range []string{"a line\n", "to the log\n", "two\nb=c\n"} {
		if !strings.Contains(log, part) {
			t.Errorf("the log %q lacks %q", log, part)
		}
	}
	want := []string{
		"begin", "unpack", "1/2 run: echo one > first; echo to the log", "2/2 run: echo two > second; echo $A >> second; cat second >&2",
		"keep the template", "ready",
	}
	if diff := cmp.Diff(want, titles); diff != "" {
		t.Error(diff)
	}
	tm, err := w.GetTemplate(asRed(t), "mine")
	must(t, err)
	if tm.Digest == "sha256:base" || !slices.Equal(tm.Ports, []int{8080}) {
		t.Errorf("template %+v", tm)
	}
	if files := w.templates.LayerOf(tm.Digest); !slices.Contains(files, "workspace/second") {
		t.Errorf("the last step's layer has %v", files)
	}
	// Nothing of the sandboxes in which the steps ran is left, or was ever seen.
	w.agree()
	all, err := w.List(asRed(t), sandbox.ListRequest{States: states})
	must(t, err)
	if len(all.Items) != 0 {
		t.Errorf("sandboxes of builds are listed: %+v", all.Items)
	}

	// Whoever comes later reads the same from the beginning, also after a
	// restart.
	w.restart()
	again, log2, _ := w.follow(started.ID)
	if diff := cmp.Diff(done, again); diff != "" || log2 != log {
		t.Errorf("read again: %s\n%q", diff, log2)
	}

	// One that is ready is not built again, and says so at once.
	same := w.beginBuild(sandbox.BuildTemplateRequest{Name: "mine", Spec: spec})
	if same.State != sandbox.BuildReady || same.Version != 1 || same.ID == started.ID {
		t.Errorf("a second of the same %+v", same)
	}
	// A template that begins with the same steps runs only the others.
	created := w.state.Calls(memory.StepCreate)
	spec = steps(spec.Run[0].Run, "echo three > third")
	other := w.beginBuild(sandbox.BuildTemplateRequest{Name: "other", Spec: spec})
	if b, log, _ := w.follow(other.ID); b.State != sandbox.BuildReady || !strings.Contains(log, "kept from an earlier build") || strings.Contains(log, "to the log") {
		t.Errorf("shares a step: %+v %q", b, log)
	}
	if n := w.state.Calls(memory.StepCreate) - created; n != 1 {
		t.Errorf("%d sandboxes for the one step that differs", n)
	}
	// A forced build runs all steps.
	forced := w.beginBuild(sandbox.BuildTemplateRequest{Name: "mine", Force: true})
	if b, log, _ := w.follow(forced.ID); b.Version != 2 || !strings.Contains(log, "to the log") {
		t.Errorf("built anew: %+v %q", b, log)
	}
	list, err := w.ListBuilds(asRed(t), sandbox.ListBuildsRequest{Template: "mine"})
	must(t, err)
	var ids []string
	for _, b := range list.Items {
		ids = append(ids, b.ID)
	}
	if diff := cmp.Diff([]string{forced.ID, same.ID, started.ID}, ids); diff != "" {
		t.Error(diff)
	}
	if b, err := w.CancelBuild(asRed(t), started.ID); err != nil || b.State != sandbox.BuildReady {
		t.Errorf("cancel of one that has ended: %+v %v", b, err)
	}
}

func TestBuildFails(t *testing.T) {
	w := newHarness(t)
	spec := steps("echo fine > fine", "for i in 1 2 3; do echo line $i; done; exit 7", "echo never > never")
	b, _, _ := w.follow(w.beginBuild(sandbox.BuildTemplateRequest{Name: "broken", Spec: spec}).ID)
	want := "step 2 of 3 (run: for i in 1 2 3; do echo line $i; done; exit 7): it failed with exit code 7; its last output:\nline 1\nline 2\nline 3"
	if b.State != sandbox.BuildFailed || b.Reason != want {
		t.Errorf("failed %+v\nwant %q", b, want)
	}
	_, err := w.GetTemplate(asRed(t), "broken")
	wantCode(t, err, sandbox.CodeNotFound)
	w.agree()
	// In the foreground the error is the caller's.
	_, err = w.BuildTemplate(asRed(t), sandbox.BuildTemplateRequest{Name: "broken", Spec: spec}, nil)
	wantCode(t, err, sandbox.CodeInvalid)
	if !strings.Contains(err.Error(), "exit code 7") {
		t.Error(err)
	}

	// Whatever fails in between leaves nothing either.
	for _, step := range []memory.Step{memory.StepCreate, memory.StepDial, memory.StepChanges} {
		for _, when := range []memory.When{memory.Before, memory.After} {
			w.state.Fail(step, when, errors.New("trap"))
			b, log, _ := w.follow(w.beginBuild(sandbox.BuildTemplateRequest{Name: "trapped", Spec: steps("echo " + string(step) + string(when) + " > x")}).ID)
			if b.State != sandbox.BuildFailed || b.Reason == "" || strings.Contains(b.Reason+log, "trap") {
				t.Errorf("%s, %s: %+v %q", step, when, b, log)
			}
			w.agree()
		}
	}
	// A disk that is full is named.
	w.state.Fail(memory.StepChanges, memory.Before, fmt.Errorf("write: %w", syscall.ENOSPC))
	b, _, _ = w.follow(w.beginBuild(sandbox.BuildTemplateRequest{Name: "trapped", Spec: steps("echo full > x")}).ID)
	if b.State != sandbox.BuildFailed || !strings.Contains(b.Reason, "disk is full") {
		t.Errorf("disk full: %+v", b)
	}
	// So does a start command that never gets ready.
	spec = steps("echo x > x")
	spec.Start = &sandbox.StartCommand{Command: "echo I cannot >&2; exit 3", Ready: "false", TimeoutMS: 60_000}
	b, _, _ = w.follow(w.beginBuild(sandbox.BuildTemplateRequest{Name: "startless", Spec: spec}).ID)
	if b.State != sandbox.BuildFailed || !strings.Contains(b.Reason, "I cannot") {
		t.Errorf("start command: %+v", b)
	}
	w.agree()
}

func TestBuildCancelled(t *testing.T) {
	w := newHarness(t)
	spec := steps("echo begun; sleep 600")
	for name, end := range map[string]func(id string, stop context.CancelFunc) *sandbox.Build{
		"cancelled": func(id string, _ context.CancelFunc) *sandbox.Build {
			b, err := w.CancelBuild(asRed(t), id)
			must(t, err)
			return b
		},
		"daemon": func(id string, _ context.CancelFunc) *sandbox.Build {
			w.restart()
			b, err := w.GetBuild(asRed(t), id)
			must(t, err)
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := w.beginBuild(sandbox.BuildTemplateRequest{Name: name, Spec: spec})
			enough := errors.New("enough")
			_, err := w.FollowBuild(asRed(t), b.ID, func(e sandbox.BuildEvent) error {
				if strings.Contains(e.Log, "begun") {
					return enough
				}
				return nil
			})
			if err != enough {
				t.Fatalf("followed until the step runs: %v", err)
			}
			_, err = w.StartBuild(asRed(t), sandbox.BuildTemplateRequest{Name: name, Spec: spec})
			wantCode(t, err, sandbox.CodeConflict)
			if quiet, _, err := w.Idle(t.Context()); err != nil || quiet {
				t.Errorf("idle during a build: %v %v", quiet, err)
			}
			ended := end(b.ID, nil)
			want := map[string]sandbox.BuildState{"cancelled": sandbox.BuildCancelled, "daemon": sandbox.BuildFailed}[name]
			if ended.State != want || ended.Reason == "" || ended.EndedAt == nil {
				t.Errorf("ended %+v, want %s", ended, want)
			}
			if _, log, _ := w.follow(b.ID); !strings.Contains(log, "begun") || !strings.Contains(log, ended.Reason) {
				t.Errorf("log %q", log)
			}
			_, err = w.GetTemplate(asRed(t), name)
			wantCode(t, err, sandbox.CodeNotFound)
			w.agree()
		})
	}
	// A build in the foreground ends if its caller goes away.
	ctx, cancel := context.WithCancel(asRed(t))
	_, err := w.BuildTemplate(ctx, sandbox.BuildTemplateRequest{Name: "fore", Spec: spec}, func(e sandbox.BuildEvent) error {
		if strings.Contains(e.Log, "begun") {
			cancel()
		}
		return nil
	})
	wantCode(t, err, sandbox.CodeCancelled)
	list, err := w.ListBuilds(asRed(t), sandbox.ListBuildsRequest{Template: "fore"})
	must(t, err)
	if len(list.Items) != 1 || list.Items[0].State != sandbox.BuildCancelled {
		t.Errorf("builds %+v", list.Items)
	}
	w.agree()
}

// TestBuildLost ends a daemon abruptly in the middle of a build.
func TestBuildLost(t *testing.T) {
	w := newHarness(t)
	lost := store.BuildRecord{Team: "red", Build: sandbox.Build{ID: "bld-lost", Template: "x", State: sandbox.BuildRunning}}
	must(t, w.store.CreateBuild(t.Context(), lost))
	must(t, os.MkdirAll(w.cfg.BuildDir, 0o700))
	// Its last line was cut off.
	must(t, os.WriteFile(filepath.Join(w.cfg.BuildDir, "bld-lost.log"), []byte(`{"step":"one","log":"half\n"}`+"\n"+`{"step":"on`), 0o600))
	w.restart()
	b, log, _ := w.follow("bld-lost")
	if b.State != sandbox.BuildFailed || !strings.Contains(b.Reason, "daemon exited") || log != "half\n" {
		t.Errorf("%+v %q", b, log)
	}
}

func TestBuildsAtOnce(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Quota = store.Quota{Sandboxes: sandbox.MaxTeamBuilds + 1} })
	leave := make(chan struct{})
	w.templates.OnBase = func(ctx context.Context, _ *sandbox.TemplateSpec, _ func(string, float64, string)) error {
		select {
		case <-leave:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	refused := func(team, why string) {
		t.Helper()
		_, err := w.StartBuild(as(t.Context(), team), sandbox.BuildTemplateRequest{Name: "more", Spec: steps("true")})
		wantCode(t, err, sandbox.CodeQuotaExceeded)
		if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.RetryAfter == 0 || !strings.Contains(err.Error(), why) {
			t.Errorf("%s is told %v, and nothing of %q or no time to retry after", team, err, why)
		}
	}
	// Red takes all places that a team can have; other teams still have theirs.
	var ids []string
	for i := range sandbox.MaxTeamBuilds {
		ids = append(ids, w.beginBuild(sandbox.BuildTemplateRequest{Name: fmt.Sprint("t", i), Spec: steps("echo x > x")}).ID)
	}
	refused("red", "your team")
	for i := sandbox.MaxTeamBuilds; i < sandbox.MaxBuilds; i++ {
		b, err := w.StartBuild(as(t.Context(), "blue"), sandbox.BuildTemplateRequest{Name: fmt.Sprint("t", i), Spec: steps("echo x > x")})
		must(t, err)
		ids = append(ids, b.ID)
	}
	refused("blue", "this server")
	// Red cannot take a place that blue gives back.
	_, err := w.CancelBuild(as(t.Context(), "blue"), ids[len(ids)-1])
	must(t, err)
	refused("red", "your team")
	ids = ids[:len(ids)-1]
	_, err = w.CancelBuild(asRed(t), ids[0])
	must(t, err)
	for range 2 {
		w.create(sandbox.CreateRequest{})
	}
	_, err = w.StartBuild(asRed(t), sandbox.BuildTemplateRequest{Name: "more", Spec: steps("true")})
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	if !strings.Contains(err.Error(), "quota") {
		t.Errorf("the team's quota is not asked: %v", err)
	}
	close(leave)
	for _, id := range ids[1:] {
		if b, _, _ := w.follow(id); b.State != sandbox.BuildReady {
			t.Errorf("%+v", b)
		}
	}
	if _, err := w.GetTemplate(asRed(t), "t1"); err != nil {
		t.Error(err)
	}
}

// TestBuildEndFreesPlace has room for one build only, and starts each as soon as the
// end of the previous one is reported, in either way.
func TestBuildEndFreesPlace(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Quota = store.Quota{Sandboxes: 1} })
	for i := range 100 {
		b := w.beginBuild(sandbox.BuildTemplateRequest{Name: fmt.Sprint("asked", i), Spec: steps()})
		wait(t, func() bool {
			now, err := w.GetBuild(asRed(t), b.ID)
			must(t, err)
			return now.State == sandbox.BuildReady
		}, func() string { return "the build does not end" })
		b = w.beginBuild(sandbox.BuildTemplateRequest{Name: fmt.Sprint("followed", i), Spec: steps()})
		enough := errors.New("enough")
		_, err := w.FollowBuild(asRed(t), b.ID, func(e sandbox.BuildEvent) error {
			if e.Template != nil {
				return enough
			}
			return nil
		})
		if err != enough {
			t.Fatalf("followed until the template is told: %v", err)
		}
	}
}

// collecting is a provider of templates that records what it must keep.
type collecting struct {
	TemplateProvider
	inUse []map[string]bool
}

func (c *collecting) Collect(inUse map[string]bool) ([]string, error) {
	c.inUse = append(c.inUse, inUse)
	return nil, nil
}

// TestTidyWhileBuilding removes old templates in the middle of a build. There may
// always be a build under way.
func TestTidyWhileBuilding(t *testing.T) {
	w := newHarness(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	w.templates.OnBase = func(ctx context.Context, _ *sandbox.TemplateSpec, _ func(string, float64, string)) error {
		close(inside)
		select {
		case <-leave:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	w.stop()
	provider := &collecting{TemplateProvider: w.templates}
	w.provider = provider
	w.open()
	must(t, w.Start(t.Context()))
	w.create(sandbox.CreateRequest{Template: "full"})
	b := w.beginBuild(sandbox.BuildTemplateRequest{Name: "mine", Spec: steps("echo x > x")})
	<-inside
	must(t, w.Builder.Tidy(t.Context()))
	if len(provider.inUse) != 1 || !provider.inUse[0]["sha256:full"] {
		t.Errorf("collected beside %v", provider.inUse)
	}
	close(leave)
	if b, _, _ := w.follow(b.ID); b.State != sandbox.BuildReady {
		t.Errorf("%+v", b)
	}
}

// TestBuildFromSnapshot takes the files of a snapshot of the caller's team.
func TestBuildFromSnapshot(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Env: map[string]string{"A": "of the sandbox"}})
	w.shell(sbx.ID, "echo kept > file")
	_, err := w.CreateSnapshot(asRed(t), sbx.ID, sandbox.CreateSnapshotRequest{Name: "good"})
	must(t, err)
	req := sandbox.BuildTemplateRequest{Name: "of-it", Spec: &sandbox.TemplateSpec{From: sandbox.TemplateSource{Snapshot: "good"}}}
	_, err = w.StartBuild(as(t.Context(), "blue"), req)
	wantCode(t, err, sandbox.CodeNotFound)
	b, _, _ := w.follow(w.beginBuild(req).ID)
	tm, err := w.GetTemplate(asRed(t), "of-it")
	if err != nil || b.State != sandbox.BuildReady {
		t.Fatalf("%+v %v", b, err)
	}
	if files := w.templates.LayerOf(tm.Digest); !slices.Contains(files, "workspace/file") {
		t.Errorf("the layer has %v", files)
	}
}

func TestBuildInput(t *testing.T) {
	w := newHarness(t)
	long := strings.Repeat("x", 1<<20)
	for name, change := range map[string]func(*sandbox.TemplateSpec){
		"nothing to begin with":    func(s *sandbox.TemplateSpec) { s.From = sandbox.TemplateSource{} },
		"two things":               func(s *sandbox.TemplateSpec) { s.From.Host = true },
		"a source with NUL":        func(s *sandbox.TemplateSpec) { s.From = sandbox.TemplateSource{Image: "a\x00b"} },
		"a long source":            func(s *sandbox.TemplateSpec) { s.From = sandbox.TemplateSource{Directory: long} },
		"apt option":               func(s *sandbox.TemplateSpec) { s.Apt = []string{"-oDpkg::x=y"} },
		"apt removal":              func(s *sandbox.TemplateSpec) { s.Apt = []string{"bash-"} },
		"apt file":                 func(s *sandbox.TemplateSpec) { s.Apt = []string{"./evil.deb"} },
		"pip option":               func(s *sandbox.TemplateSpec) { s.Pip = []string{"--index-url=http://evil"} },
		"pip new line":             func(s *sandbox.TemplateSpec) { s.Pip = []string{"a\nb"} },
		"npm empty":                func(s *sandbox.TemplateSpec) { s.NPM = []string{""} },
		"npm too many":             func(s *sandbox.TemplateSpec) { s.NPM = slices.Repeat([]string{"a"}, 501) },
		"file upwards":             func(s *sandbox.TemplateSpec) { s.Files = []sandbox.TemplateFile{{Path: "/etc/../../x"}} },
		"file relative":            func(s *sandbox.TemplateSpec) { s.Files = []sandbox.TemplateFile{{Path: "etc/x"}} },
		"file with NUL":            func(s *sandbox.TemplateSpec) { s.Files = []sandbox.TemplateFile{{Path: "/a\x00"}} },
		"file in memory":           func(s *sandbox.TemplateSpec) { s.Files = []sandbox.TemplateFile{{Path: "/tmp/x"}} },
		"file mode":                func(s *sandbox.TemplateSpec) { s.Files = []sandbox.TemplateFile{{Path: "/x", Mode: "rwx"}} },
		"file owner":               func(s *sandbox.TemplateSpec) { s.Files = []sandbox.TemplateFile{{Path: "/x", Owner: "a b"}} },
		"too many files":           func(s *sandbox.TemplateSpec) { s.Files = make([]sandbox.TemplateFile, 257) },
		"empty step":               func(s *sandbox.TemplateSpec) { s.Run[0].Run = " \n" },
		"step with NUL":            func(s *sandbox.TemplateSpec) { s.Run[0].Run = "a\x00b" },
		"step's user":              func(s *sandbox.TemplateSpec) { s.Run[0].User = "../x" },
		"step's directory":         func(s *sandbox.TemplateSpec) { s.Run[0].WorkDir = "x" },
		"too many steps":           func(s *sandbox.TemplateSpec) { s.Run = slices.Repeat(s.Run, 201) },
		"env":                      func(s *sandbox.TemplateSpec) { s.Env = map[string]string{"A=B": "x"} },
		"user":                     func(s *sandbox.TemplateSpec) { s.User = "-x" },
		"workdir":                  func(s *sandbox.TemplateSpec) { s.WorkDir = "/a/../b" },
		"resources":                func(s *sandbox.TemplateSpec) { s.Resources.MemoryMiB = -1 },
		"start without command":    func(s *sandbox.TemplateSpec) { s.Start = &sandbox.StartCommand{Ready: "true"} },
		"start time":               func(s *sandbox.TemplateSpec) { s.Start = &sandbox.StartCommand{Command: "x", TimeoutMS: 1 << 40} },
		"warm language":            func(s *sandbox.TemplateSpec) { s.Warm = map[string]string{"cobol": "x"} },
		"warm nothing":             func(s *sandbox.TemplateSpec) { s.Warm = map[string]string{"python": ""} },
		"desktop":                  func(s *sandbox.TemplateSpec) { s.Desktop = &sandbox.Desktop{Width: 1 << 20, Height: 800} },
		"display":                  func(s *sandbox.TemplateSpec) { s.Desktop = &sandbox.Desktop{Width: 800, Height: 800, Display: "x:1"} },
		"port":                     func(s *sandbox.TemplateSpec) { s.Ports = []int{70000} },
		"network of the build":     func(s *sandbox.TemplateSpec) { s.BuildNetwork = &sandbox.NetworkPolicy{Preset: "closed"} },
		"network of its sandboxes": func(s *sandbox.TemplateSpec) { s.Network = &sandbox.NetworkPolicy{AllowOut: []string{"*"}} },
	} {
		t.Run(name, func(t *testing.T) {
			spec := steps("true")
			change(spec)
			_, err := w.StartBuild(asRed(t), sandbox.BuildTemplateRequest{Name: "x", Spec: spec})
			wantCode(t, err, sandbox.CodeInvalid)
		})
	}
	spec := steps("true")
	spec.Files = []sandbox.TemplateFile{{Path: "/x", Content: make([]byte, sandbox.MaxTemplateFileBytes+1)}}
	_, err := w.StartBuild(asRed(t), sandbox.BuildTemplateRequest{Name: "x", Spec: spec})
	wantCode(t, err, sandbox.CodeTooLarge)
	_, err = w.StartBuild(asRed(t), sandbox.BuildTemplateRequest{Name: "x", Spec: steps(long)})
	wantCode(t, err, sandbox.CodeTooLarge)
	_, err = w.StartBuild(asRed(t), sandbox.BuildTemplateRequest{Name: "x", Spec: steps("true"), Packages: []string{"git"}})
	wantCode(t, err, sandbox.CodeInvalid)
	spec = steps()
	spec.From, spec.Apt = sandbox.TemplateSource{Host: true}, []string{"git"}
	_, err = w.StartBuild(asRed(t), sandbox.BuildTemplateRequest{Name: "x", Spec: spec})
	wantCode(t, err, sandbox.CodeUnsupported)
	list, err := w.ListBuilds(asRed(t), sandbox.ListBuildsRequest{})
	must(t, err)
	if len(list.Items) != 0 {
		t.Errorf("what was refused is listed: %+v", list.Items)
	}
}
