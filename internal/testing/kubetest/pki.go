package kubetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki issues the certificates of a cluster, into files of a directory.
type pki struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newPKI(dir string) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p := &pki{dir: dir}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	p.key, p.cert = key, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test cluster"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := p.sign(p.cert, key)
	if err != nil {
		return nil, err
	}
	if p.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return p, p.write("ca", der, key)
}

func (p *pki) sign(t *x509.Certificate, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	t.SerialNumber, t.NotBefore, t.NotAfter = serial, time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	return x509.CreateCertificate(rand.Reader, t, p.cert, key.Public(), p.key)
}

// file returns the path of a certificate ("ca.crt") or of a key ("ca.key").
func (p *pki) file(name string) string { return filepath.Join(p.dir, name) }

func (p *pki) write(name string, cert []byte, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.file(name+".pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(p.file(name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600)
}

// issue makes a certificate for both ends of connections.
func (p *pki) issue(file, name, group string, names []string, addresses ...string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: names, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if group != "" {
		t.Subject.Organization = []string{group}
	}
	for _, a := range addresses {
		t.IPAddresses = append(t.IPAddresses, net.ParseIP(a))
	}
	der, err := p.sign(t, key)
	if err != nil {
		return err
	}
	return p.write(file, der, key)
}

// kubeconfig makes a certificate for a user of the API, and the file with which programs
// use it.
func (p *pki) kubeconfig(file, user, group string) (path string, err error) {
	if err := p.issue(file, user, group, nil); err != nil {
		return "", err
	}
	path = p.file(file + ".kubeconfig")
	return path, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://%s:6443", certificate-authority: %q}}]
users: [{name: test, user: {client-certificate: %q, client-key: %q}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`, ControlAddress, p.file("ca.crt"), p.file(file+".crt"), p.file(file+".key")), 0o600)
}
