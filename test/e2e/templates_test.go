package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// built is an ended build, with its output.
type built struct {
	*sandbox.Build
	log string
}

// buildTemplate builds a template in the background and waits for its end.
func buildTemplate(t *testing.T, d *covetest.Daemon, name string, spec sandbox.TemplateSpec) built {
	t.Helper()
	b, err := d.Client.StartBuild(t.Context(), sandbox.BuildTemplateRequest{Name: name, Spec: &spec})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	b, err = d.Client.FollowBuild(t.Context(), b.ID, func(e sandbox.BuildEvent) error { log.WriteString(e.Log); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return built{b, log.String()}
}

// mustBuild is buildTemplate for builds that must succeed.
func mustBuild(t *testing.T, d *covetest.Daemon, name string, spec sandbox.TemplateSpec) built {
	t.Helper()
	b := buildTemplate(t, d, name, spec)
	if b.State != sandbox.BuildReady {
		t.Fatalf("build %s: %s: %s\n%s", name, b.State, b.Reason, b.log)
	}
	return b
}

// nothingOfBuilds waits until no build has left anything: no cell, and nothing
// where templates are made.
func nothingOfBuilds(t *testing.T, d *covetest.Daemon) {
	t.Helper()
	if err := d.Tidy(t.Context(), d.Groups(), time.Minute); err != nil {
		t.Error(err)
	}
	// A daemon that has just started makes the template of the host there.
	var left []string
	gone := func() bool {
		left, _ = filepath.Glob(filepath.Join(d.StateDir, "templates", "tmp", "*"))
		return len(left) == 0
	}
	if !covetest.Eventually(time.Minute, gone) {
		t.Errorf("left of builds: %v", left)
	}
}

// TestTemplateBuilds builds templates of the machine's own programs, step by step
// in sandboxes, and looks at what their sandboxes have.
func TestTemplateBuilds(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		host := sandbox.TemplateSource{Host: true}
		spec := sandbox.TemplateSpec{
			From: host, Description: "of this test",
			Files: []sandbox.TemplateFile{
				{Path: "/etc/app.conf", Content: []byte("a = 1\n"), Mode: "0640"},
				{Path: "/opt/app/tool", Content: []byte("#!/bin/sh\necho \"tool $A\"\n"), Mode: "0755"},
			},
			Run: []sandbox.TemplateStep{
				{Run: "/opt/app/tool > out; echo to the log; rm /etc/app.conf; touch /tmp/gone; ln -s out link; mkdir -p /opt/deep/er"},
				{Run: "test ! -e /tmp/gone && test ! -e /etc/app.conf && cat /app/out && id -un && echo $B > ~/by", User: "user", Env: map[string]string{"B": "two"}},
			},
			Env: map[string]string{"A": "one"}, WorkDir: "/app", Ports: []int{8123},
			Start: &sandbox.StartCommand{Command: "while :; do sleep 1; done & touch /tmp/started; wait", Ready: "test -e /tmp/started"},
		}
		b := mustBuild(t, d, "mine", spec)
		for _, part := range []string{"to the log\n", "tool one\n", "user\n"} {
			if !strings.Contains(b.log, part) {
				t.Errorf("the log lacks %q:\n%s", part, b.log)
			}
		}
		s := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Template = "mine" }))
		d.Shows(t, s.ID, "pwd; cat out; readlink link; ls -d /opt/deep/er; cat /home/user/by; ls /etc/app.conf 2>&1 | grep -c 'No such'; echo $A; ls /tmp/started",
			"/app\ntool one\nout\n/opt/deep/er\ntwo\n1\none\n/tmp/started")
		// Files that a sandbox writes do not change its template.
		d.Shows(t, s.ID, "echo changed > by-hand; cat by-hand", "changed")
		t.Run("shares", func(t *testing.T) {
			again := mustBuild(t, d, "same", spec)
			one, err := d.Client.GetTemplate(t.Context(), "mine")
			two, err2 := d.Client.GetTemplate(t.Context(), "same")
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			if one.Digest != two.Digest || strings.Contains(again.log, "to the log") || strings.Count(again.log, "kept from an earlier build") != 3 {
				t.Errorf("%s and %s:\n%s", one.Digest, two.Digest, again.log)
			}
			other := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Template = "same" }))
			d.Shows(t, other.ID, "cat /opt/app/tool | tail -1", `echo "tool $A"`)
		})
		t.Run("fails", func(t *testing.T) {
			for want, step := range map[string]string{
				"step 2 of 2 (run: echo to say; exit 9": "echo to say; exit 9",
				"/usr/share/new":                        "touch /usr/share/new",
				"marks a removed file":                  "touch /opt/.wh.x",
			} {
				b := buildTemplate(t, d, "broken", sandbox.TemplateSpec{From: host, Run: []sandbox.TemplateStep{{Run: "echo fine > /opt/fine"}, {Run: step}}})
				if b.State != sandbox.BuildFailed || !strings.Contains(b.Reason, want) {
					t.Errorf("%s: %s %q, want %q", step, b.State, b.Reason, want)
				}
			}
			b := buildTemplate(t, d, "broken", sandbox.TemplateSpec{From: host, Start: &sandbox.StartCommand{Command: "echo I cannot >&2; exit 3", Ready: "false"}})
			if b.State != sandbox.BuildFailed || !strings.Contains(b.Reason, "I cannot") {
				t.Errorf("start command: %s %q", b.State, b.Reason)
			}
			_, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Template: "broken"})
			covetest.WantCode(t, err, sandbox.CodeConflict)
			nothingOfBuilds(t, d)
		})
		t.Run("network", func(t *testing.T) {
			// A step reaches only what the build may: here nothing, not even DNS.
			none := &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}
			mustBuild(t, d, "closed", sandbox.TemplateSpec{From: host, BuildNetwork: none, Network: none, Run: []sandbox.TemplateStep{{Run: "! getent hosts example.com"}}})
			s := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Template = "closed" }))
			if got, err := d.Client.GetNetwork(t.Context(), s.ID); err != nil || got.Preset != sandbox.NetworkNone {
				t.Errorf("the network of its sandboxes: %+v, %v", got, err)
			}
		})
		t.Run("versions", func(t *testing.T) { templateVersions(t, d, s.ID) })
		t.Run("ends", func(t *testing.T) { buildsEnd(t, d) })
	}, "--warm", "0")
}

