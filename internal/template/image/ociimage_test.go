package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cove-sh/cove/internal/template/oci"
	"github.com/cove-sh/cove/sandbox"
)

// makeImage makes an image of layers.
func makeImage(t testing.TB, conf v1.Config, layers ...[]byte) v1.Image {
	t.Helper()
	img := empty.Image
	for _, data := range layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
		if err == nil {
			img, err = mutate.AppendLayers(img, l)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	img, err := mutate.Config(img, conf)
	if err != nil {
		t.Fatal(err)
	}
	return mutate.MediaType(img, types.OCIManifestSchema1)
}

// hub is a registry in this process.
type hub struct {
	*httptest.Server
	host   string
	blobs  atomic.Int32 // that were read
	meddle atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
}

func newHub(t testing.TB) *hub {
	t.Helper()
	h := &hub{}
	real := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			h.blobs.Add(1)
		}
		if m := h.meddle.Load(); m != nil && (*m)(w, r) {
			return
		}
		real.ServeHTTP(w, r)
	}))
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(h.Close)
	h.host = strings.TrimPrefix(h.URL, "http://")
	return h
}

func (h *hub) push(t testing.TB, repo string, img v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(h.host+"/"+repo, name.Insecure)
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h.host + "/" + repo
}

// provider may reach the hub, and read below allowed.
func (h *hub) provider(t testing.TB, allowed ...string) *Provider {
	t.Helper()
	p := newProvider(t, "")
	p.pullWait = time.Millisecond
	p.allowPaths = allowed
	var err error
	p.registries, err = oci.New(oci.Config{Insecure: []string{h.host}, Backoff: time.Millisecond, Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.registries.Close)
	return p
}

func fromImage(name, ref string) sandbox.BuildTemplateRequest {
	return sandbox.BuildTemplateRequest{Name: name, Spec: &sandbox.TemplateSpec{From: sandbox.TemplateSource{Image: ref}}}
}

func TestImages(t *testing.T) {
	h := newHub(t)
	p := h.provider(t)
	baseLayer := archive(t, dir("usr/bin"), link("bin", "usr/bin"), file("usr/bin/sh", "elf"), file("etc/passwd", "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n"),
		link("etc/resolv.conf", "../run/systemd/stub"), link("var/run", "/run"), dir("tmp"), file("proc/x", ""), link("dev", "/etc"), file(".cove/agent", "not ours"))
	conf := v1.Config{Env: []string{"PATH=/app/bin", "A=b"}, WorkingDir: "/srv/app", User: "node", ExposedPorts: map[string]struct{}{"3000/tcp": {}}}
	app := h.push(t, "app:1", makeImage(t, conf, baseLayer, archive(t, file("bin/app", "1"), gone("usr/bin", "sh"))))
	var steps []string
	got, err := p.Build(t.Context(), fromImage("app", app), func(e sandbox.BuildEvent) error {
		if len(steps) == 0 || steps[len(steps)-1] != e.Step {
			steps = append(steps, e.Step)
		}
		if e.Fraction < -1 || e.Fraction > 1 {
			t.Errorf("event %+v", e)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"finding the image", "downloading", "putting the layers together", "adding what sandboxes need", "finishing", "ready"}, steps); d != "" {
		t.Errorf("steps (-want +got):\n%s", d)
	}
	if got.Source != "image" || got.User != "node" || got.WorkDir != "/srv/app" || got.Env["PATH"] != "/app/bin" || got.Env["A"] != "b" || !cmp.Equal(got.Ports, []int{3000}) {
		t.Errorf("template %+v", got)
	}
	root, _, err := p.Root(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	files := contents(t, root.Dir)
	for name, want := range map[string]string{
		"usr/bin/app": "= 1", "bin": "-> usr/bin", "srv/app": "d", "etc/resolv.conf": "= nameserver 169.254.77.1\n", "dev": "d", "proc": "d", "sys": "d", ".cove": "d",
		"usr/bin/sh": "", ".cove/agent": "", "var/run": "-> /run", "run": "d", "workspace": "d", "etc/passwd": "= root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n",
	} {
		if files[name] != want {
			t.Errorf("%s is %q, want %q", name, files[name], want)
		}
	}

	// The same image under another name, and one that shares its base, transfer only what
	// is new.
	blobs, unpacks := h.blobs.Load(), p.layers.unpacks
	again := build(t, p, fromImage("again", app))
	if again.Digest != got.Digest || p.layers.unpacks != unpacks || h.blobs.Load() != blobs+1 { // the configuration
		t.Errorf("digest %s, %d layers unpacked, %d blobs read", again.Digest, p.layers.unpacks-unpacks, h.blobs.Load()-blobs)
	}
	other := build(t, p, fromImage("other", h.push(t, "other:1", makeImage(t, v1.Config{}, baseLayer, archive(t, file("bin/app", "2"))))))
	if p.layers.unpacks != unpacks+1 {
		t.Errorf("%d layers unpacked for an image that shares its base", p.layers.unpacks-unpacks)
	}
	if other.User != "root" || other.WorkDir != "/workspace" || other.Digest == got.Digest {
		t.Errorf("template %+v", other)
	}
	// Layers stay with their templates.
	p.layers.used = map[string]time.Time{}
	if _, err := p.Collect(nil); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(p.layers.dir); len(entries) != 3 {
		t.Errorf("layers kept: %v", entries)
	}

	nothing := build(t, p, fromImage("nothing", h.push(t, "nothing:1", makeImage(t, v1.Config{User: "1000:1000"}))))
	if nothing.User != "1000:1000" {
		t.Errorf("template %+v", nothing)
	}
	if rootless := build(t, p, fromImage("scratch", h.push(t, "scratch:1", makeImage(t, v1.Config{}, archive(t, file("hello", "elf")))))); rootless.User != "0" {
		t.Errorf("the user of an image without accounts is %q", rootless.User)
	}
}

// TestImagesAtOnce checks that a layer which two builds need at the same time is fetched
// once.
func TestImagesAtOnce(t *testing.T) {
	h := newHub(t)
	p := h.provider(t)
	layer := archive(t, file("big", strings.Repeat("x", 1<<20)))
	refs := []string{h.push(t, "a:1", makeImage(t, v1.Config{}, layer)), h.push(t, "b:1", makeImage(t, v1.Config{User: "5"}, layer))}
	var wg sync.WaitGroup
	for i, ref := range refs {
		wg.Go(func() {
			if _, err := p.Build(context.Background(), fromImage([]string{"a", "b"}[i], ref), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if p.layers.unpacks != 1 {
		t.Errorf("%d layers unpacked, want 1", p.layers.unpacks)
	}
}

func TestImagesThatFail(t *testing.T) {
	h := newHub(t)
	p := h.provider(t)
	good := archive(t, file("good", strings.Repeat("x", 1<<16)))
	ref := h.push(t, "bad:1", makeImage(t, v1.Config{}, good, archive(t, file("../victim", "broken"))))
	_, err := p.Build(t.Context(), fromImage("bad", ref), nil)
	wantCode(t, err, sandbox.CodeInvalid)
	if !strings.Contains(err.Error(), "victim") {
		t.Errorf("error %v", err)
	}
	_, err = p.Build(t.Context(), fromImage("bad", h.host+"/none:1"), nil)
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = p.Build(t.Context(), fromImage("bad", "http://x/y"), nil)
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = p.Build(t.Context(), fromImage("bad", "127.0.0.1:1/x:1"), nil)
	wantCode(t, err, sandbox.CodeForbidden)

	// A configuration with the diff id of something else.
	img := makeImage(t, v1.Config{}, good)
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64)
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	_, err = p.Build(t.Context(), fromImage("bad", h.push(t, "bad:2", img)), nil)
	wantCode(t, err, sandbox.CodeInvalid)

	// A connection that always breaks, and one that breaks once.
	ref = h.push(t, "good:1", makeImage(t, v1.Config{}, good))
	var broken atomic.Int32
	breaks := func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") && r.Header.Get("Range") != "" {
			http.Error(w, "", http.StatusRequestedRangeNotSatisfiable)
			return true
		}
		if !strings.Contains(r.URL.Path, "/blobs/") || r.Method != http.MethodGet || broken.Add(-1) < 0 {
			return false
		}
		w.Header().Set("Content-Length", "5000")
		_, _ = w.Write([]byte{0x1f, 0x8b, 8, 0, 0})
		panic(http.ErrAbortHandler)
	}
	h.meddle.Store(&breaks)
	broken.Store(1000)
	_, err = p.Build(t.Context(), fromImage("good", ref), nil)
	wantCode(t, err, sandbox.CodeUnavailable)

	// A build that is cancelled in the middle of a layer.
	ctx, cancel := context.WithCancel(t.Context())
	hangs := func(w http.ResponseWriter, r *http.Request) bool {
		if broken.Load() < 0 && strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet {
			w.Header().Set("Content-Length", "5000")
			_, _ = w.Write([]byte{0x1f, 0x8b, 8, 0, 0})
			_ = http.NewResponseController(w).Flush()
			cancel()
			<-r.Context().Done()
			return true
		}
		broken.Store(-1) // the configuration first
		return false
	}
	broken.Store(0)
	h.meddle.Store(&hangs)
	_, err = p.Build(ctx, fromImage("good", ref), nil)
	wantCode(t, err, sandbox.CodeCancelled)

	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
	for _, d := range []string{"rootfs", "manifests"} {
		if entries, _ := os.ReadDir(filepath.Join(p.dir, d)); len(entries) != 0 {
			t.Errorf("%s: %v", d, entries)
		}
	}
	h.meddle.Store(nil)
	build(t, p, fromImage("good", ref))
}

// TestUploads builds from an uploaded archive, which later expires.
func TestUploads(t *testing.T) {
	h := newHub(t)
	p := h.provider(t)
	var saved bytes.Buffer
	if err := tarball.Write(name.MustParseReference("app:1"), makeImage(t, v1.Config{}, archive(t, file("app", "1"))), &saved); err != nil {
		t.Fatal(err)
	}
	from := func(archive string) sandbox.BuildTemplateRequest {
		return sandbox.BuildTemplateRequest{Name: "up", Force: true, Spec: &sandbox.TemplateSpec{From: sandbox.TemplateSource{Archive: archive}}}
	}
	size := int64(saved.Len())
	up, err := p.KeepArchive(t.Context(), Upload{}, bytes.NewReader(saved.Bytes()))
	if err != nil || up.SizeBytes != size {
		t.Fatalf("%+v, %v", up, err)
	}
	build(t, p, from(up.Archive))
	for _, other := range []string{"upload-" + strings.Repeat("a", 26), "upload-../../x", "upload-", up.Archive + "/", "../uploads/" + up.Archive} {
		if _, err := p.Build(t.Context(), from(other), nil); sandbox.CodeOf(err) != sandbox.CodeNotFound && sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", other, err)
		}
	}
	uploads := func() int {
		entries, _ := os.ReadDir(filepath.Join(p.dir, "uploads"))
		return len(entries)
	}
	p.maxUpload = 100
	_, err = p.KeepArchive(t.Context(), Upload{}, bytes.NewReader(saved.Bytes()))
	wantCode(t, err, sandbox.CodeTooLarge)
	_, err = p.KeepArchive(t.Context(), Upload{}, failing{io.ErrUnexpectedEOF})
	if err == nil || uploads() != 1 {
		t.Errorf("broken off: %v, %d files", err, uploads())
	}
	old := time.Now().Add(-2 * sandbox.UploadRetention)
	if err := os.Chtimes(p.uploadFile(up.Archive), old, old); err != nil {
		t.Fatal(err)
	}
	_, err = p.Build(t.Context(), from(up.Archive), nil)
	wantCode(t, err, sandbox.CodeNotFound)
	if uploads() != 0 {
		t.Error("an old upload is kept")
	}
}

func TestArchivesAndDirectories(t *testing.T) {
	allowed, outside := t.TempDir(), t.TempDir()
	h := newHub(t)
	p := h.provider(t, allowed)
	img := makeImage(t, v1.Config{WorkingDir: "/app"}, archive(t, file("app/x", "1")))
	if err := tarball.WriteToFile(filepath.Join(allowed, "app.tar"), name.MustParseReference("app:1"), img); err != nil {
		t.Fatal(err)
	}
	l, err := layout.Write(filepath.Join(allowed, "layout"), empty.Index)
	if err == nil {
		err = l.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	// A root file system with files that must not be copied, and links that must not be
	// followed.
	rootfs := filepath.Join(allowed, "rootfs")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(rootfs, "etc"), 0o755), os.MkdirAll(filepath.Join(rootfs, "home/me"), 0o700),
		os.WriteFile(filepath.Join(rootfs, "etc/motd"), []byte("hello"), 0o640), os.Link(filepath.Join(rootfs, "etc/motd"), filepath.Join(rootfs, "etc/issue")),
		os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600), os.Symlink(filepath.Join(outside, "secret"), filepath.Join(rootfs, "etc/shadow")),
		os.Symlink(outside, filepath.Join(rootfs, "opt")), os.Symlink(outside, filepath.Join(allowed, "out")), os.Symlink("app.tar", filepath.Join(allowed, "latest.tar")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	// The server's state is inside, by an operator's mistake.
	p.stateDir = filepath.Join(rootfs, "state")
	if err := errors.Join(os.MkdirAll(filepath.Join(p.stateDir, "sub"), 0o700), os.WriteFile(filepath.Join(p.stateDir, "key"), nil, 0o600), os.WriteFile(filepath.Join(p.stateDir, "sub/key"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	from := func(s sandbox.TemplateSource) sandbox.BuildTemplateRequest {
		return sandbox.BuildTemplateRequest{Name: "x", Force: true, Spec: &sandbox.TemplateSpec{From: s}}
	}
	for _, path := range []string{"app.tar", "layout", "latest.tar", "rootfs/../app.tar"} {
		got := build(t, p, from(sandbox.TemplateSource{Archive: allowed + "/" + path}))
		root, _, err := p.Root(t.Context(), "x")
		if err != nil || got.Source != "archive" || got.WorkDir != "/app" || contents(t, root.Dir)["app/x"] != "= 1" {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
	got := build(t, p, from(sandbox.TemplateSource{Directory: rootfs}))
	root, _, err := p.Root(t.Context(), "x")
	if err != nil || got.Source != "directory" {
		t.Fatalf("%+v, %v", got, err)
	}
	files := contents(t, root.Dir)
	for name, want := range map[string]string{"etc/motd": "= hello", "etc/issue": "= hello", "etc/shadow": "-> " + outside + "/secret", "opt": "-> " + outside, "home/me": "d"} {
		if files[name] != want {
			t.Errorf("%s is %q, want %q", name, files[name], want)
		}
	}
	if files["state/key"] != "" || files["state/sub"] != "" {
		t.Error("the server's state is in a template")
	}
	if info, _ := os.Stat(filepath.Join(root.Dir, "etc/motd")); info.Mode() != 0o640 {
		t.Errorf("motd is %v", info.Mode())
	}
	for path, want := range map[string]sandbox.Code{
		outside + "/secret": sandbox.CodeForbidden, "/etc/passwd": sandbox.CodeForbidden, allowed + "/../x": sandbox.CodeForbidden, allowed + "x": sandbox.CodeForbidden,
		allowed + "/none": sandbox.CodeNotFound, allowed + "/out/secret": sandbox.CodeInvalid, allowed + "/out": sandbox.CodeInvalid, "relative": sandbox.CodeInvalid, "/a\x00": sandbox.CodeInvalid,
		allowed + "/rootfs": sandbox.CodeInvalid, p.stateDir + "/key": sandbox.CodeForbidden,
	} {
		_, err := p.Build(t.Context(), from(sandbox.TemplateSource{Archive: path}), nil)
		wantCode(t, err, want)
	}
	for _, path := range []string{outside, "/", allowed + "/out", allowed + "/app.tar", p.stateDir, p.stateDir + "/sub"} {
		if _, err := p.Build(t.Context(), from(sandbox.TemplateSource{Directory: path}), nil); err == nil {
			t.Errorf("the directory %s was taken", path)
		}
	}
	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
	if _, err := os.Stat(filepath.Join(rootfs, "dev")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory was changed: %v", err)
	}
}
