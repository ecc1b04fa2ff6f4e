package runsc

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// A sandbox also continues from a checkpoint whose file of pages is still being fetched to
// this machine. Before its cell reads a part of the file, it requests that part from the
// engine that fetches it, which answers when the part is in the file. Other than a cell that
// writes, the engine can end and come back: then the cell connects again.

// ErrUnfetched means that a sandbox needs memory or files of a checkpoint that are lost where
// the checkpoint is kept.
var ErrUnfetched = errors.New("memory or files of the sandbox are lost or damaged in the object store")

// Fetching serves the cells of sandboxes that continue from a checkpoint while its file of
// pages is being fetched. Its methods are safe for concurrent use.
type Fetching struct{ s partServer }

// NewFetching serves a file of the given size. await waits until a part of it can be read; it
// fails at the latest after [Fetching.End] was called.
func NewFetching(size int64, await func(off, n int64) error) *Fetching {
	f := &Fetching{newPartServer(size, func(buf []byte, off int64) (bool, error) {
		return false, await(off, min(int64(len(buf)), size-off))
	})}
	f.s.last = allLost
	return f
}

// Answer serves a connection until it ends, or [Fetching.End] is called.
func (f *Fetching) Answer(conn net.Conn) { f.s.serve(conn) }

// MarkFetched notes in a file of pages that it is complete: whoever has it open sees so, even
// if the checkpoint was removed.
func MarkFetched(pages *os.File) error { return pages.Chmod(0o400) }

// IsFetched reports whether the file of pages in a directory was marked.
func IsFetched(dir string) bool { return isMarked(os.Stat(filepath.Join(dir, PagesFile))) }

func isMarked(info os.FileInfo, err error) bool {
	return err == nil && info.Mode().Perm()&0o200 == 0
}

// End tells all cells that the file is complete, or, with an error, that the rest of it is
// lost. It is called at most once.
func (f *Fetching) End(err error) {
	f.s.err = err
	close(f.s.ended)
}

// Unfetched is what is still being fetched into a file of pages, which it closes. dial
// connects with a [Fetching.Answer]. Its result is nil if there is no rest, and an error if
// nobody fetches the rest now; then it is called again after a while, until the sandbox ends.
func Unfetched(pages *os.File, dial func(context.Context) (net.Conn, error)) Rest {
	ctx, cancel := context.WithCancel(context.Background())
	return &unfetched{pages: pages, dial: dial, ctx: ctx, cancel: cancel, pause: dialPause}
}

// dialPause is the interval at which a cell looks for an engine that has come back.
const dialPause = 100 * time.Millisecond

// unfetched requests parts of a file of pages from the engine that fetches it. It has as many
// connections as requests at the same time, so that no part waits for another one.
type unfetched struct {
	pages  *os.File
	dial   func(context.Context) (net.Conn, error)
	pause  time.Duration
	ctx    context.Context // ends with close
	cancel context.CancelFunc

	mu    sync.Mutex
	idle  []net.Conn // guarded by mu
	ended bool       // guarded by mu; no more requests are sent
	err   error      // guarded by mu; why the rest is lost
}

// fetch implements [Rest]. It never sends: the part is in the file, or its error is
// [ErrUnfetched].
func (u *unfetched) fetch(buf []byte, off int64) (sent bool, err error) {
	for {
		conn, err := u.take()
		if conn == nil {
			return false, err
		}
		stop := context.AfterFunc(u.ctx, func() { _ = conn.Close() })
		answer, err := request(conn, buf, off)
		stop()
		switch {
		case err == nil && answer == partWritten:
			u.put(conn)
			return false, nil
		case err == nil && answer == allWritten:
			return false, u.end(conn, nil)
		case err == nil && answer == allLost:
			return false, u.end(conn, ErrUnfetched)
		}
		_ = conn.Close() // the engine has ended
		if !u.rest() {
			return false, net.ErrClosed
		}
	}
}

// take returns a connection, or nil when no more requests are sent.
func (u *unfetched) take() (net.Conn, error) {
	for {
		u.mu.Lock()
		if u.ended || u.ctx.Err() != nil {
			defer u.mu.Unlock()
			return nil, u.err
		}
		if n := len(u.idle); n > 0 {
			defer u.mu.Unlock()
			conn := u.idle[n-1]
			u.idle = u.idle[:n-1]
			return conn, nil
		}
		u.mu.Unlock()
		conn, err := u.dial(u.ctx)
		switch {
		case err == nil && conn == nil && isMarked(u.pages.Stat()):
			return nil, u.end(nil, nil)
		case err == nil && conn == nil:
			return nil, u.end(nil, ErrUnfetched) // it was removed
		case err == nil:
			return conn, nil
		case !u.rest():
			return nil, net.ErrClosed
		}
	}
}

// rest waits before the next try. It returns false if there is none.
func (u *unfetched) rest() bool {
	t := time.NewTimer(u.pause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-u.ctx.Done():
		return false
	}
}

func (u *unfetched) put(conn net.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended || u.ctx.Err() != nil {
		_ = conn.Close()
		return
	}
	u.idle = append(u.idle, conn)
}

// end ends the requests, and returns why the rest is lost, or nil.
func (u *unfetched) end(conn net.Conn, err error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	if !u.ended {
		u.ended, u.err = true, err
	}
	for _, c := range u.idle {
		_ = c.Close()
	}
	u.idle = nil
	return u.err
}

func (u *unfetched) close() {
	_ = u.end(nil, net.ErrClosed) // what is requested from now on is not taken for fetched
	u.cancel()
	_ = u.pages.Close()
}
