package agent

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"software.sslmate.com/src/go-pkcs12"
)

// storeFile has the authorities of the system and the gateway's as Java reads
// them, which knows no file of PEM and no variable for one. The password is the
// one that Java's own have: nothing in it is secret.
const (
	storeFile     = "ca.p12"
	storePassword = "changeit"
)

// javaEnv writes what Java trusts, unless that was done for the same authority,
// and returns the environment that tells Java.
func javaEnv(dir, bundle string, authority []byte, isNew bool) (map[string]string, error) {
	path := dir + "/" + storeFile
	if _, err := os.Lstat(path); err != nil || isNew {
		store, err := trustStore(bundle, authority)
		if err != nil {
			return nil, err
		}
		if _, err := writeOwn(dir, storeFile, store); err != nil {
			return nil, err
		}
	}
	return map[string]string{
		"JAVA_TOOL_OPTIONS": fmt.Sprintf("-Djavax.net.ssl.trustStore=%s -Djavax.net.ssl.trustStorePassword=%s", path, storePassword),
	}, nil
}

// trustStore puts the certificates of a bundle, in which the authority may be,
// into a trust store.
func trustStore(bundle string, authority []byte) ([]byte, error) {
	text, err := readBundle(bundle)
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(text, bytes.TrimSpace(authority)) {
		text = append(text, authority...)
	}
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil { // some are too old for Go
			certs = append(certs, c)
		}
	}
	if len(certs) == 0 {
		return nil, errors.New("there is no certificate to trust")
	}
	return pkcs12.Modern2023.EncodeTrustStore(certs, storePassword)
}

func readBundle(path string) ([]byte, error) {
	p, err := openEntry(path)
	if err != nil {
		return nil, err
	}
	if p, err = p.follow(); err != nil {
		return nil, err
	}
	defer p.close()
	return p.content(maxBundle)
}
