package service

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/volume"
	"github.com/cove-sh/cove/sandbox"
)

// keepVolumes makes a harness keep volumes.
func keepVolumes(dir string) func(*Config) {
	return func(c *Config) {
		d, err := volume.Open(dir)
		if err != nil {
			panic(err)
		}
		c.Volumes = d
	}
}

func init() {
	notOnSandbox["CreateVolume"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.CreateVolume(ctx, sandbox.CreateVolumeRequest{})
		return err
	}
	notOnSandbox["GetVolume"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.GetVolume(ctx, "none")
		return err
	}
	notOnSandbox["ListVolumes"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.ListVolumes(ctx, sandbox.Page{})
		return err
	}
	notOnSandbox["DeleteVolume"] = func(ctx context.Context, s sandbox.Service) error { return s.DeleteVolume(ctx, "none") }
	for _, verb := range []string{"CreateVolume", "DeleteVolume"} {
		scopeOf[verb] = sandbox.ScopeSandboxesWrite
	}
	for _, verb := range []string{"GetVolume", "ListVolumes"} {
		scopeOf[verb] = sandbox.ScopeSandboxesRead
	}
}

func mounts(m ...sandbox.Mount) sandbox.CreateRequest { return sandbox.CreateRequest{Mounts: m} }

func TestVolumes(t *testing.T) {
	dir := t.TempDir()
	w := newHarness(t, keepVolumes(dir))
	ctx := asRed(t)
	for _, bad := range []sandbox.CreateVolumeRequest{
		{}, {Name: "Up"}, {Name: "vol-x"}, {Name: "x", SizeMiB: -1}, {Name: "x", SizeMiB: sandbox.MaxDiskMiB + 1},
	} {
		_, err := w.CreateVolume(ctx, bad)
		wantCode(t, err, sandbox.CodeInvalid)
	}
	v, err := w.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "data"})
	must(t, err)
	if v.SizeMiB != sandbox.DefaultVolumeMiB || !ids.IsVolume(v.ID) {
		t.Errorf("made %+v", v)
	}
	_, err = w.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "data"})
	wantCode(t, err, sandbox.CodeConflict)

	sbx := w.create(mounts(sandbox.Mount{Target: "/data", Volume: "data"}, sandbox.Mount{Target: "/t", Tmpfs: true}))
	if len(sbx.Mounts) != 2 || sbx.Mounts[0].Volume != v.ID || len(sbx.Unenforced) == 0 {
		t.Errorf("the sandbox is %+v", sbx)
	}
	spec, _ := w.state.Spec(sbx.ID)
	if len(spec.Mounts) != 2 || spec.Mounts[0].Source != filepath.Join(dir, v.ID, "data") || spec.Mounts[1].SizeBytes != sbx.Resources.MemoryMiB<<20/2 {
		t.Errorf("the instance has %+v", spec.Mounts)
	}
	// A fork, a snapshot and what is made from that have it too.
	forks, err := w.Fork(ctx, sbx.ID, sandbox.ForkRequest{})
	must(t, err)
	snap, err := w.CreateSnapshot(ctx, sbx.ID, sandbox.CreateSnapshotRequest{Name: "s"})
	must(t, err)
	again, err := w.Create(ctx, sandbox.CreateRequest{Snapshot: "s"})
	must(t, err)
	plain := w.create(sandbox.CreateRequest{})
	restored, err := w.RestoreSnapshot(ctx, plain.ID, sandbox.RestoreRequest{Snapshot: "s"})
	must(t, err)
	for _, s := range []*sandbox.Sandbox{&forks.Items[0], again, restored} {
		if len(s.Mounts) != 2 {
			t.Errorf("%s has %+v", s.ID, s.Mounts)
		}
	}
	_, err = w.Create(ctx, sandbox.CreateRequest{Snapshot: "s", Mounts: []sandbox.Mount{{Target: "/x", Tmpfs: true}}})
	wantCode(t, err, sandbox.CodeInvalid)

	// Another team sees none of it.
	blue := as(t.Context(), "blue")
	for _, ref := range []string{"data", v.ID} {
		_, err := w.GetVolume(blue, ref)
		wantCode(t, err, sandbox.CodeNotFound)
		wantCode(t, w.DeleteVolume(blue, ref), sandbox.CodeNotFound)
		_, err = w.Create(blue, mounts(sandbox.Mount{Target: "/data", Volume: ref}))
		wantCode(t, err, sandbox.CodeNotFound)
	}
	list, err := w.ListVolumes(blue, sandbox.Page{})
	must(t, err)
	if len(list.Items) != 0 {
		t.Errorf("another team sees %+v", list.Items)
	}

	// It cannot be deleted while anything has it.
	list, err = w.ListVolumes(ctx, sandbox.Page{})
	must(t, err)
	if len(list.Items) != 1 || len(list.Items[0].Sandboxes) != 4 {
		t.Errorf("listed %+v", list.Items)
	}
	for _, id := range []string{sbx.ID, forks.Items[0].ID, again.ID, restored.ID} {
		wantCode(t, w.DeleteVolume(ctx, "data"), sandbox.CodeConflict)
		_, err := w.Kill(ctx, id)
		must(t, err)
	}
	wantCode(t, w.DeleteVolume(ctx, "data"), sandbox.CodeConflict)
	_, err = w.DeleteSnapshot(ctx, snap.ID)
	must(t, err)
	must(t, w.DeleteVolume(ctx, "data"))
	_, err = w.GetVolume(ctx, "data")
	wantCode(t, err, sandbox.CodeNotFound)
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// TestVolumesAfterCrash checks that the files of a half-made volume are removed, and
// that those of another stay.
func TestVolumesAfterCrash(t *testing.T) {
	dir := t.TempDir()
	w := newHarness(t, keepVolumes(dir))
	v, err := w.CreateVolume(asRed(t), sandbox.CreateVolumeRequest{Name: "data"})
	must(t, err)
	must(t, w.cfg.Volumes.Create("vol-half", nil))
	must(t, os.Mkdir(filepath.Join(dir, ".gone-vol-x"), 0o700))
	w.restart()
	left, err := os.ReadDir(dir)
	must(t, err)
	if len(left) != 1 || left[0].Name() != v.ID {
		t.Errorf("%v is left", left)
	}
}

