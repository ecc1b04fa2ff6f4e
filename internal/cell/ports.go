package cell

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/cove-sh/cove/internal/cell/netstack"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// PortsSocket connects each connection to a port of the sandbox, which a [StreamRequest]
	// names.
	PortsSocket = "ports.sock"
	// PeersSocket is served by the daemon. It connects each connection to a port of another
	// sandbox.
	PeersSocket = "peers.sock"
)

const (
	// maxStreamRequest limits a [StreamRequest], in bytes.
	maxStreamRequest = 4 << 10
	// openTimeout limits the time to connect to a port of the sandbox.
	openTimeout = 10 * time.Second
)

// StreamRequest is the first message on a connection to [PortsSocket] or [PeersSocket]:
// what to connect to. It is a frame: a length of two bytes, then JSON. Another frame
// answers it. Unless that frame contains an error, the connection is the stream from then
// on.
type StreamRequest struct {
	Port int `json:"port"`
	// Loopback also tries the loopback device of the sandbox.
	Loopback bool `json:"loopback,omitempty"`
	// Sandbox asks for the port of the sandbox with this name.
	Sandbox string `json:"sandbox,omitempty"`
	Name    string `json:"name,omitempty"`
}

// opened is the answer to a [StreamRequest].
type opened struct {
	Code  sandbox.Code `json:"code,omitempty"`
	Error string       `json:"error,omitempty"`
}

// DialStream connects to a socket of streams and returns the stream. An error from the
// other side is a [sandbox.Error].
func DialStream(ctx context.Context, dir, name string, o StreamRequest) (net.Conn, error) {
	conn, err := Dial(ctx, dir, name)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	var answer opened
	err = writeFrame(conn, o)
	if err == nil {
		err = readFrame(conn, &answer)
	}
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	if err == nil && answer.Error != "" {
		err = sandbox.Errorf(answer.Code, "%s", answer.Error)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// ServeStream serves one connection to a socket of streams. It connects it to the
// connection that open returns, and closes both at the end. It sends the error of open to
// the client only if it is a [sandbox.Error].
func ServeStream(ctx context.Context, conn net.Conn, open func(context.Context, StreamRequest) (net.Conn, error)) error {
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(openTimeout))
	var o StreamRequest
	if err := readFrame(conn, &o); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Time{})
	to, err := open(ctx, o)
	if err != nil {
		answer := opened{Code: sandbox.CodeOf(err), Error: "the connection could not be made"}
		if e, ok := errors.AsType[*sandbox.Error](err); ok {
			answer.Error = e.Message
		}
		return errors.Join(err, writeFrame(conn, answer))
	}
	defer to.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close(); to.Close() })
	defer stop()
	if err := writeFrame(conn, opened{}); err != nil {
		return err
	}
	join(conn, to)
	return nil
}

func writeFrame(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(data) > maxStreamRequest {
		return errors.New("the message before a stream is too long")
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(data))), data...))
	return err
}

func readFrame(r io.Reader, v any) error {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint16(head[:])
	if n > maxStreamRequest {
		return errors.New("the message before a stream is too long")
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// servePorts connects each connection to the socket to a port of the sandbox.
func (c *cell) servePorts(l net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // ends open streams
	c.serveEach(l, func(conn net.Conn) {
		if err := ServeStream(ctx, conn, c.openPort); err != nil && sandbox.CodeOf(err) == sandbox.CodeInternal {
			c.log.Warn("open a port", "error", err)
		}
	})
}

// openPort connects to a port of the sandbox. It refuses the agent's port, which gives
// full control of the sandbox.
func (c *cell) openPort(ctx context.Context, o StreamRequest) (net.Conn, error) {
	if o.Port < 1 || o.Port > 65535 || o.Port == AgentPort || o.Name != "" {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "port %d cannot be connected to; use another port", o.Port)
	}
	ctx, cancel := c.untilEnded(ctx, openTimeout)
	defer cancel()
	conn, err := c.net.Dial(ctx, uint16(o.Port))
	if errors.Is(err, netstack.ErrRefused) && o.Loopback {
		// The server may listen on the loopback device only.
		conn, err = c.dialLoopback(ctx, o.Port)
	}
	switch {
	case errors.Is(err, errNotListening), errors.Is(err, netstack.ErrRefused):
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("nothing listens on port %d of the sandbox; start a server there", o.Port))
	case err != nil:
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("port %d of the sandbox does not answer; try again", o.Port))
	}
	return conn, nil
}
