package agent

import (
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// tree makes files in a new directory: a name with "/" at its end is a directory,
// "-> target" as content a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, path)
		} else if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func paths(root string) identityPaths {
	return identityPaths{
		run: root + "/run/cove", machineID: root + "/etc/machine-id", dbusID: root + "/var/lib/dbus/machine-id", ssh: root + "/etc/ssh",
	}
}

// shown returns the content of a regular file, or what kind of file it is.
func shown(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	switch {
	case os.IsNotExist(err):
		return "nothing"
	case err != nil:
		t.Fatal(err)
	case info.IsDir():
		return "directory"
	case info.Mode()&os.ModeSymlink != 0:
		return "link"
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().String() + " " + string(data)
}

func TestRenewMachineID(t *testing.T) {
	const old = "0123456789abcdef0123456789abcdef\n"
	fresh := regexp.MustCompile(`^-r--r--r-- [0-9a-f]{32}\n$`)
	for _, tt := range []struct {
		name      string
		files     map[string]string
		etc, dbus string // "" is a new id
		outside   string
	}{
		{name: "none", files: map[string]string{"etc/": ""}, etc: "nothing", dbus: "nothing"},
		{name: "no etc", etc: "nothing", dbus: "nothing"},
		{name: "etc is a file", files: map[string]string{"etc": "x"}, dbus: "nothing"},
		{name: "an id", files: map[string]string{"etc/machine-id": old}, dbus: "nothing"},
		{name: "empty", files: map[string]string{"etc/machine-id": ""}, dbus: "nothing"},
		{name: "a copy", files: map[string]string{"etc/machine-id": old, "var/lib/dbus/machine-id": old}},
		{name: "linked copy", files: map[string]string{"etc/machine-id": old, "var/lib/dbus/machine-id": "-> ../../../etc/machine-id"}, dbus: "link"},
		{name: "link", files: map[string]string{"etc/machine-id": "-> ../outside", "outside": "kept"}, dbus: "nothing"},
		{name: "dangling link", files: map[string]string{"etc/machine-id": "-> ../nothing"}, dbus: "nothing"},
		{name: "directory", files: map[string]string{"etc/machine-id/x": "x"}, etc: "directory", dbus: "nothing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := tree(t, tt.files)
			p := paths(root)
			if err := renewMachineID(p); err != nil {
				t.Fatal(err)
			}
			if tt.name == "etc is a file" {
				return
			}
			etc, dbus := shown(t, p.machineID), shown(t, p.dbusID)
			for _, x := range []struct{ got, want string }{{etc, tt.etc}, {dbus, tt.dbus}} {
				if x.want != "" && x.got != x.want || x.want == "" && !fresh.MatchString(x.got) || strings.Contains(x.got, old) {
					t.Errorf("got %q, want %q", x.got, x.want)
				}
			}
			if tt.dbus == "" && etc != dbus {
				t.Errorf("two ids: %q, %q", etc, dbus)
			}
			if got := shown(t, root+"/outside"); tt.files["outside"] != "" && !strings.HasSuffix(got, "kept") {
				t.Errorf("wrote through a link: %q", got)
			}
			if got := shown(t, root+"/nothing"); got != "nothing" {
				t.Errorf("wrote through a dangling link: %q", got)
			}
			noTemps(t, root)
		})
	}
}

func noTemps(t *testing.T, root string) {
	t.Helper()
	_ = filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || isTemp(filepath.Base(path)) {
			t.Errorf("left: %s, %v", path, err)
		}
		return nil
	})
}

