package agent

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"software.sslmate.com/src/go-pkcs12"

	"github.com/cove-sh/cove/internal/testing/needs"
)

func TestSetResolver(t *testing.T) {
	want := "nameserver 169.254.77.1\n"
	for name, make := range map[string]func(path string) error{
		"nothing": func(string) error { return nil },
		"file":    func(path string) error { return os.WriteFile(path, []byte("nameserver 192.0.2.1\nsearch x\n"), 0o600) },
		"link":    func(path string) error { return os.Symlink("/run/systemd/resolve/stub-resolv.conf", path) },
		"link out": func(path string) error {
			return os.Symlink(filepath.Join(filepath.Dir(path), "victim"), path)
		},
		"pipe": func(path string) error { return unix.Mkfifo(path, 0o600) },
		"same": func(path string) error { return os.WriteFile(path, []byte(want), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, victim := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "victim")
			if err := os.WriteFile(victim, []byte("as it was"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			before, _ := os.Lstat(path)
			if err := setResolver(path, "169.254.77.1"); err != nil {
				t.Fatal(err)
			}
			info, err := os.Lstat(path)
			if err != nil || info.Mode() != 0o644 {
				t.Errorf("mode %v, %v; want a file of mode 0644", info.Mode(), err)
			}
			if got, err := os.ReadFile(path); string(got) != want {
				t.Errorf("content %q, %v", got, err)
			}
			if got, _ := os.ReadFile(victim); string(got) != "as it was" {
				t.Errorf("what the link leads to became %q", got)
			}
			if name == "same" && !os.SameFile(before, info) {
				t.Error("a file that was right was written again")
			}
		})
	}
	if err := setResolver(t.TempDir(), "169.254.77.1"); err == nil {
		t.Error("a directory was replaced")
	}
}

// Attack: root in a sandbox replaces the hosts file with a pipe, so that the agent
// would wait for its other end for ever, and so would every call of Configure.
func TestHostsFileThatIsAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := addHost(path, "name", ""); err == nil {
		t.Error("a pipe was taken for the hosts file")
	}
}

// trustIn lays out the usual places below a directory.
func trustIn(dir string) trustPaths {
	p := trustPaths{run: filepath.Join(dir, "run/cove")}
	for _, b := range systemTrust.bundles {
		p.bundles = append(p.bundles, dir+b)
	}
	for _, s := range systemTrust.sources {
		p.sources = append(p.sources, dir+s)
	}
	return p
}

