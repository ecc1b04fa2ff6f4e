package toolbox

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/coder/websocket"
)

const (
	// exitControl is the subprotocol of clients that understand how a terminal's
	// program has ended as a message.
	exitControl = "X-Daytona-Pty-Exit-Control"
	// envsProtocol begins the subprotocol that carries a terminal's variables.
	envsProtocol = "X-Daytona-Pty-Envs~"
	// maxMessage bounds a message of a client, in bytes.
	maxMessage = 8 << 20
	// maxReason bounds the reason of a close, in bytes: a control frame has no more.
	maxReason = 123
	// statusTimeout is the close code that says that code ran out of time.
	statusTimeout websocket.StatusCode = 4008
)

// offered returns the subprotocols that a client offers.
func offered(r *http.Request) []string {
	var all []string
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.TrimSpace(name); name != "" {
				all = append(all, name)
			}
		}
	}
	return all
}

// isSocket reports whether a request asks for a WebSocket.
func isSocket(r *http.Request) bool { return strings.EqualFold(r.Header.Get("Upgrade"), "websocket") }

// accept makes a request a connection. Clients that offer subprotocols need one of them
// to be chosen.
func accept(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	var choice []string
	for i, name := range offered(r) {
		if i == 0 || name == exitControl {
			choice = []string{name}
		}
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: choice})
	if err == nil {
		conn.SetReadLimit(maxMessage)
	}
	return conn, err
}

// sendJSON sends a value as text.
func sendJSON(ctx context.Context, conn *websocket.Conn, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return conn.Write(ctx, websocket.MessageText, data)
}

// reason returns the reason of a close as JSON, or "" if it is too long.
func reason(v any) string {
	data, err := json.Marshal(v)
	if err != nil || len(data) > maxReason {
		return "{}"
	}
	return string(data)
}
