package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// box builds the program of testdata/box.
func box(t *testing.T) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "box")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, "./testdata/box")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build box: %v\n%s", err, msg)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// ociImage makes an image for this machine of one layer, or of none.
func ociImage(t *testing.T, conf v1.Config, headers []tar.Header, contents ...[]byte) v1.Image {
	t.Helper()
	img := empty.Image
	if headers != nil {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i, h := range headers {
			if i < len(contents) {
				h.Size = int64(len(contents[i]))
			}
			err := w.WriteHeader(&h)
			if err == nil && h.Size > 0 {
				_, err = w.Write(contents[i])
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
		if err == nil {
			img, err = mutate.AppendLayers(img, l)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: conf, RootFS: rootFS(t, img)})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func rootFS(t *testing.T, img v1.Image) v1.RootFS {
	t.Helper()
	conf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return conf.RootFS
}

// machineRoot makes a root file system of the machine's own shell.
func machineRoot(t *testing.T, dir string) {
	t.Helper()
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "ldd", shell).Output()
	if err != nil {
		t.Fatalf("ldd %s: %v", shell, err)
	}
	files := map[string]string{"/bin/sh": shell}
	for f := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(f, "/") {
			files[f] = f
		}
	}
	for to, from := range files {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		to = filepath.Join(dir, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// Images of a registry and of files become templates whose sandboxes run, as
// the user and in the directory that the image names, with nothing in it that
// it does not need.
func TestImages(t *testing.T) {
	static := box(t)
	reg := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(reg.Close)
	host := strings.TrimPrefix(reg.URL, "http://")
	// Where the ordinary user can read too.
	shared, err := os.MkdirTemp("", "cove-images-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(shared) })
	if err := os.Chmod(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	program := []tar.Header{{Typeflag: tar.TypeReg, Name: "bin/box", Mode: 0o755}}
	accounts := []tar.Header{program[0],
		{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, {Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644},
		{Typeflag: tar.TypeLink, Name: "bin/cat", Linkname: "bin/box"},
		{Typeflag: tar.TypeDir, Name: "home/node/", Mode: 0o700, Uid: 1000, Gid: 1000},
		{Typeflag: tar.TypeReg, Name: "home/node/.npmrc", Mode: 0o600, Uid: 1000, Gid: 1000},
	}
	passwd, group := []byte("root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n"), []byte("root:x:0:\nnode:x:1000:\n")
	push := func(repo string, img v1.Image) string {
		ref, err := name.ParseReference(host+"/"+repo, name.Insecure)
		if err == nil {
			err = remote.Write(ref, img)
		}
		if err != nil {
			t.Fatal(err)
		}
		return host + "/" + repo
	}
	shut := append(slices.Clone(program),
		tar.Header{Typeflag: tar.TypeDir, Name: "shut/", Mode: 0}, tar.Header{Typeflag: tar.TypeReg, Name: "shut/file", Mode: 0})
	node := ociImage(t, v1.Config{User: "node", WorkingDir: "/srv/app", Env: []string{"GREETING=hi", "PATH=/bin"}}, accounts, static, passwd, group, nil, nil, []byte("token"))
	sources := map[string]sandbox.TemplateSource{
		"empty":   {Image: push("empty:1", ociImage(t, v1.Config{}, nil))},
		"numeric": {Image: push("numeric:1", ociImage(t, v1.Config{User: "1000:1000"}, program, static))},
		"shut":    {Image: push("shut:1", ociImage(t, v1.Config{}, shut, static, nil, []byte("inside")))},
		"grown":   {Template: "shut"},
		"app":     {Image: push("org/node:1", node)},
		"saved":   {Archive: filepath.Join(shared, "node.tar")},
		"shell":   {Directory: filepath.Join(shared, "root")},
	}
	if err := tarball.WriteToFile(sources["saved"].Archive, name.MustParseReference("node:1"), node); err != nil {
		t.Fatal(err)
	}
	machineRoot(t, sources["shell"].Directory)
	private := newPrivateRegistry(t, shared, ociImage(t, v1.Config{User: "1000:1000"}, program, static))

	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		files := map[string][]sandbox.TemplateFile{"grown": {{Path: "/shut/more", Content: []byte("grown")}, {Path: "/bin/cat", Content: static, Mode: "0755"}}}
		start := func(template string, change ...func(*sandbox.CreateRequest)) string {
			spec := &sandbox.TemplateSpec{From: sources[template], Files: files[template]}
			_, err := d.Client.BuildTemplate(t.Context(), sandbox.BuildTemplateRequest{Name: template, Spec: spec}, func(sandbox.BuildEvent) error { return nil })
			if err != nil {
				t.Fatalf("build %s: %v", template, err)
			}
			req := covetest.Small(change...)
			req.Template = template
			return d.Create(t, req).ID
		}
		run := func(id, want string, command ...string) {
			t.Helper()
			res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Command: command})
			if err != nil || strings.TrimSpace(res.Stdout) != want {
				t.Errorf("%v says %q, %q, %v; want %q", command, res.Stdout, res.Stderr, err, want)
			}
		}
		// An empty image starts, and a program that is copied into it runs.
		id := start("empty")
		if _, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Command: []string{"/bin/sh"}}); err == nil {
			t.Error("an image without programs runs a shell")
		}
		if _, err := d.Client.WriteFile(t.Context(), id, sandbox.WriteFileRequest{Path: "/box", Mode: "0755"}, bytes.NewReader(static)); err != nil {
			t.Fatal(err)
		}
		run(id, "0:0 /workspace  /", "/box")

		run(start("numeric"), "1000:1000 /workspace  /", "/bin/box")
		// What nobody but root may read, root reads; an image without accounts can
		// be begun with, too.
		start("shut")
		id = start("grown")
		run(id, "inside", "/bin/cat", "/shut/file")
		run(id, "grown", "/bin/cat", "/shut/more")
		for _, template := range []string{"app", "saved"} {
			id := start(template)
			run(id, "1000:1000 /srv/app hi /home/node", "box")
			run(id, "token", "cat", "/home/node/.npmrc")
			if _, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Command: []string{"box"}, User: "root"}); err != nil {
				t.Error(err)
			}
		}
		d.Shows(t, start("shell"), "echo $((6 * 7)) > /tmp/x; read a < /tmp/x; echo $a", "42")

		// The command line does the same, and says how it goes.
		for args, want := range map[string]string{"--image " + sources["app"].Image: "downloading", "--archive " + sources["saved"].Archive: "sending"} {
			kind, _, _ := strings.Cut(args, " ")
			command := append([]string{"template", "build", "by" + kind}, strings.Fields(args)...)
			out, err := d.Command(context.WithoutCancel(t.Context()), command...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%v: %v\n%s", command, err, out)
			}
		}
		private.build(t, d)
	}, "--insecure-registries", host+","+private.host, "--template-paths", shared, "--warm", "1")
}

