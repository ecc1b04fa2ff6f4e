package network

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// The hosts of registries, as the programs of packages know them.
var registries = []string{"pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "deb.debian.org", "github.com"}

// serveRegistries puts one package into each registry of the Internet. Each says
// hello.
func serveRegistries(t *testing.T, n *internet.Internet) {
	t.Helper()
	needs.Command(t, "dpkg-deb", "git")
	n.SetName("deb.debian.org", internet.Public[2])
	wheel := zipped(t, map[string]string{
		"hello_cove.py": "print('hello from a wheel')\n\ndef main(): pass\n",
		"hello_cove-1.0.dist-info/entry_points.txt": "[console_scripts]\nhello-wheel = hello_cove:main\n",
		"hello_cove-1.0.dist-info/METADATA":         "Metadata-Version: 2.1\nName: hello-cove\nVersion: 1.0\n",
		"hello_cove-1.0.dist-info/WHEEL":            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"hello_cove-1.0.dist-info/RECORD":           "",
		"hello_cove-1.0.dist-info/top_level.txt":    "hello_cove\n",
	})
	n.Serve(t, "pypi.org", files(map[string][]byte{
		"/simple/hello-cove/": []byte(`<!DOCTYPE html><a href="https://files.pythonhosted.org/packages/hello_cove-1.0-py3-none-any.whl">hello_cove-1.0-py3-none-any.whl</a>`),
	}))
	n.Serve(t, "files.pythonhosted.org", files(map[string][]byte{"/packages/hello_cove-1.0-py3-none-any.whl": wheel}))
	tarball := tarred(t, map[string]string{
		"package/package.json": `{"name": "hello-cove", "version": "1.0.0", "main": "index.js", "bin": {"hello-tarball": "index.js"}}`,
		"package/index.js":     "#!/usr/bin/env node\nconsole.log('hello from a tarball')\n",
	})
	n.Serve(t, "registry.npmjs.org", files(map[string][]byte{
		"/hello-cove":                        npmDocument(t, tarball),
		"/hello-cove/-/hello-cove-1.0.0.tgz": tarball,
	}))
	n.Serve(t, "deb.debian.org", debianRepository(t))
	n.Serve(t, "github.com", gitServer(t))
}

// files serves its files, and gzip files unchanged.
func files(byPath map[string][]byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, ok := byPath[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		switch filepath.Ext(r.URL.Path) {
		case "":
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/") {
				w.Header().Set("Content-Type", "text/html")
			}
		default:
			w.Header().Set("Content-Type", "application/octet-stream")
		}
		_, _ = w.Write(data)
	})
}