// templateVersions builds a name twice, and from a snapshot and a template; id is
// a sandbox of the template mine.
func templateVersions(t *testing.T, d *covetest.Daemon, id string) {
	ctx := t.Context()
	snap, err := d.Client.CreateSnapshot(ctx, id, sandbox.CreateSnapshotRequest{Name: "hand"})
	if err != nil {
		t.Fatal(err)
	}
	mustBuild(t, d, "of-hand", sandbox.TemplateSpec{From: sandbox.TemplateSource{Snapshot: snap.ID}})
	s := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Template = "of-hand" }))
	d.Shows(t, s.ID, "cat by-hand out; echo $A; ls /tmp/started", "changed\ntool one\none\n/tmp/started")

	second := sandbox.TemplateSpec{From: sandbox.TemplateSource{Template: "mine@1"}, Run: []sandbox.TemplateStep{{Run: "echo second > out"}}}
	_, err = d.Client.StartBuild(ctx, sandbox.BuildTemplateRequest{Name: "mine", Spec: &second})
	covetest.WantCode(t, err, sandbox.CodeConflict) // it is made of something else
	if _, err := d.Client.BuildTemplate(ctx, sandbox.BuildTemplateRequest{Name: "mine", Spec: &second, Force: true}, nil); err != nil {
		t.Fatal(err)
	}
	if err := d.Client.AliasTemplate(ctx, "stable", "mine@1"); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{"mine": "second", "mine@2": "second", "mine@1": "tool one", "stable": "tool one"} {
		s := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Template = ref }))
		d.Shows(t, s.ID, "cat out", want)
	}
	got, err := d.Client.GetTemplate(ctx, "mine")
	if err != nil || got.Version != 2 || !slices.Equal(got.Aliases, []string{"stable"}) || got.Source != "template" || got.WorkDir != "/app" || got.Start == nil {
		t.Errorf("template %+v, %v", got, err)
	}
	// A template that is deleted while it is in use remains in its sandboxes.
	if err := d.Client.DeleteTemplate(ctx, "mine"); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"mine", "mine@1", "stable"} {
		_, err := d.Client.Create(ctx, sandbox.CreateRequest{Template: ref})
		covetest.WantCode(t, err, sandbox.CodeNotFound)
	}
	d.Shows(t, id, "cat out", "tool one")
	if _, err := d.Client.Pause(ctx, id); err != nil {
		t.Fatal(err)
	}
	d.Shows(t, id, "cat out", "tool one")
}

// buildsEnd ends builds in the middle of a step: by a cancel, and with the daemon.
func buildsEnd(t *testing.T, d *covetest.Daemon) {
	spec := sandbox.TemplateSpec{From: sandbox.TemplateSource{Host: true}, Run: []sandbox.TemplateStep{{Run: "echo begun; sleep 600"}}}
	enough := errors.New("enough")
	start := func(name string) string {
		t.Helper()
		b, err := d.Client.StartBuild(t.Context(), sandbox.BuildTemplateRequest{Name: name, Spec: &spec})
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.Client.FollowBuild(t.Context(), b.ID, func(e sandbox.BuildEvent) error {
			if strings.Contains(e.Log, "begun") {
				return enough
			}
			return nil
		})
		if err != enough {
			t.Fatalf("follow until the step runs: %v", err)
		}
		return b.ID
	}
	id := start("cancelled")
	if list, err := d.Client.List(t.Context(), sandbox.ListRequest{}); err != nil || slices.ContainsFunc(list.Items, func(s sandbox.Sandbox) bool { return s.Template == "" || s.Name == "build" }) {
		t.Errorf("the sandbox of a build is listed: %+v, %v", list, err)
	}
	if b, err := d.Client.CancelBuild(t.Context(), id); err != nil || b.State != sandbox.BuildCancelled {
		t.Errorf("cancelled: %+v, %v", b, err)
	}
	nothingOfBuilds(t, d)

	id = start("lost")
	d.Kill()
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := d.Client.FollowBuild(t.Context(), id, func(sandbox.BuildEvent) error { return nil })
	if err != nil || b.State != sandbox.BuildFailed || !strings.Contains(b.Reason, "daemon") {
		t.Errorf("after the restart: %+v, %v", b, err)
	}
	nothingOfBuilds(t, d)
	if _, err := os.Stat(filepath.Join(d.StateDir, "builds", id+".log")); err != nil {
		t.Errorf("its log: %v", err)
	}
}
