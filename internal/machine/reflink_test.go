package machine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// reflinkDir is the variable with the directory for which the test runs the commands, in
// namespaces of its own.
const reflinkDir = "COVE_TEST_REFLINK_DIR"

func TestReflinkCommands(t *testing.T) {
	if dir := os.Getenv(reflinkDir); dir != "" {
		makeReflinkDisk(t, dir)
		return
	}
	dir := filepath.Join(t.TempDir(), "state")
	if os.Geteuid() != 0 {
		if offer := (probe{stateDir: dir}).offerReflink(); offer != "" {
			t.Errorf("an ordinary user is offered what only root can do: %s", offer)
		}
		return
	}
	// What the commands mount, and what they write to /etc/fstab, goes with the namespace.
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", os.Args[0], "-test.run=^TestReflinkCommands$", "-test.v")
	cmd.Env = append(os.Environ(), reflinkDir+"="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func makeReflinkDisk(t *testing.T, dir string) {
	fstab := dir + ".fstab"
	if err := os.WriteFile(fstab, []byte("# as before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "--bind", fstab, "/etc/fstab")
	run(t, "sh", "-c", reflinkCommands(dir, 1))
	defer run(t, "umount", dir)
	if c := (probe{root: true, stateDir: dir}).reflink(); c.Status != sandbox.CheckOK || c.Fix != "" || !strings.Contains(c.Detail, "share their blocks") {
		t.Errorf("files do not share blocks afterwards: %+v", c)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v, %v", info.Mode(), err)
	}
	run(t, "umount", dir)
	run(t, "mount", dir) // by the line in /etc/fstab
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

func TestOfferReflink(t *testing.T) {
	for name, tt := range map[string]struct {
		p    probe
		want []string
	}{
		"a new directory":          {probe{root: true, stateDir: "/var/lib/no-such-cove"}, []string{"fallocate -l ", "G /var/lib/no-such-cove.xfs && mkfs.xfs"}},
		"a directory that is used": {probe{root: true, stateDir: "/usr"}, []string{"mv /usr /usr.old", "cp -a /usr.old/. /usr"}},
		"an ordinary user":         {probe{stateDir: "/var/lib/no-such-cove"}, nil},
		"a path with blanks":       {probe{root: true, stateDir: "/var/lib/no such; cove"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := tt.p.offerReflink()
			if _, err := os.Stat("/dev/loop-control"); err != nil {
				tt.want = nil
			}
			if (got == "") != (tt.want == nil) {
				t.Fatalf("offered %q", got)
			}
			for _, part := range tt.want {
				if !strings.Contains(got, part) {
					t.Errorf("%q lacks %q", got, part)
				}
			}
		})
	}
}