// TestVolumeFull fills a volume: new writers are refused, and the existing ones are
// ended.
func TestVolumeFull(t *testing.T) {
	w := newHarness(t, keepVolumes(t.TempDir()))
	ctx := asRed(t)
	v, err := w.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "data", SizeMiB: 1})
	must(t, err)
	writer := w.create(mounts(sandbox.Mount{Target: "/data", Volume: "data"}))
	reader := w.create(mounts(sandbox.Mount{Target: "/data", Volume: "data", ReadOnly: true}))
	file := filepath.Join(w.cfg.Volumes.Path(v.ID), "f")
	must(t, os.WriteFile(file, make([]byte, 3<<19), 0o600))
	must(t, w.Volumes.Watch(ctx))
	if got := w.get(writer.ID); got.State != sandbox.StateRunning || !strings.Contains(strings.Join(got.Unenforced, ""), "delete files") {
		t.Errorf("the writer is %s, %q", got.State, got.Unenforced)
	}
	_, err = w.Create(ctx, mounts(sandbox.Mount{Target: "/data", Volume: "data"}))
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	if got, err := w.GetVolume(ctx, "data"); err != nil || got.UsedBytes <= got.SizeMiB<<20 {
		t.Errorf("the volume is %+v, %v", got, err)
	}
	must(t, os.WriteFile(file, make([]byte, 3<<20), 0o600))
	must(t, w.Volumes.Watch(ctx))
	if got := w.get(writer.ID); got.State != sandbox.StateKilled || !strings.Contains(got.Reason, "data") {
		t.Errorf("the writer is %s, %q", got.State, got.Reason)
	}
	if got := w.get(reader.ID); got.State != sandbox.StateRunning {
		t.Errorf("the reader is %s, %q", got.State, got.Reason)
	}
	must(t, os.Remove(file))
	w.create(mounts(sandbox.Mount{Target: "/data", Volume: "data"}))
}

// TestVolumeUnsynced checks that no state is kept whose files a power loss could take:
// if a volume cannot be written to the disk, pause and snapshot fail and the sandbox is
// as it was.
func TestVolumeUnsynced(t *testing.T) {
	w := newHarness(t, keepVolumes(t.TempDir()))
	ctx := asRed(t)
	v, err := w.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "data"})
	must(t, err)
	writer := w.create(sandbox.CreateRequest{Mounts: []sandbox.Mount{{Target: "/data", Volume: "data"}}, History: 2})
	reader := w.create(mounts(sandbox.Mount{Target: "/data", Volume: "data", ReadOnly: true}))
	dir := w.cfg.Volumes.Path(v.ID)
	must(t, os.Rename(dir, dir+"-away"))
	refused := func(outcome string, err error) {
		t.Helper()
		wantCode(t, err, sandbox.CodeUnavailable)
		if err == nil || !strings.Contains(err.Error(), outcome) || !strings.Contains(err.Error(), `"data"`) {
			t.Errorf("%v; want it to name the volume and to say %q", err, outcome)
		}
		w.agree()
	}
	_, err = w.Pause(ctx, writer.ID)
	refused("was not paused", err)
	if got := w.get(writer.ID); got.State != sandbox.StateRunning {
		t.Errorf("after a pause that was refused it is %s, %q", got.State, got.Reason)
	}
	for _, kind := range []sandbox.SnapshotKind{sandbox.SnapshotMemory, sandbox.SnapshotFiles} {
		_, err = w.CreateSnapshot(ctx, writer.ID, sandbox.CreateSnapshotRequest{Name: "s", Kind: kind})
		refused("no snapshot", err)
	}
	// A step of the history need not survive a power loss, and a sandbox that cannot
	// write has nothing to sync.
	w.shell(writer.ID, "true")
	if n := len(w.steps(writer.ID)); n != 1 {
		t.Errorf("there are %d steps in the history, want 1", n)
	}
	w.snapshot(reader.ID, "read")
	w.pause(reader.ID)

	must(t, os.Rename(dir+"-away", dir))
	w.snapshot(writer.ID, "s")
	w.pause(writer.ID)
	must(t, os.Rename(dir, dir+"-away"))
	_, err = w.CreateSnapshot(ctx, writer.ID, sandbox.CreateSnapshotRequest{})
	refused("no snapshot", err)
	if got := w.get(writer.ID); got.State != sandbox.StatePaused {
		t.Errorf("after a snapshot that was refused it is %s, %q", got.State, got.Reason)
	}
}

