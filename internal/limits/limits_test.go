package limits

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// enough is how long a test waits for something that must happen.
const enough = time.Minute

// quick is a rate that is soon missed.
var quick = MinBodyRate{Bytes: 1000, Per: 50 * time.Millisecond}

// reading serves a handler that reads bodies, and sends its results.
func reading(t *testing.T, p MinBodyRate, free func(*http.Request) bool) (*httptest.Server, chan error) {
	t.Helper()
	ended := make(chan error, 16)
	srv := httptest.NewServer(p.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/leave" {
			_, _ = io.WriteString(w, "left")
			return
		}
		_, err := io.Copy(io.Discard, r.Body)
		ended <- err
		if IsStalled(err) {
			w.WriteHeader(http.StatusRequestTimeout)
			return
		}
		<-r.Context().Done()
	}), free))
	t.Cleanup(srv.Close)
	return srv, ended
}

// dial opens a connection that is closed at the end of the test.
func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial(l.Addr().Network(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(enough))
	return c
}

func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(enough):
		t.Fatalf("%s: not within %s", what, enough)
		panic("unreachable")
	}
}

// Attack: a body that arrives one byte at a time, with a Content-Length, and in chunks.
func TestSlowBodiesEnd(t *testing.T) {
	for name, c := range map[string]struct{ head, more string }{
		"nothing": {"Content-Length: 1000000\r\n\r\n", ""},
		"bytes":   {"Content-Length: 1000000\r\n\r\n", "x"},
		"chunks":  {"Transfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"},
		"waiting": {"Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			srv, ended := reading(t, quick, nil)
			conn := dial(t, srv.Listener)
			if _, err := io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: x\r\n"+c.head); err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			defer close(stop)
			go func() {
				for c.more != "" {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
					}
					if _, err := io.WriteString(conn, c.more); err != nil {
						return
					}
				}
			}()
			if err := await(t, ended, "the body's end"); !IsStalled(err) || sandbox.CodeOf(err) != sandbox.CodeTimeout || sandbox.MessageOf(err) != StalledMessage {
				t.Errorf("the body ended with %v", err)
			}
			answer, err := io.ReadAll(conn)
			if errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(string(answer), "HTTP/1.1 408") || !strings.Contains(string(answer), "Connection: close") {
				t.Errorf("answered %q, %v; want 408 and the connection's end", answer, err)
			}
		})
	}
}

// TestSlowBodiesEndOverHTTP2 does the same over HTTP/2, where a connection has many
// requests: only the one that stalls ends.
func TestSlowBodiesEndOverHTTP2(t *testing.T) {
	ended := make(chan error, 1)
	srv := httptest.NewUnstartedServer(quick.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Longer than the body may take: nothing waits for it now.
		time.Sleep(2 * quick.Per)
		_, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			ended <- err
			w.WriteHeader(http.StatusRequestTimeout)
		}
		_, _ = io.WriteString(w, r.Proto)
	}), nil))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	body, stalls := io.Pipe()
	defer stalls.Close()
	res, err := srv.Client().Post(srv.URL, "text/plain", body)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if err := await(t, ended, "the body's end"); !IsStalled(err) || res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("%s, the body ended with %v", res.Status, err)
	}
	if res, err = srv.Client().Post(srv.URL, "text/plain", strings.NewReader("whole")); err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if data, err := io.ReadAll(res.Body); err != nil || string(data) != "HTTP/2.0" {
		t.Errorf("another request: %q, %v", data, err)
	}
}

// TestUnreadBodiesEnd checks that a body that the handler does not read does not hold its
// connection either: the HTTP server reads the rest of it before it answers.
func TestUnreadBodiesEnd(t *testing.T) {
	srv, _ := reading(t, quick, nil)
	conn := dial(t, srv.Listener)
	if _, err := io.WriteString(conn, "PUT /leave HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) || !strings.HasSuffix(string(answer), "left") {
		t.Errorf("answered %q, %v", answer, err)
	}
}

// scripted is a body whose reads return the given numbers of bytes after the given
// delays.
type scripted struct {
	steps    []step
	deadline time.Time
}

