package rest

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// tunnelChunk is the largest message of the server, in bytes.
	tunnelChunk = 32 << 10
	// maxTunnelMessage bounds a message of the client, in bytes.
	maxTunnelMessage = 1 << 20
	tunnelEOF        = "eof"
)

func (h *handlers) registerTunnel(a huma.API) {
	registerSocket(a, operation.DialPort, func(w http.ResponseWriter, r *http.Request, in *operation.PortPath) {
		h.tunnel(w, r, in.Sandbox, in.Port)
	})
}

func (h *handlers) tunnel(w http.ResponseWriter, r *http.Request, name string, port int) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		WriteError(w, sandbox.Errorf(sandbox.CodeInvalid, "this path is a WebSocket; connect to it with a client that speaks it, such as cove port-forward"))
		return
	}
	far, err := h.svc.DialPort(r.Context(), name, port)
	if err != nil {
		h.fail(r.Context(), err).write(w)
		return
	}
	defer far.Close()
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		// Accept has answered.
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxTunnelMessage)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	// Reads and writes on the sandbox's side do not notice the end of ctx.
	stop := context.AfterFunc(ctx, func() { _ = far.Close() })
	defer stop()
	sent := make(chan error, 1)
	go func() {
		err := sendTunnel(ctx, conn, far)
		if err != nil {
			cancel()
		}
		sent <- err
	}()
	err = receiveTunnel(ctx, conn, far)
	if err != nil {
		cancel()
	}
	if <-sent == nil && err == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}
}

// sendTunnel passes what the port sends to the client until its end.
func sendTunnel(ctx context.Context, conn *websocket.Conn, far net.Conn) error {
	buf := make([]byte, tunnelChunk)
	for {
		n, err := far.Read(buf)
		if n > 0 {
			if err := conn.Write(ctx, websocket.MessageBinary, buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return conn.Write(ctx, websocket.MessageText, []byte(tunnelEOF))
		}
		if err != nil {
			return err
		}
	}
}

// receiveTunnel passes what the client sends to the port until its end.
func receiveTunnel(ctx context.Context, conn *websocket.Conn, far net.Conn) error {
	for {
		kind, message, err := conn.Reader(ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageBinary {
			if _, err := io.Copy(far, message); err != nil {
				return err
			}
			continue
		}
		word, err := io.ReadAll(message)
		if err != nil {
			return err
		}
		if string(word) != tunnelEOF {
			return sandbox.Errorf(sandbox.CodeInvalid, "a text message is not %q", tunnelEOF)
		}
		if half, ok := far.(interface{ CloseWrite() error }); ok {
			return half.CloseWrite()
		}
		return far.Close()
	}
}
