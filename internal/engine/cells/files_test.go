package cells_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/cells"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// rig is an engine under test.
type rig struct {
	*cells.Engine
	dir  string
	spec engine.Spec
}

func newRig(t *testing.T) *rig {
	t.Helper()
	needs.GVisor(t)
	r := &rig{dir: t.TempDir(), spec: hostSpec(t)}
	r.spec.User, r.spec.WorkDir = "root", "/"
	r.Engine = open(t, r.dir)
	t.Cleanup(func() {
		ctx := context.Background()
		all, err := r.List(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, st := range all {
			if err := r.Destroy(ctx, st.ID); err != nil {
				t.Error(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// create makes an instance, from a checkpoint if it is not empty.
func (r *rig) create(t *testing.T, id, checkpoint string, filesOnly bool) *agentclient.Client {
	t.Helper()
	spec := r.spec
	spec.ID, spec.Checkpoint, spec.FilesOnly, spec.Hostname = id, checkpoint, filesOnly, id
	inst, err := r.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	c := agentclient.New(id, inst.Dial)
	t.Cleanup(c.Close)
	return c
}

func (r *rig) keep(t *testing.T, instance, id string, filesOnly bool) engine.Checkpoint {
	t.Helper()
	ck, err := r.Checkpoint(t.Context(), instance, id, engine.CheckpointOptions{FilesOnly: filesOnly, Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	return ck
}

func shell(t *testing.T, c *agentclient.Client, line string) string {
	t.Helper()
	var out strings.Builder
	job, err := c.Exec(t.Context(), "", &sandbox.ExecRequest{Shell: line, TimeoutMS: 60_000, KeepBytes: 1 << 20}, func(e sandbox.JobEvent) error {
		out.Write(e.Data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if job.State != sandbox.JobExited || job.ExitCode != 0 {
		t.Fatalf("%q ended as %+v with %q", line, job, out.String())
	}
	return out.String()
}

// kinds makes files of every kind.
const kinds = `set -e
mkdir -p /srv/k/d0700 /srv/k/d1777 /srv/k/d2755 /srv/k/empty; cd /srv/k
chmod 0700 d0700; chmod 1777 d1777; chmod 2755 d2755
echo content > plain; : > nothing; chown 1234:100000 plain; chmod 0640 plain
cp /bin/true setuid; chmod 6755 setuid
ln -s plain short; ln -s $(printf 'x%.0s' $(seq 200))/target long; ln -s /nowhere absolute
echo linked > one; ln one two; ln one d0700/three
mkfifo fifo; chmod 0622 fifo
truncate -s 1T sparse; echo middle | dd of=sparse bs=1 seek=500000000000 conv=notrunc status=none; echo end >> sparse
truncate -s 3M hole; printf tail >> hole
head -c 1000000 /dev/urandom > random
touch -- '-dash' 'new
line' "$(printf 'byte\377\001')" "$(printf 'y%.0s' $(seq 255))" 'space and "quotes"' 'back\slash'
touch -d '2001-02-03 04:05:06' old; touch -d '1901-02-03 04:05:06' ancient
echo more >> /etc/hosts.allow-new; echo appended >> /etc/profile
rm /etc/os-release; rm -r /etc/alternatives; mkdir /etc/alternatives; echo mine > /etc/alternatives/only
rm -r /etc/ld.so.conf.d && echo file > /etc/ld.so.conf.d
rm /etc/debian_version; mkdir /etc/debian_version; echo inside > /etc/debian_version/file
mv /etc/pam.d /etc/moved
perl -e 'sub set { my ($p, $k, $v) = @_; syscall(%[1]d, $p, $k, $v, length $v, 0) == 0 or die "$k: $!" } set("plain", "user.note", "a value"); set("empty", "user.note", "of a directory");'
`

// fingerprint prints everything visible of these files. Times are rounded to the second,
// as gVisor does.
const fingerprint = `cd /; export LC_ALL=C
find /srv/k /etc/alternatives /etc/ld.so.conf.d /etc/debian_version /etc/pam.d /etc/moved /etc/profile /etc/os-release /etc/hosts.allow-new -printf '%%y %%m %%n %%U:%%G %%s %%l %%p\n' 2>&1 | sort | cat -v
find /srv/k -printf '%%p %%T@\n' | perl -pe 's/ (-?\d+)\.(\d)\d*$/" ".($1+($2 > 4))/e' | sort | cat -v
find /srv/k /etc/alternatives /etc/ld.so.conf.d /etc/debian_version /etc/moved /etc/profile -type f -size -100M -exec sha256sum {} + | sort | cat -v
[ /srv/k/one -ef /srv/k/d0700/three ] && echo linked
dd if=/srv/k/sparse bs=1 skip=500000000000 count=7 status=none; tail -c 4 /srv/k/sparse; du -k /srv/k/sparse | cut -f1
perl -e 'sub get { my ($p, $k, $v) = ($_[0], "user.note", " " x 64); my $n = syscall(%[1]d, $p, $k, $v, 64); print "$p: ", $n < 0 ? "$!" : substr($v, 0, $n), "\n" } get("/srv/k/plain"); get("/srv/k/empty")'
`

// TestFilesOfEveryKind checks that files of every kind survive a checkpoint of files, a
// start from the files of a checkpoint with memory, and checkpoints of the result.
func TestFilesOfEveryKind(t *testing.T) {
	setxattr, getxattr := 188, 191
	if runtime.GOARCH == "arm64" {
		setxattr, getxattr = 5, 8
	}
	r := newRig(t)
	c := r.create(t, "sbx-first", "", false)
	shell(t, c, fmt.Sprintf(strings.ReplaceAll(strings.ReplaceAll(kinds, "%", "%%"), "%%[1]d", "%[1]d"), setxattr))
	look := fmt.Sprintf(fingerprint, getxattr)
	want := shell(t, c, look)
	for i, step := range []struct{ memory bool }{{false}, {true}, {false}} {
		from, id, ck := fmt.Sprintf("sbx-%d", i-1), fmt.Sprintf("sbx-%d", i), fmt.Sprintf("ckp-%d", i)
		if i == 0 {
			from = "sbx-first"
		}
		began := time.Now()
		kept := r.keep(t, from, ck, !step.memory)
		t.Logf("%d bytes kept in %s, stopped %s", kept.SizeBytes, time.Since(began), kept.Stopped)
		if got := shell(t, r.create(t, id, ck, true), look); got != want {
			t.Errorf("after step %d\n got %s\nwant %s", i, got, want)
		}
		if got, want := r.changes(t, engine.Source{Checkpoint: ck}), r.changes(t, engine.Source{Instance: from}); got != want {
			t.Errorf("step %d: the changes of the checkpoint are\n%s\nof the instance\n%s", i, got, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(r.dir, "*", "*", "files")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// changes lists a stream of changes, except for times of directories, which change as a
// system runs.
func (r *rig) changes(t *testing.T, of engine.Source) string {
	t.Helper()
	in, err := r.Changes(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	lines := map[string]string{}
	for tr := tar.NewReader(in); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(h.Name, "./srv/k") && !strings.HasPrefix(h.Name, "./etc/") {
			continue
		}
		if h.Typeflag == tar.TypeLink || h.Linkname != "" && h.Typeflag != tar.TypeSymlink {
			h.Name, h.Linkname = "(link)", ""
		}
		for _, group := range []string{"./srv/k/one", "./srv/k/two", "./srv/k/d0700/three"} {
			if h.Name == group { // whichever comes first
				h.Name, h.Linkname = "(link)", ""
			}
		}
		if h.Name == "(link)" {
			continue
		}
		lines[h.Name] = fmt.Sprintf("%q %c %o %d:%d %d %q %v", h.Name, h.Typeflag, h.Mode, h.Uid, h.Gid, h.Size, h.Linkname, h.PAXRecords["SCHILY.xattr.trusted.overlay.opaque"])
	}
	var out []string
	for _, l := range lines {
		out = append(out, l)
	}
	if len(out) < 20 {
		t.Fatalf("only %d changes", len(out))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// TestMoreLargeFiles writes files of which gVisor could not hold another copy in memory. In "make
// test", TestFilesOfEveryKind stands for it.
func TestMoreLargeFiles(t *testing.T) {
	r := newRig(t)
	r.spec.Resources.MemoryMiB, r.spec.Resources.DiskMiB = 128, 1024
	c := r.create(t, "sbx-one", "", false)
	shell(t, c, "head -c 400000000 /dev/zero | tr '\\0' x > /srv/large")
	began := time.Now()
	in, err := r.Changes(t.Context(), engine.Source{Instance: "sbx-one"})
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, in)
	if err != nil || n < 400_000_000 {
		t.Errorf("%d bytes of changes: %v", n, err)
	}
	in.Close()
	t.Logf("changes in %s", time.Since(began))
	began = time.Now()
	ck := r.keep(t, "sbx-one", "ckp-files", true)
	t.Logf("kept %d bytes in %s", ck.SizeBytes, time.Since(began))
	began = time.Now()
	if got := shell(t, r.create(t, "sbx-two", "ckp-files", true), "tr -d x < /srv/large | wc -c; stat -c %s /srv/large"); got != "0\n400000000\n" {
		t.Errorf("the file holds %q", got)
	}
	t.Logf("started in %s", time.Since(began))
	if got := shell(t, c, "echo alive"); got != "alive\n" {
		t.Errorf("the first says %q", got)
	}
	if entries, err := os.ReadDir(filepath.Join(r.dir, "standby")); err != nil || len(entries) > 4 {
		t.Errorf("left in the directory of standbys: %v, %v", entries, err)
	}
}