func TestBadMounts(t *testing.T) {
	w := newHarness(t, keepVolumes(t.TempDir()))
	ctx := asRed(t)
	_, err := w.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "data"})
	must(t, err)
	many := make([]sandbox.Mount, sandbox.MaxMounts+1)
	for name, bad := range map[string][]sandbox.Mount{
		"too many":     many,
		"no kind":      {{Target: "/data"}},
		"two kinds":    {{Target: "/data", Volume: "data", Tmpfs: true}},
		"relative":     {{Target: "data", Tmpfs: true}},
		"no target":    {{Tmpfs: true}},
		"dots":         {{Target: "/data/../etc", Tmpfs: true}},
		"slash":        {{Target: "/data/", Tmpfs: true}},
		"root":         {{Target: "/", Tmpfs: true}},
		"proc":         {{Target: "/proc/sys", Tmpfs: true}},
		"agent":        {{Target: "/.cove", Tmpfs: true}},
		"agent's":      {{Target: "/run/cove/x", Tmpfs: true}},
		"system":       {{Target: "/usr/lib", Tmpfs: true}},
		"null":         {{Target: "/a\x00b", Tmpfs: true}},
		"long":         {{Target: "/" + strings.Repeat("a", sandbox.MaxPathBytes), Tmpfs: true}},
		"twice":        {{Target: "/data", Tmpfs: true}, {Target: "/data", Volume: "data"}},
		"inside":       {{Target: "/data/in", Tmpfs: true}, {Target: "/data", Volume: "data"}},
		"size":         {{Target: "/data", Volume: "data", SizeMiB: 1}},
		"large":        {{Target: "/data", Tmpfs: true, SizeMiB: sandbox.MaxMemoryMiB}},
		"negative":     {{Target: "/data", Tmpfs: true, SizeMiB: -1}},
		"tmpfs ro":     {{Target: "/data", Tmpfs: true, ReadOnly: true}},
		"host":         {{Target: "/data", Host: "srv"}},
		"host upwards": {{Target: "/data", Host: "/srv/../etc"}},
	} {
		_, err := w.Create(ctx, sandbox.CreateRequest{Mounts: bad})
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = w.Create(ctx, mounts(sandbox.Mount{Target: "/data", Volume: "none"}))
	wantCode(t, err, sandbox.CodeNotFound)
}

// TestHostMounts checks that directories of the host that the operator does not name
// are refused, by whatever path.
func TestHostMounts(t *testing.T) {
	top := t.TempDir()
	for _, d := range []string{"read/in", "write", "write/in", "secret", "readx", "write/state/volumes"} {
		must(t, os.MkdirAll(filepath.Join(top, d), 0o700))
	}
	must(t, os.Symlink(filepath.Join(top, "secret"), filepath.Join(top, "write", "out")))
	must(t, os.Symlink("read", filepath.Join(top, "alias")))
	w := newHarness(t, func(c *Config) {
		c.HostMounts = []string{filepath.Join(top, "alias"), filepath.Join(top, "write") + ":rw"}
		c.StateDir = filepath.Join(top, "alias", "..", "write", "state")
	})
	for _, c := range []struct {
		path     string
		readOnly bool
		want     sandbox.Code
	}{
		{"read", true, ""}, {"read/in", true, ""}, {"alias/in", true, ""}, {"write/in", false, ""}, {"write/in", true, ""},
		{"read", false, sandbox.CodeForbidden}, {"readx", true, sandbox.CodeForbidden}, {"secret", true, sandbox.CodeForbidden},
		{"write/out", true, sandbox.CodeForbidden}, {"", true, sandbox.CodeForbidden}, {"none", true, sandbox.CodeForbidden},
		{"write/none", true, sandbox.CodeNotFound},
		{"write", true, sandbox.CodeForbidden}, {"write/state", true, sandbox.CodeForbidden}, {"write/state/volumes", true, sandbox.CodeForbidden},
	} {
		_, err := w.Create(asRed(t), mounts(sandbox.Mount{Target: "/data", Host: filepath.Join(top, c.path), ReadOnly: c.readOnly}))
		if sandbox.CodeOf(err) != c.want {
			t.Errorf("%s, read-only %v: %v, want %q", c.path, c.readOnly, err, c.want)
		}
	}
}
