package cell

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/machine"
)

// lastStatusTimeout limits the wait until watchers have received the last status.
const lastStatusTimeout = 5 * time.Second

// serve opens the cell's sockets.
func (c *cell) serve() (err error) {
	listen := func(name string) (l net.Listener) {
		if err == nil {
			if l, err = Listen(c.spec.Dir, name); err == nil {
				c.sockets = append(c.sockets, l)
			}
		}
		return l
	}
	relay, changes, ports, control := listen(AgentSocket), listen(ChangesSocket), listen(PortsSocket), listen(ControlSocket)
	if err != nil {
		return err
	}
	c.wg.Go(func() { _ = c.http.Serve(control) })
	c.wg.Go(func() { c.serveEach(relay, c.relay) })
	c.wg.Go(func() { c.serveEach(changes, c.serveChanges) })
	c.wg.Go(func() { c.servePorts(ports) })
	return nil
}

// serveEach serves each connection to a listener on its own goroutine, until the listener
// is closed. It must be called on a goroutine that c.wg counts.
func (c *cell) serveEach(l net.Listener, serve func(net.Conn)) {
	for {
		conn, err := machine.Accept(l)
		if err != nil {
			return
		}
		c.wg.Go(func() {
			defer conn.Close()
			serve(conn)
		})
	}
}

// closeSockets stops serving. Before that, it gives watchers some time to receive the
// last status, and calls in progress some time to receive their answers.
func (c *cell) closeSockets() {
	for end := time.Now().Add(lastStatusTimeout); c.watched() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.http.Shutdown(ctx)
	c.http.Close()
	for _, l := range c.sockets {
		l.Close()
	}
	c.wg.Wait()
}

// relay connects a connection to the agent.
func (c *cell) relay(conn net.Conn) {
	ctx, cancel := c.untilEnded(context.Background(), 10*time.Second)
	inside, err := c.dialAgent(ctx)
	cancel()
	if err != nil {
		c.log.Warn("dial agent", "error", err)
		return
	}
	defer inside.Close()
	join(conn, inside)
}

// closeWrite closes the sending direction of a connection, or the whole connection if it
// has no separate directions.
func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// join copies in both directions until both have ended.
func join(a, b net.Conn) {
	var wg sync.WaitGroup
	for _, p := range [][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			_, err := io.CopyBuffer(writerOnly{p[0]}, readerOnly{p[1]}, make([]byte, 64<<10))
			if err != nil || errors.Is(closeWrite(p[0]), net.ErrClosed) {
				a.Close()
				b.Close()
			}
		})
	}
	wg.Wait()
}

// These types hide ReadFrom and WriteTo, which use smaller buffers.
type (
	writerOnly struct{ io.Writer }
	readerOnly struct{ io.Reader }
)
