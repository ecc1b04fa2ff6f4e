package runsc

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// partServer answers requests for parts of a file of pages that is not complete yet; see
// asks.go for the protocol.
type partServer struct {
	size int64
	// read returns true after it has read a part that is to be sent, or false if the part can
	// be read from the file.
	read func(buf []byte, off int64) (send bool, err error)
	// served counts the connections.
	served atomic.Int64
	// patience is how long a client may take, once the file is complete, to receive an answer
	// that is being sent.
	patience time.Duration
	// ended is closed when the file is complete, or never will be; err and last are set before
	// that. Then what read reads may be of another instant.
	ended chan struct{}
	err   error
	// last is the last answer after an error, or 0 if there is none.
	last byte
}

func newPartServer(size int64, read func(buf []byte, off int64) (bool, error)) partServer {
	return partServer{size: size, read: read, ended: make(chan struct{}), patience: childPatience}
}

// serve answers the requests of a connection until it ends or the file is complete.
func (s *partServer) serve(conn net.Conn) {
	s.served.Add(1)
	defer s.served.Add(-1)
	ended := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		select {
		case <-s.ended:
			_ = conn.SetReadDeadline(time.Unix(1, 0)) // nobody waits for requests any more
			_ = conn.SetWriteDeadline(time.Now().Add(s.patience))
		case <-ended:
		}
	})
	whole := s.answer(conn)
	close(ended)
	g.Wait()
	select {
	case <-s.ended:
		switch {
		case !whole:
		case s.err == nil:
			sendLast(conn, allWritten, s.patience)
		case s.last != 0:
			sendLast(conn, s.last, s.patience)
		}
	default:
	}
}

// answer answers requests until one fails. It returns false if it has sent a part of an
// answer.
func (s *partServer) answer(conn net.Conn) (whole bool) {
	var ask [askSize]byte
	var buf []byte
	for {
		if _, err := io.ReadFull(conn, ask[:]); err != nil {
			return true
		}
		off, n := binary.BigEndian.Uint64(ask[:]), binary.BigEndian.Uint64(ask[8:])
		if n > maxAsk || off > uint64(s.size) {
			return true
		}
		buf = slices.Grow(buf[:0], int(n))[:n]
		send, err := s.read(buf, int64(off))
		select {
		case <-s.ended: // what was read may be of another instant
			return true
		default:
		}
		if err != nil {
			return true
		}
		answer := net.Buffers{{partWritten}}
		if send {
			answer = net.Buffers{{partSent}, buf}
		}
		if _, err := answer.WriteTo(conn); err != nil {
			return false
		}
		if cap(buf) > readBytes {
			buf = nil // the connection may last
		}
	}
}

// sendLast sends the last answer. If there is room for it, as always unless an answer has not
// been received yet, that needs no deadline, which could pass before a busy machine comes to
// send.
func sendLast(conn net.Conn, answer byte, patience time.Duration) {
	_ = conn.SetDeadline(time.Time{})
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return
	}
	sent := false
	send := func(fd uintptr) bool {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Send(int(fd), []byte{answer}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}
		sent = !errors.Is(err, unix.EAGAIN)
		return sent
	}
	if _ = raw.Control(func(fd uintptr) { send(fd) }); !sent {
		_ = conn.SetWriteDeadline(time.Now().Add(patience))
		_ = raw.Write(send)
	}
}
