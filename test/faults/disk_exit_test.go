package faults

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// On a disk without a free byte everything that frees room works: deletions,
// the end of a lifetime, the end of a sandbox whose machine dies, the removal
// of a key, and a restart of the daemon.
func TestWayOutOfFullDisk(t *testing.T) {
	needs.GVisor(t)
	needs.Root(t) // for a file system of a size
	dir := smallDisk(t, "", 768)
	d := covetest.Start(t, covetest.Options{StateDir: dir})
	ctx := t.Context()
	killed, dies, expires := d.Create(t, covetest.Small()), d.Create(t, covetest.Small()), d.Create(t, covetest.Small())
	snapshot, err := d.Client.CreateSnapshot(ctx, killed.ID, sandbox.CreateSnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	volume, err := d.Client.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "v"})
	if err != nil {
		t.Fatal(err)
	}
	key, err := d.Client.CreateKey(ctx, sandbox.CreateKeyRequest{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Client.StartBuild(ctx, sandbox.BuildTemplateRequest{Name: "tpl", Spec: &sandbox.TemplateSpec{
		From: sandbox.TemplateSource{Host: true}, Run: []sandbox.TemplateStep{{Run: "echo x > /opt/x"}},
	}})
	if err == nil {
		b, err = d.Client.FollowBuild(ctx, b.ID, func(sandbox.BuildEvent) error { return nil })
	}
	if err != nil || b.State != sandbox.BuildReady {
		t.Fatalf("build a template: %+v, %v", b, err)
	}
	// Each step frees room, so that the disk is filled again before the next one.
	fillers := 0
	full := func() {
		t.Helper()
		fill(t, dir, 0)
		fillers++
		if err := os.Rename(filepath.Join(dir, ".filler"), filepath.Join(dir, ".filler"+string(rune('a'+fillers)))); err != nil {
			t.Fatal(err)
		}
	}
	ends := func(id string, want sandbox.State) {
		t.Helper()
		end := time.Now().Add(covetest.DetectionLimit)
		for {
			s, err := d.Client.Get(ctx, id)
			if err == nil && s.State == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the sandbox is %+v, %v; want it %s", s, err, want)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	// A sandbox that has filled the disk itself is refused its pause, and lives.
	fill(t, dir, 16<<20)
	_, _ = d.Exec(ctx, killed.ID, sandbox.ExecRequest{User: "root", Command: []string{"sh", "-c", "echo mine > /dev/shm/word; for i in 1 2 3 4 5 6 7 8; do cat /dev/zero > /srv/$i; cat /dev/zero >> /srv/1; done"}})
	_, err = d.Client.Pause(ctx, killed.ID)
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "MiB are free; the sandbox goes on as it was") {
		t.Errorf("pause of a sandbox that filled the disk: %v", err)
	}
	d.Shows(t, killed.ID, "cat /dev/shm/word", "mine")
	fill(t, dir, -1)
	fill(t, dir, 0)
	if _, err := d.Client.Create(ctx, covetest.Small()); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("create on a full disk: %v", err)
	}
	fill(t, dir, -1)
	second := int64(1)
	if _, err := d.Client.Update(ctx, expires.ID, sandbox.UpdateRequest{LifetimeSeconds: &second}); err != nil {
		t.Fatal(err)
	}
	full()
	ends(expires.ID, sandbox.StateKilled)
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"revoke a key", func() error { _, err := d.Client.RevokeKey(ctx, key.Key.ID); return err }},
		{"restart", func() error {
			if err := d.Stop(); err != nil {
				return err
			}
			return d.Run(ctx)
		}},
		{"restart after SIGKILL", func() error { d.Kill(); return d.Run(ctx) }},
		{"delete a volume", func() error { return d.Client.DeleteVolume(ctx, volume.ID) }},
		{"delete a snapshot", func() error { _, err := d.Client.DeleteSnapshot(ctx, snapshot.ID); return err }},
		{"delete a template", func() error { return d.Client.DeleteTemplate(ctx, "tpl") }},
		{"die", func() error {
			pid, ok := d.Cells()[dies.ID]
			if !ok {
				return errors.New("the sandbox has no supervisor")
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
			ends(dies.ID, sandbox.StateFailed)
			return nil
		}},
		{"kill", func() error { _, err := d.Client.Kill(ctx, killed.ID); return err }},
	} {
		full()
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
	ends(killed.ID, sandbox.StateKilled)
	for _, s := range []*sandbox.Sandbox{killed, dies, expires} {
		if _, left := d.Cells()[s.ID]; left {
			t.Errorf("the cell of %s is left", s.ID)
		}
	}
}
