package dialecttest

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-sh/cove/internal/testing/needs"
)

// shells are the registries of [PushShell], by their passwords.
var shells = struct {
	sync.Mutex
	hosts map[string]string
}{hosts: map[string]string{}}

// PushShell puts an image of the machine's own shell, with a user app, into a
// registry, and returns the host of the registry and the name of the image. With a password,
// the registry wants it for the user "me". It serves as long as the package's tests run, so
// that they can share daemons that know it.
func PushShell(t testing.TB, password string) (host, image string) {
	t.Helper()
	shells.Lock()
	defer shells.Unlock()
	if shells.hosts[password] == "" {
		shells.hosts[password] = pushShell(t, password)
	}
	return shells.hosts[password], shells.hosts[password] + shellImage
}

const shellImage = "/shell:1"

func pushShell(t testing.TB, password string) (host string) {
	t.Helper()
	needs.Command(t, "ldd")
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	reg := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, got, _ := r.BasicAuth(); got != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	host = strings.TrimPrefix(reg.URL, "http://")
	files := shellTar(t)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{Env: []string{"PATH=/bin"}}, RootFS: conf.RootFS})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host+shellImage, name.Insecure)
	if err == nil {
		login := authn.Anonymous
		if password != "" {
			login = &authn.Basic{Username: "me", Password: password}
		}
		err = remote.Write(ref, img, remote.WithAuth(login))
	}
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// shellTar is a root file system with a shell, a few programs, and what those
// need.
func shellTar(t testing.TB) []byte {
	t.Helper()
	contents := map[string][]byte{"/etc/passwd": []byte("root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n")}
	add := func(to, from string) {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		contents[to] = data
	}
	for _, program := range []string{"sh", "mkdir", "chown", "chmod", "cat", "mv", "rm", "sleep", "stat"} { // which builds need, one that lasts, and one that tells of files
		from, err := exec.LookPath(program)
		if err == nil {
			from, err = filepath.EvalSymlinks(from)
		}
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "ldd", from).Output()
		if err != nil {
			t.Fatal(err)
		}
		add("/bin/"+program, from)
		for f := range strings.FieldsSeq(string(out)) {
			if strings.HasPrefix(f, "/") {
				add(f, f)
			}
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for to, data := range contents {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(to, "/"), Mode: 0o755, Size: int64(len(data))})
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
