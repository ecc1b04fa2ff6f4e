package cell

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// errNotListening means that a port of the sandbox's loopback device is closed.
var errNotListening = errors.New("nothing listens there")

// The messages of the agent's relay; see package agent. An older agent answers 404.
const (
	relayPath     = "/relay"
	relayProtocol = "cove-relay"
)

// maxRelayLines limits the number of lines in the agent's answer, each up to 4 KiB.
const maxRelayLines = 32

// dialLoopback connects to a port of the sandbox's own loopback device, through
// the agent.
func (c *cell) dialLoopback(ctx context.Context, port int) (net.Conn, error) {
	conn, err := c.net.Dial(ctx, AgentPort) // on the agent's port, so that the relayed bytes count as the sandbox's traffic
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	r, err := askRelay(conn, port)
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &relayed{Conn: conn, r: r}, nil
}

// askRelay asks the agent, which is not trusted, to connect conn to a port.
func askRelay(conn net.Conn, port int) (*bufio.Reader, error) {
	_, err := fmt.Fprintf(conn, "GET %s?port=%d HTTP/1.1\r\nHost: agent\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", relayPath, port, relayProtocol)
	if err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(conn, 4<<10)
	status, err := r.ReadSlice('\n')
	if err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	switch {
	case bytes.HasPrefix(status, []byte("HTTP/1.1 101 ")):
	case bytes.HasPrefix(status, []byte("HTTP/1.1 502 ")), bytes.HasPrefix(status, []byte("HTTP/1.1 404 ")):
		return nil, errNotListening
	default:
		return nil, errors.New("the agent does not relay")
	}
	for range maxRelayLines {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return nil, fmt.Errorf("read the agent's answer: %w", err)
		}
		if len(bytes.TrimRight(line, "\r\n")) == 0 {
			return r, nil
		}
	}
	return nil, errors.New("the agent's answer is too long")
}

// relayed is a connection some of whose first bytes may have been read ahead.
type relayed struct {
	net.Conn
	r *bufio.Reader
}

func (c *relayed) Read(p []byte) (int, error) { return c.r.Read(p) }

// CloseWrite closes the sending direction.
func (c *relayed) CloseWrite() error { return closeWrite(c.Conn) }
