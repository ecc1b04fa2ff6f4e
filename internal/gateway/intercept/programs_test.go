package intercept

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/needs"
)

// program runs a program of the machine as a sandbox would, and returns its output.
func (w *harness) program(env []string, name string, args ...string) string {
	w.t.Helper()
	needs.Command(w.t, name)
	path, err := exec.LookPath(name)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	ca, proxy := w.caFile(), w.proxy()
	cmd.Env = append(os.Environ(), "HTTPS_PROXY="+proxy, "https_proxy="+proxy, "NO_PROXY=", "no_proxy=",
		"SSL_CERT_FILE="+ca, "CURL_CA_BUNDLE="+ca, "NODE_EXTRA_CA_CERTS="+ca, "GIT_SSL_CAINFO="+ca, "REQUESTS_CA_BUNDLE="+ca,
		"API_KEY="+placeholder, "HOME="+w.t.TempDir(), "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1", "NODE_USE_ENV_PROXY=1")
	cmd.Env = append(cmd.Env, env...)
	cmd.Dir = w.t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

func TestPrograms(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want int // version of HTTP
	}{
		{"curl", []string{"-sS", "--http1.1", "-H", "Authorization: Bearer " + placeholder, "-d", "@/etc/hostname", "https://" + apiHost + "/v1"}, 1},
		{"curl", []string{"-sS", "--http2", "-H", "Authorization: Bearer " + placeholder, "https://" + apiHost + "/v1"}, 2},
		{"curl", []string{"-sS", "--no-alpn", "-u", "me:" + placeholder, "https://" + apiHost + "/v1"}, 1},
		{"python3", []string{"-c", `
import os, ssl, urllib.request
r = urllib.request.Request("https://` + apiHost + `/v1", headers={"Authorization": "Bearer " + os.environ["API_KEY"]})
print(urllib.request.urlopen(r).read().decode())
`}, 1},
		// The strictest certificate checks that OpenSSL has.
		{"python3", []string{"-c", `
import os, ssl, urllib.request
c = ssl.create_default_context()
c.verify_flags |= ssl.VERIFY_X509_STRICT
r = urllib.request.Request("https://` + apiHost + `/v1", headers={"Authorization": "Bearer " + os.environ["API_KEY"]})
print(urllib.request.urlopen(r, context=c).read().decode())
`}, 1},
		{"node", []string{"-e", `
const {request} = require("https"), {connect} = require("tls"), http = require("http");
const proxy = new URL(process.env.HTTPS_PROXY);
http.request({host: proxy.hostname, port: proxy.port, method: "CONNECT", path: "` + apiHost + `:443"}).on("connect", (_, socket) => {
  request({host: "` + apiHost + `", path: "/v1", headers: {authorization: "Bearer " + process.env.API_KEY},
    createConnection: () => connect({socket, servername: "` + apiHost + `", ALPNProtocols: ["http/1.1"]})},
    (res) => { res.pipe(process.stdout); res.on("end", () => socket.destroy()); }).end();
}).end();
`}, 1},
		{"node", []string{"-e", `
const http = require("http"), http2 = require("http2"), {connect} = require("tls");
const proxy = new URL(process.env.HTTPS_PROXY);
http.request({host: proxy.hostname, port: proxy.port, method: "CONNECT", path: "` + apiHost + `:443"}).on("connect", (_, socket) => {
  const c = http2.connect("https://` + apiHost + `", {createConnection: () => connect({socket, servername: "` + apiHost + `", ALPNProtocols: ["h2"]})});
  const r = c.request({":path": "/v1", authorization: "Bearer " + process.env.API_KEY});
  r.pipe(process.stdout); r.on("end", () => { c.close(); socket.destroy(); });
}).end();
`}, 2},
	} {
		t.Run(test.name+" "+itoa(test.want), func(t *testing.T) {
			w := newHarness(t)
			var g got
			w.host(&g, apiHost)
			out := w.program(nil, test.name, test.args...)
			r, _, n := g.request()
			if n != 1 || strings.TrimSpace(out) != "fine" {
				t.Fatalf("%d requests, output %q", n, out)
			}
			if a := r.Header.Get("Authorization"); a != "Bearer "+value && a != basic("me", value) || r.ProtoMajor != test.want {
				t.Errorf("HTTP/%d with %q", r.ProtoMajor, a)
			}
		})
	}
}

// TestGit clones and pushes with a token that git does not have.
func TestGit(t *testing.T) {
	w := newHarness(t)
	needs.Command(t, "git")
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	b := secret()
	b.Auth.User = "x-access-token"
	w.set(b, value)
	root := t.TempDir()
	bare := filepath.Join(root, "repo.git")
	for _, args := range [][]string{
		{"init", "-q", "--bare", "-b", "main", bare},
		{"-C", bare, "config", "http.receivepack", "true"},
	} {
		if out, err := exec.CommandContext(t.Context(), git, args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	out, err := exec.CommandContext(t.Context(), git, "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend := gitBackend(filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), root)
	w.host(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); !ok || password != value {
			rw.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(rw, r)
	}), apiHost)
	w.program(nil, "sh", "-ec", `
url=https://x-access-token:$API_KEY@`+apiHost+`/repo.git
git init -q -b main one && cd one
git config user.name me && git config user.email me@example.com
head -c 3000000 /dev/urandom > big && git add big && git commit -qm one
git push -q "$url" main
cd .. && git clone -q "$url" two && cmp one/big two/big
`)
}
