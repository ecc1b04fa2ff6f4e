package runsc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// errGone is why nobody fetches any more, to those who wait for a part.
var errGone = errors.New("nobody fetches it")

// fetcher is an engine that fetches a file of pages of 8 pages.
type fetcher struct {
	t *testing.T
	*Fetching
	served sync.WaitGroup
	// asked receives the offset of each request.
	asked chan int64

	// arrived are closed when a page is there, by its offset.
	arrived map[int64]chan struct{}
	ended   chan struct{}

	mu    sync.Mutex
	conns []net.Conn // its ends of the connections; guarded by mu
}

const fetchedSize = 8 * pageSize

func newFetcher(t *testing.T) *fetcher {
	f := &fetcher{t: t, asked: make(chan int64, 64), arrived: map[int64]chan struct{}{}, ended: make(chan struct{})}
	for i := range int64(8) {
		f.arrived[i*pageSize] = make(chan struct{})
	}
	f.Fetching = NewFetching(fetchedSize, f.await)
	return f
}

func (f *fetcher) await(off, _ int64) error {
	f.asked <- off
	select {
	case <-f.arrived[off]:
		return nil
	case <-f.ended:
		return errGone
	}
}

// arrives says that a page is there.
func (f *fetcher) arrives(page int64) { close(f.arrived[page*pageSize]) }

// end ends the fetch as an engine does.
func (f *fetcher) end(err error) {
	f.End(err)
	close(f.ended)
}

// connect returns the other end of a connection that f answers.
func (f *fetcher) connect() net.Conn {
	ends := sockets(f.t)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns = append(f.conns, ends[0])
	f.served.Go(func() {
		defer ends[0].Close()
		f.Answer(ends[0])
	})
	return ends[1]
}

// leaves ends without an answer, like an engine that is killed.
func (f *fetcher) leaves() {
	f.mu.Lock()
	for _, conn := range f.conns {
		// The other end gets nothing that is still to be sent.
		conn.(interface{ CloseWrite() error }).CloseWrite()
		conn.Close()
	}
	f.mu.Unlock()
	close(f.ended)
	f.served.Wait()
}

// dialed returns a rest that connects with f, and how often it did.
func (f *fetcher) dialed() (*unfetched, *atomic.Int64) {
	dials := new(atomic.Int64)
	return newUnfetched(f.t, func(context.Context) (net.Conn, error) {
		dials.Add(1)
		return f.connect(), nil
	}), dials
}

// newUnfetched returns a rest that looks for the engine often.
func newUnfetched(t *testing.T, dial func(context.Context) (net.Conn, error)) *unfetched {
	t.Helper()
	pages, err := os.Create(filepath.Join(t.TempDir(), PagesFile))
	if err != nil {
		t.Fatal(err)
	}
	u := Unfetched(pages, dial).(*unfetched)
	u.pause = time.Millisecond
	t.Cleanup(u.close)
	return u
}

// gets requests a page.
func (u *unfetched) gets(page int64) error {
	sent, err := u.fetch(make([]byte, pageSize), page*pageSize)
	if sent {
		return errors.New("it was sent")
	}
	return err
}

// going requests a page in the background.
func (u *unfetched) going(page int64) <-chan error {
	got := make(chan error, 1)
	go func() { got <- u.gets(page) }()
	return got
}

// TestFetchedIsAnswered checks that a request is answered when its part is there, not before,
// and that no request waits for another one, of the same cell or another.
func TestFetchedIsAnswered(t *testing.T) {
	f := newFetcher(t)
	one, dials := f.dialed()
	two, _ := f.dialed()
	got := map[int64]<-chan error{0: one.going(0), 1: one.going(1), 2: two.going(2)}
	var asked []int64
	for range got {
		asked = append(asked, <-f.asked)
	}
	if slices.Sort(asked); !slices.Equal(asked, []int64{0, pageSize, 2 * pageSize}) {
		t.Errorf("requested are %v", asked)
	}
	for _, page := range []int64{2, 1, 0} {
		f.arrives(page)
		if err := <-got[page]; err != nil {
			t.Errorf("page %d: %v", page, err)
		}
		for other, answer := range got {
			if other >= page {
				continue
			}
			select {
			case err := <-answer:
				t.Errorf("page %d is not there, and is answered: %v", other, err)
			default:
			}
		}
	}
	// The connections are used again.
	f.arrives(3)
	f.arrives(4)
	if err := errors.Join(one.gets(3), one.gets(4)); err != nil || dials.Load() != 2 {
		t.Errorf("after %d connections: %v", dials.Load(), err)
	}
	f.end(nil)
	f.served.Wait()
}

