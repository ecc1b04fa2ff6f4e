package hopx_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/sandbox"
)

const registryPassword = "hunter2-of-the-registry"

// builds builds a template from an image by call_api as the product's SDK does, follows the
// build, uses the template, and deletes it.
func builds(image string) func(t *testing.T, d *covetest.Daemon) {
	return func(t *testing.T, d *covetest.Daemon) {
		s := &session{ClientSession: dialecttest.Connect(t, dialecttest.HTTP(d, first.Name())(), revision), t: t}
		api := func(method, path string, body any) map[string]any {
			args := map[string]any{"method": method, "path": path}
			if body != nil {
				args["body"] = body
			}
			return s.ask("call_api", args)
		}
		step := func(kind string, args ...string) map[string]any { return map[string]any{"type": kind, "args": args} }
		// Files are uploaded to a link without a key, as by the product's SDKs.
		files := gzipped(t, map[string]string{"src/": "", "src/lib/": "", "src/lib/a.txt": "a\n", "src/b.txt": "b\n", "src/secret": "s\n"})
		link := api("POST", "/v1/templates/files/upload-link", map[string]any{"files_hash": "hash-1", "content_length": len(files)})
		if link["present"] != false {
			t.Fatalf("the link is %v", link)
		}
		if status := put(t, fmt.Sprint(link["upload_url"]), append(slices.Clone(files), 0)); status != http.StatusRequestEntityTooLarge {
			t.Errorf("more than was said: %d", status)
		}
		if status := put(t, fmt.Sprint(link["upload_url"]), files); status != http.StatusOK {
			t.Fatalf("sent: %d", status)
		}
		if again := api("POST", "/v1/templates/files/upload-link", map[string]any{"files_hash": "hash-1", "content_length": len(files)}); again["present"] != true {
			t.Errorf("afterwards the link is %v", again)
		}
		copied := func(from, to string) map[string]any {
			return map[string]any{"type": "COPY", "args": []string{from, to}, "filesHash": "hash-1"}
		}
		spec := map[string]any{
			"name": "made-by-hopx", "from_image": image, "cpu": 1, "memory": 512, "diskGB": 1,
			"steps": []any{
				step("ENV", "A", "from the template"), step("WORKDIR", "/first"), copied("src/*.txt", "."), step("RUN", "read x < b.txt; echo $x $PWD > /made-first"),
				step("WORKDIR", "/srv"), copied("src/lib", "/srv/lib"), step("RUN", `echo "$A, $PWD" > /made`),
			},
		}
		for _, wrong := range []any{nil, map[string]any{"type": "basic", "username": "me", "password": "wrong"}} {
			spec["registry_credentials"] = wrong
			begun := api("POST", "/v1/templates/build", spec)
			id, _ := begun["build_id"].(string)
			if b, err := d.Client.FollowBuild(t.Context(), id, nil); err != nil || b.State != sandbox.BuildFailed || strings.Contains(b.Reason, "wrong") && wrong == nil {
				t.Errorf("with the login %v: %+v, %v", wrong, b, err)
			}
		}
		spec["registry_credentials"] = map[string]any{"type": "basic", "username": "me", "password": registryPassword}
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
		if got := s.in("run_command", map[string]any{"command": "read x < /made; echo $x; echo $A; pwd; cat /made-first /srv/lib/a.txt; test -e /first/secret || echo none"}); got["stdout"] != "from the template, /srv\nfrom the template\n/workspace\nb /first\na\nnone\n" {
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

// gzipped returns an archive of files, and of directories, whose names end in a slash.
func gzipped(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name])), Uid: 1000, Gid: 1000}
		if strings.HasSuffix(name, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		}
		err := w.WriteHeader(h)
		if err == nil {
			_, err = io.WriteString(w, files[name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// put sends a body to an address, without a key.
func put(t *testing.T, url string, body []byte) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/gzip")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}