// files returns the contents of all files below a directory, and where links
// lead.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name := strings.TrimPrefix(path, dir)
		if e.Type()&os.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			found[name] = "-> " + target
			return err
		}
		data, err := os.ReadFile(path)
		found[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// certificate makes the certificate of an authority, in PEM.
func certificate(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// Java can read the trust store that is made for it.
func TestTrustStoreOfJava(t *testing.T) {
	needs.Command(t, "keytool")
	dir := t.TempDir()
	if _, err := trust(trustIn(dir), []byte(certificate(t, "the gateway"))); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("keytool", "-list", "-v", "-keystore", dir+"/run/cove/ca.p12", "-storepass", storePassword).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "CN=the gateway") || !strings.Contains(string(out), "trustedCertEntry") {
		t.Errorf("keytool: %v\n%s", err, out)
	}
}

func TestTrust(t *testing.T) {
	first, second := certificate(t, "first"), certificate(t, "second")
	block := func(s string) string { return trustBegin + s + trustEnd }
	for name, c := range map[string]struct {
		before func(dir string)
		bundle string // which the environment names
		after  map[string]string
	}{
		"Debian": {
			func(dir string) {
				put(t, dir+"/etc/ssl/certs/ca-certificates.crt", "CA\n")
				if err := os.MkdirAll(dir+"/usr/local/share/ca-certificates", 0o755); err != nil {
					t.Fatal(err)
				}
			},
			"/etc/ssl/certs/ca-certificates.crt",
			map[string]string{
				"/etc/ssl/certs/ca-certificates.crt":                "CA\n" + block(second),
				"/usr/local/share/ca-certificates/cove-gateway.crt": second,
				"/run/cove/ca.pem":                                  second,
			},
		},
		"Red Hat": {
			func(dir string) {
				put(t, dir+"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "CA") // without a newline
				put(t, dir+"/etc/pki/tls/certs/x", "")
				if err := os.Symlink("../../ca-trust/extracted/pem/tls-ca-bundle.pem", dir+"/etc/pki/tls/certs/ca-bundle.crt"); err != nil {
					t.Fatal(err)
				}
			},
			"/etc/pki/tls/certs/ca-bundle.crt",
			map[string]string{
				"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": "CA\n" + block(second),
				"/etc/pki/tls/certs/ca-bundle.crt":                  "-> ../../ca-trust/extracted/pem/tls-ca-bundle.pem",
				"/etc/pki/tls/certs/x":                              "",
				"/run/cove/ca.pem":                                  second,
			},
		},
		"two names of one": {
			func(dir string) {
				put(t, dir+"/etc/ssl/certs/ca-certificates.crt", "CA\n")
				if err := os.Symlink("certs/ca-certificates.crt", dir+"/etc/ssl/cert.pem"); err != nil {
					t.Fatal(err)
				}
			},
			"/etc/ssl/certs/ca-certificates.crt",
			map[string]string{
				"/etc/ssl/certs/ca-certificates.crt": "CA\n" + block(second),
				"/etc/ssl/cert.pem":                  "-> certs/ca-certificates.crt",
				"/run/cove/ca.pem":                   second,
			},
		},
		"nothing": {
			func(string) {},
			"/etc/ssl/certs/ca-certificates.crt",
			map[string]string{"/etc/ssl/certs/ca-certificates.crt": block(second), "/run/cove/ca.pem": second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c.before(dir)
			var env map[string]string
			for _, authority := range []string{first, first, second} {
				var err error
				if env, err = trust(trustIn(dir), []byte(authority)); err != nil {
					t.Fatal(err)
				}
			}
			got := files(t, dir)
			store, err := pkcs12.DecodeTrustStore([]byte(got["/run/cove/ca.p12"]), storePassword)
			if err != nil || len(store) != 1 || store[0].Subject.CommonName != "second" {
				t.Errorf("the trust store has %v, %v", store, err)
			}
			delete(got, "/run/cove/ca.p12")
			if !maps.Equal(got, c.after) {
				t.Errorf("files: %q, want %q", got, c.after)
			}
			if env["SSL_CERT_FILE"] != dir+c.bundle || env["NODE_EXTRA_CA_CERTS"] != dir+"/run/cove/ca.pem" {
				t.Errorf("environment: %v", env)
			}
		})
	}
}

// Attack: a pipe, which would make the agent wait, or a directory is in the place of a
// bundle.
func TestTrustStrangePlaces(t *testing.T) {
	dir := t.TempDir()
	paths := trustIn(dir)
	if err := os.MkdirAll(dir+"/etc/ssl/certs", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(paths.bundles[0], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(paths.bundles[3], 0o755); err != nil {
		t.Fatal(err)
	}
	env, err := trust(paths, []byte("CA\n"))
	if err == nil || env["SSL_CERT_FILE"] != dir+"/run/cove/ca.pem" {
		t.Errorf("environment %v, %v; want an error, and the authority alone", env, err)
	}
}

// Readers of PEM skip the lines around the authority.
func TestBundleIsPEM(t *testing.T) {
	block := func(n byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: bytes.Repeat([]byte{n}, 40)})
	}
	rest := bundleWith(slices.Concat(block(1), block(2)), block(3))
	var got []byte
	for found := (*pem.Block)(nil); ; {
		if found, rest = pem.Decode(rest); found == nil {
			break
		}
		got = append(got, found.Bytes[0])
	}
	if string(got) != "\x01\x02\x03" {
		t.Errorf("certificates %v", got)
	}
}