// TestFetchingEnds checks that all requests succeed when all is fetched, and fail when the
// rest is lost: those that wait, those of idle connections, and those of new ones.
func TestFetchingEnds(t *testing.T) {
	for name, tt := range map[string]struct{ end, want error }{
		"fetched": {nil, nil},
		"lost":    {errors.New("a chunk is missing"), ErrUnfetched},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFetcher(t)
			waits, _ := f.dialed()
			idle, dials := f.dialed()
			late, _ := f.dialed()
			f.arrives(1)
			if err := idle.gets(1); err != nil {
				t.Fatal(err)
			}
			<-f.asked
			waiting := waits.going(0)
			<-f.asked
			f.end(tt.end)
			if err := <-waiting; !errors.Is(err, tt.want) {
				t.Errorf("who waits gets %v", err)
			}
			for range 2 {
				for who, u := range map[string]*unfetched{"waited": waits, "idled": idle, "came late": late} {
					if err := u.gets(2); !errors.Is(err, tt.want) {
						t.Errorf("who %s gets %v", who, err)
					}
				}
			}
			if n := dials.Load(); n != 1 {
				t.Errorf("connected %d times", n)
			}
			f.served.Wait()
		})
	}
}

// TestEngineComesBack checks that a request goes on when the engine has ended and another one
// fetches the rest, also if its connection was idle.
func TestEngineComesBack(t *testing.T) {
	first, next := newFetcher(t), newFetcher(t)
	var now atomic.Pointer[fetcher]
	now.Store(first)
	refused := make(chan struct{}, 64)
	u := newUnfetched(t, func(context.Context) (net.Conn, error) {
		if f := now.Load(); f != nil {
			return f.connect(), nil
		}
		select {
		case refused <- struct{}{}:
		default:
		}
		return nil, syscall.ECONNREFUSED
	})
	first.arrives(0)
	waiting := u.going(1)
	<-first.asked
	if err := u.gets(0); err != nil {
		t.Fatal(err)
	}
	now.Store(nil)
	first.leaves()
	<-refused
	<-refused
	select {
	case err := <-waiting:
		t.Errorf("nobody fetches the page, and the request ended: %v", err)
	default:
	}
	now.Store(next)
	if off := <-next.asked; off != pageSize {
		t.Errorf("the page at %d is requested again", off)
	}
	next.arrives(1)
	next.arrives(2)
	if err := errors.Join(<-waiting, u.gets(2), u.gets(1)); err != nil {
		t.Error(err)
	}
	next.end(nil)
	next.served.Wait()
}

// TestClosedRest checks that requests end when the sandbox does, whether the engine is there or
// not.
func TestClosedRest(t *testing.T) {
	f := newFetcher(t)
	u, _ := f.dialed()
	waiting := u.going(0)
	<-f.asked
	u.close()
	if err := <-waiting; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a request that waits for its part: %v", err)
	}
	if err := u.gets(1); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a request after that: %v", err)
	}
	f.end(nil)
	f.served.Wait()

	dials := make(chan struct{}, 64)
	u = newUnfetched(t, func(context.Context) (net.Conn, error) {
		select {
		case dials <- struct{}{}:
		default:
		}
		return nil, syscall.ECONNREFUSED
	})
	waiting = u.going(0)
	<-dials
	u.close()
	if err := <-waiting; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a request that waits for an engine: %v", err)
	}

	dialing := make(chan struct{})
	u = newUnfetched(t, func(ctx context.Context) (net.Conn, error) {
		close(dialing)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	waiting = u.going(0)
	<-dialing
	u.close()
	if err := <-waiting; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a request that connects: %v", err)
	}
}

