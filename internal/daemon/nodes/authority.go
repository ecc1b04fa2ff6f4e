package nodes

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"time"

	"github.com/cove-sh/cove/internal/durable"
)

const (
	// caValidity is how long the authority lives, and leafValidity a certificate; nodes
	// renew theirs each day.
	caValidity   = 20 * 365 * 24 * time.Hour
	leafValidity = 30 * 24 * time.Hour
	// backdate allows for clocks that are behind.
	backdate = time.Hour
	// ServerName is the name in the server's certificate: nodes know the server by its
	// authority, not by its address.
	ServerName = "cove-serve"
)

// authority is the certificate authority of an installation.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// authorityFile has the authority, with its key; it is beside the [Config].Files of the fleet.
const authorityFile = "ca.pem"

// openAuthority reads the authority, and makes it if there is none.
func openAuthority(files durable.Files) (*authority, error) {
	data, err := files.Read(authorityFile)
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = newAuthority(); err == nil {
			err = files.Write(authorityFile, data)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the nodes' authority: %w", err)
	}
	a, err := parseAuthority(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove it to make a new one, after which all nodes must join again", authorityFile, err)
	}
	return a, nil
}

func parseAuthority(data []byte) (*authority, error) {
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("its key is of another kind")
	}
	return &authority{pair.Leaf, key}, nil
}

func newAuthority() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Cove nodes"},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(caValidity),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = errors.Join(
		pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.Encode(&out, &pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	return out.Bytes(), err
}

func serial() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	return new(big.Int).SetBytes(b)
}

// issue signs a key. The certificate says nothing that was not decided here.
func (a *authority) issue(public any, t *x509.Certificate) ([]byte, error) {
	now := time.Now()
	t.SerialNumber, t.NotBefore, t.NotAfter = serial(), now.Add(-backdate), now.Add(leafValidity)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	return x509.CreateCertificate(rand.Reader, t, a.cert, public, a.key)
}

// node issues the certificate of a node for a certificate request.
func (a *authority) node(request []byte, name, id string) ([]byte, error) {
	csr, err := x509.ParseCertificateRequest(request)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, err
	}
	if _, ok := csr.PublicKey.(*ecdsa.PublicKey); !ok {
		return nil, errors.New("its key is not one of ECDSA")
	}
	return a.issue(csr.PublicKey, &x509.Certificate{
		Subject: pkix.Name{CommonName: name, SerialNumber: id}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// server issues a certificate of the server's own, with the authority's.
func (a *authority) server() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := a.issue(key.Public(), &x509.Certificate{
		Subject: pkix.Name{CommonName: ServerName}, DNSNames: []string{ServerName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key}, nil
}
