package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// RelayPath is the path at which the agent connects an HTTP/1.1 connection, upgraded to
// [RelayProtocol], to a port of the sandbox's loopback device; the query names the port.
// Many development servers listen only there, where the gateway does not reach them. The
// status is 502 if nothing listens on the port.
const (
	RelayPath     = "/relay"
	RelayProtocol = "cove-relay"
)

// relayTimeout bounds the time to connect to a server on the loopback device.
const relayTimeout = 5 * time.Second

func (a *Agent) relay(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 || r.Header.Get("Upgrade") != RelayProtocol {
		http.Error(w, "name a port and ask for an upgrade to "+RelayProtocol, http.StatusBadRequest)
		return
	}
	server, err := dialLoopback(r.Context(), port)
	if err != nil {
		status := http.StatusGatewayTimeout
		if errors.Is(err, unix.ECONNREFUSED) {
			status = http.StatusBadGateway
		}
		http.Error(w, err.Error(), status)
		return
	}
	defer server.Close()
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		http.Error(w, "only HTTP/1.1 can be upgraded", http.StatusHTTPVersionNotSupported)
		return
	}
	client, buffered, err := hijacker.Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	if _, err := fmt.Fprintf(client, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", RelayProtocol); err != nil {
		return
	}
	joinRelay(client, io.MultiReader(io.LimitReader(buffered, int64(buffered.Reader.Buffered())), client), server)
}

func dialLoopback(ctx context.Context, port uint64) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	var d net.Dialer
	var errs []error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.FormatUint(port, 10)))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// joinRelay copies in both directions until both have ended or one has failed.
func joinRelay(client net.Conn, fromClient io.Reader, server net.Conn) {
	var wg sync.WaitGroup
	pass := func(to net.Conn, from io.Reader) {
		_, err := io.Copy(to, from)
		half, ok := to.(interface{ CloseWrite() error })
		if err != nil || !ok || half.CloseWrite() != nil {
			client.Close()
			server.Close()
		}
	}
	wg.Go(func() { pass(server, fromClient) })
	wg.Go(func() { pass(client, server) })
	wg.Wait()
}
