package network

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// clients are command lines that send $TOKEN to a URL as a bearer's and print the
// answer, each with another program and its own way to verify certificates.
var clients = map[string]string{
	"curl": `curl -fsS --max-time 20 -H "Authorization: Bearer $TOKEN" %s`,
	"python": `python3 -c 'import os, urllib.request
print(urllib.request.urlopen(urllib.request.Request("%s", headers={"Authorization": "Bearer " + os.environ["TOKEN"]}), timeout=20).read().decode())'`,
	"requests": `/usr/bin/python3 -c 'import os, requests
r = requests.get("%s", headers={"Authorization": "Bearer " + os.environ["TOKEN"]}, timeout=20); r.raise_for_status(); print(r.text)'`,
	"httpx": `/usr/bin/python3 -c 'import os, httpx
r = httpx.get("%s", headers={"Authorization": "Bearer " + os.environ["TOKEN"]}, timeout=20); r.raise_for_status(); print(r.text)'`,
	"go":   `/workspace/goclient %s`,
	"node": `node -e 'fetch("%s", {headers: {Authorization: "Bearer " + process.env.TOKEN}}).then(r => r.text()).then(console.log).catch(e => {console.error(e, e.cause); process.exit(1)})'`,
	"openssl": `url=%s; (printf 'GET /'"${url#https://*/}"' HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Bearer %%s\r\nConnection: close\r\n\r\n' "$TOKEN"; sleep 3) | ` +
		`openssl s_client -quiet -verify_return_error -servername api.example.com -connect api.example.com:443 2>/dev/null | grep '^{'`,
}

// putGoClient builds a client with Go alone, and writes it into a sandbox.
func putGoClient(t *testing.T, d *covetest.Daemon, id string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "goclient")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./testdata/goclient")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Client.WriteFile(t.Context(), id, sandbox.WriteFileRequest{Path: "/workspace/goclient", Mode: "0755"}, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
}

// A secret is put in on its way to its host, for every client, over each change of the
// sandbox's life; and is nowhere in the sandbox. In "make test", TestCanary, TestPrograms,
// TestGit and TestAttackWrongHost of package intercept, and TestSecretsAreCarried of package
// service, stand for it.
func TestMoreSecretOfManyLives(t *testing.T) {
	n := internet.Here(t)
	needs.Command(t, "curl", "openssl", "node", "git")
	needs.File(t, "/usr/lib/python3/dist-packages/requests/__init__.py")
	needs.File(t, "/usr/lib/python3/dist-packages/httpx/__init__.py")
	own(t, func(t *testing.T, d *covetest.Daemon) {
		const first, second = "value-one-0123456789abcdef", "value-two-0123456789abcdef"
		secret, err := d.Client.CreateSecret(t.Context(), sandbox.CreateSecretRequest{
			Name: "api", Value: sandbox.NewSecretValue(first), Hosts: []string{"api.example.com"}, Auth: &sandbox.SecretAuth{Type: "header", Prefix: "Bearer "},
		})
		if err != nil {
			t.Fatal(err)
		}
		s := d.Create(t, sandbox.CreateRequest{Secrets: map[string]string{"TOKEN": secret.Name}})
		placeholder := works(t, d, s.ID, "echo $TOKEN")
		if placeholder == "" || placeholder == first {
			t.Fatalf("the sandbox sees %q", placeholder)
		}
		count := 0
		sent := func(id, program, host string) string {
			t.Helper()
			// The server's answer has the placeholder again.
			count++
			path := fmt.Sprintf("/%s/%d", id, count)
			if r := asked(t, works(t, d, id, fmt.Sprintf(clients[program], "https://"+host+path))); strings.Contains(fmt.Sprint(r), "value-") {
				t.Errorf("%s was told the value: %+v", program, r)
			}
			return strings.TrimPrefix(strings.Join(n.Request(path).Header["Authorization"], ","), "Bearer ")
		}
		putGoClient(t, d, s.ID)
		for program := range clients {
			if got := sent(s.ID, program, "api.example.com"); got != first {
				t.Errorf("%s sent %q", program, got)
			}
		}
		path := "/" + s.ID + ".git"
		fails(t, d, s.ID, `git -c http.extraHeader="Authorization: Bearer $TOKEN" ls-remote https://api.example.com`+path) // it is not a repository
		if got := n.Request(path + "/info/refs").Header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+first {
			t.Errorf("git sent %q", got)
		}
		// To others goes the placeholder.
		if got := sent(s.ID, "curl", "www.example.com"); got != placeholder {
			t.Errorf("another host got %q", got)
		}
		forks, err := d.Client.Fork(t.Context(), s.ID, sandbox.ForkRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if got := sent(forks.Items[0].ID, "curl", "api.example.com"); got != first {
			t.Errorf("a fork sent %q", got)
		}
		if _, err := d.Client.Pause(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Client.RotateSecret(t.Context(), secret.Name, sandbox.RotateSecretRequest{Value: sandbox.NewSecretValue(second)}); err != nil {
			t.Fatal(err)
		}
		if got := sent(forks.Items[0].ID, "curl", "api.example.com"); got != second {
			t.Errorf("after the rotation a fork sent %q", got)
		}
		if _, err := d.Client.Resume(t.Context(), s.ID, sandbox.ResumeRequest{}); err != nil {
			t.Fatal(err)
		}
		d.Kill()
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := sent(s.ID, "python", "api.example.com"); got != second {
			t.Errorf("after a pause and the daemon's death it sent %q", got)
		}
		for _, value := range []string{first, second} {
			if found := searchFor(t, d, value); len(found) > 0 {
				t.Errorf("the value is in %v", found)
			}
			line := "env | grep -c " + value[:9] + "; cat /proc/*/environ 2>/dev/null | grep -ac " + value[:9] + "; grep -rl " + value[:9] + " /etc /run /tmp /workspace 2>/dev/null"
			if out, _ := try(t, d, s.ID, line); out != "0\n0" {
				t.Errorf("in the sandbox: %q", out)
			}
		}
		if _, err := d.Client.DetachSecret(t.Context(), s.ID, "TOKEN"); err != nil {
			t.Fatal(err)
		}
		r := asked(t, works(t, d, s.ID, curl("https://api.example.com/", "-k -H 'Authorization: Bearer "+placeholder+"'")))
		if got := strings.Join(r.Header["Authorization"], ","); got != "Bearer "+placeholder {
			t.Errorf("after the secret was detached the server got %q", got)
		}
	})
}

// searchFor looks for a value in the daemon's files, and in the environments and
// command lines of all processes.
func searchFor(t *testing.T, d *covetest.Daemon, value string) []string {
	t.Helper()
	var found []string
	_ = filepath.WalkDir(d.StateDir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || strings.Contains(path, "/bin/") {
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte(value)) {
			found = append(found, path)
		}
		return nil
	})
	if !strings.Contains(d.Output(), value) {
		return append(found, inProcesses(value)...)
	}
	return append(found, "the daemon's output")
}

// inProcesses looks into the environments and command lines of all processes but
// this one.
func inProcesses(value string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/[ec][nm][vd]*")
	for _, f := range files {
		name := filepath.Base(f)
		if name != "environ" && name != "cmdline" || strings.HasPrefix(f, "/proc/"+strconv.Itoa(os.Getpid())+"/") {
			continue
		}
		if data, err := os.ReadFile(f); err == nil && bytes.Contains(data, []byte(value)) {
			found = append(found, f)
		}
	}
	return found
}
