package runsc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Children of a fork continue from a checkpoint before all of it is written.
// Before they read a part of it, they request that part from the cell that writes it; the
// cell writes the part first, and answers when it is written. Neither memory nor
// descriptors pass between cells.
//
// A request is the offset and the length of a part of the file of pages, in eight bytes
// each. It has one answer: [partWritten]. When all is written, the writer sends [allWritten],
// whether or not there is a request, and closes the connection. A connection that ends in
// any other way means that the rest is lost.
const (
	partWritten = 1
	allWritten  = 2

	askSize = 16
	// maxAsk limits the length of a requested part. Reads are shorter.
	maxAsk = sharedReadBytes
)

// ErrUnwritten means that a sandbox needs memory or files of its parent that were never
// written.
var ErrUnwritten = errors.New("the sandbox that it was forked from ended before its memory and files were written, or there was no disk space for them")

// asker requests parts of a file of pages. A nil asker does not: the file is complete.
type asker struct {
	mu   sync.Mutex
	conn net.Conn // nil when no more requests are sent; guarded by mu
	err  error    // guarded by mu
}

func newAsker(conn net.Conn) *asker {
	if conn == nil {
		return nil
	}
	return &asker{conn: conn}
}

// await returns when n bytes from off are in the file. Its error is [ErrUnwritten].
func (a *asker) await(off int64, n int) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil {
		return a.err
	}
	ask := binary.BigEndian.AppendUint64(nil, uint64(off))
	ask = binary.BigEndian.AppendUint64(ask, uint64(n))
	// If this fails, the last answer may already have been sent.
	_, _ = a.conn.Write(ask)
	var answer [1]byte
	_, err := io.ReadFull(a.conn, answer[:])
	if err == nil && answer[0] == partWritten {
		return nil
	}
	if err != nil || answer[0] != allWritten {
		a.err = ErrUnwritten
	}
	_ = a.conn.Close()
	a.conn = nil
	return a.err
}

// AwaitWritten waits until the checkpoint that a [Deferred.Answer] serves on a connection is
// complete, and closes the connection. Its error is [ErrUnwritten] if the connection ends
// before that.
func AwaitWritten(ctx context.Context, conn net.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err == nil && answer[0] == allWritten {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return ErrUnwritten
}

// close ends the requests.
func (a *asker) close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn != nil {
		_ = a.conn.Close()
		a.conn, a.err = nil, net.ErrClosed
	}
}

// writing is a backlog that is being written, by two workers. One writes requested
// blocks, so that they need not wait while the kernel throttles the other, which writes
// all blocks.
type writing struct {
	b *backlog
	// ended is closed when writing has ended; err is set before that.
	ended chan struct{}
	err   error
	// woken receives a value when a block is requested; its capacity is one.
	woken chan struct{}

	mu   sync.Mutex
	left map[int64]struct{} // the blocks that are not written; guarded by mu
	next int64              // all blocks before it are written; guarded by mu
	// asked are the requested blocks. Guarded by mu.
	asked []int64
	// written is closed and replaced when a block is written. Guarded by mu.
	written chan struct{}
}

func newWriting(b *backlog) *writing {
	w := &writing{b: b, ended: make(chan struct{}), woken: make(chan struct{}, 1), left: map[int64]struct{}{}, written: make(chan struct{})}
	for _, p := range b.parts {
		for i := p.off / blockBytes; i*blockBytes < p.off+p.n; i++ {
			w.left[i] = struct{}{}
		}
	}
	return w
}

// run writes the backlog.
func (w *writing) run(ctx context.Context) error {
	defer close(w.ended)
	g, ctx := errgroup.WithContext(ctx)
	done := make(chan struct{})
	g.Go(func() error {
		defer close(done)
		return w.writeEach(ctx, w.nextLeft)
	})
	g.Go(func() error {
		for {
			if err := w.writeEach(ctx, w.nextAsked); err != nil {
				return err
			}
			select {
			case <-w.woken:
			case <-done:
				return nil
			}
		}
	})
	w.err = g.Wait()
	return w.err
}

// writeEach writes the blocks that pick returns until it returns none. Another worker may
// write the same block, with the same content.
func (w *writing) writeEach(ctx context.Context, pick func() (int64, bool)) error {
	buf := new([blockBytes]byte)
	for {
		i, ok := pick()
		if !ok {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.b.writeBlock(i, buf); err != nil {
			return err
		}
		w.wrote(i)
	}
}

// nextLeft returns the first block that is not written, or false if there is none.
func (w *writing) nextLeft() (int64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.left) == 0 {
		return 0, false
	}
	for ; ; w.next++ {
		if _, ok := w.left[w.next]; ok {
			return w.next, true
		}
	}
}

// nextAsked returns a requested block that is not written, or false if there is none.
func (w *writing) nextAsked() (int64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.asked) > 0 {
		i := w.asked[0]
		w.asked = w.asked[1:]
		if _, ok := w.left[i]; ok {
			return i, true
		}
	}
	return 0, false
}

func (w *writing) wrote(i int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.left, i)
	close(w.written)
	w.written = make(chan struct{})
}

// await waits until n bytes of the file, from off, are written, or writing has ended.
func (w *writing) await(off, n int64) {
	first := true
	for {
		w.mu.Lock()
		var missing []int64
		for i := off / blockBytes; i*blockBytes < off+n; i++ {
			if _, ok := w.left[i]; ok {
				missing = append(missing, i)
			}
		}
		if first {
			w.asked = append(w.asked, missing...)
			first = false
		}
		written := w.written
		w.mu.Unlock()
		select {
		case w.woken <- struct{}{}:
		default:
		}
		if len(missing) == 0 {
			return
		}
		select {
		case <-written:
		case <-w.ended:
			return
		}
	}
}

// serve answers the requests of a connection until it ends or writing has ended.
func (w *writing) serve(conn net.Conn) {
	ended := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		select {
		case <-w.ended:
			_ = conn.SetDeadline(time.Unix(1, 0)) // unblocks reads and writes
		case <-ended:
		}
	})
	w.answer(conn)
	close(ended)
	g.Wait()
	select {
	case <-w.ended:
		if w.err == nil {
			sendLast(conn)
		}
	default:
	}
}

// sendLast sends the last answer, if there is room for it. There always is unless the client
// leaves more than one answer unread, and such a client is not waited for. A deadline in place
// of that could pass before a busy machine comes to send.
func sendLast(conn net.Conn) {
	_ = conn.SetDeadline(time.Time{})
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Write(func(fd uintptr) bool {
		for errors.Is(unix.Send(int(fd), []byte{allWritten}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL), unix.EINTR) {
		}
		return true
	})
}

// answer answers requests until one fails.
func (w *writing) answer(conn net.Conn) {
	var ask [askSize]byte
	for {
		if _, err := io.ReadFull(conn, ask[:]); err != nil {
			return
		}
		off, n := binary.BigEndian.Uint64(ask[:]), binary.BigEndian.Uint64(ask[8:])
		if n > maxAsk || off > uint64(w.b.size) {
			return
		}
		w.await(int64(off), int64(n))
		select {
		case <-w.ended:
			return
		default:
		}
		if _, err := conn.Write([]byte{partWritten}); err != nil {
			return
		}
	}
}
