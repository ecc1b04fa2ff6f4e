package cells

import (
	"net"
	"sync"
)

// conns are connections that are open.
type conns struct {
	mu     sync.Mutex
	open   map[net.Conn]bool // guarded by mu
	closed bool              // guarded by mu
}

func newConns() *conns { return &conns{open: map[net.Conn]bool{}} }

// add adds a connection until the returned function is called.
func (c *conns) add(conn net.Conn) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[conn] = true
	if c.closed {
		conn.Close()
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, conn)
	}
}

// close closes all connections, also those that are added later.
func (c *conns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn := range c.open {
		conn.Close()
	}
}
