// Package e2b runs E2B's own SDKs, unmodified, and an agent framework that uses
// them, against "cove serve" with real sandboxes. The checks are in checks/*.mjs;
// docs/compat.md's table is made of what they show.
package e2b

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/sdktest"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) {
	remove := install()
	code := internet.Main(m, covetest.Main)
	remove()
	os.Exit(code)
}

// newestVar names the directory of the newest release of the SDK, which "make
// soak" installs before the tests enter a network of their own.
const newestVar = "COVE_E2B_NEWEST"

func install() (remove func()) {
	if _, entered := os.LookupEnv(newestVar); entered || !needs.Soak() {
		return func() {}
	}
	dir, err := os.MkdirTemp("", "cove-e2b-newest-")
	if err == nil {
		err = exec.Command("npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts", "e2b@latest").Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the newest SDK cannot be installed:", err)
		dir = ""
	}
	_ = os.Setenv(newestVar, dir)
	return func() { _ = os.RemoveAll(dir) }
}

// versions are the packages that are tried, as package.json pins them. The last
// one is tried with all checks, the others with those that stand for them;
// "make soak" has all of them do all.
var versions = []string{"e2b-2.45", "e2b-2.49", "e2b"}

// olderCode is the oldest package for code that is tried, with the group of checks that
// is about code.
const olderCode = "code-interpreter-2.6"

// pinned is the package that the SDK for code uses too.
const pinned = "e2b"

// imagePassword is that of the registry with the image that templates are built of: as
// Google's are, it is a JSON object.
const imagePassword = `{"type":"service_account"}`

// domain is the one below which sandboxes have host names.
const domain = "cove.test"

// A way is how a client finds the server.
type way string

// The ways.
const (
	// byURL has one address for all, over plain HTTP.
	byURL way = "URL"
	// byName has a host name for each sandbox, over TLS.
	byName way = "name"
)

// server is a daemon as a client sees it.
type server struct {
	d   *covetest.Daemon
	key string // of Cove's
	sdktest.Client
}

// serve borrows a daemon of a user, which is reached in a way.
func serve(t *testing.T, uid uint32, w way) *server {
	t.Helper()
	needs.GVisor(t)
	n := internet.Here(t)
	registry, image := dialecttest.PushShell(t, imagePassword)
	args := append(n.Args(), "--insecure-registries", registry)
	if w == byName {
		args = append(args, "--preview-domain", domain, "--config", certificate(t, uid))
	}
	s := &server{d: covetest.Borrow(t, covetest.Options{UID: uid, Args: args})}
	small := sandbox.TemplateSpec{From: sandbox.TemplateSource{Host: true}, Resources: sandbox.Resources{DiskMiB: 32}}
	if _, err := s.d.Client.BuildTemplate(t.Context(), sandbox.BuildTemplateRequest{Name: "small", Spec: &small}, nil); err != nil {
		t.Fatal(err)
	}
	key, err := s.d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "sdk " + t.Name(), Team: sandbox.LocalCaller().Team, Scopes: []sandbox.Scope{
		sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite, sandbox.ScopeSecretsWrite, sandbox.ScopeTemplatesWrite,
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.key = key.Secret
	s.Client = sdktest.Client{Node: 22, Without: []string{"E2B_"}, Env: []string{
		"E2B_API_KEY=e2b_" + hex.EncodeToString([]byte(key.Secret)), "COVE_IMAGE=" + image, "COVE_IMAGE_PASSWORD=" + imagePassword,
	}}
	if w == byURL {
		s.Env = append(s.Env, "E2B_API_URL="+s.d.URL+"/e2b", "E2B_VOLUME_API_URL="+s.d.URL+"/e2b", "E2B_SANDBOX_URL="+s.d.URL)
		return s
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(s.d.URL, "https://"), ":")
	s.Env = append(s.Env, "E2B_DOMAIN="+domain+":"+port)
	s.UseNames(t)
	n.SetName("*."+domain, loopback)
	return s
}
