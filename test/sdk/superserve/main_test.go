// Package superserve runs Superserve's own SDK, unmodified, against "cove serve" with
// real sandboxes. The checks are in checks/*.mjs; docs/compat.md's table is made of what
// they show.
package superserve

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/superserve/api"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/sdktest"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { os.Exit(internet.Main(m, covetest.Main)) }

// server is a daemon as a client sees it.
type server struct {
	d *covetest.Daemon
	sdktest.Client
}

// naming is held while a test has the product's names lead to its daemon.
var naming sync.Mutex

// serve borrows a daemon of a user, which is reached in a way: by URL with its address in
// the environment, and the shim; by name with nothing but a key, since the product's host
// names lead to the server.
func serve(t *testing.T, uid uint32, w sdktest.Way) *server {
	t.Helper()
	needs.GVisor(t)
	if w == sdktest.ByName {
		naming.Lock()
		t.Cleanup(naming.Unlock) // after the port is free
	}
	n := internet.Here(t)
	registry, image := dialecttest.PushShell(t, "")
	args := append(n.Args(), "--insecure-registries", registry)
	if w == sdktest.ByName {
		args = append(args, "--config", sdktest.Certificate(t, uid, names...))
	}
	s := &server{d: covetest.Borrow(t, covetest.Options{UID: uid, Args: args})}
	s.Client = sdktest.Client{Node: 22, Without: []string{"SUPERSERVE_", "NODE_"}, Env: []string{
		"SUPERSERVE_API_KEY=" + s.key(t, sandbox.LocalCaller().Team), "COVE_FOREIGN_KEY=" + s.key(t, "others"), "COVE_IMAGE=" + image,
	}}
	if w == sdktest.ByURL {
		shim := filepath.Join(t.TempDir(), "shim.mjs")
		if err := os.WriteFile(shim, []byte(api.Shim), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Env = append(s.Env, "SUPERSERVE_BASE_URL="+s.d.URL+api.Prefix, "NODE_OPTIONS=--import=file://"+shim, "COVE_DATA="+s.d.URL+api.Prefix)
		return s
	}
	s.Env = append(s.Env, "COVE_DATA=https://sandbox.superserve.ai")
	s.UseNames(t)
	forward(t, strings.TrimPrefix(s.d.URL, "https://"))
	for _, name := range names {
		n.SetName(name, netip.MustParseAddr("127.0.0.1"))
	}
	return s
}

// key makes a key of a team.
func (s *server) key(t *testing.T, team string) string {
	t.Helper()
	key, err := s.d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "sdk " + t.Name(), Team: team, Scopes: []sandbox.Scope{
		sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite, sandbox.ScopeSecretsWrite, sandbox.ScopeTemplatesWrite,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return key.Secret
}

// names are the product's, which its SDK has built in.
var names = []string{"*.superserve.ai", "*.sandbox.superserve.ai"}

// forward leads the port of HTTPS, which the SDK has built in, to the daemon.
func forward(t *testing.T, to string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go join(from, to)
			}
		}
	}()
}

// join copies between a connection and a new one.
func join(from net.Conn, address string) {
	defer from.Close()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(to, from)
		_ = to.Close()
		close(ended)
	}()
	_, _ = io.Copy(from, to)
	_ = from.Close()
	<-ended
}
