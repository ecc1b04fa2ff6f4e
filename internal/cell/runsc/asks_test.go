package runsc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// unwritten returns a backlog of the given number of blocks, all of them missing, and the
// file.
func unwritten(t *testing.T, blocks int) (*writing, *os.File) {
	t.Helper()
	pages := blocks * writeLaterBytes / pageSize
	g, b, path := newGuest(t, pages, 1<<40, 0, uint64(pages))
	for i := range uint64(blocks) {
		const each = writeLaterBytes / pageSize
		g.write(i*each, (i+1)*each)
	}
	if err := g.w.Close(); err != nil {
		t.Fatal(err)
	}
	b.seal()
	if b.bytes() != int64(blocks)*writeLaterBytes {
		t.Fatalf("%d bytes are missing", b.bytes())
	}
	f, err := os.Open(path)
	if err := errors.Join(err, b.pages.Truncate(b.size)); err != nil { // as freeze does
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return newWriting(b, semaphore.NewWeighted(1)), f
}

// sockets returns both ends of a connection.
func sockets(t *testing.T) (ends [2]net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ends[i].Close() })
		f.Close()
	}
	return ends
}

// asks requests a page.
func (a *asker) asks() error {
	_, err := a.fetch(make([]byte, pageSize), 0)
	return err
}

// connected returns the other end of a connection that w serves.
func (w *writing) connected(t *testing.T, served *sync.WaitGroup) net.Conn {
	t.Helper()
	ends := sockets(t)
	served.Go(func() {
		defer ends[0].Close()
		w.serve(ends[0])
	})
	return ends[1]
}

// writeTo writes the first blocks, as far as a worker would have come.
func (w *writing) writeTo(t *testing.T, blocks int64) {
	t.Helper()
	buf := make([]byte, writeLaterBytes)
	for off := w.written.Load(); off < blocks*writeLaterBytes; off += writeLaterBytes {
		if err := w.b.move(w.b.files[0], buf, off, off); err != nil {
			t.Fatal(err)
		}
		w.written.Store(off + writeLaterBytes)
	}
}

// TestMissingIsSent checks that a child is sent a part of which some is not written, and reads
// other parts from the file.
func TestMissingIsSent(t *testing.T) {
	w, f := unwritten(t, 8)
	var served sync.WaitGroup
	a := newAsker(w.connected(t, &served))
	w.writeTo(t, 5)
	for _, tt := range []struct {
		off  int64
		n    int
		sent bool
	}{
		{0, pageSize, false},
		{5*writeLaterBytes - pageSize, pageSize, false},
		{5*writeLaterBytes - pageSize, 2 * pageSize, true},
		{6 * writeLaterBytes, 2 * writeLaterBytes, true},
		{8*writeLaterBytes - 100, 100, true},
	} {
		got, want := make([]byte, tt.n), make([]byte, tt.n)
		sent, err := a.fetch(got, tt.off)
		if err != nil || sent != tt.sent {
			t.Errorf("%d bytes from %d are sent: %v, %v", tt.n, tt.off, sent, err)
		}
		if !sent {
			_, err = f.ReadAt(got, tt.off)
		}
		_, merr := w.b.files[0].f.ReadAt(want, tt.off)
		if err := errors.Join(err, merr); err != nil || !slices.Equal(got, want) {
			t.Errorf("%d bytes from %d are not what they should be: %v", tt.n, tt.off, err)
		}
	}
	a.close()
	served.Wait()
}

// TestThawedIsNotSent checks that nothing is sent that was read when it might have changed.
func TestThawedIsNotSent(t *testing.T) {
	w, _ := unwritten(t, 2)
	var served sync.WaitGroup
	a := newAsker(w.connected(t, &served))
	close(w.ended)
	buf := make([]byte, pageSize)
	for range 2 {
		if sent, err := a.fetch(buf, 0); sent || err != nil {
			t.Errorf("sent: %v, %v", sent, err)
		}
	}
	served.Wait()
}

// TestSlowReader checks that a child which receives an answer after all is written gets it
// whole, and the last answer after it.
func TestSlowReader(t *testing.T) {
	w, f := unwritten(t, 8)
	var served sync.WaitGroup
	conn := w.connected(t, &served)
	if _, err := conn.Write(binary.BigEndian.AppendUint64(make([]byte, 8), maxAsk)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1+maxAsk+1)
	if _, err := io.ReadFull(conn, got[:2]); err != nil || got[0] != partSent {
		t.Fatalf("answered %v, %v", got[0], err)
	}
	if err := w.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, maxAsk)
	_, err := f.ReadAt(want, 0)
	_, rerr := io.ReadFull(conn, got[2:])
	if err := errors.Join(err, rerr); err != nil || !slices.Equal(got[1:1+maxAsk], want) || got[1+maxAsk] != allWritten {
		t.Errorf("received something else, %v", err)
	}
	served.Wait()
}

