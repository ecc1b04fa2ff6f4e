package network

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-sh/cove/internal/testing/needs"
)

// aptPrograms are the programs of this machine that the image has: apt and dpkg with
// everything that they call, Python, and a shell.
var aptPrograms = []string{
	"sh", "apt-get", "dpkg", "dpkg-deb", "dpkg-split", "dpkg-query", "tar", "rm", "diff", "ldconfig", "start-stop-daemon",
	"cat", "id", "ls", "mkdir", "chown", "grep", "/usr/bin/python3",
}

// aptImage makes an archive of an image out of this machine's own files: a small
// Debian whose apt knows the repository of the test's Internet, and whose Python
// says, as Debian's does, that others manage it. All trust the authority.
func aptImage(t *testing.T, authority []byte) []byte {
	t.Helper()
	needs.Command(t, "apt-get", "dpkg", "ldd", "/usr/bin/python3")
	out := run(t, "/", "/usr/bin/python3", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))")
	files := map[string]bool{}
	for _, program := range aptPrograms {
		path, err := exec.LookPath(program)
		if err != nil {
			path = "/sbin/" + program // not on every user's path
		}
		files[path] = true
	}
	walk := func(dir string, not ...string) {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case e.IsDir() && slices.ContainsFunc(not, func(n string) bool { return strings.HasPrefix(e.Name(), n) }):
				return fs.SkipDir
			case e.Type().IsRegular() || e.Type()&fs.ModeSymlink != 0:
				files[path] = true
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	walk("/usr/lib/apt")
	walk("/usr/share/dpkg")
	walk(out, "test", "idlelib", "tkinter", "lib2to3", "config-", "ensurepip", "pydoc", "turtledemo")
	walk("/usr/lib/python3/dist-packages/pip")
	w := &imageWriter{t: t, has: map[string]bool{}}
	w.tar = tar.NewWriter(&w.content)
	for _, link := range []string{"bin", "sbin", "lib", "lib64"} {
		w.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: link, Linkname: "usr/" + link}, nil)
	}
	for _, lib := range libraries(t, files) {
		files[lib] = true
	}
	for path := range files {
		w.copy(path)
	}
	for path, text := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\n_apt:x:42:65534::/nonexistent:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n",
		"etc/group":  "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n", "etc/test-ca.pem": string(authority),
		"etc/os-release": "ID=debian\nVERSION_CODENAME=cove\n", "var/lib/dpkg/status": "",
		"etc/apt/sources.list":          "deb [trusted=yes] https://deb.debian.org/cove ./\n",
		"etc/apt/apt.conf.d/90test":     "Acquire::https::CaInfo \"/etc/test-ca.pem\";\nAcquire::http::Proxy \"DIRECT\";\nAcquire::https::Proxy \"DIRECT\";\n",
		out[1:] + "/EXTERNALLY-MANAGED": "[externally-managed]\nError=ask Debian\n",
	} {
		w.add(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o644}, []byte(text))
	}
	for _, dir := range []string{"tmp", "root", "home/user", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/cache/apt/archives/partial", "var/lib/apt/lists/partial", "var/log/apt", "etc/apt/preferences.d"} {
		h := &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}
		if dir == "home/user" {
			h.Uid, h.Gid = 1000, 1000
		}
		w.add(h, nil)
	}
	return w.archive(v1.Config{User: "user", WorkingDir: "/home/user", Env: []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "PIP_CERT=/etc/test-ca.pem", "PIP_RETRIES=0",
	}})
}

// imageWriter writes the layer of an image.
type imageWriter struct {
	t       *testing.T
	content bytes.Buffer
	tar     *tar.Writer
	has     map[string]bool
}

func (w *imageWriter) add(h *tar.Header, content []byte) {
	w.t.Helper()
	if w.has[h.Name] {
		return
	}
	w.has[h.Name] = true
	h.Size = int64(len(content))
	err := w.tar.WriteHeader(h)
	if err == nil {
		_, err = w.tar.Write(content)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// copy adds a file of this machine; of a link it adds the target's content.
func (w *imageWriter) copy(path string) {
	w.t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		return // a link to nothing
	}
	content, err := os.ReadFile(path)
	if err != nil {
		w.t.Fatal(err)
	}
	name := path[1:]
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if strings.HasPrefix(name, dir+"/") {
			name = "usr/" + name
		}
	}
	w.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}, content)
}

// archive returns the image as docker save writes one.
func (w *imageWriter) archive(conf v1.Config) []byte {
	w.t.Helper()
	if err := w.tar.Close(); err != nil {
		w.t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(w.content.Bytes())), nil }, tarball.WithCompressionLevel(1))
	if err != nil {
		w.t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		w.t.Fatal(err)
	}
	was, err := img.ConfigFile()
	if err == nil {
		img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: conf, RootFS: was.RootFS})
	}
	var out bytes.Buffer
	if err == nil {
		err = tarball.Write(name.MustParseReference("apt:1"), img, &out)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return out.Bytes()
}

// libraries returns what programs among files are linked with.
func libraries(t *testing.T, files map[string]bool) []string {
	t.Helper()
	var programs []string
	for path := range files {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		var magic [4]byte
		_, _ = io.ReadFull(f, magic[:])
		f.Close()
		if string(magic[:]) == "\x7fELF" {
			programs = append(programs, path)
		}
	}
	out, _ := exec.CommandContext(t.Context(), "ldd", programs...).Output() // it fails for programs that are not dynamically linked
	var libs []string
	for f := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(f, "/") && !strings.HasSuffix(f, ":") && !slices.Contains(libs, f) {
			libs = append(libs, f)
		}
	}
	return libs
}
