package runsc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
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
	allLost     = 4 // only of pages that are fetched; see [Fetching]

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

// Rest is what a checkpoint lacks from which a sandbox continues. A nil Rest is nothing. It
// belongs to one [Sandbox.Restore].
type Rest interface {
	// fetch gets a part of the file of pages from off into buf, and returns true, or returns
	// false if the part can be read from the file.
	fetch(buf []byte, off int64) (sent bool, err error)
	// close ends the requests.
	close()
}

// Unwritten is what a cell has not written yet, which serves it on a connection with
// [Deferred.Answer].
func Unwritten(conn net.Conn) Rest { return newAsker(conn) }

// asker requests parts of a file of pages from the cell that writes it.
type asker struct {
	mu   sync.Mutex
	conn net.Conn // nil when no more requests are sent; guarded by mu
	err  error    // guarded by mu
}

func newAsker(conn net.Conn) *asker { return &asker{conn: conn} }

// fetch implements [Rest]. Its error is [ErrUnwritten].
func (a *asker) fetch(buf []byte, off int64) (sent bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil {
		return false, a.err
	}
	answer, err := request(a.conn, buf, off)
	if err == nil && (answer == partSent || answer == partWritten) {
		return answer == partSent, nil
	}
	if err != nil || answer != allWritten {
		a.err = ErrUnwritten
	}
	_ = a.conn.Close()
	a.conn = nil
	return false, a.err
}

// request requests a part of the file from off, and receives the answer.
func request(conn net.Conn, buf []byte, off int64) (answer byte, err error) {
	ask := binary.BigEndian.AppendUint64(nil, uint64(off))
	ask = binary.BigEndian.AppendUint64(ask, uint64(len(buf)))
	// If this fails, the last answer may already have been sent.
	_, _ = conn.Write(ask)
	var first [1]byte
	_, err = io.ReadFull(conn, first[:])
	if err == nil && first[0] == partSent {
		_, err = io.ReadFull(conn, buf)
	}
	return first[0], err
}

// AwaitWritten waits until the checkpoint that a [Deferred.Answer] or a [Fetching.Answer]
// serves on a connection is complete, and closes the connection. Its error is [ErrUnfetched]
// if the rest cannot be fetched, and [ErrUnwritten] if the connection ends before that.
func AwaitWritten(ctx context.Context, conn net.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	var answer [1]byte
	_, err := io.ReadFull(conn, answer[:])
	switch {
	case err == nil && answer[0] == allWritten:
		return nil
	case err == nil && answer[0] == allLost:
		return ErrUnfetched
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return ErrUnwritten
}

func (a *asker) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn != nil {
		_ = a.conn.Close()
		a.conn, a.err = nil, net.ErrClosed
	}
}

// writing is a backlog that is being written.
type writing struct {
	partServer
	b *backlog
	// turn is a semaphore of one, held while the backlog is written.
	turn *semaphore.Weighted
	// written is the offset in the file of pages up to which nothing is missing.
	written atomic.Int64
}

func newWriting(b *backlog, turn *semaphore.Weighted) *writing {
	w := &writing{b: b, turn: turn}
	w.partServer = newPartServer(b.size, w.read)
	return w
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