// TestAllWritten checks that every reader is told when all is written, and requests no
// more.
func TestAllWritten(t *testing.T) {
	w, _ := unwritten(t, 3)
	var served sync.WaitGroup
	quiet, asking := newAsker(w.connected(t, &served)), newAsker(w.connected(t, &served))
	if _, err := asking.fetch(make([]byte, 1), 2*writeLaterBytes); err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	complete := make(chan error, 1)
	waits := w.connected(t, &served)
	go func() { complete <- AwaitWritten(t.Context(), waits) }()
	go func() { told <- w.run(t.Context()) }()
	if err := errors.Join(<-told, <-complete); err != nil {
		t.Fatal(err)
	}
	for _, a := range []*asker{quiet, asking, newAsker(w.connected(t, &served))} {
		if err := a.asks(); err != nil {
			t.Error(err)
		}
		if a.conn != nil {
			t.Error("it would ask again")
		}
	}
	served.Wait()
}

// stalled is a connection of a process that does not run for so long that any deadline of its
// own has passed when it goes on.
type stalled struct{ *net.UnixConn }

func (s stalled) SetDeadline(t time.Time) error {
	if !t.IsZero() {
		t = time.Unix(1, 0)
	}
	return s.UnixConn.SetDeadline(t)
}

// TestStalledWriter checks that memory which is written does not pass for lost because the
// writer is slow to say so.
func TestStalledWriter(t *testing.T) {
	w, _ := unwritten(t, 1)
	if err := w.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	ends := sockets(t)
	w.serve(stalled{ends[0].(*net.UnixConn)})
	ends[0].Close()
	if err := newAsker(ends[1]).asks(); err != nil {
		t.Error(err)
	}
}

// TestLostWhileAsked checks that lost memory is never taken for written memory, both when
// writing fails and when the writer is gone.
func TestLostWhileAsked(t *testing.T) {
	w, _ := unwritten(t, 3)
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.b.pages.Close(); err != nil {
		t.Fatal(err)
	}
	w.b.pages = full
	var served sync.WaitGroup
	quiet, asking := newAsker(w.connected(t, &served)), newAsker(w.connected(t, &served))
	if err := w.run(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("written to a full disk: %v", err)
	}
	for _, a := range []*asker{quiet, asking, newAsker(w.connected(t, &served))} {
		for range 2 {
			if err := a.asks(); !errors.Is(err, ErrUnwritten) {
				t.Errorf("who asks then learns %v", err)
			}
		}
	}
	served.Wait()

	if err := AwaitWritten(t.Context(), w.connected(t, &served)); !errors.Is(err, ErrUnwritten) {
		t.Errorf("who waits for all learns %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := AwaitWritten(gone, sockets(t)[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("who does not wait learns %v", err)
	}
	served.Wait()
	ends := sockets(t)
	a := newAsker(ends[0])
	ends[1].Close()
	if err := a.asks(); !errors.Is(err, ErrUnwritten) {
		t.Errorf("without a writer: %v", err)
	}
}

// TestHostileAsks checks that requests beyond the file, or longer than a read, end their
// connection only, and that a client that sends requests and reads no answers is
// disconnected at the end.
func TestHostileAsks(t *testing.T) {
	w, _ := unwritten(t, 2)
	var served sync.WaitGroup
	good := newAsker(w.connected(t, &served))
	for name, ask := range map[string][2]uint64{
		"beyond the file": {3 * writeLaterBytes, 1},
		"negative":        {1 << 63, 1},
		"too much":        {0, maxAsk + 1},
		"overflowing":     {writeLaterBytes, 1<<64 - 1},
	} {
		theirs := w.connected(t, &served)
		_, _ = theirs.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, ask[0]), ask[1]))
		if n, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%s: answered %d, %v", name, n, err)
		}
	}
	w.patience = time.Millisecond
	deaf := w.connected(t, &served)
	go func() {
		ask := make([]byte, askSize)
		ask[askSize-1] = 1
		for {
			if _, err := deaf.Write(ask); err != nil {
				return
			}
		}
	}()
	if err := w.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := good.asks(); err != nil {
		t.Error(err)
	}
	served.Wait()
}

// TestWrittenInTurn checks that a checkpoint is written after the one that began before it,
// and that children of it get what they need before that.
func TestWrittenInTurn(t *testing.T) {
	w, _ := unwritten(t, 3)
	if err := w.turn.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- w.run(t.Context()) }()
	var served sync.WaitGroup
	a := newAsker(w.connected(t, &served))
	if sent, err := a.fetch(make([]byte, pageSize), writeLaterBytes); err != nil || !sent || w.written.Load() != 0 {
		t.Errorf("sent: %v, %v, with %d bytes written", sent, err, w.written.Load())
	}
	w.turn.Release(1)
	if err := <-ran; err != nil || w.written.Load() != 3*writeLaterBytes {
		t.Errorf("%d bytes are written: %v", w.written.Load(), err)
	}
	served.Wait()
}

// TestUnneededIsNotWritten checks that nothing more is written to a removed checkpoint when the
// last child has gone.
func TestUnneededIsNotWritten(t *testing.T) {
	w, f := unwritten(t, 3)
	var served sync.WaitGroup
	a := newAsker(w.connected(t, &served))
	if err := a.asks(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if w.isUnneeded() {
		t.Error("a child needs it")
	}
	a.close()
	served.Wait()
	if err := w.run(t.Context()); !errors.Is(err, ErrUnneeded) || w.written.Load() != 0 {
		t.Errorf("%d bytes are written: %v", w.written.Load(), err)
	}
}
