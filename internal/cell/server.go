package cell

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// tellTimeout bounds the wait until who watches has been told the last status.
const tellTimeout = 5 * time.Second

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
	c.wg.Go(func() { c.relayAll(relay) })
	c.wg.Go(func() { c.tellChanges(changes) })
	c.wg.Go(func() { c.openPorts(ports) })
	return nil
}

// closeSockets lets the last status and the answers under way reach those who
// wait for them, and stops serving.
func (c *cell) closeSockets() {
	for end := time.Now().Add(tellTimeout); c.watched() && time.Now().Before(end); {
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

// relayAll joins each connection to the socket with one to the agent.
func (c *cell) relayAll(l net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer conn.Close()
			ctx, cancel := c.whileItRuns(context.Background(), 10*time.Second)
			inside, err := c.dialAgent(ctx)
			cancel()
			if err != nil {
				c.log.Warn("dial agent", "error", err)
				return
			}
			defer inside.Close()
			join(conn, inside)
		})
	}
}

// join copies both ways until both directions have ended.
func join(a, b net.Conn) {
	var wg sync.WaitGroup
	for _, p := range [][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			_, err := io.CopyBuffer(writerOnly{p[0]}, readerOnly{p[1]}, make([]byte, 64<<10))
			half, ok := p[0].(interface{ CloseWrite() error })
			if err != nil || !ok || errors.Is(half.CloseWrite(), net.ErrClosed) {
				a.Close()
				b.Close()
			}
		})
	}
	wg.Wait()
}

// The two hide ReadFrom and WriteTo, whose buffers are smaller than ours.
type (
	writerOnly struct{ io.Writer }
	readerOnly struct{ io.Reader }
)
