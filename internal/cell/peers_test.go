package cell

import (
	"context"
	"net"
	"testing"
)

// TestPeersAreBounded opens more connections to other sandboxes than there may
// be, and again after one was closed.
func TestPeersAreBounded(t *testing.T) {
	dir := t.TempDir()
	l, err := Listen(dir, PeersSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go ServeStream(t.Context(), conn, func(context.Context, StreamRequest) (net.Conn, error) { //nolint:errcheck // it ends with the test
				near, far := net.Pipe()
				go func() { <-t.Context().Done(); far.Close() }()
				return near, nil
			})
		}
	}()
	p := peers{&gateway{conf: GatewayConfig{PeersDir: dir}}, make(chan struct{}, 2)}
	var open []net.Conn
	for range 2 {
		c, err := p.Dial(t.Context(), "db", 5432)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	if c, err := p.Dial(t.Context(), "db", 5432); err == nil {
		c.Close()
		t.Error("a third of two was made")
	}
	for range 2 { // closing twice releases one slot
		open[0].Close()
	}
	c, err := p.Dial(t.Context(), "db", 5432)
	if err != nil {
		t.Fatal(err)
	}
	if more, err := p.Dial(t.Context(), "db", 5432); err == nil {
		more.Close()
		t.Error("one place was given back twice")
	}
	c.Close()
	open[1].Close()
	if len(p.open) != 0 {
		t.Errorf("%d places are taken", len(p.open))
	}
}
