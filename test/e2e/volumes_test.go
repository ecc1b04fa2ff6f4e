package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// createMounts shows that a mount takes effect, and that a wrong one is refused.
func createMounts(t *testing.T, d *covetest.Daemon) {
	s := with(t, d, func(r *sandbox.CreateRequest) {
		r.Mounts = []sandbox.Mount{{Target: "/new/place", Tmpfs: true, SizeMiB: 2}}
	})
	d.Shows(t, s.ID, "df -m --output=size /new/place | tail -1 | tr -d ' '", "2")
	for code, m := range map[sandbox.Code]sandbox.Mount{
		sandbox.CodeForbidden: {Target: "/data", Host: "/etc", ReadOnly: true},
		sandbox.CodeNotFound:  {Target: "/data", Volume: "none"},
		sandbox.CodeInvalid:   {Target: "/bin/sh", Tmpfs: true}, // a link, or a file
	} {
		_, err := d.Client.Create(t.Context(), covetest.Small(func(r *sandbox.CreateRequest) { r.Mounts = []sandbox.Mount{m} }))
		covetest.WantCode(t, err, code)
	}
}

func mounting(m ...sandbox.Mount) func(*sandbox.CreateRequest) {
	return func(r *sandbox.CreateRequest) { r.Mounts, r.User = m, "root" }
}

