package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A certificate that is renewed in its place is served without a restart, and the
// one before for as long as the new one is half there.
func TestCertificateFilesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	files := &certificateFiles{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), log: slog.New(slog.DiscardHandler)}
	written := time.Now().Add(-time.Hour)
	write := func(path, kind string, data []byte) {
		t.Helper()
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		// However coarse the file system's clock is.
		written = written.Add(time.Minute)
		if err := os.Chtimes(path, written, written); err != nil {
			t.Fatal(err)
		}
	}
	// served is the number of the certificate that is served, when it is time to
	// look again.
	served := func() int64 {
		t.Helper()
		files.looked = time.Now().Add(-2 * reloadEvery)
		got, err := files.get(nil)
		if err != nil || got == nil {
			t.Fatalf("got %v, %v", got, err)
		}
		return got.Leaf.SerialNumber.Int64()
	}
	cert, key := numberedCertificate(t, 1)
	write(files.cert, "CERTIFICATE", cert)
	write(files.key, "PRIVATE KEY", key)
	if err := files.load(); err != nil {
		t.Fatal(err)
	}
	if got := served(); got != 1 {
		t.Errorf("at first %d is served", got)
	}
	cert, key = numberedCertificate(t, 2)
	write(files.cert, "CERTIFICATE", cert)
	if got := served(); got != 1 {
		t.Errorf("with the key of the one before %d is served", got)
	}
	write(files.key, "PRIVATE KEY", key)
	if got := served(); got != 2 {
		t.Errorf("renewed, %d is served", got)
	}
	if err := os.Remove(files.cert); err != nil {
		t.Fatal(err)
	}
	if got := served(); got != 2 {
		t.Errorf("without the file %d is served", got)
	}
	// Nobody looks at the files for each connection.
	cert, key = numberedCertificate(t, 3)
	write(files.cert, "CERTIFICATE", cert)
	write(files.key, "PRIVATE KEY", key)
	if got, err := files.get(nil); err != nil || got.Leaf.SerialNumber.Int64() != 2 {
		t.Errorf("at once %v is served, %v", got.Leaf.SerialNumber, err)
	}
	if got := served(); got != 3 {
		t.Errorf("renewed again, %d is served", got)
	}
}

// numberedCertificate makes a certificate with a serial number, and its key.
func numberedCertificate(t *testing.T, number int64) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(number), Subject: pkix.Name{CommonName: "cove.test"}, DNSNames: []string{"cove.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	if cert, err = x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private); err != nil {
		t.Fatal(err)
	}
	if key, err = x509.MarshalPKCS8PrivateKey(private); err != nil {
		t.Fatal(err)
	}
	return cert, key
}