func TestWriteFork(t *testing.T) {
	const want = `-r--r--r-- {"index":2,"count":5,"sandbox_id":"sbx-a","parent_id":"sbx-b"}` + "\n"
	for _, tt := range []struct {
		name  string
		files map[string]string
	}{
		{name: "empty"},
		{name: "run", files: map[string]string{"run/": ""}},
		{name: "earlier", files: map[string]string{"run/cove/fork.json": "{}", "run/cove/other": "x"}},
		{name: "a link for the directory", files: map[string]string{"run/cove": "-> ../outside", "outside/": ""}},
		{name: "a dangling link for the directory", files: map[string]string{"run/cove": "-> ../outside/x", "outside/": ""}},
		{name: "a file for the directory", files: map[string]string{"run/cove": "x"}},
		{name: "a link for the file", files: map[string]string{"run/cove/fork.json": "-> ../../outside/fork.json", "outside/": ""}},
		{name: "a directory for the file", files: map[string]string{"run/cove/fork.json/x": "x"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := tree(t, tt.files)
			run := paths(root).run
			if err := writeFork(run, &agentv1.Fork{Index: 2, Count: 5, SandboxId: "sbx-a", ParentId: "sbx-b"}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, shown(t, run+"/"+forkFile)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if names, _ := os.ReadDir(root + "/outside"); len(names) > 0 {
				t.Errorf("wrote through a link: %v", names)
			}
			noTemps(t, root)
			for range 2 { // no fork any more
				if err := writeFork(run, &agentv1.Fork{}); err != nil {
					t.Fatal(err)
				}
				if got := shown(t, run+"/"+forkFile); got != "nothing" {
					t.Errorf("left: %q", got)
				}
			}
		})
	}
	if err := writeFork(tree(t, map[string]string{"run": "x"})+"/run/cove", &agentv1.Fork{Count: 1}); err == nil {
		t.Error("/run is a file: no error")
	}
}

func TestRenewHostKeys(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  map[string]string // "new" is a new key
	}{
		{name: "no server", files: map[string]string{"etc/": ""}, want: map[string]string{"": "nothing"}},
		{name: "no keys", files: map[string]string{"etc/ssh/sshd_config": "x"}, want: map[string]string{"/ssh_host_ed25519_key": "nothing"}},
		{
			name: "keys",
			files: map[string]string{
				"etc/ssh/ssh_host_rsa_key": "x", "etc/ssh/ssh_host_rsa_key.pub": "x", "etc/ssh/ssh_host_rsa_key-cert.pub": "x",
				"etc/ssh/ssh_host_ed25519_key": "x", "etc/ssh/ssh_host_ed25519_key.pub": "x", "etc/ssh/moduli": "kept", "etc/ssh/ssh_host_notes": "kept",
			},
			want: map[string]string{
				"/ssh_host_rsa_key": "nothing", "/ssh_host_rsa_key.pub": "nothing", "/ssh_host_rsa_key-cert.pub": "nothing",
				"/ssh_host_ed25519_key": "new", "/ssh_host_ed25519_key.pub": "new", "/moduli": "-rw------- kept", "/ssh_host_notes": "-rw------- kept",
			},
		},
		{name: "links", files: map[string]string{"etc/ssh/ssh_host_ed25519_key": "-> ../../outside", "outside": "kept"}, want: map[string]string{"/ssh_host_ed25519_key": "new", "/../../outside": "-rw------- kept"}},
		{name: "link to the directory", files: map[string]string{"etc/ssh": "-> ../outside", "outside/ssh_host_rsa_key": "kept"}, want: map[string]string{"": "link", "/../../outside/ssh_host_rsa_key": "-rw------- kept"}},
		{name: "directories", files: map[string]string{"etc/ssh/ssh_host_ed25519_key/x": "x"}, want: map[string]string{"/ssh_host_ed25519_key": "directory"}},
		{name: "a file", files: map[string]string{"etc/ssh": "x"}, want: map[string]string{"": "-rw------- x"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := tree(t, tt.files)
			dir := paths(root).ssh
			if err := renewHostKeys(dir); err != nil {
				t.Fatal(err)
			}
			for name, want := range tt.want {
				got := shown(t, filepath.Join(dir, name))
				if want == "new" {
					want = "-rw------- -----BEGIN OPENSSH PRIVATE KEY-----\n"
					if strings.HasSuffix(name, ".pub") {
						want = "-rw-r--r-- ssh-ed25519 AAAA"
					}
					got = got[:min(len(want), len(got))]
				}
				if got != want {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
			}
			noTemps(t, root)
		})
	}
}

// The sum is that of a file that "ssh-keygen -y" accepts, and from which it prints this
// public key.
func TestFormatHostKey(t *testing.T) {
	private, public := formatHostKey(ed25519.NewKeyFromSeed([]byte("0123456789abcdefghijklmnopqrstuv")), 0x01020304)
	if got := fmt.Sprintf("%x", sha256.Sum256(private)); got != "5dd265953d914c0fa79f6f63d0841670e1222e1de4d19d7adf9cc533b53eabf7" {
		t.Errorf("the private key is another: %s\n%s", got, private)
	}
	if diff := cmp.Diff("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDniWWMU6QsvzWxE0nHVxMVcYjyEpU4wzkbxbvzqErA8\n", string(public)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
