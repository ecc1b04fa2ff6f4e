// Package nodes lets other machines join a server as its nodes, and takes their
// connections. The installation has a certificate authority of its own for it: a node gets
// a certificate for a token that works once, and proves with it who it is. All that nodes
// need is one address of the server's; nothing connects to them.
package nodes

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// Roots has the root file systems that nodes fetch.
type Roots interface {
	// IsHost reports whether a digest is that of the template host.
	IsHost(ctx context.Context, digest string) (bool, error)
	// PackRoot writes a root as a tar stream.
	PackRoot(ctx context.Context, digest string, w io.Writer) error
}

// Config configures [Nodes]. All fields but Pods are required.
type Config struct {
	// Files has what nobody else writes: tokens, which Pods have joined, and the authority
	// with its key.
	Files durable.Files
	Fleet *fleet.Fleet
	Roots Roots
	// Pods lets Pods of a Kubernetes cluster join with tokens of their own; nil lets none.
	Pods Pods
	Log  *slog.Logger
}

// Nodes is the server's end of its nodes. Its methods are safe for concurrent use.
type Nodes struct {
	cfg       Config
	authority *authority
	tokens    tokens
	pods      podNodes
	certs     *certificates
	mover     Mover // set by SetMover
}

// Mover moves the sandboxes of nodes that stop.
type Mover interface {
	// LeaveNode begins to move a node's sandboxes, if that has not begun, and returns how far
	// that is.
	LeaveNode(ctx context.Context, node string) (*sandbox.NodeMove, error)
	// ReturnNode says that a node has started again.
	ReturnNode(ctx context.Context, node string) error
	// NodeRemoved says that a node is gone, and nothing moves from it any more.
	NodeRemoved()
}

// SetMover must be called before [Nodes.Serve].
func (n *Nodes) SetMover(m Mover) { n.mover = m }

// Leave drains a node that stops, and Return undoes that when it has started again.
func (n *Nodes) Leave(name string) error { return n.cfg.Fleet.Leave(name) }

// Return reports whether there was something to undo.
func (n *Nodes) Return(name string) (bool, error) { return n.cfg.Fleet.Return(name) }

// Open opens the nodes of an installation.
func Open(cfg Config) (*Nodes, error) {
	a, err := openAuthority(cfg.Files)
	if err != nil {
		return nil, err
	}
	return &Nodes{
		cfg: cfg, authority: a, tokens: tokens{cfg.Files}, certs: &certificates{authority: a},
		pods: podNodes{files: cfg.Files, proofs: make(chan struct{}, maxProofs)},
	}, nil
}

// CreateToken makes a token by which one machine can join.
func (n *Nodes) CreateToken() (*sandbox.JoinToken, error) {
	return n.tokens.create(n.authority.cert.Raw, time.Now())
}

// Nodes lists all machines.
func (n *Nodes) Nodes(ctx context.Context) []sandbox.Node { return n.cfg.Fleet.Nodes(ctx) }

// Drain keeps new sandboxes from a node, or takes them again if req is nil.
func (n *Nodes) Drain(name string, req *sandbox.DrainRequest) (sandbox.Node, error) {
	return n.cfg.Fleet.Drain(name, req)
}

// Moving returns the nodes whose sandboxes are to move, and how.
func (n *Nodes) Moving() map[string]sandbox.DrainRequest { return n.cfg.Fleet.Moving() }

// Remove removes a node for ever. If it is a dedicated Pod, that is replaced.
func (n *Nodes) Remove(name string) error {
	known, err := n.pods.read(name)
	switch {
	case err == nil && n.cfg.Fleet.IsMember(name, known.ID):
		err = n.markUsed(name, known.ID)
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	if err != nil {
		return err
	}
	return n.cfg.Fleet.Remove(name)
}

// certificates has the server's certificate, and makes the next one in time.
type certificates struct {
	authority *authority

	mu   sync.Mutex
	cert *tls.Certificate // guarded by mu
	made time.Time        // guarded by mu
}

func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cert != nil && time.Since(c.made) < leafValidity/2 {
		return c.cert, nil
	}
	cert, err := c.authority.server()
	if err != nil {
		return nil, err
	}
	c.cert, c.made = cert, time.Now()
	return cert, nil
}

const (
	// DriveProtocol is the ALPN protocol of connections over which the server drives a
	// node: the one that dialled serves.
	DriveProtocol = "cove-node"
	// maxConns is how many connections there may be, and headerTimeout how long one may
	// take to say what it wants.
	maxConns      = 4096
	headerTimeout = 10 * time.Second
	// maxRequest bounds a request to join, in bytes.
	maxRequest = 16 << 10
)