type step struct {
	n    int
	wait time.Duration
}

func (s *scripted) Read([]byte) (int, error) {
	if len(s.steps) == 0 {
		return 0, io.EOF
	}
	next := s.steps[0]
	s.steps = s.steps[1:]
	if !s.deadline.IsZero() && time.Until(s.deadline) < next.wait {
		time.Sleep(time.Until(s.deadline))
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(next.wait)
	return next.n, nil
}

func (s *scripted) Close() error                      { return nil }
func (s *scripted) Header() http.Header               { return http.Header{} }
func (s *scripted) Write(p []byte) (int, error)       { return len(p), nil }
func (s *scripted) WriteHeader(int)                   {}
func (s *scripted) SetReadDeadline(t time.Time) error { s.deadline = t; return nil }

// TestPace checks that a large body that keeps moving continues, however long it takes,
// and that time in which it is not read is not held against the client.
func TestPace(t *testing.T) {
	repeat := func(n int, s step) (all []step) {
		for range n {
			all = append(all, s)
		}
		return all
	}
	p := MinBodyRate{Bytes: 1000, Per: time.Minute}
	for name, c := range map[string]struct {
		steps   []step
		busy    time.Duration // of the reader, after each read
		stalled bool
	}{
		"a day at the pace":     {steps: repeat(24*60*2, step{500, 29 * time.Second})},
		"a day below it":        {steps: repeat(24*60, step{400, 29 * time.Second}), stalled: true},
		"a byte a minute":       {steps: repeat(100, step{1, time.Minute - time.Second}), stalled: true},
		"small":                 {steps: repeat(50, step{1, time.Second})},
		"a slow reader":         {steps: repeat(100, step{10, 0}), busy: time.Hour},
		"fast, and then stands": {steps: append(repeat(100, step{1 << 20, 0}), step{1, time.Hour}), stalled: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{steps: c.steps}
				var err error
				p.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					for err == nil {
						_, err = r.Body.Read(make([]byte, 1<<20))
						time.Sleep(c.busy)
					}
				}), nil).ServeHTTP(s, &http.Request{ProtoMajor: 1, Body: s})
				if IsStalled(err) != c.stalled || !c.stalled && err != io.EOF {
					t.Errorf("ended with %v", err)
				}
				if !c.stalled && !s.deadline.IsZero() {
					t.Error("a deadline is left, which will end the request")
				}
			})
		})
	}
}

// TestExemptRequests checks that exempt requests may stall, and that a request whose body
// has arrived may take long.
func TestExemptRequests(t *testing.T) {
	srv, ended := reading(t, quick, func(r *http.Request) bool { return r.Header.Get("Free") != "" })
	for _, head := range []string{"Free: 1\r\nContent-Length: 2\r\n\r\n", "Content-Length: 2\r\n\r\nxx"} {
		conn := dial(t, srv.Listener)
		if _, err := io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: x\r\n"+head); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(head, "Free") {
			time.Sleep(3 * quick.Per)
			_, _ = io.WriteString(conn, "xx")
		}
		if err := await(t, ended, "the body's end"); err != nil {
			t.Errorf("%q: the body ended with %v", head, err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(3 * quick.Per))
		if data, err := io.ReadAll(conn); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: the request did not last: %q, %v", head, data, err)
		}
	}
}

func TestDrain(t *testing.T) {
	for _, p := range []MinBodyRate{quick, {Bytes: 1, Per: time.Hour}} {
		srv := httptest.NewServer(p.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "close")
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.WriteHeader(http.StatusTeapot)
			_ = http.NewResponseController(w).Flush()
			_ = Drain(w, r, 50*time.Millisecond)
		}), nil))
		conn := dial(t, srv.Listener)
		if _, err := io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		if errors.Is(err, os.ErrDeadlineExceeded) || !strings.HasPrefix(string(answer), "HTTP/1.1 418") {
			t.Errorf("answered %q, %v", answer, err)
		}
		srv.Close()
	}
}

func request(t *testing.T, length int64, body io.Reader) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", body)
	r.ContentLength = length
	return r
}

