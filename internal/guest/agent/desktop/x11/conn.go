// Package x11 is a client of the core X11 protocol for servers that may be hostile: code in
// a sandbox can put any program behind the socket. So every message is bounded before it is
// read, every wait ends, received data is never indexed without a check, and a server that
// breaks the protocol only loses the connection.
package x11

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// answerTimeout is how long a server may take to reply, or to accept data.
	answerTimeout = 10 * time.Second
	// smallReply bounds replies of a fixed or small size, in bytes.
	smallReply = 64 << 10
	// maxSkipped bounds a generic event, in bytes.
	maxSkipped = 64 << 10
	// maxUnanswered bounds the requests without a message from the server, since messages
	// carry only 16 bits of a request's number.
	maxUnanswered = 32 << 10
)

var (
	// ErrClosed is the error after [Conn.Close].
	ErrClosed = errors.New("the connection is closed")
	// ErrSilent is the error if a server did not reply in time.
	ErrSilent = errors.New("the X server does not answer")
)

// Error is a server's error reply to a request.
type Error struct {
	Code  byte
	Major byte
	Minor uint16
	Value uint32
}

// Error describes the error with its codes.
func (e *Error) Error() string {
	return fmt.Sprintf("X error %d of request %d.%d (value %#x)", e.Code, e.Major, e.Minor, e.Value)
}

// Event is an event as the server sent it.
type Event [32]byte

// Code returns the event's code, without the flag of events that clients sent.
func (e *Event) Code() byte { return e[0] & 0x7f }

// Uint32 returns the number at an offset of at most 28.
func (e *Event) Uint32(at int) uint32 { return binary.LittleEndian.Uint32(e[at:]) }

// Conn is a connection to an X server. Its methods are safe for concurrent use.
type Conn struct {
	nc      net.Conn
	setup   Setup
	onEvent func(*Event)
	ids     idRange

	wmu sync.Mutex // held while writing, so that requests keep their order

	mu      sync.Mutex
	out     []byte   // requests to be written; guarded by mu
	files   []int    // descriptors to be sent with them; guarded by mu
	sent    uint64   // number of the last request; guarded by mu
	seen    uint64   // number of the last request in a message from the server; guarded by mu
	waiting []*Reply // in the order of their requests; guarded by mu
	err     error    // why the connection ended; guarded by mu
	dead    chan struct{}
	read    chan struct{} // closed when the reader has ended
}

// Connect performs the handshake on nc, which it closes if that fails. onEvent is called
// with every event, on the goroutine that reads: it must not block.
func Connect(ctx context.Context, nc net.Conn, onEvent func(*Event)) (*Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer stop()
	_ = nc.SetDeadline(time.Now().Add(answerTimeout))
	setup, err := handshake(nc)
	if err != nil {
		_ = nc.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	_ = nc.SetDeadline(time.Time{})
	c := &Conn{
		nc: nc, setup: *setup, onEvent: onEvent, ids: idRange{base: setup.idBase, mask: setup.idMask},
		dead: make(chan struct{}), read: make(chan struct{}),
	}
	go c.receive()
	return c, nil
}

// Setup returns the server's description from the handshake.
func (c *Conn) Setup() *Setup { return &c.setup }

// Close ends the connection and waits for its reader.
func (c *Conn) Close() {
	c.fail(ErrClosed)
	<-c.read
}

// Dead is closed when the connection has ended.
func (c *Conn) Dead() <-chan struct{} { return c.dead }

// Err returns why the connection has ended, or nil if it has not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	close(c.dead)
	_ = c.nc.Close()
	for _, r := range c.waiting {
		r.finish(nil, err)
	}
	c.waiting, c.out, c.files = nil, nil, nil
}

// Reply is a reply that may not have arrived yet.
type Reply struct {
	c     *Conn
	seq   uint64
	void  bool // the request has no reply, only errors
	limit int
	into  []byte // for the bytes after the first 32, if they fit
	done  chan struct{}
	data  []byte
	err   error
}

func (r *Reply) finish(data []byte, err error) {
	r.data, r.err = data, err
	close(r.done)
}

// Wait sends the queued requests and returns the reply, which has at least 32 bytes. For
// [Conn.GetImage] all bytes after these are in the caller's buffer, if they fit.
func (r *Reply) Wait(ctx context.Context) ([]byte, error) {
	select {
	case <-r.done:
		return r.data, r.err
	default:
	}
	if err := r.c.Flush(); err != nil {
		return nil, err
	}
	limit := time.NewTimer(answerTimeout)
	defer limit.Stop()
	select {
	case <-r.done:
		return r.data, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-limit.C:
		r.c.fail(ErrSilent)
		return nil, ErrSilent
	}
}

// Send queues a request that has no reply. Errors are ignored; [Conn.Check] returns them.
func (c *Conn) Send(req []byte) { c.queue(req, nil) }

// Check queues a request that has no reply, followed by one that has: when that reply
// arrives, the first request has succeeded or failed. The result's error is the first
// request's.
func (c *Conn) Check(req []byte) *Reply {
	r := &Reply{c: c, void: true, done: make(chan struct{})}
	c.queue(req, r)
	c.queue(getInputFocus(), &Reply{c: c, limit: smallReply, done: make(chan struct{})})
	return r
}

// Ask queues a request with a reply of at most limit bytes.
func (c *Conn) Ask(req []byte, limit int) *Reply {
	r := &Reply{c: c, limit: limit, done: make(chan struct{})}
	c.queue(req, r)
	return r
}

