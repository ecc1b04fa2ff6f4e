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

// storeFile has the system's authorities and the gateway's in the format of Java,
// which reads no PEM file and no variable that names one. The password is that of
// Java's own stores: nothing in them is secret.
const (
	storeFile     = "ca.p12"
	storePassword = "changeit"
)

// javaEnv writes Java's trust store, unless there is one for the same authority, and
// returns the environment that makes Java use it.
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

// trustStore makes a trust store of the certificates in a bundle and the authority,
// which may be one of them.
func trustStore(bundle string, authority []byte) ([]byte, error) {
	p, err := openTarget(bundle)
	if err != nil {
		return nil, err
	}
	defer p.close()
	text, err := p.content(maxBundle)
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
