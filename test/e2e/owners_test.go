package e2e

import (
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// TestMoreVolumeOwners has a sandbox's own user work in a volume, with a daemon of root and with
// one of an ordinary user, who cannot give files to other user ids. In "make test", TestVolumes
// stands for it.
func TestMoreVolumeOwners(t *testing.T) { covetest.EachUser(t, keepOwners) }

func keepOwners(t *testing.T, d *covetest.Daemon) {
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := d.Client.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "data", SizeMiB: 64})
	must(err)
	mounted := func(r *sandbox.CreateRequest) {
		r.Mounts = []sandbox.Mount{{Target: "/data", Volume: "data"}}
	}
	a := d.Create(t, covetest.Small(mounted))
	me := d.Sh(t, a.ID, "echo $(id -u):$(id -g)")[:len("1000:1000")]

	// A user makes, changes and removes the user's own files.
	d.Shows(t, a.ID, "cd /data && echo one > f && echo two >> f && chmod 600 f && touch -d 2001-01-01 f && mkdir -p d/e && echo three > d/e/g && ln d/e/g d/h && ln -s f l && cat l d/h && stat -c %u:%g f d d/e/g", "one\ntwo\nthree\n"+me+"\n"+me+"\n"+me)
	d.Shows(t, a.ID, "cd /data && stat -c %a:%Y f && touch gone && mv gone d/gone && rm d/gone d/h && rmdir d/e 2>/dev/null || echo full", "600:978307200\nfull")
	d.Shows(t, a.ID, "cd /data && python3 -m venv --without-pip v && v/bin/python3 -c 'print(1)' && rm -r v && cp -a d copy && rm -r copy && ln -sfn d/e l && ls | tr '\\n' ' ' && rm l", "1\nd f l")
	// Root's files are protected.
	root := func(line, want string) {
		t.Helper()
		res, err := d.Exec(ctx, a.ID, sandbox.ExecRequest{Shell: line, User: "root"})
		must(err)
		if got := res.Stdout; got != want+"\n" {
			t.Errorf("as root, %s writes %q and %q, want %q", line, got, res.Stderr, want)
		}
	}
	root("cd /data && echo mine > r && chmod 600 r && mkdir rd && stat -c %u:%g r rd f && chown 1234:5678 rd && stat -c %u:%g rd && chown root:root rd && stat -c %u:%g rd", "0:0\n0:0\n"+me+"\n1234:5678\n0:0")
	d.Shows(t, a.ID, "cd /data && (cat r; echo x >> r; touch rd/x; chown root f) 2>/dev/null; ls rd; stat -c %u r f | tr '\\n' ' '", "0 "+me[:len("1000")])

	// Owners stay the same for other sandboxes, and through pause, fork and restore.
	owned := func(id string) {
		t.Helper()
		d.Shows(t, id, "cd /data && stat -c %u:%g f d r && echo more >> f && echo x > d/mine && rm d/mine", me+"\n"+me+"\n0:0")
	}
	other := d.Create(t, covetest.Small(mounted))
	owned(other.ID)
	_, err = d.Client.Pause(ctx, a.ID)
	must(err)
	_, err = d.Client.Resume(ctx, a.ID, sandbox.ResumeRequest{})
	must(err)
	owned(a.ID)
	forks, err := d.Client.Fork(ctx, a.ID, sandbox.ForkRequest{})
	must(err)
	owned(forks.Items[0].ID)
	_, err = d.Client.CreateSnapshot(ctx, a.ID, sandbox.CreateSnapshotRequest{Name: "s"})
	must(err)
	_, err = d.Client.RestoreSnapshot(ctx, a.ID, sandbox.RestoreRequest{Snapshot: "s"})
	must(err)
	owned(a.ID)
	d.Kill()
	must(d.Run(ctx))
	owned(a.ID)
}