// TestVolumes keeps files in a volume through all that happens to sandboxes.
func TestVolumes(t *testing.T) {
	host, err := os.MkdirTemp("/tmp", "cove-host-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(host) })
	for _, d := range []string{"read", "write"} {
		err := os.Mkdir(filepath.Join(host, d), 0o755)
		if err == nil {
			err = os.Chmod(filepath.Join(host, d), 0o777)
		}
		if err == nil {
			err = os.Chmod(host, 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(host, d, "f"), []byte("host"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) { keepFiles(t, d, host) }, "--mount-paths", filepath.Join(host, "read")+","+filepath.Join(host, "write")+":rw")
}

func keepFiles(t *testing.T, d *covetest.Daemon, host string) {
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	vol, err := d.Client.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "data", SizeMiB: 16})
	must(err)
	data := sandbox.Mount{Target: "/srv/deep/data", Volume: "data"}
	a := d.Create(t, covetest.Small(mounting(data, sandbox.Mount{Target: "/scratch", Tmpfs: true, SizeMiB: 2},
		sandbox.Mount{Target: "/h/read", Host: filepath.Join(host, "read"), ReadOnly: true}, sandbox.Mount{Target: "/h/write", Host: filepath.Join(host, "write")})))
	reader := d.Create(t, covetest.Small(mounting(sandbox.Mount{Target: "/data", Volume: vol.ID, ReadOnly: true})))

	// Each sees at once what the other writes. Read-only holds for root too.
	d.Shows(t, a.ID, "echo one > /srv/deep/data/f; mkdir /srv/deep/data/d; echo two > /srv/deep/data/d/g; cat /h/read/f /h/write/f", "hosthost")
	d.Shows(t, reader.ID, "cat /data/f /data/d/g | tr '\\n' ' '", "one two")
	ordinary := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Mounts = []sandbox.Mount{{Target: "/data", Volume: "data"}} }))
	d.Sh(t, a.ID, "echo r > /srv/deep/data/r; chmod 600 /srv/deep/data/r")
	d.Shows(t, ordinary.ID, "(cat /data/r; echo x >> /data/r; chown user /data/r) 2>/dev/null; stat -c %u:%a /data/r", "0:600")
	d.Sh(t, a.ID, "rm /srv/deep/data/r")
	_, err = d.Client.Kill(ctx, ordinary.ID)
	must(err)
	d.Shows(t, reader.ID, "(echo x > /data/x || mount -o remount,rw /data; echo x > /data/x; rm /data/f; mkdir /data/y) 2>/dev/null; ls /data | tr '\\n' ' '", "d f")
	d.Shows(t, a.ID, "(echo x > /h/read/x) 2>/dev/null || echo refused", "refused")
	d.Shows(t, a.ID, "echo mine > /h/write/new; cat /h/write/new", "mine")
	d.Shows(t, a.ID, "mknod /srv/deep/data/null c 1 3 2>/dev/null || echo no devices", "no devices")
	d.Shows(t, a.ID, "dd if=/dev/zero of=/scratch/big bs=1M count=8 2>/dev/null; stat -c %s /scratch/big; rm /scratch/big", "2097152")
	// Links lead out in no way: neither on the host nor here.
	d.Shows(t, a.ID, "ln -s /etc /srv/deep/data/link; ln -s ../../../../../.. /srv/deep/data/up; ln -s "+host+" /h/write/link; ls /srv/deep/data/up/ | grep -c scratch", "1")
	if _, err := d.Client.Create(ctx, covetest.Small(mounting(sandbox.Mount{Target: "/x", Host: filepath.Join(host, "write", "link"), ReadOnly: true}))); sandbox.CodeOf(err) != sandbox.CodeForbidden {
		t.Errorf("a link out of an allowed directory: %v", err)
	}

	// Open files continue to work after a pause, and in a fork.
	_, err = d.Client.Exec(ctx, a.ID, sandbox.ExecRequest{Background: true, Shell: "exec 3>>/srv/deep/data/log 4>/scratch/kept; echo kept >&4; cd /srv/deep/data/d; while :; do echo tick >&3; sleep 0.1; done"}, nil)
	must(err)
	if !covetest.Eventually(covetest.DetectionLimit, func() bool { return d.Sh(t, a.ID, "cat /scratch/kept 2>/dev/null") == "kept\n" }) {
		t.Fatal("the writer does not begin")
	}
	_, err = d.Client.Pause(ctx, a.ID)
	must(err)
	covetest.WantCode(t, d.Client.DeleteVolume(ctx, "data"), sandbox.CodeConflict)
	ticks := func() string { return d.Sh(t, reader.ID, "wc -l < /data/log") }
	before := ticks()
	_, err = d.Client.Resume(ctx, a.ID, sandbox.ResumeRequest{})
	must(err)
	if !covetest.Eventually(covetest.DetectionLimit, func() bool { return ticks() != before }) {
		t.Error("the writer does not go on")
	}
	d.Shows(t, a.ID, "cat /scratch/kept", "kept")
	forks, err := d.Client.Fork(ctx, a.ID, sandbox.ForkRequest{})
	must(err)
	fork := forks.Items[0].ID
	d.Shows(t, fork, "cat /scratch/kept; echo child > /srv/deep/data/child", "kept")
	d.Shows(t, a.ID, "cat /srv/deep/data/child", "child")
	_, err = d.Client.Kill(ctx, fork)
	must(err)

	// A snapshot does not contain the volume, which keeps its current content.
	_, err = d.Client.CreateSnapshot(ctx, a.ID, sandbox.CreateSnapshotRequest{Name: "s"})
	must(err)
	d.Sh(t, a.ID, "echo later > /srv/deep/data/f; echo later > /root/file")
	_, err = d.Client.RestoreSnapshot(ctx, a.ID, sandbox.RestoreRequest{Snapshot: "s"})
	must(err)
	d.Shows(t, a.ID, "cat /srv/deep/data/f; test -e /root/file || echo gone", "later\ngone")
	diff, err := d.Client.Diff(ctx, a.ID, sandbox.DiffRequest{})
	must(err)
	for _, c := range diff.Changes {
		if strings.HasPrefix(c.Path, "/srv/deep/data/") || strings.HasPrefix(c.Path, "/h/") {
			t.Errorf("the diff tells of %s", c.Path)
		}
	}

	// If another sandbox has removed its open files, a resume says so, and the sandbox
	// can start from its files.
	_, err = d.Client.Pause(ctx, a.ID)
	must(err)
	w := d.Create(t, covetest.Small(mounting(sandbox.Mount{Target: "/data", Volume: "data"})))
	d.Sh(t, w.ID, "rm -r /data/log /data/d")
	_, err = d.Client.Resume(ctx, a.ID, sandbox.ResumeRequest{})
	covetest.WantCode(t, err, sandbox.CodeConflict)
	_, err = d.Client.Resume(ctx, a.ID, sandbox.ResumeRequest{FilesOnly: true})
	must(err)
	d.Shows(t, a.ID, "cat /srv/deep/data/f", "later")

	// The daemon may go; sandboxes may end; the volume stays until it is deleted.
	d.Kill()
	must(d.Run(ctx))
	d.Shows(t, w.ID, "cat /data/f", "later")
	for _, id := range []string{a.ID, w.ID, reader.ID} {
		_, err := d.Client.Kill(ctx, id)
		must(err)
	}
	_, err = d.Client.DeleteSnapshot(ctx, "s")
	must(err)
	next := d.Create(t, covetest.Small(mounting(sandbox.Mount{Target: "/data", Volume: "data"})))
	d.Shows(t, next.ID, "cat /data/f", "later")

	// Over twice the size ends the writer, wherever its files are, and if they
	// have no name any more.
	for i, line := range []string{
		"exec 3>/data/gone; rm /data/gone; dd if=/dev/zero bs=1M count=40 >&3; exec sleep 300",
		"mkdir -p /data/a/b; exec dd if=/dev/zero of=/data/a/b/big bs=1M count=40",
	} {
		if i > 0 {
			next = d.Create(t, covetest.Small(mounting(sandbox.Mount{Target: "/data", Volume: "data"})))
		}
		_, err = d.Client.Exec(ctx, next.ID, sandbox.ExecRequest{Background: true, Shell: line}, nil)
		must(err)
		var now *sandbox.Sandbox
		// How often the volume is measured depends on how long that takes.
		if !covetest.Eventually(time.Minute, func() bool {
			now, err = d.Client.Get(context.WithoutCancel(ctx), next.ID)
			return err == nil && now.State == sandbox.StateKilled
		}) || !strings.Contains(now.Reason, "volume data") {
			t.Errorf("a sandbox that fills its volume is %+v, %v", now, err)
		}
	}
	_, err = d.Client.Create(ctx, covetest.Small(mounting(sandbox.Mount{Target: "/data", Volume: "data"})))
	covetest.WantCode(t, err, sandbox.CodeQuotaExceeded)
	must(d.Client.DeleteVolume(ctx, "data"))
	if left, err := filepath.Glob(filepath.Join(d.StateDir, "volumes", "vol-*")); err != nil || len(left) != 0 {
		t.Errorf("of volumes %v is left, %v", left, err)
	}
}
