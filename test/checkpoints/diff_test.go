package checkpoints

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// changesOf returns the changes of a comparison, one line each, without those
// to the file that holds a sandbox's own host name.
func changesOf(t *testing.T, d *covetest.Daemon, subject, against string, paths ...string) []string {
	t.Helper()
	diff, err := d.Client.Diff(t.Context(), subject, sandbox.DiffRequest{Against: against, Paths: paths})
	if err != nil {
		t.Fatalf("compare %s with %q: %v", subject, against, err)
	}
	counts := map[sandbox.ChangeKind]int{}
	for _, c := range diff.Changes {
		counts[c.Kind]++
	}
	if counts[sandbox.ChangeAdded] != diff.Added || counts[sandbox.ChangeRemoved] != diff.Removed || counts[sandbox.ChangeModified] != diff.Modified || diff.Truncated {
		t.Errorf("compare %s with %q: counts %d, %d, %d of %v", subject, against, diff.Added, diff.Removed, diff.Modified, counts)
	}
	return lines(diff.Changes)
}

// lines formats each change as a line.
func lines(changes []sandbox.Change) []string {
	var all []string
	for _, c := range changes {
		if c.Path == "/etc/hosts" {
			continue
		}
		line := fmt.Sprintf("%s %s %s", c.Kind, c.Type, c.Path)
		for _, a := range c.Aspects {
			switch a {
			case sandbox.AspectMode:
				line += fmt.Sprintf(" mode %s to %s", c.OldMode, c.NewMode)
			case sandbox.AspectContent:
				line += fmt.Sprintf(" content %d to %d", c.OldSize, c.NewSize)
			default:
				line += " " + string(a)
			}
		}
		all = append(all, line)
	}
	slices.Sort(all)
	return all
}

// wantChanges compares the lines of changes, whatever their order.
func wantChanges(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// asRoot runs a shell line that must succeed as root.
func asRoot(t *testing.T, d *covetest.Daemon, id, line string) string {
	t.Helper()
	res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Shell: "set -e; " + line, User: "root"})
	if err != nil || res.Job.ExitCode != 0 {
		t.Fatalf("%s: %v, %+v", line, err, res)
	}
	return res.Stdout
}

// A sandbox changes files of its template in every way.
func TestDiffWithTemplate(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Name: "changes"})
		wantChanges(t, "a new sandbox", changesOf(t, d, s.ID, ""))
		skeleton := strings.Fields(asRoot(t, d, s.ID, "ls -A /etc/skel"))
		asRoot(t, d, s.ID, `echo changed > /etc/hostname
			chmod 600 /etc/nsswitch.conf
			chown 12:13 /etc/group
			rm /etc/networks; mkdir /etc/networks; touch /etc/networks/in
			ln -sfn elsewhere /etc/os-release
			rm /etc/localtime
			rm -r /etc/ssl
			rm -r /etc/skel; mkdir /etc/skel
			mv /etc/debian_version /etc/debian_moved
			cat /etc/login.defs > /tmp/copy; cat /tmp/copy > /etc/login.defs
			chmod 600 /etc/shells; chmod 644 /etc/shells
			touch /usr/new; rm /usr/new
			mkdir -p made/sub; printf 12345 > made/sub/f; ln made/sub/f made/hard; ln -s f made/sub/l; mkfifo made/p
			chown -R user:user made; chmod 4755 made/sub/f
			echo not compared > /tmp/t; echo not compared > /dev/shm/t`)
		want := []string{
			"modified file /etc/hostname content 8 to 8",
			"modified file /etc/nsswitch.conf mode 0644 to 0600",
			"modified file /etc/group owner",
			"modified directory /etc/networks type",
			"added file /etc/networks/in",
			"modified symlink /etc/os-release target",
			"removed symlink /etc/localtime",
			"removed directory /etc/ssl",
			"removed file /etc/debian_version", "added file /etc/debian_moved",
			"added directory /workspace/made", "added directory /workspace/made/sub", "added other /workspace/made/p",
			"added file /workspace/made/sub/f", "added file /workspace/made/hard", "added symlink /workspace/made/sub/l",
		}
		for _, name := range skeleton {
			want = append(want, "removed file /etc/skel/"+name)
		}
		wantChanges(t, "running", changesOf(t, d, s.ID, ""), want...)
		for _, kind := range []sandbox.SnapshotKind{sandbox.SnapshotMemory, sandbox.SnapshotFiles} {
			name := "kept-" + string(kind)
			if _, err := d.Client.CreateSnapshot(t.Context(), s.ID, sandbox.CreateSnapshotRequest{Name: name, Kind: kind}); err != nil {
				t.Fatal(err)
			}
			wantChanges(t, "a snapshot of "+string(kind), changesOf(t, d, name, ""), want...)
		}
		pause(t, d, s.ID)
		wantChanges(t, "paused", changesOf(t, d, s.ID, ""), want...)
		wantChanges(t, "paths", changesOf(t, d, s.ID, "", "/workspace/made/sub", "/etc/ssl", "/etc/os-release"),
			"added directory /workspace/made/sub", "added file /workspace/made/sub/f", "added symlink /workspace/made/sub/l",
			"removed directory /etc/ssl", "modified symlink /etc/os-release target")
		isPaused(t, d, s.ID)
		from := d.Create(t, sandbox.CreateRequest{Snapshot: "kept-files", Name: "again"})
		wantChanges(t, "from a snapshot of files", changesOf(t, d, from.ID, ""), want...)
		wantChanges(t, "from a snapshot of files, with it", changesOf(t, d, from.ID, "kept-files"))
		if got := d.Sh(t, from.ID, "cat made/hard made/sub/l; stat -c '%U %a %h' made/sub/f"); got != "1234512345user 4755 2\n" {
			t.Errorf("the files of a snapshot: %q", got)
		}
	})
}

