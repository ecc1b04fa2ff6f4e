package intercept

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/durable"
)

// AuthorityFile is the name of the file in the state directory with the
// certificate and the key of the installation's authority.
const AuthorityFile = "network-ca.pem"

const (
	rootLife = 10 * 365 * 24 * time.Hour
	// issuerLife is longer than any cell lives.
	issuerLife = 400 * 24 * time.Hour
	// backdate allows for slow clocks.
	backdate     = 24 * time.Hour
	maxAuthority = 64 << 10
)

// Authority is the installation's own certificate authority, which only its
// sandboxes should trust. Its key never enters a cell: each cell has its own [Issuer].
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// LoadAuthority returns the authority of a state directory. It creates one if there is
// none, or if it has expired.
func LoadAuthority(dir string) (*Authority, error) {
	file := filepath.Join(dir, AuthorityFile)
	a, err := readAuthority(file)
	switch {
	case err == nil && time.Now().Before(a.cert.NotAfter):
		return a, nil
	case err == nil:
		err = makeAuthority(file, durable.WriteFile)
	case errors.Is(err, fs.ErrNotExist):
		if err = makeAuthority(file, durable.CreateFile); errors.Is(err, fs.ErrExist) {
			err = nil // another process created it at the same time
		}
	}
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	if a, err = readAuthority(file); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	return a, nil
}

func readAuthority(file string) (*Authority, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", file)
	} else if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return nil, fmt.Errorf("%s is open to other users (mode %04o): if nobody else can have read it, run \"chmod 600 %s\"; otherwise remove it, and a new one is made", file, perm, file)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxAuthority))
	if err != nil {
		return nil, err
	}
	defer clear(text)
	cert, key, err := parsePair(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove it, and a new one is made", file, err)
	}
	return &Authority{cert: cert, key: key}, nil
}

// makeAuthority creates an authority and writes it to a file.
func makeAuthority(file string, write func(path string, data []byte) error) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	// Sandboxes see the name, so it distinguishes installations without revealing
	// anything about the machine.
	root := template("Cove sandboxes "+rand.Text()[:8], rootLife, nil)
	root.IsCA, root.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		return err
	}
	text, err := marshalPair(key, der)
	if err != nil {
		return err
	}
	defer clear(text)
	return write(file, text)
}

// CertificatePEM returns the certificate that sandboxes trust.
func (a *Authority) CertificatePEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// NewIssuer returns an intermediate authority with which one cell certifies names,
// encoded for [ParseIssuer]. It contains a private key and should be wiped after use.
func (a *Authority) NewIssuer() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	t := template("Cove sandbox", issuerLife, a.cert)
	t.IsCA, t.MaxPathLenZero, t.KeyUsage = true, true, x509.KeyUsageCertSign
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	return marshalPair(key, der)
}

// template returns a certificate with the fields that all certificates share. It ends no
// later than its issuer, which is nil for a root.
func template(name string, life time.Duration, issuer *x509.Certificate) *x509.Certificate {
	serial := make([]byte, 16)
	rand.Read(serial)
	serial[0] &= 0x7f // positive
	now := time.Now()
	end := now.Add(life)
	if issuer != nil && issuer.NotAfter.Before(end) {
		end = issuer.NotAfter
	}
	return &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes(serial),
		Subject:               pkix.Name{Organization: []string{"Cove"}, CommonName: name},
		NotBefore:             now.Add(-backdate),
		NotAfter:              end,
		BasicConstraintsValid: true,
	}
}

// marshalPair encodes a private key and its certificate as PEM.
func marshalPair(key *ecdsa.PrivateKey, cert []byte) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	defer clear(der)
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})...), nil
}

// parsePair decodes the result of marshalPair: the certificate of an authority, and its
// key.
func parsePair(text []byte) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	var key *ecdsa.PrivateKey
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		switch block.Type {
		case "PRIVATE KEY":
			k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			clear(block.Bytes)
			if err != nil {
				return nil, nil, errors.New("the key cannot be read")
			}
			key, _ = k.(*ecdsa.PrivateKey)
		case "CERTIFICATE":
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, nil, fmt.Errorf("the certificate cannot be read: %w", err)
			}
			certs = append(certs, c)
		}
	}
	if key == nil || len(certs) == 0 || !certs[0].IsCA || !key.PublicKey.Equal(certs[0].PublicKey) {
		return nil, nil, errors.New("it is not the certificate of an authority with its key")
	}
	return certs[0], key, nil
}
