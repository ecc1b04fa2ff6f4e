package runsc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unwritten returns a backlog of the given number of blocks, all of them missing, and the
// file.
func unwritten(t *testing.T, blocks int) (*writing, *os.File) {
	t.Helper()
	pages := blocks * blockBytes / pageSize
	g, b, path := newGuest(t, pages, 1<<40, 0, uint64(pages))
	for i := range uint64(blocks) {
		const each = blockBytes / pageSize
		g.write(i*each, (i+1)*each)
	}
	if err := g.w.Close(); err != nil {
		t.Fatal(err)
	}
	b.seal()
	if b.bytes() != int64(blocks)*blockBytes {
		t.Fatalf("%d bytes are missing", b.bytes())
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return newWriting(b), f
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

// isAsked waits until a block is requested.
func (w *writing) isAsked(t *testing.T, block int64) {
	t.Helper()
	for t.Context().Err() == nil {
		w.mu.Lock()
		asked := slices.Contains(w.asked, block)
		w.mu.Unlock()
		if asked {
			return
		}
		runtime.Gosched()
	}
}

// step writes the next block, and returns its number.
func (w *writing) step(t *testing.T) int64 {
	t.Helper()
	i, ok := w.nextAsked()
	if !ok {
		i, ok = w.nextLeft()
	}
	if !ok {
		t.Fatal("nothing is left")
	}
	if err := w.b.writeBlock(i, new([blockBytes]byte)); err != nil {
		t.Fatal(err)
	}
	w.wrote(i)
	return i
}

// TestAskedFirst checks that requested blocks are written first and answered once
// written, and that other blocks are written in order.
func TestAskedFirst(t *testing.T) {
	w, f := unwritten(t, 8)
	var served sync.WaitGroup
	a := newAsker(w.connected(t, &served))
	if got := w.step(t); got != 0 {
		t.Errorf("block %d is written first", got)
	}
	if err := a.await(100, 200); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- a.await(6*blockBytes-pageSize, 2*pageSize) }()
	w.isAsked(t, 6)
	for _, want := range []int64{5, 6} {
		select {
		case err := <-answered:
			t.Fatalf("answered before block %d is written: %v", want, err)
		default:
		}
		if got := w.step(t); got != want {
			t.Errorf("block %d is written, want %d", got, want)
		}
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	got, want := make([]byte, 2*pageSize), make([]byte, 2*pageSize)
	_, err := f.ReadAt(got, 6*blockBytes-pageSize)
	_, merr := w.b.files[0].f.ReadAt(want, 6*blockBytes-pageSize)
	if err := errors.Join(err, merr); err != nil || !slices.Equal(got, want) {
		t.Errorf("what was answered is not there: %v", err)
	}
	if got := w.step(t); got != 1 {
		t.Errorf("then block %d is written", got)
	}
	a.close()
	served.Wait()
}

// TestAllWritten checks that every reader is told when all is written, and requests no
// more.
func TestAllWritten(t *testing.T) {
	w, _ := unwritten(t, 3)
	var served sync.WaitGroup
	quiet, asking := newAsker(w.connected(t, &served)), newAsker(w.connected(t, &served))
	answered := make(chan error, 1)
	go func() { answered <- asking.await(2*blockBytes, 1) }()
	w.isAsked(t, 2)
	told := make(chan error, 1)
	complete := make(chan error, 1)
	waits := w.connected(t, &served)
	go func() { complete <- AwaitWritten(t.Context(), waits) }()
	go func() { told <- w.run(t.Context()) }()
	if err := errors.Join(<-told, <-answered, <-complete); err != nil {
		t.Fatal(err)
	}
	for _, a := range []*asker{quiet, asking, newAsker(w.connected(t, &served))} {
		if err := a.await(0, pageSize); err != nil {
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
	if err := newAsker(ends[1]).await(0, pageSize); err != nil {
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
	answered := make(chan error, 1)
	go func() { answered <- asking.await(blockBytes, 1) }()
	w.isAsked(t, 1)
	if err := w.run(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("written to a full disk: %v", err)
	}
	if err := <-answered; !errors.Is(err, ErrUnwritten) {
		t.Errorf("who waits learns %v", err)
	}
	for _, a := range []*asker{quiet, asking, newAsker(w.connected(t, &served))} {
		for range 2 {
			if err := a.await(0, pageSize); !errors.Is(err, ErrUnwritten) {
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
	if err := a.await(0, pageSize); !errors.Is(err, ErrUnwritten) {
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
		"beyond the file": {3 * blockBytes, 1},
		"negative":        {1 << 63, 1},
		"too much":        {0, maxAsk + 1},
		"overflowing":     {blockBytes, 1<<64 - 1},
	} {
		theirs := w.connected(t, &served)
		_, _ = theirs.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, ask[0]), ask[1]))
		if n, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%s: answered %d, %v", name, n, err)
		}
	}
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
	w.isAsked(t, 0)
	w.mu.Lock()
	if len(w.asked) > 1 {
		t.Errorf("%d blocks are noted for one connection", len(w.asked))
	}
	w.mu.Unlock()
	if err := w.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := good.await(0, pageSize); err != nil {
		t.Error(err)
	}
	served.Wait()
}