func TestMemory(t *testing.T) {
	const kib = 1 << 10
	synctest.Test(t, func(t *testing.T) {
		m := NewMemoryBudget(MemoryBudgetConfig{Total: 300 * kib, PerCaller: 200 * kib, MaxBody: 100 * kib, Wait: time.Minute, ReadTimeout: time.Hour})
		hold := func(who string, length int64) (func(), *http.Request, error) {
			r := request(t, length, strings.NewReader(strings.Repeat("x", 100*kib)))
			release, err := m.Hold(r, who)
			return release, r, err
		}
		a, _, err := hold("a", 100*kib)
		b, unknown, err2 := hold("a", -1)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		// The caller's share is used up, and it waits; others have room until there is none.
		if _, _, err := hold("a", 50*kib); !errors.Is(err, ErrBusy) {
			t.Errorf("over its share: %v", err)
		}
		if release, _, err := hold("a", SmallBody); err != nil {
			t.Errorf("a small one: %v", err)
		} else {
			release()
		}
		c, _, err := hold("b", 100*kib)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := hold("c", 50*kib); !errors.Is(err, ErrBusy) {
			t.Errorf("over all: %v", err)
		}
		// A waiting request gets memory that becomes free.
		go func() {
			time.Sleep(time.Second)
			a()
		}()
		d, _, err := hold("c", 100*kib)
		if err != nil {
			t.Fatal(err)
		}
		// A body that turns out smaller returns the rest once it has been read.
		unknown.Body.(*held).ReadCloser = io.NopCloser(strings.NewReader("small"))
		if _, err := io.ReadAll(unknown.Body); err != nil {
			t.Fatal(err)
		}
		e, _, err := hold("d", 100*kib)
		if err != nil {
			t.Fatal(err)
		}
		for _, release := range []func(){a, b, c, d, e, e, a} {
			release()
		}
		if m.used != 0 || len(m.usedBy) != 0 {
			t.Errorf("in the end %d are used, by %v", m.used, m.usedBy)
		}
		// A request that has ended does not wait.
		f, _, _ := hold("a", 100*kib)
		g, _, _ := hold("a", 100*kib)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r := request(t, 100*kib, http.NoBody).WithContext(ctx)
		r.Body = io.NopCloser(strings.NewReader("x"))
		if _, err := m.Hold(r, "a"); !errors.Is(err, context.Canceled) {
			t.Errorf("a request that is over: %v", err)
		}
		f()
		g()
	})
}

// Attack: memory stays reserved for a body that arrives just fast enough.
func TestMemoryIsNotHeldForLong(t *testing.T) {
	m := NewMemoryBudget(MemoryBudgetConfig{Total: 1 << 20, PerCaller: 1 << 20, MaxBody: 1 << 20, Wait: enough, ReadTimeout: 100 * time.Millisecond})
	first := make(chan error, 2)
	srv := httptest.NewServer(MinBodyRate{Bytes: 1, Per: enough}.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		release, err := m.Hold(r, "a")
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
			release()
		}
		first <- err
	}), nil))
	defer srv.Close()
	conn := dial(t, srv.Listener)
	if _, err := io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := await(t, first, "the body's end"); !IsStalled(err) {
		t.Errorf("the body ended with %v", err)
	}
}

func TestListen(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var refused atomic.Int32
	l := Listen(inner, ListenConfig{MaxConns: 1, WriteTimeout: 200 * time.Millisecond, Refused: func() {
		time.Sleep(20 * time.Millisecond) // the client learns of it even later
		refused.Add(1)
	}})
	defer l.Close()
	accepted := make(chan net.Conn, 8)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	one := dial(t, inner)
	server := await(t, accepted, "a connection")
	two := dial(t, inner)
	if n, err := two.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) || refused.Load() != 1 {
		t.Errorf("one too many: %d bytes, %v, refused %d", n, err, refused.Load())
	}
	// Attack: a client that never reads.
	_, err = server.Write(make([]byte, 64<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a client that never reads: %v", err)
	}
	// The server's own deadline applies if it is earlier.
	if err := server.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the server's deadline: %v", err)
	}
	_ = server.Close()
	_ = server.Close()
	_ = one.Close()
	// Its slot is free, for one connection.
	three := dial(t, inner)
	server = await(t, accepted, "a connection after another")
	_ = server.Close()
	_ = three.Close()
}

