package node_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/internal/daemon/nodes"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/internal/node"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// library has one root.
type library struct{ broken bool }

const digest = "sha256-root"

func (l *library) IsHost(context.Context, string) (bool, error) { return false, nil }

func (l *library) PackRoot(_ context.Context, d string, w io.Writer) error {
	if d != digest {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no root %s", d)
	}
	if _, err := io.WriteString(w, strings.Repeat("the content of a root\n", 10_000)); err != nil || !l.broken {
		return err
	}
	return errors.New("the disk is broken")
}

// shelf keeps roots as bytes.
type shelf struct {
	mu    sync.Mutex
	roots map[string][]byte
	// made gets the names of templates that are asked for, as far as there is room.
	made chan string
}

func (s *shelf) Root(_ context.Context, name string) (engine.Root, sandbox.Template, error) {
	select {
	case s.made <- name:
	default:
	}
	return engine.Root{Digest: "own", Dir: "/"}, sandbox.Template{}, nil
}

func (s *shelf) HasRoot(d string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roots[d] != nil
}

func (s *shelf) UnpackRoot(_ context.Context, d string, r io.Reader, check func() error) error {
	data, err := io.ReadAll(r)
	if err == nil {
		err = check()
	}
	if err == nil {
		s.mu.Lock()
		s.roots[d] = data
		s.mu.Unlock()
	}
	return err
}

func (s *shelf) Locate(_ context.Context, d string, _ []engine.Bind) (engine.Root, error) {
	return engine.Root{Digest: d, Dir: "/"}, nil
}

func (s *shelf) Collect(map[string]bool) ([]string, error) { return nil, nil }

// world is a server that takes nodes.
type world struct {
	*nodes.Nodes
	fleet   *fleet.Fleet
	library *library
	address string
	log     *slog.Logger
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, nil)
}

func newWorldWith(t *testing.T, pods nodes.Pods) *world {
	t.Helper()
	return newWorldOf(t, pods, fleet.Config{Lease: time.Hour})
}

// newWorldOf returns a server with such a fleet, which is completed.
func newWorldOf(t *testing.T, pods nodes.Pods, cfg fleet.Config) *world {
	t.Helper()
	w := &world{library: &library{}, log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	cfg.Files, cfg.Log = durable.Dir(t.TempDir()), w.log
	var err error
	if w.fleet, err = fleet.New(cfg); err != nil {
		t.Fatal(err)
	}
	if w.Nodes, err = nodes.Open(nodes.Config{Files: durable.Dir(t.TempDir()), Fleet: w.fleet, Roots: w.library, Pods: pods, Log: w.log}); err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, w.fleet.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) token(t *testing.T) string {
	t.Helper()
	token, err := w.CreateToken()
	if err != nil {
		t.Fatal(err)
	}
	return token.Token
}

func (w *world) identity(t *testing.T) (*node.Identity, string) {
	t.Helper()
	dir := t.TempDir()
	id, err := node.Open(dir, w.address, w.log)
	if err != nil {
		t.Fatal(err)
	}
	return id, dir
}

// run runs a joined node until the test ends or stop is called.
func (w *world) run(t *testing.T, id *node.Identity) (s *memory.State, kept *shelf, stop func()) {
	t.Helper()
	s, kept, stop = w.runWith(t, id, remote.Report{FreeMemory: 8 << 30, FreeDisk: 8 << 30})
	for end := time.Now().Add(time.Minute); w.Nodes.Nodes(t.Context())[0].State != sandbox.NodeReady; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server does not know the node")
		}
	}
	return s, kept, stop
}

// runWith runs a joined node that reports this, until the test ends or stop is called. It
// returns when the server drives the node.
func (w *world) runWith(t *testing.T, id *node.Identity, report remote.Report) (s *memory.State, kept *shelf, stop func()) {
	t.Helper()
	s = memory.NewState(t.TempDir())
	kept = &shelf{roots: map[string][]byte{}, made: make(chan string, 1)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		ended <- node.Run(ctx, node.Config{
			Identity: id, Engine: memory.NewKeeper(s), Roots: kept, AsideDir: filepath.Join(t.TempDir(), "aside"), Log: w.log, Ready: func() { close(ready) },
			Report: func() remote.Report { return report },
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-ended, s.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-ready:
	case <-time.After(time.Minute):
		t.Fatal("the node is not driven")
	}
	return s, kept, stop
}

// TestJoin checks the whole way: a token, a certificate, a connection, a root.
func TestJoin(t *testing.T) {
	w := newWorld(t)
	id, _ := w.identity(t)
	if name, err := id.Name(); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("before it has joined: %q, %v", name, err)
	}
	if err := id.Join(t.Context(), w.token(t), "a", false); err != nil {
		t.Fatal(err)
	}
	if name, err := id.Name(); err != nil || name != "a" {
		t.Errorf("its name: %q, %v", name, err)
	}
	_, kept, _ := w.run(t, id)
	spec := engine.Spec{ID: "one", Root: engine.Root{Digest: digest, Dir: "/secret/place/of/the/server"}}
	create := func() error {
		_, err := w.fleet.Create(t.Context(), spec)
		return err
	}
	w.library.broken = true
	if err := create(); err == nil || kept.HasRoot(digest) {
		t.Errorf("from half a root: %v", err)
	}
	w.library.broken = false
	if err := create(); err != nil || !bytes.HasPrefix(kept.roots[digest], []byte("the content")) {
		t.Errorf("the root was not fetched: %v", err)
	}
	spec.ID, spec.Root.Digest = "two", "sha256-unknown"
	if err := create(); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("from an unknown root: %v", err)
	}
}