func zipped(t *testing.T, content map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range content {
		w, err := z.Create(name)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func tarred(t *testing.T, content map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	for name, text := range content {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// npmDocument returns a registry's document about a package.
func npmDocument(t *testing.T, tarball []byte) []byte {
	t.Helper()
	one, many := sha1.Sum(tarball), sha512.Sum512(tarball)
	version := map[string]any{"name": "hello-cove", "version": "1.0.0", "main": "index.js", "bin": map[string]string{"hello-tarball": "index.js"}, "dist": map[string]string{
		"tarball": "https://registry.npmjs.org/hello-cove/-/hello-cove-1.0.0.tgz",
		"shasum":  hex.EncodeToString(one[:]), "integrity": "sha512-" + base64.StdEncoding.EncodeToString(many[:]),
	}}
	doc, err := json.Marshal(map[string]any{
		"name": "hello-cove", "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": version},
	})
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// run runs a program of this machine.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// debianRepository serves a flat repository with one package.
func debianRepository(t *testing.T) http.Handler {
	t.Helper()
	dir := t.TempDir()
	const control = "Package: hello-cove\nVersion: 1.0\nArchitecture: all\nMaintainer: Test <test@example.com>\nDescription: says hello\n"
	for path, text := range map[string]string{"DEBIAN/control": control, "opt/hello-cove/hello": "#!/bin/sh\necho hello from a deb\n"} {
		path = filepath.Join(dir, "tree", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, "dpkg-deb", "--root-owner-group", "--build", "tree", "hello-cove.deb")
	deb, err := os.ReadFile(filepath.Join(dir, "hello-cove.deb"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(deb)
	index := fmt.Sprintf("%sFilename: ./hello-cove.deb\nSize: %d\nSHA512: %x\n", control, len(deb), sum)
	return files(map[string][]byte{"/cove/./Packages": []byte(index), "/cove/Packages": []byte(index), "/cove/hello-cove.deb": deb, "/cove/./hello-cove.deb": deb})
}

// gitToken opens the repositories below /private.
const gitToken = "value-of-a-token-0123456789abcdef"

// gitServer serves a repository to all, and below /private to those with the token.
func gitServer(t *testing.T) http.Handler {
	t.Helper()
	dir := t.TempDir()
	work := filepath.Join(dir, "work")
	run(t, dir, "git", "init", "-q", "-b", "main", work)
	if err := os.WriteFile(filepath.Join(work, "README"), []byte("hello from a repository\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, work, "git", "add", "README")
	run(t, work, "git", "commit", "-qm", "say hello")
	run(t, dir, "git", "clone", "-q", "--bare", work, filepath.Join(dir, "cove/hello.git"))
	backend := &cgi.Handler{
		Path: filepath.Join(run(t, dir, "git", "--exec-path"), "git-http-backend"), Root: "/",
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"},
	}
	mux := http.NewServeMux()
	mux.Handle("/", backend)
	mux.Handle("/private/", http.StripPrefix("/private", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != gitToken {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	})))
	return mux
}

// installs are command lines that get a package and have it say hello.
var installs = map[string]struct{ user, line, want string }{
	"pip": {"", `python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --target lib hello-cove && PYTHONPATH=lib python3 -c 'import hello_cove'`, "hello from a wheel"},
	"npm": {"", `npm install --no-audit --no-fund --no-update-notifier --loglevel=error hello-cove >npm.log 2>&1 || { cat npm.log; exit 1; }; node -e 'require("hello-cove")'`, "hello from a tarball"},
	"git": {"", `git clone -q https://github.com/cove/hello.git && cat hello/README`, "hello from a repository"},
	"apt": {"root", aptLine, "hello from a deb"},
}

// aptLine makes what the template of the host lacks: the directories in which apt and
// dpkg keep their state.
const aptLine = `mkdir -p /var/lib/apt/lists/partial /var/cache/apt/archives/partial /var/lib/dpkg/info /var/lib/dpkg/updates /var/log/apt /etc/apt/sources.list.d &&
touch /var/lib/dpkg/status && rm -f /etc/apt/sources.list.d/* && echo 'deb [trusted=yes] $SCHEME://deb.debian.org/cove ./' > /etc/apt/sources.list &&
apt-get update -q >apt.log 2>&1 && apt-get install -q -y hello-cove >>apt.log 2>&1 || { cat apt.log; exit 1; }; /opt/hello-cove/hello`

// as runs a shell line as a user of the sandbox, in its own directory, and
// returns the output.
func as(t *testing.T, d *covetest.Daemon, id, user, line string) string {
	t.Helper()
	res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Shell: line, User: user, WorkDir: "/workspace", TimeoutMS: 300_000})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if res.Job.ExitCode != 0 {
		t.Errorf("%s: exit code %d", line, res.Job.ExitCode)
	}
	return strings.TrimSpace(res.Stdout + res.Stderr)
}

// pip, npm, git and apt download through the gateway, under policies that allow nothing else:
// by names, and by the preset that has the names. The sandbox trusts the test's authority by
// the user's own settings, or it has a secret and therefore the gateway's authority everywhere.
// In "make test", TestOpen, the attacks on strict policies, and TestPrograms and TestGit of
// package intercept stand for it.
func TestMorePackages(t *testing.T) {
	n := internet.Here(t)
	serveRegistries(t, n)
	authority, err := os.ReadFile(n.CA)
	if err != nil {
		t.Fatal(err)
	}
	needs.Command(t, "npm", "node")
	needs.File(t, "/usr/lib/python3/dist-packages/pip/__init__.py")
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		strict := sandbox.NetworkPolicy{DenyOut: []string{"0.0.0.0/0"}, AllowOut: registries}
		_, err := d.Client.CreateSecret(t.Context(), sandbox.CreateSecretRequest{
			Name: "git", Value: sandbox.NewSecretValue(gitToken), Hosts: []string{"github.com"}, Auth: &sandbox.SecretAuth{Type: "basic", User: "x-access-token"},
		})
		if err != nil {
			t.Fatal(err)
		}
		const ca = "/workspace/ca.pem"
		env := map[string]string{}
		for _, name := range []string{"PIP_CERT", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "SSL_CERT_FILE"} {
			env[name] = ca
		}
		plain := d.Create(t, sandbox.CreateRequest{Network: &strict, Env: env})
		if _, err := d.Client.WriteFile(t.Context(), plain.ID, sandbox.WriteFileRequest{Path: ca}, bytes.NewReader(authority)); err != nil {
			t.Fatal(err)
		}
		intercepted := d.Create(t, sandbox.CreateRequest{Network: &sandbox.NetworkPolicy{Preset: sandbox.NetworkPackages}, Secrets: map[string]string{"TOKEN": "git"}})
		private := "GIT_TERMINAL_PROMPT=0 git clone -q https://x-access-token:$TOKEN@github.com/private/cove/hello.git private && cat private/README"
		if got := as(t, d, intercepted.ID, "", private); got != installs["git"].want {
			t.Errorf("git with a secret: %q", got)
		}
		if got := fails(t, d, plain.ID, private); !strings.Contains(got, "Authentication failed") && !strings.Contains(got, "could not read Password") {
			t.Errorf("git without a secret: %q", got)
		}
		for id, scheme := range map[string]string{plain.ID: "http", intercepted.ID: "https"} {
			for name, install := range installs {
				line := strings.ReplaceAll(install.line, "$SCHEME", scheme)
				if got := as(t, d, id, install.user, line); got != install.want {
					t.Errorf("%s, apt over %s: %q", name, scheme, got)
				}
			}
			// Nothing else can be reached, by its name or at the address of a registry.
			fails(t, d, id, curl("https://api.example.com/", "-k"))
			fails(t, d, id, curl("https://api.example.com/", "-k", "--resolve api.example.com:443:"+internet.Public[2].String()))
		}
	})
}
