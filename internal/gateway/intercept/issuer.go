package intercept

import (
	"container/list"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	leafLife = 7 * 24 * time.Hour
	// leafRenew is how long before its expiry a certificate is replaced.
	leafRenew = 24 * time.Hour
	maxLeaves = 512
)

// Issuer certifies names to the programs of one sandbox. It is safe for
// concurrent use.
type Issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// leafKey is the key of all leaf certificates.
	leafKey *ecdsa.PrivateKey

	mu sync.Mutex
	// leaves are the elements of recent by name. The most recently used element is at the
	// front. Both are guarded by mu.
	leaves map[string]*list.Element
	recent *list.List
}

type leaf struct {
	name string
	cert *tls.Certificate
}

// ParseIssuer decodes the result of [Authority.NewIssuer]. It retains no part of
// text.
func ParseIssuer(text []byte) (*Issuer, error) {
	cert, key, err := parsePair(text)
	if err != nil {
		return nil, fmt.Errorf("issuer of certificates: %w", err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("issuer of certificates: %w", err)
	}
	return &Issuer{cert: cert, key: key, leafKey: leafKey, leaves: map[string]*list.Element{}, recent: list.New()}, nil
}

// certificate returns a certificate for a name or an IP address.
func (i *Issuer) certificate(name string) (*tls.Certificate, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if e := i.leaves[name]; e != nil {
		if l := e.Value.(*leaf); time.Until(l.cert.Leaf.NotAfter) > leafRenew {
			i.recent.MoveToFront(e)
			return l.cert, nil
		}
		i.forget(e)
	}
	cert, err := i.issue(name)
	if err != nil {
		return nil, err
	}
	if i.recent.Len() >= maxLeaves {
		i.forget(i.recent.Back())
	}
	i.leaves[name] = i.recent.PushFront(&leaf{name, cert})
	return cert, nil
}

// forget removes a certificate. The caller must hold i.mu.
func (i *Issuer) forget(e *list.Element) {
	delete(i.leaves, i.recent.Remove(e).(*leaf).name)
}

func (i *Issuer) issue(name string) (*tls.Certificate, error) {
	t := template(name, leafLife, i.cert)
	if len(name) > 64 { // the longest common name
		t.Subject.CommonName = ""
	}
	if ip := net.ParseIP(name); ip != nil {
		t.IPAddresses = []net.IP{ip}
	} else {
		t.DNSNames = []string{name}
	}
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, t, i.cert, i.leafKey.Public(), i.key)
	if err != nil {
		return nil, fmt.Errorf("certify %s: %w", name, err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certify %s: %w", name, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der, i.cert.Raw}, PrivateKey: i.leafKey, Leaf: parsed}, nil
}