// Serve takes connections until ctx ends.
func (n *Nodes) Serve(ctx context.Context, l net.Listener) error {
	pool := x509.NewCertPool()
	pool.AddCert(n.authority.cert)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/join", n.join)
	mux.HandleFunc("POST /v1/renew", n.members(n.renew))
	mux.HandleFunc("POST /v1/leave", n.members(n.leave))
	mux.HandleFunc("POST /v1/return", n.members(n.giveBack))
	mux.HandleFunc("GET /v1/roots/{digest}", n.members(n.root))
	mux.HandleFunc("GET /v1/roots/{digest}/about", n.members(n.aboutRoot))
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(n.cfg.Log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, GetCertificate: n.certs.get, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven,
			NextProtos: []string{DriveProtocol, "http/1.1"},
			// A resumed session would not ask for the certificate again.
			SessionTicketsDisabled: true,
		},
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){
			DriveProtocol: func(_ *http.Server, c *tls.Conn, _ http.Handler) { n.drive(ctx, c) },
		},
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.ServeTLS(limits.Listen(l, limits.ListenConfig{MaxConns: maxConns, WriteTimeout: limits.DefaultWriteTimeout, Refused: func() {}}), "", "")
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// member returns the name and the id that a connection has proved, if they are those of a
// node that has not been removed.
func (n *Nodes) member(state *tls.ConnectionState) (name, id string, ok bool) {
	if state == nil || len(state.VerifiedChains) == 0 {
		return "", "", false
	}
	subject := state.PeerCertificates[0].Subject
	return subject.CommonName, subject.SerialNumber, n.cfg.Fleet.IsMember(subject.CommonName, subject.SerialNumber)
}

// drive drives a node until its connection ends.
func (n *Nodes) drive(ctx context.Context, c *tls.Conn) {
	state := c.ConnectionState()
	name, id, ok := n.member(&state)
	if !ok {
		n.cfg.Log.Warn("a node was refused", "node", name, "address", c.RemoteAddr().String())
		c.Close()
		return
	}
	e := remote.New(c)
	defer e.Close()
	if err := n.cfg.Fleet.Attach(ctx, name, id, c.RemoteAddr().String(), e); err != nil {
		if ctx.Err() == nil {
			n.cfg.Log.Error("node could not be connected", "node", name, "error", err)
		}
		return
	}
	select {
	case <-e.Done():
	case <-ctx.Done():
	}
}

// members serves nodes only.
func (n *Nodes) members(next func(w http.ResponseWriter, r *http.Request, name, id string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name, id, ok := n.member(r.TLS)
		if !ok {
			fail(w, sandbox.Errorf(sandbox.CodeUnauthenticated, "this is for nodes; join with a token of: cove node token"))
			return
		}
		next(w, r, name, id)
	}
}

// JoinRequest asks for a node's certificate.
type JoinRequest struct {
	Token string `json:"token"`
	// PodToken is a Pod's token of its ServiceAccount, in place of Token.
	PodToken string `json:"pod_token,omitempty"`
	Name     string `json:"name"`
	// Dedicated says that the node is for the sandboxes of one family at a time.
	Dedicated bool `json:"dedicated,omitempty"`
	// Request is a certificate request in DER.
	Request []byte `json:"request"`
}

// Certificate is a node's certificate, and the authority's, in PEM.
type Certificate struct {
	Certificate string `json:"certificate"`
	Authority   string `json:"authority"`
}

// Failure is the answer to a request that failed.
type Failure struct {
	Code    sandbox.Code `json:"code"`
	Message string       `json:"message"`
}

func (n *Nodes) join(w http.ResponseWriter, r *http.Request) {
	var req JoinRequest
	if !receive(w, r, &req) {
		return
	}
	if req.PodToken != "" {
		n.joinPod(w, r, req)
		return
	}
	if !n.tokens.valid(req.Token, time.Now()) {
		n.refuseToken(w, r)
		return
	}
	if err := n.cfg.Fleet.Available(req.Name); err != nil {
		fail(w, err)
		return
	}
	id := rand.Text()
	der, err := n.authority.node(req.Request, req.Name, id)
	if err != nil {
		fail(w, sandbox.Wrap(sandbox.CodeInvalid, err, "the certificate request is not valid"))
		return
	}
	// Of several that use a token at the same time, one joins.
	if !n.tokens.spend(req.Token, time.Now()) {
		n.refuseToken(w, r)
		return
	}
	if err := n.cfg.Fleet.Join(req.Name, id, req.Dedicated); err != nil {
		fail(w, err)
		return
	}
	n.cfg.Log.Info("node joined", "node", req.Name, "address", r.RemoteAddr)
	n.sendCertificate(w, der)
}

func (n *Nodes) refuseToken(w http.ResponseWriter, r *http.Request) {
	n.cfg.Log.Warn("a machine tried to join with a token that is not valid", "address", r.RemoteAddr)
	fail(w, sandbox.Errorf(sandbox.CodeUnauthenticated, "the token is not valid, was used, or has expired; make another on the server with: cove node token"))
}

func (n *Nodes) renew(w http.ResponseWriter, r *http.Request, name, id string) {
	var req JoinRequest
	if !receive(w, r, &req) {
		return
	}
	der, err := n.authority.node(req.Request, name, id)
	if err != nil {
		fail(w, sandbox.Wrap(sandbox.CodeInvalid, err, "the certificate request is not valid"))
		return
	}
	n.sendCertificate(w, der)
}

func (n *Nodes) sendCertificate(w http.ResponseWriter, der []byte) {
	send(w, Certificate{text(der), text(n.authority.cert.Raw)})
}

func text(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
