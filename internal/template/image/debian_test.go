package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// TestDebianModeErrors checks that the error on a machine that cannot build names
// the one step after which it can.
func TestDebianModeErrors(t *testing.T) {
	const all = "mmdebstrap fakechroot fakeroot apt-get"
	none := errors.New("/etc/subuid has no range for the user")
	for _, tt := range []struct {
		programs string
		root     bool
		ids      error
		mode     string
		want     string
	}{
		{"mmdebstrap apt-get", true, none, "root", ""},
		{"apt-get", true, nil, "", "; run 'apt-get install mmdebstrap' on"},
		{"mmdebstrap apt-get", false, nil, "unshare", ""},
		{"apt-get", false, nil, "", "; run 'sudo apt-get install mmdebstrap' on"},
		{all, false, none, "fakechroot", ""},
		{"apt-get", false, none, "", "; run 'sudo apt-get install mmdebstrap fakechroot fakeroot' on"},
		{"mmdebstrap fakeroot apt-get", false, none, "", "; run 'sudo apt-get install fakechroot' on"},
		{"", false, nil, "", "on this server, build from an image: 'cove template build NAME --image IMAGE'"},
	} {
		mode, err := modeWith(func(program string) bool { return slices.Contains(strings.Fields(tt.programs), program) }, tt.root, func() error { return tt.ids })
		if mode != tt.mode || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(sandbox.MessageOf(err), tt.want) {
			t.Errorf("with %q, root %v, ids %v: mode %q, %v; want %q, %q", tt.programs, tt.root, tt.ids, mode, err, tt.mode, tt.want)
		}
	}
}