// Sync waits until the server has processed all requests so far.
func (c *Conn) Sync(ctx context.Context) error {
	_, err := c.Ask(getInputFocus(), smallReply).Wait(ctx)
	return err
}

// queue pads a request, sets its length and queues it. r, which may be nil, gets the
// reply.
func (c *Conn) queue(req []byte, r *Reply) {
	req = padded(req)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		if r != nil {
			r.finish(nil, c.err)
		}
		return
	}
	if c.sent-c.seen >= maxUnanswered {
		c.sent++ // its reply shows which requests the server has processed
		c.out = append(c.out, padded(getInputFocus())...)
		c.waiting = append(c.waiting, &Reply{c: c, seq: c.sent, limit: smallReply, done: make(chan struct{})})
	}
	c.sent++
	c.out = append(c.out, req...)
	if r != nil {
		r.seq = c.sent
		c.waiting = append(c.waiting, r)
	}
}

func padded(req []byte) []byte {
	for len(req)%4 != 0 {
		req = append(req, 0)
	}
	binary.LittleEndian.PutUint16(req[2:], uint16(len(req)/4))
	return req
}

// Flush writes the queued requests.
func (c *Conn) Flush() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.mu.Lock()
	buf, files, err := c.out, c.files, c.err
	if err != nil || len(buf) == 0 {
		c.mu.Unlock()
		return err
	}
	c.out, c.files = nil, nil
	c.mu.Unlock()
	_ = c.nc.SetWriteDeadline(time.Now().Add(answerTimeout))
	if err := c.write(buf, files); err != nil {
		c.fail(fmt.Errorf("write to the X server: %w", err))
		return c.Err()
	}
	return nil
}

func (c *Conn) write(buf []byte, files []int) error {
	if nc, ok := c.nc.(*net.UnixConn); ok && len(files) > 0 {
		n, _, err := nc.WriteMsgUnix(buf, syscall.UnixRights(files...), nil)
		if err != nil {
			return err
		}
		buf = buf[n:]
	}
	_, err := c.nc.Write(buf)
	return err
}

// receive reads until the connection ends.
func (c *Conn) receive() {
	defer close(c.read)
	defer func() {
		// No message from a server may crash the agent, which is the sandbox's first
		// process.
		if p := recover(); p != nil {
			c.fail(fmt.Errorf("invalid message from the X server: %v", p))
		}
	}()
	in := bufio.NewReaderSize(c.nc, 64<<10)
	for {
		var head Event
		if _, err := io.ReadFull(in, head[:]); err != nil {
			c.fail(fmt.Errorf("read from the X server: %w", err))
			return
		}
		var err error
		switch head[0] {
		case 0:
			err = c.handleError(&head)
		case 1:
			err = c.handleReply(&head, in)
		default:
			err = c.handleEvent(&head, in)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// take removes and returns the pending reply for the last 16 bits of a request's number, or
// nil. Requests before it that have no reply have succeeded.
func (c *Conn) take(low uint16) (*Reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seq := c.seen&^0xffff | uint64(low)
	if seq < c.seen {
		seq += 1 << 16
	}
	if seq > c.sent {
		return nil, fmt.Errorf("the X server answers request %d of %d", seq, c.sent)
	}
	c.seen = seq
	for i, r := range c.waiting {
		if r.seq >= seq {
			c.waiting = slices.Delete(c.waiting, 0, i)
			if r.seq != seq {
				return nil, nil
			}
			c.waiting = slices.Delete(c.waiting, 0, 1)
			return r, nil
		}
		if r.void {
			r.finish(nil, nil)
			continue
		}
		err := errors.New("the X server left out a reply")
		c.waiting = slices.Delete(c.waiting, 0, i)
		return nil, err
	}
	c.waiting = nil
	return nil, nil
}

func (c *Conn) handleError(head *Event) error {
	r, err := c.take(get16(head[:], 2))
	if err != nil || r == nil {
		return err
	}
	r.finish(nil, &Error{
		Code: head[1], Value: head.Uint32(4), Minor: get16(head[:], 8), Major: head[10],
	})
	return nil
}

func (c *Conn) handleReply(head *Event, in *bufio.Reader) error {
	r, err := c.take(get16(head[:], 2))
	if err != nil {
		return err
	}
	more := int64(head.Uint32(4)) * 4
	if r == nil || r.void {
		return errors.New("the X server sent a reply without a request")
	}
	if more > int64(r.limit) {
		err := fmt.Errorf("the X server sends a reply of %d bytes", more)
		r.finish(nil, err)
		return err
	}
	var data []byte
	rest := r.into
	if rest != nil && int64(len(rest)) >= more {
		data, rest = head[:], rest[:more]
	} else {
		data = make([]byte, 32+more)
		copy(data, head[:])
		rest = data[32:]
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(answerTimeout))
	if _, err := io.ReadFull(in, rest); err != nil {
		err = fmt.Errorf("read from the X server: %w", err)
		r.finish(nil, err)
		return err
	}
	_ = c.nc.SetReadDeadline(time.Time{})
	r.finish(data, nil)
	return nil
}

func (c *Conn) handleEvent(head *Event, in *bufio.Reader) error {
	if head.Code() == EventGeneric {
		// A generic event of an extension. It may be longer, and was not requested.
		more := int64(head.Uint32(4)) * 4
		if more > maxSkipped {
			return fmt.Errorf("the X server sends an event of %d bytes", more)
		}
		_, err := in.Discard(int(more))
		return err
	}
	c.onEvent(head)
	return nil
}