// TestNoFetcher checks that a file of pages that nobody fetches is whole if it is marked, also
// when it was removed, and is lost otherwise.
func TestNoFetcher(t *testing.T) {
	for name, want := range map[string]error{"marked": nil, "not marked": ErrUnfetched} {
		marked := want == nil
		dir, dials := t.TempDir(), 0
		pages, err := os.Create(filepath.Join(dir, PagesFile))
		if err != nil {
			t.Fatal(err)
		}
		if IsFetched(dir) {
			t.Errorf("%s: a new file is marked", name)
		}
		if marked {
			err = MarkFetched(pages)
		}
		if err != nil || IsFetched(dir) != marked {
			t.Errorf("%s: it is marked: %v, %v", name, IsFetched(dir), err)
		}
		if err := os.Remove(pages.Name()); err != nil || IsFetched(dir) {
			t.Errorf("%s: a file that is gone is marked: %v, %v", name, IsFetched(dir), err)
		}
		u := Unfetched(pages, func(context.Context) (net.Conn, error) { dials++; return nil, nil }).(*unfetched)
		for range 2 {
			if err := u.gets(0); !errors.Is(err, want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if dials != 1 {
			t.Errorf("%s: connected %d times", name, dials)
		}
		if u.close(); pages.Fd() != ^uintptr(0) {
			t.Errorf("%s: the file stays open", name)
		}
	}
}

// TestAwaitFetched checks what those learn who wait for all of a file that is fetched.
func TestAwaitFetched(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(f *fetcher)
		want error
	}{
		"fetched":       {func(f *fetcher) { f.end(nil) }, nil},
		"lost":          {func(f *fetcher) { f.end(errGone) }, ErrUnfetched},
		"no engine":     {func(f *fetcher) { f.leaves() }, ErrUnwritten},
		"ended already": {nil, nil},
	} {
		f := newFetcher(t)
		got := make(chan error, 1)
		if tt.end == nil {
			f.end(nil)
		}
		conn := f.connect()
		go func() { got <- AwaitWritten(t.Context(), conn) }()
		f.arrives(0)
		u, _ := f.dialed()
		if err := u.gets(0); err != nil {
			t.Errorf("%s: a request beside it: %v", name, err)
		}
		if tt.end != nil {
			select {
			case err := <-got:
				t.Errorf("%s: it does not wait: %v", name, err)
			default:
			}
			tt.end(f)
		}
		if err := <-got; !errors.Is(err, tt.want) {
			t.Errorf("%s: learned %v", name, err)
		}
		u.close()
		f.served.Wait()
	}
}

// Attack: requests beyond the file, or longer than a read, end their connection only. One that
// ends behind the file awaits what the file has.
func TestHostileFetchers(t *testing.T) {
	type part struct{ off, n int64 }
	parts, arrives := make(chan part, 64), make(chan struct{})
	f := NewFetching(fetchedSize, func(off, n int64) error {
		parts <- part{off, n}
		if off == 0 {
			<-arrives
		}
		return nil
	})
	var served sync.WaitGroup
	connect := func() net.Conn {
		ends := sockets(t)
		served.Go(func() {
			defer ends[0].Close()
			f.Answer(ends[0])
		})
		return ends[1]
	}
	send := func(conn net.Conn, off, n uint64) error {
		_, err := conn.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, off), n))
		return err
	}
	u := newUnfetched(t, func(context.Context) (net.Conn, error) { return connect(), nil })
	waiting := u.going(0)
	<-parts
	for name, ask := range map[string][2]uint64{
		"beyond the file": {fetchedSize + 1, 1},
		"negative":        {1 << 63, 1},
		"too much":        {pageSize, maxAsk + 1},
		"overflowing":     {pageSize, 1<<64 - 1},
	} {
		conn := connect()
		if err := send(conn, ask[0], ask[1]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%s: answered %d, %v", name, n, err)
		}
	}
	if n := len(parts); n != 0 {
		t.Errorf("%d of these requests are awaited", n)
	}
	for _, tt := range []struct {
		off, n uint64
		want   part
	}{
		{fetchedSize - 1, pageSize, part{fetchedSize - 1, 1}},
		{fetchedSize, 1, part{fetchedSize, 0}},
		{pageSize, maxAsk, part{pageSize, fetchedSize - pageSize}},
	} {
		conn, answer := connect(), make([]byte, 1)
		serr := send(conn, tt.off, tt.n)
		_, rerr := conn.Read(answer)
		if err := errors.Join(serr, rerr); err != nil || answer[0] != partWritten {
			t.Errorf("%d bytes from %d: answered %v, %v", tt.n, tt.off, answer, err)
		}
		if got := <-parts; got != tt.want {
			t.Errorf("%d bytes from %d: %+v is awaited, want %+v", tt.n, tt.off, got, tt.want)
		}
		conn.Close()
	}
	select {
	case err := <-waiting:
		t.Errorf("another request ended: %v", err)
	default:
	}
	close(arrives)
	if err := <-waiting; err != nil {
		t.Errorf("another request: %v", err)
	}
	f.End(nil)
	served.Wait()
}
