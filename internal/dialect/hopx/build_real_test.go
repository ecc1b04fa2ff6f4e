package hopx_test

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-sh/cove/test/covetest"
)

// pushShell puts an image of the machine's own shell into a registry, and
// returns the registry's host and the image's name.
func pushShell(t *testing.T) (host, image string) {
	t.Helper()
	reg := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(reg.Close)
	host = strings.TrimPrefix(reg.URL, "http://")
	image = host + "/shell:1"
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
	ref, err := name.ParseReference(image, name.Insecure)
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return host, image
}

// shellTar is a root file system with a shell, a few programs, and what those
// need.
func shellTar(t *testing.T) []byte {
	t.Helper()
	contents := map[string][]byte{"/etc/passwd": []byte("root:x:0:0::/root:/bin/sh\n")}
	add := func(to, from string) {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		contents[to] = data
	}
	for _, program := range []string{"sh", "mkdir", "chown", "chmod", "cat", "mv", "rm"} { // which builds need
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

// A template is built of an image by call_api as the product's SDK builds it,
// followed, used, and deleted.
func builds(image string) func(t *testing.T, d *covetest.Daemon) {
	return func(t *testing.T, d *covetest.Daemon) {
		s := &session{ClientSession: connect(t, doors(d, first.Name())["http"]()), t: t}
		api := func(method, path string, body any) map[string]any {
			args := map[string]any{"method": method, "path": path}
			if body != nil {
				args["body"] = body
			}
			return s.ask("call_api", args)
		}
		step := func(kind string, args ...string) map[string]any { return map[string]any{"type": kind, "args": args} }
		spec := map[string]any{
			"name": "made-by-hopx", "from_image": image, "cpu": 1, "memory": 512, "diskGB": 1,
			"steps": []any{step("ENV", "A", "from the template"), step("WORKDIR", "/srv"), step("RUN", `echo "$A, $PWD" > /made`)},
		}
		begun := api("POST", "/v1/templates/build", spec)
		build, _ := begun["build_id"].(string)
		var state map[string]any
		if !covetest.Eventually(patience, func() bool {
			state = api("GET", "/v1/templates/build/"+build+"/status", nil)
			return state["status"] != "building"
		}) || state["status"] != "success" || state["progress"] != 100.0 {
			t.Fatalf("begun is %v, the build is %v, its log %v", begun, state, api("GET", "/v1/templates/build/"+build+"/logs", nil))
		}
		if logs := api("GET", "/v1/templates/build/made-by-hopx/logs", nil); logs["complete"] != true || logs["logs"] == "" {
			t.Errorf("the log is %v", logs)
		}
		if got := s.ask("get_template", map[string]any{"name": "made-by-hopx"}); got["status"] != "active" || got["is_active"] != true {
			t.Errorf("the template is %v", got)
		}
		if again := api("POST", "/v1/templates/build", spec); again["status_code"] != 409.0 {
			t.Errorf("built again: %v", again)
		}
		made := s.ask("create_sandbox", map[string]any{"template_id": begun["template_id"], "timeout_seconds": 600})
		s.args = map[string]any{"vm_url": made["direct_url"], "auth_token": made["auth_token"]}
		if got := s.in("run_command", map[string]any{"command": "read x < /made; echo $x; echo $A; pwd"}); got["stdout"] != "from the template, /srv\nfrom the template\n/workspace\n" {
			t.Errorf("in a sandbox of it: %v", got)
		}
		s.ask("delete_sandbox", map[string]any{"id": made["id"]})
		if got := api("DELETE", "/v1/templates/made-by-hopx", nil); got["status"] != "deleted" {
			t.Errorf("deleted: %v", got)
		}
		if got := s.ask("get_template", map[string]any{"name": "made-by-hopx"}); got["status_code"] != 404.0 {
			t.Errorf("afterwards it is %v", got)
		}
	}
}
