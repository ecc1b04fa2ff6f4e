package network

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/sandbox"
)

const (
	authorityAddr = "127.0.0.1:14000"
	// certified is where the daemon serves, which the authority visits.
	certified     = "127.0.0.1:4443"
	certifiedPort = 4443
)

// authority runs Let's Encrypt's own test server, as a process, until stop is
// called, and returns what it logs.
func authority(t *testing.T, n *internet.Internet) (log string, stop func()) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "tool", "-modfile=../../tools.mod", "-n", "pebble").CombinedOutput()
	if err != nil {
		t.Fatalf("build pebble: %v; make deps downloads it\n%s", err, out)
	}
	dir := t.TempDir()
	cert, key := n.Certificate(t, dir, "127.0.0.1")
	text, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": authorityAddr, "certificate": cert, "privateKey": key, "tlsPort": certifiedPort, "httpPort": 1, "keyAlgorithm": "ecdsa",
		"retryAfter": map[string]int{"authz": 1, "order": 1}, // seconds
	}})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.json")
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	log = filepath.Join(dir, "log")
	f, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(strings.TrimSpace(string(out)), "-config", config, "-dnsserver", netip.AddrPortFrom(internet.Resolver, 53).String())
	cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0")
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(stop)
	listens := func() bool {
		c, err := net.Dial("tcp", authorityAddr)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	if !covetest.Eventually(time.Minute, listens) {
		text, _ := os.ReadFile(log)
		t.Fatalf("the authority does not listen\n%s", text)
	}
	return log, stop
}

// An authority validates the server's name and those of existing previews, by TLS alone, and
// issues certificates for them, but not for other names. Only their owner can read keys, and
// they are reused without the authority. In "make test", TestHTTPS,
// TestCertificatesForOwnNamesOnly and TestCertificatesOfOthers of package server stand for it.
func TestMoreCertificatesFromAnAuthority(t *testing.T) {
	n := internet.Here(t)
	log, stop := authority(t, n)
	config := filepath.Join(t.TempDir(), "cove.yaml")
	text := "tls:\n  acme:\n    hosts: [cove.test]\n    directory: https://" + authorityAddr + "/dir\npreviews:\n  domain: cove.test\nallowed_hosts: [cove.test]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := covetest.Start(t, covetest.Options{
		Args: append(n.Args(), "--config", config, "--listen", certified), Env: []string{"SSL_CERT_FILE=" + n.CA},
	})
	s := d.Create(t, sandbox.CreateRequest{})
	if _, err := d.Client.CreatePreview(t.Context(), s.ID, sandbox.CreatePreviewRequest{Port: 3000}); err != nil {
		t.Fatal(err)
	}
	preview, other := "3000-"+strings.ToLower(s.ID)+".cove.test", "3001-"+strings.ToLower(s.ID)+".cove.test"
	names := []string{"cove.test", preview}
	for _, name := range append(names, other, "stranger.test") {
		n.SetName(name, netip.MustParseAddr("127.0.0.1"))
	}
	served := func(name string) string {
		c, err := tls.Dial("tcp", certified, &tls.Config{ServerName: name, InsecureSkipVerify: true}) //nolint:gosec // it is looked at below
		if err != nil {
			return ""
		}
		defer c.Close()
		cert := c.ConnectionState().PeerCertificates[0]
		if !slices.Equal(cert.DNSNames, []string{name}) || !strings.Contains(cert.Issuer.CommonName, "Pebble") {
			t.Errorf("for %s there is the certificate of %v by %s", name, cert.DNSNames, cert.Issuer)
		}
		return cert.SerialNumber.String()
	}
	serials := map[string]string{}
	for _, name := range names {
		// A handshake ends after a while, and the next one has what it was to get.
		if !covetest.Eventually(covetest.DetectionLimit, func() bool { serials[name] = served(name); return serials[name] != "" }) {
			said, _ := os.ReadFile(log)
			t.Errorf("%s has no certificate; the authority said\n%s", name, said)
		}
	}
	for _, name := range []string{other, "stranger.test"} {
		if served(name) != "" {
			t.Errorf("%s has a certificate", name)
		}
		if said, err := os.ReadFile(log); err != nil || strings.Contains(string(said), name) {
			t.Errorf("the authority was asked for %s: %v\n%s", name, err, said)
		}
	}
	// The challenge's protocol alone gives nobody a way in.
	if c, err := tls.Dial("tcp", certified, &tls.Config{ServerName: "cove.test", InsecureSkipVerify: true, NextProtos: []string{"acme-tls/1"}}); err == nil {
		c.Close()
		t.Error("a stranger was served as an authority that validates is")
	}

	cache := filepath.Join(d.StateDir, "acme")
	entries, err := os.ReadDir(cache)
	if err != nil || len(entries) < 1+len(names) { // and the account's key
		t.Errorf("the directory of certificates holds %v, %v", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s is %v, %v", e.Name(), info.Mode(), err)
		}
	}

	stop()
	d.Kill()
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if got := served(name); got != serials[name] {
			t.Errorf("without the authority, %s has the certificate %q, and had %q", name, got, serials[name])
		}
	}
}