// TestTokens checks tokens that must not work.
func TestTokens(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	id, _ := w.identity(t)
	good := w.token(t)
	secret, sum, _ := strings.Cut(good, ".")
	for name, token := range map[string]string{
		"nonsense": "nonsense", "no secret": "covejoin_." + sum, "another secret": secret + "x." + sum, "a path": "covejoin_../ca.pem." + sum,
	} {
		if err := id.Join(t.Context(), token, "a", false); err == nil {
			t.Errorf("%s: joined", name)
		}
	}
	// A server that is not the one of the token learns nothing of it.
	if err := id.Join(t.Context(), other.token(t), "a", false); err == nil || !strings.Contains(err.Error(), "not the one that made the token") {
		t.Errorf("with another server's token: %v", err)
	}
	if err := id.Join(t.Context(), good, "Not Valid", false); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("with a name that is not valid: %v", err)
	}
	if err := id.Join(t.Context(), good, "a", false); err != nil {
		t.Fatal(err)
	}
	if err := id.Join(t.Context(), good, "b", false); sandbox.CodeOf(err) != sandbox.CodeUnauthenticated {
		t.Errorf("with a used token: %v", err)
	}
	second, _ := w.identity(t)
	token := w.token(t)
	if err := second.Join(t.Context(), token, "a", false); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("with the name of another node: %v", err)
	}
	if err := second.Join(t.Context(), token, "b", false); err != nil {
		t.Errorf("with the same token and another name: %v", err)
	}
}

// foreign returns a certificate that says that it is node a's, of another authority.
func foreign(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestStrangers checks that nobody without a certificate of a member is served.
func TestStrangers(t *testing.T) {
	w := newWorld(t)
	id, dir := w.identity(t)
	if err := id.Join(t.Context(), w.token(t), "a", false); err != nil {
		t.Fatal(err)
	}
	removed, err := tls.LoadX509KeyPair(filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "certificate.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Remove("a"); err != nil {
		t.Fatal(err)
	}
	next, _ := w.identity(t)
	if err := next.Join(t.Context(), w.token(t), "a", false); err != nil { // with the same name
		t.Fatal(err)
	}
	for name, certs := range map[string][]tls.Certificate{"none": nil, "foreign": {foreign(t)}, "removed": {removed}} {
		t.Run(name, func(t *testing.T) {
			cfg := &tls.Config{InsecureSkipVerify: true, Certificates: certs, NextProtos: []string{nodes.DriveProtocol}}
			c, err := (&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", w.address)
			if err == nil {
				_, err = c.Read(make([]byte, 1))
				c.Close()
			}
			if err == nil {
				t.Error("the server drives a stranger")
			}
			cfg.NextProtos = nil
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
			for _, path := range []string{"/v1/roots/" + digest, "/v1/roots/" + digest + "/about"} {
				res, err := client.Get("https://" + w.address + path)
				if err != nil {
					continue // refused before
				}
				data, _ := io.ReadAll(res.Body)
				res.Body.Close()
				var f nodes.Failure
				if res.StatusCode != http.StatusUnauthorized || json.Unmarshal(data, &f) != nil || f.Code != sandbox.CodeUnauthenticated {
					t.Errorf("%s: %s %s", path, res.Status, data)
				}
			}
		})
	}
	for _, n := range w.Nodes.Nodes(t.Context()) {
		if n.State != sandbox.NodeLost {
			t.Errorf("node %+v", n)
		}
	}
}

// TestFiles checks that keys are the owner's only.
func TestFiles(t *testing.T) {
	w := newWorld(t)
	id, dir := w.identity(t)
	if err := id.Join(t.Context(), w.token(t), "a", false); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "certificate.pem"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info, err)
	}
}

// TestPrepare checks that a node makes its template host before a sandbox needs it.
func TestPrepare(t *testing.T) {
	w := newWorld(t)
	id, _ := w.identity(t)
	if err := id.Join(t.Context(), w.token(t), "a", false); err != nil {
		t.Fatal(err)
	}
	_, kept, _ := w.run(t, id)
	select {
	case name := <-kept.made:
		if name != "host" {
			t.Errorf("it makes %q", name)
		}
	case <-time.After(time.Minute):
		t.Error("it makes nothing")
	}
}
