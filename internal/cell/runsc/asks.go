package runsc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// Children of a fork continue from a checkpoint before all of it is written.
// Before they read a part of it, they request that part from the cell that writes it, which
// sends it if some of it is not written yet: the disk may be slow, and a part of the file that
// was just written would have to be read again. Descriptors do not pass between cells.
//
// A request is the offset and the length of a part of the file of pages, in eight bytes
// each. It has one answer: [partWritten], or [partSent] and the part. When all is written, the
// writer sends [allWritten], whether or not there is a request, and closes the connection. A
// connection that ends in any other way means that the rest is lost.
const (
	partWritten = 1
	allWritten  = 2
	partSent    = 3

	askSize = 16
	// maxAsk limits the length of a requested part. Reads are shorter.
	maxAsk = sharedReadBytes
	// childPatience bounds how long a child that does not run, or a hostile one, keeps the
	// writer from ending. An honest one receives at once.
	childPatience = 30 * time.Second
)

// ErrUnwritten means that a sandbox needs memory or files of its parent that were never
// written.
var ErrUnwritten = errors.New("the sandbox that it was forked from ended before its memory and files were written, or there was no disk space for them")

// ErrUnneeded means that a checkpoint was removed before all of it was written, and that
// nobody continues from it.
var ErrUnneeded = errors.New("the checkpoint was removed before it was written")

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

// fetch gets a part of the file from off into buf, and returns true, or returns false if the
// part can be read from the file. Its error is [ErrUnwritten].
func (a *asker) fetch(buf []byte, off int64) (sent bool, err error) {
	if a == nil {
		return false, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil {
		return false, a.err
	}
	ask := binary.BigEndian.AppendUint64(nil, uint64(off))
	ask = binary.BigEndian.AppendUint64(ask, uint64(len(buf)))
	// If this fails, the last answer may already have been sent.
	_, _ = a.conn.Write(ask)
	var answer [1]byte
	_, err = io.ReadFull(a.conn, answer[:])
	if err == nil && answer[0] == partSent {
		_, err = io.ReadFull(a.conn, buf)
		sent = err == nil
	}
	if sent || err == nil && answer[0] == partWritten {
		return sent, nil
	}
	if err != nil || answer[0] != allWritten {
		a.err = ErrUnwritten
	}
	_ = a.conn.Close()
	a.conn = nil
	return false, a.err
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

// writing is a backlog that is being written.
type writing struct {
	b *backlog
	// turn is a semaphore of one, held while the backlog is written.
	turn *semaphore.Weighted
	// written is the offset in the file of pages up to which nothing is missing.
	written atomic.Int64
	// served counts the connections of children.
	served atomic.Int64
	// patience is how long a child may take, once all is written, to receive an answer that is
	// being sent.
	patience time.Duration
	// ended is closed when writing has ended; err is set before that. Then the backlog may
	// no longer be what it was.
	ended chan struct{}
	err   error
}

func newWriting(b *backlog, turn *semaphore.Weighted) *writing {
	return &writing{b: b, turn: turn, ended: make(chan struct{}), patience: childPatience}
}

// run writes the backlog when those that have begun before it are written, so that these are
// complete sooner.
func (w *writing) run(ctx context.Context) error {
	defer close(w.ended)
	w.err = w.write(ctx)
	return w.err
}

func (w *writing) write(ctx context.Context) error {
	if err := w.turn.Acquire(ctx, 1); err != nil {
		return context.Cause(ctx)
	}
	defer w.turn.Release(1)
	buf := new([writeLaterBytes]byte)
	for _, p := range w.b.parts {
		for done := int64(0); done < p.n; {
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case w.isUnneeded():
				return ErrUnneeded
			}
			n := min(writeLaterBytes, p.n-done)
			if err := w.b.move(p.file, buf[:n], p.off+done, p.from+done); err != nil {
				return err
			}
			done += n
			w.written.Store(p.off + done)
		}
	}
	return nil
}

// isUnneeded reports whether the checkpoint was removed, and no child continues from it. A
// child keeps its connection for as long as it needs the file, and a file of a living child
// is not removed before the child has connected.
func (w *writing) isUnneeded() bool {
	var st unix.Stat_t
	return unix.Fstat(int(w.b.pages.Fd()), &st) == nil && st.Nlink == 0 && w.served.Load() == 0
}

// serve answers the requests of a connection until it ends or writing has ended.
func (w *writing) serve(conn net.Conn) {
	w.served.Add(1)
	defer w.served.Add(-1)
	ended := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		select {
		case <-w.ended:
			_ = conn.SetReadDeadline(time.Unix(1, 0)) // nobody waits for requests any more
			_ = conn.SetWriteDeadline(time.Now().Add(w.patience))
		case <-ended:
		}
	})
	whole := w.answer(conn)
	close(ended)
	g.Wait()
	select {
	case <-w.ended:
		if w.err == nil && whole {
			sendLast(conn, w.patience)
		}
	default:
	}
}

// sendLast sends the last answer. If there is room for it, as always unless an answer has not
// been received yet, that needs no deadline, which could pass before a busy machine comes to
// send.
func sendLast(conn net.Conn, patience time.Duration) {
	_ = conn.SetDeadline(time.Time{})
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return
	}
	sent := false
	send := func(fd uintptr) bool {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Send(int(fd), []byte{allWritten}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}
		sent = !errors.Is(err, unix.EAGAIN)
		return sent
	}
	if _ = raw.Control(func(fd uintptr) { send(fd) }); !sent {
		_ = conn.SetWriteDeadline(time.Now().Add(patience))
		_ = raw.Write(send)
	}
}

// answer answers requests until one fails. It returns false if it has sent a part of an
// answer.
func (w *writing) answer(conn net.Conn) (whole bool) {
	var ask [askSize]byte
	var buf []byte
	for {
		if _, err := io.ReadFull(conn, ask[:]); err != nil {
			return true
		}
		off, n := binary.BigEndian.Uint64(ask[:]), binary.BigEndian.Uint64(ask[8:])
		if n > maxAsk || off > uint64(w.b.size) {
			return true
		}
		buf = slices.Grow(buf[:0], int(n))[:n]
		missing, err := w.read(buf, int64(off))
		select {
		case <-w.ended: // what was read may be of another instant
			return true
		default:
		}
		if err != nil {
			return true
		}
		answer := net.Buffers{{partWritten}}
		if missing {
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

// read reads a part of the file of pages, if some of it is not written yet.
func (w *writing) read(buf []byte, off int64) (missing bool, err error) {
	parts := w.b.partsIn(max(off, w.written.Load()), off+int64(len(buf)))
	if len(parts) == 0 {
		return false, nil
	}
	if n, err := w.b.pages.ReadAt(buf, off); n < len(buf) {
		return false, fmt.Errorf("read the file of pages: %w", err)
	}
	for _, p := range parts {
		from, to := max(p.off, off), min(p.off+p.n, off+int64(len(buf)))
		if err := p.file.read(buf[from-off:to-off], p.from+from-p.off); err != nil {
			return false, err
		}
	}
	return true, nil
}