// privateRegistry is a registry that wants a login.
type privateRegistry struct {
	host, image, password string
	passwordFile          string // what --registry-password-file names
}

func newPrivateRegistry(t *testing.T, dir string, img v1.Image) *privateRegistry {
	t.Helper()
	p := &privateRegistry{password: "right-" + rand.Text(), passwordFile: filepath.Join(dir, "password")}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	reg := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "builder" || password != p.password {
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	t.Cleanup(reg.Close)
	p.host = strings.TrimPrefix(reg.URL, "http://")
	p.image = p.host + "/org/private:1"
	ref, err := name.ParseReference(p.image, name.Insecure)
	if err == nil {
		err = remote.Write(ref, img, remote.WithAuth(&authn.Basic{Username: "builder", Password: p.password}))
	}
	if err == nil {
		err = os.WriteFile(p.passwordFile, []byte(p.password+"\n"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// build builds of the registry's image with no login, with wrong ones and with
// the right one, by the command line. No password stays anywhere.
func (p *privateRegistry) build(t *testing.T, d *covetest.Daemon) {
	const wrong = "wrong-GXNAOQ5WKZ"
	command := func(stdin string, args ...string) (string, error) {
		cmd := d.Command(context.WithoutCancel(t.Context()), append([]string{"template", "build", "private", "--image", p.image}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	said := ""
	for _, c := range []struct {
		stdin string
		args  []string
		want  string
	}{
		{"", nil, "the image does not exist or needs a login; "},
		{wrong, []string{"--registry-user", "builder", "--registry-password-file", "-"}, "the login is wrong"},
		{p.password, []string{"--registry-user", "other", "--registry-password-file", "-"}, "the login is wrong"},
	} {
		out, err := command(c.stdin, c.args...)
		if err == nil || strings.Count(out, c.want) != 1 {
			t.Errorf("build with %v: %v\n%s", c.args, err, out)
		}
		said += out
	}
	out, err := command("", "--registry-user", "builder", "--registry-password-file", p.passwordFile)
	if err != nil || !strings.Contains(out, "ready") {
		t.Fatalf("build with the right login: %v\n%s", err, out)
	}
	req := covetest.Small()
	req.Template = "private"
	if res, err := d.Exec(t.Context(), d.Create(t, req).ID, sandbox.ExecRequest{Command: []string{"/bin/box"}}); err != nil || strings.TrimSpace(res.Stdout) != "1000:1000 /workspace  /" {
		t.Errorf("a sandbox of the private image: %+v, %v", res, err)
	}
	held := func(where string, data []byte) {
		for _, secret := range []string{p.password, wrong} {
			if bytes.Contains(data, []byte(secret)) || bytes.Contains(data, []byte(base64.StdEncoding.EncodeToString([]byte("builder:"+secret)))) {
				t.Errorf("%s: a password is there", where)
			}
		}
	}
	held("what the command line and the daemon have said", []byte(said+out+d.Output()))
	// The store with the builds' records, their logs, and the templates.
	records := 0
	err = filepath.WalkDir(d.StateDir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // it went away, or has no content
		}
		if info, err := e.Info(); err != nil || info.Size() > 32<<20 {
			return nil // memory of a sandbox
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		held(path, data)
		if bytes.Contains(data, []byte("the login is wrong")) {
			records++
		}
		return nil
	})
	if err != nil || records < 3 {
		t.Errorf("%d files have the reason of a failed build, %v; want the store and two logs", records, err)
	}
}