// closing is a connection that calls a function when it is closed.
type closing struct {
	net.Conn
	close func()
}

func (c *closing) Close() error {
	c.close()
	return c.Conn.Close()
}

// handed is a listener whose connections call a function when they are closed.
type handed struct {
	net.Listener
	close func()
}

func (h *handed) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	return &closing{c, h.close}, err
}

// TestSlotIsFreeAfterClose checks that a client that sees the end of its connection can
// reconnect at once.
func TestSlotIsFreeAfterClose(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &handed{Listener: inner}
	l := Listen(h, ListenConfig{MaxConns: 1, WriteTimeout: time.Minute, Refused: func() { t.Error("a connection is refused") }}).(*listener)
	defer l.Close()
	closed := false
	h.close = func() {
		if closed = true; len(l.slots) != 0 {
			t.Error("a connection ends while its place is taken")
		}
	}
	dial(t, inner)
	server, err := l.Accept()
	if err != nil || len(l.slots) != 1 {
		t.Fatalf("%d places are taken, %v", len(l.slots), err)
	}
	if err := server.Close(); err != nil || !closed {
		t.Errorf("closed %v, %v", closed, err)
	}
}

// TestReadersGetAll checks that a client that keeps reading gets everything, however
// small the pieces.
func TestReadersGetAll(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(inner, ListenConfig{MaxConns: 1, WriteTimeout: enough, Refused: func() {}})
	defer l.Close()
	client := dial(t, inner)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	const size = 1<<20 + 1
	go func() {
		_, _ = server.Write(make([]byte, size))
		_ = server.(interface{ CloseWrite() error }).CloseWrite()
	}()
	if n, err := io.Copy(io.Discard, bufio.NewReaderSize(client, 16)); n != size || err != nil {
		t.Errorf("got %d bytes, %v", n, err)
	}
	_ = server.Close()
}

// TestTLSEnds checks that the wait for the end of TLS is shorter than the wait for data.
func TestTLSEnds(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(inner, ListenConfig{MaxConns: 1, WriteTimeout: time.Hour, Refused: func() {}})
	defer l.Close()
	_ = dial(t, inner)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	secure := tls.Server(c, &tls.Config{MinVersion: tls.VersionTLS13})
	if err := secure.SetDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := secure.Write([]byte("x")); err == nil {
		t.Error("written after the deadline")
	}
	_ = secure.Close()
}

func TestLoginLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := NewLoginLimiter(LoginLimiterConfig{Burst: 3, Refill: time.Second})
		me, other, elsewhere := Source{"p", "me"}, Source{"p", "other"}, Source{"q", "me"}
		for range 3 {
			if w := tries.Wait(me); w != 0 {
				t.Errorf("waits %s", w)
			}
			tries.Failed(me)
		}
		tries.Failed(me)
		if w := tries.Wait(me); w != time.Second {
			t.Errorf("after three, waits %s", w)
		}
		if tries.Wait(other) != 0 || tries.Wait(elsewhere) != 0 {
			t.Error("others wait too")
		}
		time.Sleep(1100 * time.Millisecond)
		if w := tries.Wait(me); w != 0 {
			t.Errorf("a second later waits %s", w)
		}
		tries.Failed(me)
		if w := tries.Wait(me); w != 900*time.Millisecond {
			t.Errorf("after one more, waits %s", w)
		}
		time.Sleep(time.Minute)
		for i := range 3 * maxSources {
			tries.Failed(Source{"p", string(rune(i))})
		}
		if len(tries.failed) > maxSources {
			t.Errorf("%d are remembered", len(tries.failed))
		}
	})
}

func TestAddress(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.7:1234": "192.0.2.7", "[::ffff:192.0.2.7]:1": "192.0.2.7", "[2001:db8:1:2:3:4:5:6]:1": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1": "fe80::/64", "@": "@", "": "",
	} {
		if got := Address(in); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}
