// Package e2b runs E2B's own SDKs, unmodified, and an agent framework that uses
// them, against "cove serve" with real sandboxes. The checks are in checks/*.mjs;
// the table of docs/compat.md is generated from their results.
package e2b

import (
	"encoding/hex"
	"fmt"
	"net/netip"
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

// older are the other versions that are tried, as package.json names them.
var older = []string{"e2b-2.45", "e2b-2.49"}

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

// server is a daemon as a client sees it.
type server struct {
	d   *covetest.Daemon
	key string // of Cove's
	sdktest.Client
}

// serve borrows a daemon of a user, which is reached in a way: by one address for all, or
// with a host name for each sandbox.
func serve(t *testing.T, uid uint32, w sdktest.Way) *server {
	t.Helper()
	needs.GVisor(t)
	n := internet.Here(t)
	registry, image := dialecttest.PushShell(t, imagePassword)
	args := append(n.Args(), "--insecure-registries", registry)
	if w == sdktest.ByName {
		args = append(args, "--preview-domain", domain, "--config", sdktest.Certificate(t, uid, "*."+domain))
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
	if w == sdktest.ByURL {
		s.Env = append(s.Env, "E2B_API_URL="+s.d.URL+"/e2b", "E2B_VOLUME_API_URL="+s.d.URL+"/e2b", "E2B_SANDBOX_URL="+s.d.URL)
		return s
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(s.d.URL, "https://"), ":")
	s.Env = append(s.Env, "E2B_DOMAIN="+domain+":"+port)
	s.UseNames(t)
	n.SetName("*."+domain, netip.MustParseAddr("127.0.0.1"))
	return s
}