// pause pauses a sandbox.
func pause(t *testing.T, d *covetest.Daemon, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if got, err := d.Client.Pause(t.Context(), id); err != nil || got.State != sandbox.StatePaused {
			t.Fatalf("pause %s: %+v, %v", id, got, err)
		}
	}
}

// isPaused checks that sandboxes are still paused.
func isPaused(t *testing.T, d *covetest.Daemon, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if got, err := d.Client.Get(t.Context(), id); err != nil || got.State != sandbox.StatePaused {
			t.Errorf("%s: %+v, %v; want it paused", id, got, err)
		}
	}
}

// Forks compared with each other, with their parent and with a snapshot,
// running and paused.
func TestDiffOfForks(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		parent := d.Create(t, sandbox.CreateRequest{Name: "parent"})
		d.Sh(t, parent.ID, `printf 'one\ntwo\nthree\n' > text; printf '\0\1\2' > binary; echo b > removed; echo m > mode; chmod 644 mode
			ln -s text link; mkdir gone kept; touch gone/1 gone/2 kept/1; echo t > type`)
		if _, err := d.Client.CreateSnapshot(t.Context(), parent.ID, sandbox.CreateSnapshotRequest{Name: "before"}); err != nil {
			t.Fatal(err)
		}
		list, err := d.Client.Fork(t.Context(), parent.ID, sandbox.ForkRequest{Count: 2, Name: "fork"})
		if err != nil {
			t.Fatal(err)
		}
		a, b := list.Items[0].ID, list.Items[1].ID
		wantChanges(t, "forks at first", changesOf(t, d, a, b))
		d.Sh(t, a, `printf 'one\n2\nthree\n' > text; printf '\0\1\2\3' > binary; rm removed; chmod 600 mode; ln -sfn mode link
			rm -r gone; rm type; ln -s text type; echo new > new`)
		d.Sh(t, b, `printf 'one\ntwo\nthree\nfour\n' > text; rm kept/1; echo other > new; chmod 600 mode`)
		check := func(t *testing.T) {
			forward := []string{
				"modified file /workspace/text content 14 to 12", "modified file /workspace/binary content 3 to 4", "removed file /workspace/removed",
				"modified file /workspace/mode mode 0644 to 0600", "modified symlink /workspace/link target", "removed directory /workspace/gone",
				"modified symlink /workspace/type type", "added file /workspace/new",
			}
			wantChanges(t, "a fork and its parent", changesOf(t, d, a, parent.ID), forward...)
			wantChanges(t, "a fork and a snapshot", changesOf(t, d, a, "before"), forward...)
			wantChanges(t, "a parent and its fork", changesOf(t, d, "parent", "fork-0"),
				"modified file /workspace/text content 12 to 14", "modified file /workspace/binary content 4 to 3", "added file /workspace/removed",
				"modified file /workspace/mode mode 0600 to 0644", "modified symlink /workspace/link target",
				"added directory /workspace/gone", "added file /workspace/gone/1", "added file /workspace/gone/2",
				"modified file /workspace/type type", "removed file /workspace/new")
			wantChanges(t, "two forks", changesOf(t, d, a, b),
				"modified file /workspace/text content 19 to 12", "modified file /workspace/binary content 3 to 4", "removed file /workspace/removed",
				"modified symlink /workspace/link target", "removed directory /workspace/gone", "modified symlink /workspace/type type",
				"modified file /workspace/new content 6 to 4", "added file /workspace/kept/1")
			wantChanges(t, "a parent and its snapshot", changesOf(t, d, parent.ID, "before"))
			wantPatch(t, d, a, b)
		}
		t.Run("running", check)
		pause(t, d, parent.ID, a)
		t.Run("some paused", check)
		pause(t, d, b)
		t.Run("all paused", check)
		isPaused(t, d, parent.ID, a, b)
		if cells := d.Cells(); cells[parent.ID]+cells[a]+cells[b] != 0 {
			t.Errorf("paused sandboxes were resumed: %v", cells)
		}
	})
}

// wantPatch checks the patches of what two forks differ in.
func wantPatch(t *testing.T, d *covetest.Daemon, a, b string) {
	t.Helper()
	diff, err := d.Client.Diff(t.Context(), a, sandbox.DiffRequest{Against: b, Patch: true, Paths: []string{"/workspace"}})
	if err != nil {
		t.Fatal(err)
	}
	patches := map[string]string{}
	for _, c := range diff.Changes {
		if c.Patch != "" {
			patches[c.Path] = c.Patch
		}
	}
	const text = "--- a/workspace/text\n+++ b/workspace/text\n@@ -1,4 +1,3 @@\n one\n-two\n+2\n three\n-four\n"
	if patches["/workspace/text"] != text || patches["/workspace/binary"] != "" || !strings.Contains(patches["/workspace/new"], "-other\n+new\n") {
		t.Errorf("patches: %q", patches)
	}
	few, err := d.Client.Diff(t.Context(), a, sandbox.DiffRequest{Against: b, Limit: 2})
	if err != nil || len(few.Changes) != 2 || !few.Truncated || few.Added+few.Removed+few.Modified < 8 {
		t.Errorf("two of the changes: %+v, %v", few, err)
	}
}
