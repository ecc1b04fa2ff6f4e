package image

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/engine"
)

const secret = "s3cr3t-which-nobody-may-see"

// fakeMachine lays out a machine with secrets in many places.
func fakeMachine(t *testing.T) string {
	t.Helper()
	m := t.TempDir()
	if err := os.Chmod(m, 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]struct {
		mode    fs.FileMode
		content string
	}{
		"usr/bin/tool":                  {0o755, "#!"},
		"usr/bin/su":                    {0o755 | fs.ModeSetuid, "#!"},
		"usr/bin/admin-only":            {0o750, secret},
		"usr/etc/npmrc":                 {0o644, secret},
		"usr/local/etc/app.conf":        {0o644, secret},
		"usr/local/lib/app/.env":        {0o644, secret},
		"usr/share/private/key":         {0o644, secret},
		"etc/os-release":                {0o644, "ID=debian\n"},
		"etc/ld.so.cache":               {0o644, "cache"},
		"etc/ssl/certs/ca.pem":          {0o644, "-----BEGIN CERTIFICATE-----"},
		"etc/ssl/certs/mixed.pem":       {0o644, "-----BEGIN RSA PRIVATE KEY-----" + secret},
		"etc/ssl/certs/unreadable.pem":  {0o640, secret},
		"etc/ssl/private/host.key":      {0o600, secret},
		"etc/ssh/ssh_host_key":          {0o644, secret},
		"etc/shadow":                    {0o644, secret},
		"etc/passwd":                    {0o644, "alice:x:1000:1000:" + secret},
		"etc/environment":               {0o644, "TOKEN=" + secret},
		"etc/npmrc":                     {0o644, secret},
		"etc/pip.conf":                  {0o644, secret},
		"etc/machine-id":                {0o644, secret},
		"etc/apt/auth.conf":             {0o644, secret},
		"etc/wgetrc":                    {0o644, secret},
		"etc/gitconfig":                 {0o644, secret},
		"etc/profile":                   {0o644, "umask 022\n"},
		"etc/profile.d/proxy.sh":        {0o644, "export http_proxy=http://" + secret},
		"etc/profile.d/token.sh":        {0o644, "export GITHUB_TOKEN='" + secret + "'"},
		"etc/profile.d/fine.sh":         {0o644, "# no proxy here: http_proxy=\nalias ll='ls -l'\n"},
		"etc/skel/.bashrc":              {0o644, "alias l=ls\n"},
		"etc/java-17/net.properties":    {0o644, "url=https://bob:" + secret + "@mirror.example/\n"},
		"etc/java-17/security":          {0o644, "keystore.password.check=true\n"},
		"etc/vim/closed/x":              {0o644, secret},
		"etc/alternatives/README":       {0o644, "links"},
		"etc/matplotlibrc":              {0o644, "# text.color: black\n"},
		"home/alice/.ssh/id_rsa":        {0o644, secret},
		"root/.bashrc":                  {0o644, secret},
		"var/lib/dpkg/status":           {0o644, "Package: tool\n"},
		"var/lib/secrets/x":             {0o644, secret},
		"run/secrets/kubernetes/token":  {0o644, secret},
		"opt/app/config":                {0o644, secret},
		"srv/data":                      {0o644, secret},
		"lib64/ld-linux.so":             {0o755, "elf"},
		"usr/lib/python3/site/ok.py":    {0o644, "x = 1\n"},
		"usr/lib/python3/site/id_rsa":   {0o644, secret},
		"usr/share/zoneinfo/Etc/UTC":    {0o644, "TZif"},
		"usr/share/doc/tool/README.txt": {0o644, "read me"},
	}
	for name, f := range files {
		p := filepath.Join(m, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(f.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, f.mode); err != nil {
			t.Fatal(err)
		}
	}
	for dir, mode := range map[string]fs.FileMode{"usr/share/private": 0o711, "etc/vim/closed": 0o700, "etc/ssl/private": 0o710} {
		if err := os.Chmod(filepath.Join(m, dir), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"bin": "usr/bin", "lib": "usr/lib",
		"etc/localtime":               "/usr/share/zoneinfo/Etc/UTC",
		"etc/alternatives/vi":         "/usr/bin/tool",
		"etc/alternatives/home":       "/home/alice/bin/thing",
		"etc/ssl/certs/link.pem":      "ca.pem",
		"etc/ssl/certs/out.pem":       "../private/host.key",
		"etc/ssl/certs/far.pem":       "../../../home/alice/.ssh/id_rsa",
		"etc/fonts":                   "/opt/fonts",
		"etc/bash.bashrc":             "/root/.bashrc",
		"usr/share/doc/tool/absolute": "/root/.bashrc",
	} {
		if err := os.Symlink(to, filepath.Join(m, name)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func newProvider(t testing.TB, machine string) *Provider {
	t.Helper()
	dir := t.TempDir()
	p, err := New(Config{Dir: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	if machine != "" {
		p.setHost(&hostSource{machine: machine, maskDir: filepath.Join(dir, "mask/dir"), maskFile: filepath.Join(dir, "mask/file")})
	}
	// The test's own clean-up cannot enter what a template forbids to enter.
	t.Cleanup(func() { _ = removeTree(dir) })
	return p
}

func TestHostShowsNoSecrets(t *testing.T) {
	machine := fakeMachine(t)
	p := newProvider(t, machine)
	root, tmpl, err := p.Root(t.Context(), Host)
	if err != nil {
		t.Fatal(err)
	}
	if tmpl.User != "user" || tmpl.WorkDir != "/workspace" || tmpl.Digest != root.Digest || tmpl.State != "ready" {
		t.Errorf("template = %+v", tmpl)
	}
	got := listTree(t, root.Dir)
	for name := range got {
		if b, err := os.ReadFile(filepath.Join(root.Dir, name)); err == nil && strings.Contains(string(b), secret) {
			t.Errorf("%s holds the secret", name)
		}
	}
	for _, name := range []string{
		"etc/ssl/private", "etc/ssh", "etc/environment", "etc/npmrc", "etc/pip.conf", "etc/machine-id", "etc/apt", "etc/wgetrc", "etc/gitconfig",
		"etc/profile.d/proxy.sh", "etc/profile.d/token.sh", "etc/java-17/net.properties", "etc/vim/closed", "etc/alternatives/home", "etc/ssl/certs/far.pem",
		"etc/fonts", "etc/bash.bashrc", "etc/ssl/certs/mixed.pem", "etc/ssl/certs/unreadable.pem", "home/alice",
	} {
		if _, ok := got[name]; ok {
			t.Errorf("%s is shown", name)
		}
	}
	for name, want := range map[string]string{
		"bin": "-> usr/bin", "lib": "-> usr/lib", "usr": "d", "lib64": "d", "etc/localtime": "-> /usr/share/zoneinfo/Etc/UTC", "etc/alternatives/vi": "-> /usr/bin/tool",
		"etc/ssl/certs/ca.pem": "f", "etc/ssl/certs/link.pem": "-> ca.pem", "etc/profile": "f", "etc/profile.d/fine.sh": "f", "etc/java-17/security": "f", "etc/matplotlibrc": "f",
		"etc/passwd": "f", "etc/resolv.conf": "f", "etc/hostname": "f", "etc/nsswitch.conf": "f", "etc/sudoers.d/user": "f", "home/user/.bashrc": "f",
		"workspace": "d", "tmp": "d", ".cove": "d", "proc": "d", "sys": "d", "dev": "d", "root": "d", "run": "d", "var/tmp": "d", "var/log": "d",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	mask := func(target, source string) engine.Bind {
		return engine.Bind{Source: filepath.Join(p.dir, "mask", source), Target: target, Mask: true}
	}
	want := []engine.Bind{
		{Source: filepath.Join(machine, "usr"), Target: "/usr"},
		{Source: filepath.Join(machine, "lib64"), Target: "/lib64"},
		mask("/usr/bin/admin-only", "file"), mask("/usr/etc", "dir"), mask("/usr/lib/python3/site/id_rsa", "file"),
		mask("/usr/local/etc", "dir"), mask("/usr/local/lib/app/.env", "file"), mask("/usr/share/private", "dir"),
	}
	if d := cmp.Diff(want, root.Binds); d != "" {
		t.Errorf("binds (-want +got):\n%s", d)
	}
	passwd, _ := os.ReadFile(filepath.Join(root.Dir, "etc/passwd"))
	if !strings.Contains(string(passwd), "user:x:1000:1000::/home/user:") || !strings.Contains(string(passwd), "root:x:0:0:") {
		t.Errorf("passwd:\n%s", passwd)
	}
}

// TestHostMoves checks that the host template survives a move of the state directory: it is
// found again, hides the same files, and has the same digest.
func TestHostMoves(t *testing.T) {
	p := newProvider(t, fakeMachine(t))
	before, _, err := p.Root(t.Context(), Host)
	if err != nil {
		t.Fatal(err)
	}
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(p.dir, moved); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = removeTree(moved) })
	p.dir, p.host.m = moved, nil
	after, _, err := p.Root(t.Context(), Host)
	if err != nil {
		t.Fatal(err)
	}
	if after.Digest != before.Digest || after.Dir != p.rootfsDir(after.Digest) {
		t.Errorf("after the move: %s in %s, want %s", after.Digest, after.Dir, before.Digest)
	}
	masks := 0
	for _, b := range after.Binds {
		if !b.Mask {
			continue
		}
		masks++
		if filepath.Dir(b.Source) != filepath.Join(moved, "mask") {
			t.Errorf("%s is hidden by %s", b.Target, b.Source)
		}
	}
	if masks == 0 {
		t.Error("nothing is hidden")
	}
	// Made again elsewhere, it has the same content.
	other := newProvider(t, p.host.source.machine)
	if root, _, err := other.Root(t.Context(), Host); err != nil || root.Digest != before.Digest {
		t.Errorf("in another state directory: %s, %v, want %s", root.Digest, err, before.Digest)
	}
}

func TestHostFollowsTheMachine(t *testing.T) {
	machine := fakeMachine(t)
	p := newProvider(t, machine)
	digest := func() string {
		t.Helper()
		p.host.checked = time.Time{}
		root, _, err := p.Root(t.Context(), Host)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(root.Dir); err != nil {
			t.Fatal(err)
		}
		return root.Digest
	}
	first := digest()
	if again := digest(); again != first {
		t.Errorf("digest changed by itself: %s, then %s", first, again)
	}
	if again := func() string { p.host.m = nil; return digest() }(); again != first {
		t.Errorf("digest changed on a new start: %s, then %s", first, again)
	}
	if err := os.WriteFile(filepath.Join(machine, "etc/os-release"), []byte("ID=debian\nVERSION_ID=13\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	second := digest()
	if second == first {
		t.Error("digest stayed although os-release changed")
	}
	if err := os.WriteFile(filepath.Join(machine, "var/lib/dpkg/status"), []byte("Package: tool\nPackage: other\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if digest() == second {
		t.Error("digest stayed although packages changed")
	}

	// A root that was removed is made again for the next caller.
	if err := os.RemoveAll(p.rootfsDir(digest())); err != nil {
		t.Fatal(err)
	}
	root, _, err := p.Root(t.Context(), Host)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root.Dir, "etc/passwd")); err != nil {
		t.Errorf("a removed root was not made anew: %v", err)
	}

	// Old roots stay until nothing uses them.
	if removed, err := p.Collect(nil); err != nil || len(removed) != 0 {
		t.Errorf("collected %v, %v right after use", removed, err)
	}
	p.used = map[string]time.Time{}
	removed, err := p.Collect(map[string]bool{first: true})
	if err != nil || !slices.Equal(removed, []string{second}) {
		t.Errorf("collected %v, %v; want %s", removed, err, second)
	}
	if _, err := os.Stat(p.rootfsDir(first)); err != nil {
		t.Error("a root in use was collected")
	}
}

func TestHostOfThisMachine(t *testing.T) {
	p := newProvider(t, "")
	start := time.Now()
	root, _, err := p.Root(t.Context(), Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("made in %v", time.Since(start))
	start = time.Now()
	p.host.checked = time.Time{}
	if _, _, err := p.Root(t.Context(), Host); err != nil {
		t.Fatal(err)
	}
	t.Logf("checked in %v", time.Since(start))
	t.Logf("binds: %v", root.Binds)
	for name := range listTree(t, root.Dir) {
		b, err := os.ReadFile(filepath.Join(root.Dir, name))
		if err == nil && holdsSecret(b) {
			t.Errorf("%s looks as if it held a secret", name)
		}
	}
	for _, link := range []string{"etc/resolv.conf", "etc/passwd"} {
		if info, err := os.Lstat(filepath.Join(root.Dir, link)); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: %v, %v", link, info, err)
		}
	}
}

// listTree describes what is below dir: "d", "f" or "-> target".
func listTree(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		switch {
		case d.IsDir():
			out[rel] = "d"
		case d.Type()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			out[rel] = "-> " + to
		case d.Type().IsRegular():
			out[rel] = "f"
		default:
			out[rel] = d.Type().String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