// TestSoakDebian makes a Debian with mmdebstrap. In "make test-all", the tests of
// bootstrap_test.go, which have a handmade one, and TestMoreTemplatePackages of test/network,
// which installs packages, stand for it.
func TestSoakDebian(t *testing.T) {
	needs.Command(t, "mmdebstrap")
	mode, err := debianMode()
	needs.NoError(t, err)
	t.Log("mode", mode)
	p := newProvider(t, "")
	// A daemon may have inherited files; they must not reach the build.
	for range 10 {
		fd, err := unix.Dup(2)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
	}
	last, steps, lines := 0.0, map[string]bool{}, 0
	got, err := p.Build(t.Context(), sandbox.BuildTemplateRequest{Name: Debian}, func(e sandbox.BuildEvent) error {
		if e.Fraction < last {
			t.Errorf("fraction went back from %g to %g at %q", last, e.Fraction, e.Step)
		}
		last = e.Fraction
		steps[e.Step] = true
		if e.Log != "" {
			lines++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if last != 1 || lines < 100 || len(steps) < 7 {
		t.Errorf("fraction %g, %d lines, steps %v", last, lines, steps)
	}
	root, _, err := p.Root(t.Context(), Debian)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s, %d MB", got.Digest, got.SizeBytes>>20)
	for name, want := range map[string]fs.FileMode{
		"usr/bin/bash": 0o755, "usr/bin/sudo": 0o755 | fs.ModeSetuid, "usr/bin/apt-get": 0o755, "etc/sudoers.d/user": 0o440,
		"tmp": 0o777 | fs.ModeSticky | fs.ModeDir, ".cove": 0o755 | fs.ModeDir, "etc/ssl/certs/ca-certificates.crt": 0o644,
	} {
		if info, err := os.Lstat(filepath.Join(root.Dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info, err, want)
		}
	}
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(root.Dir, name))
		return string(b)
	}
	if !strings.Contains(read("etc/passwd"), "\nuser:x:1000:1000::/home/user:/bin/bash\n") {
		t.Errorf("passwd:\n%s", read("etc/passwd"))
	}
	if got := read("etc/apt/sources.list"); got != defaultSources("/usr/share/keyrings/debian-archive-keyring.gpg") {
		t.Errorf("sources.list:\n%s", got)
	}
	for _, name := range []string{"etc/apt/apt.conf.d/99mmdebstrap", "dev/null", "etc/machine-id"} {
		if _, err := os.Lstat(filepath.Join(root.Dir, name)); err == nil {
			t.Errorf("%s is there", name)
		}
	}
	if _, err := os.Lstat(filepath.Join(root.Dir, "usr/share/doc/bash/copyright")); err != nil {
		t.Error(err)
	}
	for name, kind := range listTree(t, root.Dir) {
		if skipped(name) && name != "etc/apt/sources.list" {
			t.Errorf("%s is there", name)
		}
		if strings.Contains(kind, p.dir) || strings.Contains(kind, scratchPrefix) {
			t.Errorf("%s points into the build: %s", name, kind)
		}
	}
	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
}

// TestSoakDebianCancel cancels mmdebstrap. In "make test", TestBootstrapAtOnce, which has a
// handmade Debian, stands for it.
func TestSoakDebianCancel(t *testing.T) {
	needs.Command(t, "mmdebstrap")
	mode, err := debianMode()
	needs.NoError(t, err)
	t.Log("mode", mode)
	p := newProvider(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	_, err = p.Build(ctx, sandbox.BuildTemplateRequest{Name: Debian}, func(e sandbox.BuildEvent) error {
		if strings.HasPrefix(e.Log, "Setting up ") {
			cancel()
		}
		return nil
	})
	wantCode(t, err, sandbox.CodeCancelled)
	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
	if m, err := mountsBelow(p.dir); err != nil || len(m) > 0 {
		t.Errorf("mounts left: %v, %v", m, err)
	}
}

func TestSources(t *testing.T) {
	const keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
	const bookworm = "ID=debian\nVERSION_CODENAME=bookworm\n"
	tests := []struct {
		name, release string
		files         map[string]string
		want          string
	}{
		{"stanzas", bookworm, map[string]string{"etc/apt/sources.list.d/debian.sources": "Types: deb\n# mirror\nURIs: http://mirror.local/debian\nSuites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By: " + keys + "\n\nTypes: deb deb-src\nURIs: http://mirror.local/debian-security/\nSuites: bookworm-security\nComponents: main\n"},
			"deb [signed-by=" + keys + "] http://mirror.local/debian bookworm main\ndeb [signed-by=" + keys + "] http://mirror.local/debian bookworm-updates main\ndeb http://mirror.local/debian-security/ bookworm-security main\n"},
		{"lines", bookworm, map[string]string{"etc/apt/sources.list": "# x\ndeb [arch=amd64 trusted=yes] http://m/debian bookworm main non-free # y\ndeb-src http://m/debian bookworm main\ndeb http://m/debian trixie main\n"},
			"deb [trusted=yes] http://m/debian bookworm main\n"},
		{"others stay out", bookworm, map[string]string{
			"etc/apt/sources.list":                  "deb http://m/debian bookworm main\n",
			"etc/apt/sources.list.d/vendor.list":    "deb [signed-by=/etc/apt/keyrings/vendor.gpg] https://packages.vendor.example/php bookworm main\n",
			"etc/apt/sources.list.d/off.sources":    "Types: deb\nURIs: http://off/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n",
			"etc/apt/sources.list.d/inline.sources": "Types: deb\nURIs: http://inline/debian\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n"},
			"deb http://m/debian bookworm main\ndeb http://inline/debian bookworm main\n"},
		{"another release", "ID=debian\nVERSION_CODENAME=trixie\n", map[string]string{"etc/apt/sources.list": "deb http://m/debian trixie main\n"}, ""},
		{"another system", "ID=ubuntu\nVERSION_CODENAME=noble\n", nil, ""},
		{"nothing useful", bookworm, map[string]string{"etc/apt/sources.list": "deb\ndeb [\ndeb [x] y\n"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := t.TempDir()
			if tt.files == nil {
				tt.files = map[string]string{}
			}
			tt.files["etc/os-release"] = tt.release
			for name, content := range tt.files {
				p := filepath.Join(m, name)
				if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			d := &debianSource{machine: m}
			if tt.want == "" {
				tt.want = defaultSources(d.keyring())
			}
			if diff := cmp.Diff(tt.want, d.sources()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAptLog(t *testing.T) {
	var lines []string
	last := 0.0
	l := newAptLog(func(step string, fraction float64, log string) {
		if fraction < last || fraction > 1 {
			t.Errorf("fraction %g after %g", fraction, last)
		}
		last = fraction
		lines = append(lines, log)
	})
	in := "I: running apt-get update...\nGet:1 x\nI: installing remaining packages inside the chroot...\n0 upgraded, 2 newly installed, 0 to remove\nAfter this operation, 1,000 kB of additional disk space will be used.\n" +
		"Get:1 a\nGet:2 b\nUnpacking a\nUnpacking b\nSetting up a\nSetting up b\nSetting up more\n\n10%\r20%\rdone\x1b[0m\nE: broken \xff\nE: apt-get failed: x\nI: creating tarball...\n" + strings.Repeat("z", 1<<20) + "\n"
	l.follow(strings.NewReader(in))
	l.unpacked(100 << 20)
	if last < 0.94 {
		t.Errorf("fraction at the end: %g", last)
	}
	for _, s := range lines {
		if len(s) > maxLogLine+8 || strings.ContainsAny(s, "\x1b\r\n") {
			t.Errorf("line %.100q", s)
		}
	}
	if got := sandbox.MessageOf(l.explain(os.ErrInvalid)); got != "mmdebstrap could not build the template: broken ?; see the build's log" {
		t.Errorf("explained as %q", got)
	}
}

// TestAptExplains checks that the error of a failed build is one that its user can act on.
func TestAptExplains(t *testing.T) {
	for said, want := range map[string]string{
		"E: Unable to locate package nope\nE: mmdebstrap failed to run\n":                                                                         "Debian bookworm has no package nope; check the name",
		"I: extracting archives...\ntar: ./x: Cannot write: No space left on device\nE: tar --extract failed: 512\nE: mmdebstrap failed to run\n": "the disk is full; free space where Cove keeps its state and in its temporary directory, and build again",
		"E: You don't have enough free space in /var/cache/apt/archives/.\nE: apt-get failed: E\n":                                                "the disk is full; free space where Cove keeps its state and in its temporary directory, and build again",
		"E: tar --extract failed: 512\nE: mmdebstrap failed to run\n":                                                                             "mmdebstrap could not build the template: tar --extract failed: 512; see the build's log",
		"E: mmdebstrap failed to run\n": "mmdebstrap could not build the template: mmdebstrap failed to run; see the build's log",
	} {
		l := newAptLog(func(string, float64, string) {})
		l.follow(strings.NewReader(said))
		if got := sandbox.MessageOf(l.explain(os.ErrInvalid)); got != want {
			t.Errorf("%q is explained as %q, want %q", said, got, want)
		}
	}
}

func FuzzSources(f *testing.F) {
	f.Add("deb [signed-by=/a] http://m/debian bookworm main", "Types: deb\nURIs: u\nSuites: s\n")
	f.Fuzz(func(t *testing.T, list, stanzas string) {
		d := &debianSource{machine: "/nonexistent"}
		for _, e := range append(parseOneLine(list), parseDeb822(stanzas)...) {
			if line, ok := d.line(e); ok && (strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "deb ")) {
				t.Errorf("line %q", line)
			}
		}
	})
}
