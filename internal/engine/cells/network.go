package cells

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/internal/gateway/netlog"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/sandbox"
)

var (
	_ engine.Gateway       = (*instance)(nil)
	_ engine.DeletedMeter  = (*instance)(nil)
	_ engine.NetworkLogger = (*Engine)(nil)
	_ engine.Switch        = (*Engine)(nil)
	_ engine.Asking        = (*instance)(nil)
	_ engine.Inquirer      = (*Engine)(nil)
)

// Network configures how the gateways of sandboxes connect to the outside. The zero value
// uses the host's own configuration, without a proxy.
type Network struct {
	// Resolvers are the DNS servers to ask instead of the host's.
	Resolvers []netip.AddrPort
	Proxy     egress.Proxy
	// ExtraCA are further PEM certificates of authorities to trust when the gateway
	// terminates TLS.
	ExtraCA []byte
}

func (e *Engine) netlogDir() string { return filepath.Join(e.cfg.Dir, "netlog") }

// gatewayConfig returns the configuration of gateways on this machine.
func (e *Engine) gatewayConfig() cell.GatewayConfig {
	n := e.cfg.Network
	return cell.GatewayConfig{
		LogDir: e.netlogDir(), PeersDir: e.cfg.Dir,
		Resolvers: n.Resolvers, Proxy: n.Proxy, ExtraCA: string(n.ExtraCA),
		Authority: string(e.authority.CertificatePEM()),
	}
}

// checkNetwork refuses a network without a valid sandbox id.
func checkNetwork(n *engine.Network) error {
	if n != nil && !validID.MatchString(n.SandboxID) {
		return fmt.Errorf("invalid sandbox id %q of a network", n.SandboxID)
	}
	return nil
}

// deliver sends a cell the values of its sandbox's secrets, and the issuer's certificate and
// key.
func deliver(ctx context.Context, dir string, issuer []byte, n *engine.Network) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	return cell.SendValues(ctx, dir, issuer, n.Values)
}

func (i *instance) SetNetwork(ctx context.Context, n engine.Network) error {
	if err := checkNetwork(&n); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	if n.Intercepts() {
		issuer, err := i.engine.authority.NewIssuer()
		if err != nil {
			return err
		}
		defer clear(issuer)
		if err := deliver(ctx, i.dir, issuer, &n); err != nil {
			return err
		}
	}
	err := i.control.SetNetwork(ctx, &n)
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument:
		e, _ := errors.AsType[*connect.Error](err)
		return sandbox.Wrap(sandbox.CodeInvalid, err, e.Message())
	case connect.CodeUnimplemented:
		return sandbox.Wrap(sandbox.CodeUnsupported, err, "the sandbox continues from the memory that an older version of cove has kept, and has no network; restart it from its files only (files_only)")
	}
	if err != nil {
		return fmt.Errorf("configure the gateway: %w", err)
	}
	return nil
}

// SetAsked implements [engine.Inquirer].
func (e *Engine) SetAsked(asked func(instanceID string, open []engine.Question)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = asked
}

// questionsOf returns a function that reports the open questions of an instance if they
// differ from those reported last.
func (e *Engine) questionsOf(id string) func([]engine.Question) {
	var told []engine.Question
	return func(open []engine.Question) {
		if slices.Equal(open, told) {
			return
		}
		told = open
		e.mu.Lock()
		asked := e.asked
		e.mu.Unlock()
		asked(id, open)
	}
}

func (i *instance) AnswerQuestion(ctx context.Context, id string, allow bool) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	err := i.control.AnswerQuestion(ctx, id, allow)
	if err != nil && !errors.Is(err, engine.ErrNoQuestion) {
		return fmt.Errorf("answer a question of the gateway: %w", err)
	}
	return err
}

func (i *instance) DialPort(ctx context.Context, port int, loopback bool) (net.Conn, error) {
	conn, err := cell.DialStream(ctx, i.dir, cell.PortsSocket, cell.StreamRequest{Port: port, Loopback: loopback})
	if errors.Is(err, fs.ErrNotExist) && i.engine.alive(i.id) {
		return nil, sandbox.Wrap(sandbox.CodeUnsupported, err, "the sandbox was started by an older version of cove, which cannot reach its ports; pause and resume it with files_only, or create a new one")
	}
	return conn, err
}

// NetworkLog implements [engine.NetworkLogger].
func (e *Engine) NetworkLog(ctx context.Context, sandboxID string, req sandbox.NetworkLogRequest) ([]sandbox.NetworkEvent, string, error) {
	if !validID.MatchString(sandboxID) {
		return nil, "", nil
	}
	return netlog.Read(ctx, filepath.Join(e.netlogDir(), sandboxID), req)
}

// FollowNetworkLog implements [engine.NetworkLogger].
func (e *Engine) FollowNetworkLog(ctx context.Context, sandboxID string, req sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error {
	if !validID.MatchString(sandboxID) {
		return engine.ErrNotFound
	}
	return netlog.Follow(ctx, filepath.Join(e.netlogDir(), sandboxID), req, sink)
}

// RemoveNetworkLog implements [engine.NetworkLogger].
func (e *Engine) RemoveNetworkLog(_ context.Context, sandboxID string) error {
	if !validID.MatchString(sandboxID) {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(e.netlogDir(), sandboxID)); err != nil {
		return fmt.Errorf("remove a network log: %w", err)
	}
	return nil
}

// NetworkLogs implements [engine.NetworkLogger].
func (e *Engine) NetworkLogs(context.Context) ([]string, error) {
	entries, err := os.ReadDir(e.netlogDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network logs: %w", err)
	}
	var ids []string
	for _, entry := range entries {
		if entry.IsDir() && validID.MatchString(entry.Name()) {
			ids = append(ids, entry.Name())
		}
	}
	return ids, nil
}

// SetPeers implements [engine.Switch].
func (e *Engine) SetPeers(dial func(ctx context.Context, fromSandboxID, name string, port int) (net.Conn, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.peers = dial
}

// connectPeers connects each connection of a cell to another sandbox, until the engine is
// closed.
func (e *Engine) connectPeers(l net.Listener) {
	for {
		conn, err := machine.Accept(l)
		if err != nil {
			return
		}
		e.wg.Go(func() {
			if err := cell.ServeStream(e.ctx, conn, e.dialPeer); err != nil && sandbox.CodeOf(err) == sandbox.CodeInternal && e.ctx.Err() == nil {
				e.cfg.Log.Warn("connect a sandbox to another", "error", err)
			}
		})
	}
}

func (e *Engine) dialPeer(ctx context.Context, o cell.StreamRequest) (net.Conn, error) {
	e.mu.Lock()
	dial := e.peers
	e.mu.Unlock()
	if dial == nil {
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "this server does not connect sandboxes with each other")
	}
	return dial(ctx, o.Sandbox, o.Name, o.Port)
}
