package cloud

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox/cloud/wire"
	"github.com/cove-sh/cove/internal/doors/stdin"
	"github.com/cove-sh/cove/sandbox"
)

// tcpSession is a connection to a port of the sandbox.
type tcpSession struct {
	c      *conn
	id     uint32
	ctx    context.Context
	cancel context.CancelFunc
	// out holds the client's data, which may arrive before the port is connected.
	out *stdin.Queue

	mu    sync.Mutex
	conn  net.Conn // guarded by mu; nil before the port is connected
	ended int      // number of sides, of two, that have finished sending; guarded by mu
}

// connect begins a connection to a port.
func (c *conn) connect(f *wire.Frame) error {
	var m wire.TCPConnect
	if err := f.Decode(&m); err != nil {
		return err
	}
	s := &tcpSession{c: c, id: f.ID}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	s.out = stdin.NewSized(s.write, maxWaiting)
	c.begin(f.ID, s, func() {
		defer s.cancel()
		s.run(&m)
	})
	return nil
}

// inside reports whether a host is the sandbox itself, by the names that its programs use.
func inside(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && (ip.IsLoopback() || ip.IsUnspecified())
}

// run copies between the client and the port until both have ended.
func (s *tcpSession) run(m *wire.TCPConnect) {
	if !inside(m.Host) {
		s.fail("Cove connects to the sandbox's own ports alone, at localhost, and not to " + clip.Text(m.Host, maxShown))
		return
	}
	ctx, err := s.c.alive(s.ctx)
	if err != nil {
		s.fail(sandbox.MessageOf(err))
		return
	}
	conn, err := s.c.d.cfg.Service.DialPort(ctx, s.c.sandbox, int(m.Port))
	if err != nil {
		s.fail(sandbox.MessageOf(err))
		return
	}
	defer conn.Close()
	defer context.AfterFunc(s.ctx, func() { _ = conn.Close() })()
	if s.c.send(s.id, 0, wire.TypeTCPOpen, nil) != nil {
		return
	}
	s.mu.Lock()
	s.conn = conn
	s.mu.Unlock()
	written := make(chan struct{})
	s.c.workers.Go(func() {
		defer close(written)
		s.out.Run(s.ctx)
	})
	err = s.receiveAll(conn)
	if err == nil { // the port has finished sending; the client may not have
		s.half()
		<-s.ctx.Done()
	}
	s.cancel()
	_ = conn.Close()
	<-written
	s.c.end(s.id, wire.TypeTCPClosed, nil)
}

// receiveAll sends the port's data to the client until its end. The error is one of either
// side.
func (s *tcpSession) receiveAll(conn net.Conn) error {
	buf := make([]byte, readSize)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := s.c.send(s.id, 0, wire.TypeTCPData, wire.Data{Data: buf[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return s.c.send(s.id, 0, wire.TypeTCPEOF, nil)
		}
		if err != nil {
			return err
		}
	}
}

func (s *tcpSession) fail(text string) {
	s.c.end(s.id, wire.TypeTCPFailed, wire.TCPFailed{Error: text})
}

// write writes the client's data to the port, and the end of it.
func (s *tcpSession) write(_ context.Context, data []byte, end bool) error {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if _, err := conn.Write(data); err != nil {
		s.cancel()
		return err
	}
	if !end {
		return nil
	}
	defer s.half()
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// half records that one side has finished sending. The session ends when both have.
func (s *tcpSession) half() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended++; s.ended == 2 {
		s.cancel()
	}
}

// receive implements [session].
func (s *tcpSession) receive(f *wire.Frame) (known bool, err error) {
	switch f.Type {
	case wire.TypeTCPData:
		var m wire.Data
		if err := f.Decode(&m); err != nil {
			return true, err
		}
		s.out.Put(s.ctx, m.Data)
	case wire.TypeTCPEOF:
		s.out.End()
	case wire.TypeTCPClose:
		s.cancel()
	default:
		return false, nil
	}
	return true, nil
}
