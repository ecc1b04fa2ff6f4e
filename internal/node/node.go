// Package node is the node's end of a server with nodes: it joins, keeps its certificate
// valid, and lets the server drive an engine over connections that the node opens.
package node

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/nodes"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

// Identity is what a node knows about itself and its server. It is kept in files.
type Identity struct {
	dir    string
	server addresses
	log    *slog.Logger
}

const (
	certFile = "certificate.pem"
	caFile   = "authority.pem"
	// renewEvery is how often the certificate is renewed.
	renewEvery = 24 * time.Hour
	// callTimeout bounds a short call to the server.
	callTimeout = 30 * time.Second
	// maxAnswer bounds the answer to one, in bytes.
	maxAnswer = 64 << 10
)

// Open returns the identity of which the files are below dir. Server is where the server
// listens for nodes: addresses as host:port, separated by commas, each of which may have many
// IP addresses. Of several servers, one listens.
func Open(dir, server string, log *slog.Logger) (*Identity, error) {
	all, err := parseAddresses(server)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the node: %w", err)
	}
	return &Identity{dir: dir, server: addresses{all: all, lookup: net.DefaultResolver.LookupHost, again: againFor}, log: log}, nil
}

// Joined reports whether the node has a certificate.
func (i *Identity) Joined() bool {
	_, err := os.Stat(filepath.Join(i.dir, certFile))
	return err == nil
}

// Join makes the machine a node of the server, by a token that works once. The node may be for
// dedicated sandboxes only.
func (i *Identity) Join(ctx context.Context, token, name string, dedicated bool) error {
	_, sum, ok := strings.Cut(strings.TrimSpace(token), ".")
	want, err := hex.DecodeString(sum)
	if !ok || err != nil || len(want) != sha256.Size {
		return sandbox.Errorf(sandbox.CodeInvalid, "that is not a join token; make one on the server with: cove node token")
	}
	return i.join(ctx, nodes.JoinRequest{Token: strings.TrimSpace(token), Name: name, Dedicated: dedicated}, want)
}

// join asks the server whose authority has the given hash for a certificate.
func (i *Identity) join(ctx context.Context, body nodes.JoinRequest, want []byte) error {
	key, request, err := newKey()
	if err != nil {
		return err
	}
	body.Request = request
	var cert nodes.Certificate
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: nodes.ServerName,
		InsecureSkipVerify: true, //nolint:gosec // checkAuthority verifies against the token
		VerifyConnection:   func(s tls.ConnectionState) error { return checkAuthority(s, want) },
	}
	if err := i.post(ctx, cfg, "/v1/join", body, &cert); err != nil {
		return err
	}
	if block, _ := pem.Decode([]byte(cert.Authority)); block == nil || sha256.Sum256(block.Bytes) != [32]byte(want) {
		return errors.New("the server sent a certificate authority other than the one that is expected")
	}
	return i.store(key, &cert)
}

// checkAuthority verifies the server with the authority whose hash is in the token.
func checkAuthority(s tls.ConnectionState, want []byte) error {
	for _, ca := range s.PeerCertificates {
		if sum := sha256.Sum256(ca.Raw); !bytes.Equal(sum[:], want) {
			continue
		}
		pool := x509.NewCertPool()
		pool.AddCert(ca)
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, DNSName: nodes.ServerName})
		return err
	}
	return errors.New("the server is not the one that made the token, or has another authority")
}

func newKey() (key *ecdsa.PrivateKey, request []byte, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err == nil {
		request, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "node"}}, key)
	}
	return key, request, err
}

// store keeps a certificate with its key in one file, so that both change at once.
func (i *Identity) store(key *ecdsa.PrivateKey, cert *nodes.Certificate) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if _, err := tls.X509KeyPair([]byte(cert.Certificate), private); err != nil {
		return fmt.Errorf("the server's certificate is not for this node: %w", err)
	}
	if err := durable.WriteFile(filepath.Join(i.dir, caFile), []byte(cert.Authority)); err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(i.dir, certFile), append([]byte(cert.Certificate), private...))
}

// Name returns the name by which the server knows the node, which is the one that it joined
// with.
func (i *Identity) Name() (string, error) {
	pair, err := i.pair()
	if err != nil {
		return "", err
	}
	return pair.Leaf.Subject.CommonName, nil
}

// pair returns the certificate and its key.
func (i *Identity) pair() (tls.Certificate, error) {
	data, err := os.ReadFile(filepath.Join(i.dir, certFile))
	if errors.Is(err, fs.ErrNotExist) {
		return tls.Certificate{}, sandbox.Errorf(sandbox.CodeInvalid, "this machine has not joined yet; make a token on the server with: cove node token, and give it with --token")
	}
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(data, data)
}

// config returns the configuration of connections to the server.
func (i *Identity) config(protocols ...string) (*tls.Config, error) {
	pair, err := i.pair()
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(i.dir, caFile))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s has no certificate", caFile)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: nodes.ServerName, RootCAs: pool, Certificates: []tls.Certificate{pair}, NextProtos: protocols,
	}, nil
}

// dial opens a connection over which the server drives this node.
func (i *Identity) dial(ctx context.Context) (*tls.Conn, error) {
	cfg, err := i.config(nodes.DriveProtocol)
	if err != nil {
		return nil, err
	}
	return i.server.dial(ctx, cfg)
}

// renew replaces the certificate.
func (i *Identity) renew(ctx context.Context) error {
	cfg, err := i.config()
	if err != nil {
		return err
	}
	key, request, err := newKey()
	if err != nil {
		return err
	}
	var cert nodes.Certificate
	if err := i.post(ctx, cfg, "/v1/renew", nodes.JoinRequest{Request: request}, &cert); err != nil {
		return err
	}
	return i.store(key, &cert)
}

// tell makes a call as this node, without a body.
func (i *Identity) tell(ctx context.Context, path string, answer any) error {
	cfg, err := i.config()
	if err != nil {
		return err
	}
	return i.post(ctx, cfg, path, struct{}{}, answer)
}

func (i *Identity) client(cfg *tls.Config) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return i.server.dial(ctx, cfg) }
	return &http.Client{Transport: &http.Transport{DialTLSContext: dial, DisableKeepAlives: true, DisableCompression: true}}
}

func (i *Identity) post(ctx context.Context, cfg *tls.Config, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+nodes.ServerName+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	res, err := i.client(cfg).Do(req)
	if err != nil {
		return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("the server at %s cannot be reached: %v", i.server.String(), errors.Unwrap(err)))
	}
	defer res.Body.Close()
	return decode(res, answer)
}

// decode reads an answer, or the error that it is.
func decode(res *http.Response, answer any) error {
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return err
	}
	if res.StatusCode == http.StatusOK {
		return json.Unmarshal(data, answer)
	}
	var failed nodes.Failure
	if json.Unmarshal(data, &failed) != nil || failed.Code == "" {
		return fmt.Errorf("the server answers %s", res.Status)
	}
	return sandbox.Errorf(failed.Code, "%s", failed.Message)
}
