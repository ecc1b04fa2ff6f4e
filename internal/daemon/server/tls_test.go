package server_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/sandbox"
)

// certificate writes a certificate for a name and those below it, and returns
// the paths.
func certificate(t *testing.T, dir, name string) (cert, key string, roots *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name, "*." + name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roots = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(parsed)
	return cert, key, roots
}

func TestHTTPS(t *testing.T) {
	cert, key, roots := certificate(t, t.TempDir(), "cove.test")
	d, err := start(t, func(c *config.Config) {
		c.TLS.Cert, c.TLS.Key = cert, key
		c.Previews.Domain = "cove.test"
		c.AllowedHosts = []string{"cove.test"}
	})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", d.tcp.String())
		},
	}
	defer transport.CloseIdleConnections()
	c := &http.Client{Transport: transport}
	for url, want := range map[string]struct {
		status int
		text   string
	}{
		"https://cove.test/healthz":            {200, "ok"},
		"https://3000-sbx-abc.cove.test/":      {404, "Nothing here"},
		"https://3000-sbx-abc.cove.test/v1/":   {404, "Nothing here"},
		"https://other.cove.test/v1/sandboxes": {404, "No such preview"},
		"https://cove.test/v1/sandboxes":       {401, "unauthenticated"},
	} {
		res, err := c.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != want.status || !strings.Contains(string(body), want.text) || res.ProtoMajor != 2 {
			t.Errorf("%s: %s %d %s", url, res.Proto, res.StatusCode, body)
		}
	}
	// The socket stays as it is, and HTTP on the listener is refused.
	if res, err := http.Get("http://" + d.tcp.String() + "/healthz"); err == nil {
		if _ = res.Body.Close(); res.StatusCode != http.StatusBadRequest {
			t.Errorf("HTTP: %s", res.Status)
		}
	}
}

func TestBadCertificateIsNamed(t *testing.T) {
	dir := t.TempDir()
	cert, key, _ := certificate(t, dir, "cove.test")
	if err := os.WriteFile(key, bytes.Repeat([]byte("x"), 100), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := start(t, func(c *config.Config) { c.TLS.Cert, c.TLS.Key = cert, key })
	if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "tls.cert") {
		t.Errorf("got %v", err)
	}
}

// Certificates are asked for the server's names and for previews that are there,
// and for nothing else that a stranger names.
func TestCertificatesForOwnNamesOnly(t *testing.T) {
	var asked atomic.Int32
	authority := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.NotFound(w, r) // it gives none to anybody
	}))
	defer authority.Close()
	d := mustStart(t, func(c *config.Config) {
		c.TLS.ACME.Hosts, c.TLS.ACME.Directory = []string{"cove.test"}, authority.URL
		c.Previews.Domain = "cove.test"
	})
	s, err := d.client(t).Create(t.Context(), sandbox.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := d.client(t).Create(t.Context(), sandbox.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.client(t).CreatePreview(t.Context(), s.ID, sandbox.CreatePreviewRequest{Port: 3000}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"cove.test":                            true,
		"3000-" + s.ID + ".cove.test":          true,
		"3001-" + s.ID + ".cove.test":          false,
		"3000-" + other.ID + ".cove.test":      false,
		"other.cove.test":                      false,
		"cove.test.evil.test":                  false,
		"3000-" + s.ID + ".evil.test":          false,
		"x.3000-" + s.ID + ".cove.test":        false,
		strings.Repeat("x", 60) + ".evil.test": false,
	} {
		before := asked.Load()
		c, err := tls.Dial("tcp", d.tcp.String(), &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err == nil {
			c.Close()
			t.Errorf("%s: there is a certificate", name)
		}
		if got := asked.Load() > before; got != want {
			t.Errorf("%s: the authority was asked: %v, want %v", name, got, want)
		}
	}
}

// Attack: another user may write to the directory of certificates, and puts one
// of theirs there.
func TestCertificatesOfOthers(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"everybody's": func(dir string) error { return os.Chmod(dir, 0o777) },
		"a group's":   func(dir string) error { return os.Chmod(dir, 0o770) },
		"another's":   func(dir string) error { return os.Chown(dir, 54321, 54321) },
	} {
		if name == "another's" && os.Geteuid() != 0 {
			continue
		}
		dir := filepath.Join(t.TempDir(), "certificates")
		start := func() error {
			_, err := start(t, func(c *config.Config) { c.TLS.ACME.Hosts, c.TLS.ACME.Cache = []string{"cove.test"}, dir })
			return err
		}
		if err := start(); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Fatalf("the directory is %v, %v", info, err)
		}
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		if err := start(); sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "tls.acme.cache") {
			t.Errorf("%s directory: %v", name, err)
		}
	}
}
