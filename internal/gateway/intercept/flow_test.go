package intercept

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"hash"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/testing/needs"
)

func TestWebSocket(t *testing.T) {
	w := newHarness(t)
	keys := make(chan string, 1)
	w.host(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		keys <- r.Header.Get("Authorization")
		c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{Subprotocols: []string{"realtime"}, CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(8 << 20)
		_ = c.Write(r.Context(), websocket.MessageText, []byte("you sent "+r.Header.Get("Authorization")))
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if err := c.Write(r.Context(), kind, b); err != nil {
				return
			}
		}
	}), apiHost)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, res, err := websocket.Dial(ctx, "wss://"+apiHost+"/v1/realtime", &websocket.DialOptions{
		HTTPClient: w.client(1), HTTPHeader: http.Header{"Authorization": {"Bearer " + placeholder}},
		Subprotocols: []string{"realtime"}, CompressionMode: websocket.CompressionContextTakeover,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(8 << 20)
	if got := <-keys; got != "Bearer "+value {
		t.Errorf("the host got %q", got)
	}
	if res.StatusCode != 101 || c.Subprotocol() != "realtime" {
		t.Errorf("%d, %q", res.StatusCode, c.Subprotocol())
	}
	// The upgrade is recorded when it starts.
	if e := w.requests(1)[0]; e.Status != 101 {
		t.Errorf("event %+v", e)
	}
	_, first, err := c.Read(ctx)
	if err != nil || string(first) != "you sent Bearer "+masked(value) {
		t.Fatalf("%q, %v", first, err)
	}
	for _, n := range []int{0, 1, 125, 126, 65535, 65536, 5 << 20} {
		msg := []byte(strings.Repeat("m", n))
		if err := c.Write(ctx, websocket.MessageBinary, msg); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || string(got) != string(msg) {
			t.Fatalf("%d bytes: %d came back, %v", n, len(got), err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
}

// TestBothDirectionsAtOnce sends in both directions at once over HTTP/2, as gRPC does, with
// trailers in both.
func TestBothDirectionsAtOnce(t *testing.T) {
	w := newHarness(t)
	w.host(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/grpc")
		rw.Header().Set("Trailer", "Grpc-Status")
		rw.(http.Flusher).Flush()
		sc := bufio.NewScanner(r.Body)
		for sc.Scan() {
			fmt.Fprintf(rw, "echo %s\n", sc.Text())
			rw.(http.Flusher).Flush()
		}
		rw.Header().Set("Grpc-Status", r.Trailer.Get("X-Sum")+r.Header.Get("Te"))
	}), apiHost)
	pr, pw := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+apiHost+"/svc/Method", pr)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Te", "trailers")
	r.Header.Set("Authorization", "Bearer "+placeholder)
	r.Trailer = http.Header{"X-Sum": nil}
	res, err := w.client(2).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	br := bufio.NewReader(res.Body)
	for i := range 50 {
		if _, err := fmt.Fprintf(pw, "%d\n", i); err != nil {
			t.Fatal(err)
		}
		if line, err := br.ReadString('\n'); err != nil || line != fmt.Sprintf("echo %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
	}
	r.Trailer.Set("X-Sum", "42")
	pw.Close()
	if _, err := io.Copy(io.Discard, br); err != nil {
		t.Fatal(err)
	}
	if got := res.Trailer.Get("Grpc-Status"); got != "42trailers" {
		t.Errorf("trailer %q", got)
	}
}

func TestContinue(t *testing.T) {
	w := newHarness(t)
	w.host(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			rw.WriteHeader(http.StatusExpectationFailed)
			return
		}
		_, _ = io.Copy(rw, r.Body)
	}), apiHost)
	c := w.client(1)
	c.Transport.(*http.Transport).ExpectContinueTimeout = time.Minute
	for path, want := range map[string]string{"/yes": "hello", "/no": ""} {
		continued := false
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			continued = continued || code == 100
			return nil
		}})
		r, err := http.NewRequestWithContext(ctx, "POST", "https://"+apiHost+path, strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Expect", "100-continue")
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if string(b) != want || path == "/yes" && res.StatusCode != 200 || path == "/no" && res.StatusCode != 417 {
			t.Errorf("%s: %d %q (continued %v)", path, res.StatusCode, b, continued)
		}
	}
}

// TestOtherProtocolsInTLS checks that protocols other than HTTP pass through TLS
// unchanged, whoever speaks first.
func TestOtherProtocolsInTLS(t *testing.T) {
	w := newHarness(t)
	serve := func(name string, alpn []string, talk func(net.Conn)) {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{w.certificate(name)}, NextProtos: alpn})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		t.Cleanup(func() { l.Close(); wg.Wait() })
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				wg.Go(func() { defer c.Close(); talk(c) })
			}
		})
		w.at(l.Addr().String(), name)
	}
	echo := func(c net.Conn) { _, _ = io.Copy(c, c) }
	serve("redis.example", nil, echo)
	serve("imap.example", nil, func(c net.Conn) { fmt.Fprint(c, "* OK ready\r\n"); echo(c) })
	serve("mqtt.example", []string{"mqtt"}, echo)

	open := func(name string, cfg *tls.Config) *tls.Conn {
		t.Helper()
		cfg.ServerName = name
		c := tls.Client(w.connect(name, true), cfg)
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if err := c.HandshakeContext(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return c
	}
	say := func(c net.Conn, text, want string) {
		t.Helper()
		if text != "" {
			fmt.Fprint(c, text)
		}
		buf := make([]byte, len(want))
		if _, err := io.ReadFull(c, buf); err != nil || string(buf) != want {
			t.Fatalf("%q: got %q, %v", text, buf, err)
		}
	}
	c := open("redis.example", &tls.Config{RootCAs: w.roots()})
	say(c, "*1\r\n$4\r\nPING\r\n"+placeholder, "*1\r\n$4\r\nPING\r\n"+placeholder)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}

	c = open("imap.example", &tls.Config{RootCAs: w.roots()})
	say(c, "", "* OK ready\r\n")
	say(c, "a1 LOGIN me\r\n", "a1 LOGIN me\r\n")
	c.Close()

	// A client that offers another protocol only sees the host's own certificate.
	pool := w.roots()
	pool.AppendCertsFromPEM(w.web.CertificatePEM())
	c = open("mqtt.example", &tls.Config{RootCAs: pool, NextProtos: []string{"mqtt"}})
	if s := c.ConnectionState(); s.NegotiatedProtocol != "mqtt" || s.PeerCertificates[0].Issuer.String() != w.web.cert.Subject.String() {
		t.Errorf("%q by %s", s.NegotiatedProtocol, s.PeerCertificates[0].Issuer)
	}
	say(c, "\x10\x20", "\x10\x20")
	c.Close()

	// HTTP from a client that did not negotiate it: at once, late, and in pieces.
	var g got
	w.host(&g, apiHost)
	for _, wait := range []time.Duration{0, quiet + quiet/2} {
		c = open(apiHost, &tls.Config{RootCAs: w.roots()})
		time.Sleep(wait)
		for _, piece := range []string{"GE", "T ", "/x", " HTTP/1.1\r\nHost: " + apiHost + "\r\nX-Api-Key: " + placeholder + "\r\nConnection: close\r\n\r\n"} {
			fmt.Fprint(c, piece)
		}
		if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != 200 {
			t.Fatalf("after %v: %v, %v", wait, res, err)
		}
		if r, _, _ := g.request(); r.Header.Get("X-Api-Key") != value {
			t.Errorf("after %v: %q", wait, r.Header)
		}
	}
}

func TestLooksLikeHTTP(t *testing.T) {
	for text, want := range map[string][2]bool{
		"":                          {false, false},
		"GET":                       {false, false},
		"GET ":                      {false, false},
		"GET /":                     {true, true},
		"OPTIONS *":                 {true, true},
		"PRI * HTTP/2.0":            {true, true},
		"GET htt":                   {false, false},
		"GET https:/":               {false, false},
		"GET https://":              {true, true},
		"EHLO http.example\r\n":     {false, true},
		"EHLO mail.example\r\n":     {false, true},
		"a1 LOGIN":                  {false, false},
		"a1 LOGIN x\r\n":            {false, true},
		"GET x HTTP/1.0\r\n":        {true, true},
		"connect x:1":               {true, true},
		"*1\r\n":                    {false, true},
		"\x00":                      {false, true},
		"\x16\x03\x01":              {false, true},
		"\n":                        {true, true},
		strings.Repeat("A", 65):     {false, true},
		"SSH-2.0-OpenSSH_9.2p1\r\n": {false, true},
	} {
		if is, decided := looksLikeHTTP([]byte(text)); is != want[0] || decided != want[1] {
			t.Errorf("%q: %v, %v, want %v", text, is, decided, want)
		}
	}
}

// TLS to an address, without a name.
func TestToAddress(t *testing.T) {
	w := newHarness(t)
	var g got
	w.hostTLS(&g, &tls.Config{Certificates: []tls.Certificate{w.certificate("203.0.113.9")}}, "")
	b := secret()
	b.Hosts = []string{"203.0.113.9"}
	w.set(b, value)
	res, body := do(t, w.client(1), "GET", "https://203.0.113.9/", "", "X-Api-Key: "+placeholder)
	if r, _, _ := g.request(); res.StatusCode != 200 || r.Header.Get("X-Api-Key") != value {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

func TestUnreachableAndRefused(t *testing.T) {
	w := newHarness(t)
	w.at("down", apiHost)
	for host, want := range map[string]string{apiHost: "502 upstream_unreachable", "nowhere.example": "403 host_denied"} {
		res, body := do(t, w.client(2), "GET", "https://"+host+"/", "", "X-Api-Key: "+placeholder)
		if got := itoa(res.StatusCode) + " " + res.Header.Get(HeaderReason); got != want || !strings.Contains(body, host) {
			t.Errorf("%s: %s %s", host, got, body)
		}
	}
}

// TestHostEndsConnection checks that a host that closes its connection between two
// requests ends the sandbox's connection too, so that the client opens another one.
func TestHostEndsConnection(t *testing.T) {
	w := newHarness(t)
	var g got
	srv := w.hostTLS(&g, &tls.Config{Certificates: []tls.Certificate{w.certificate(apiHost)}}, apiHost)
	conn := tls.Client(w.connect(apiHost, true), &tls.Config{RootCAs: w.roots(), ServerName: apiHost, NextProtos: []string{"http/1.1"}})
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	br := bufio.NewReader(conn)
	for range 3 {
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", apiHost)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
	}
	srv.CloseClientConnections()
	if _, err := br.ReadByte(); err != io.EOF && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("got %v, want the end", err)
	}
	// The gateway also passes on "Connection: close", after the whole body.
	w.hostTLS(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Connection", "close")
		_, _ = io.WriteString(rw, strings.Repeat("x", 1<<20))
	}), &tls.Config{Certificates: []tls.Certificate{w.certificate(apiHost)}}, apiHost)
	res, body := do(t, w.client(1), "GET", "https://"+apiHost+"/", "")
	if !res.Close || len(body) != 1<<20 {
		t.Errorf("close %v, %d bytes", res.Close, len(body))
	}
}

func TestManyRequestsAtOnce(t *testing.T) {
	w := newHarness(t)
	w.host(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Api-Key") != value {
			rw.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = io.WriteString(rw, r.URL.Path)
	}), apiHost)
	stop := make(chan struct{})
	var rotator, wg sync.WaitGroup
	rotator.Go(func() { // sets the same value repeatedly
		for {
			select {
			case <-stop:
				return
			default:
				w.set(secret(), value)
			}
		}
	})
	for _, version := range []int{1, 2} {
		c := w.client(version)
		for i := range 8 {
			wg.Go(func() {
				for j := range 20 {
					path := fmt.Sprintf("/%d/%d", i, j)
					r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+apiHost+path, nil)
					if err != nil {
						t.Error(err)
						return
					}
					r.Header.Set("X-Api-Key", placeholder)
					res, err := c.Do(r)
					if err != nil {
						t.Errorf("HTTP/%d: %v", version, err)
						return
					}
					b, err := io.ReadAll(res.Body)
					res.Body.Close()
					if err != nil || res.StatusCode != 200 || string(b) != path {
						t.Errorf("HTTP/%d %s: %d %q %v", version, path, res.StatusCode, b, err)
					}
				}
			})
		}
	}
	wg.Wait()
	close(stop)
	rotator.Wait()
}

// patterned reads n bytes and sums them up.
type patterned struct {
	left int64
	sum  hash.Hash
}

func (p *patterned) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	n := int(min(p.left, int64(len(b))))
	for i := range b[:n] {
		b[i] = byte(p.left + int64(i))
	}
	p.left -= int64(n)
	p.sum.Write(b[:n])
	return n, nil
}

// TestLargeBodies sends large bodies in each direction, in both versions of HTTP, while
// memory does not grow with them. test/network moves a gigabyte through real sandboxes.
func TestLargeBodies(t *testing.T) {
	size, most := int64(20<<20), uint64(16<<20)
	if needs.Soak() {
		size, most = 256<<20, 128<<20
	}
	w := newHarness(t)
	w.host(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == "PUT" {
			sum := sha256.New()
			n, err := io.Copy(sum, r.Body)
			fmt.Fprintf(rw, "%d %x %v", n, sum.Sum(nil), err)
			return
		}
		p := &patterned{left: size, sum: sha256.New()}
		rw.Header().Set("Trailer", "X-Sum")
		_, _ = io.Copy(rw, p)
		rw.Header().Set("X-Sum", fmt.Sprintf("%x", p.sum.Sum(nil)))
	}), apiHost)
	peak := watchMemory(t)
	for _, version := range []int{1, 2} {
		c := w.client(version)
		p := &patterned{left: size, sum: sha256.New()}
		r, err := http.NewRequestWithContext(t.Context(), "PUT", "https://"+apiHost+"/up", struct{ io.Reader }{p})
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if want := fmt.Sprintf("%d %x <nil>", size, p.sum.Sum(nil)); string(b) != want {
			t.Errorf("HTTP/%d up: %s, want %s", version, b, want)
		}
		res, err = c.Get("https://" + apiHost + "/down")
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.New()
		n, err := io.Copy(sum, res.Body)
		res.Body.Close()
		if got := fmt.Sprintf("%x", sum.Sum(nil)); err != nil || n != size || got != res.Trailer.Get("X-Sum") {
			t.Errorf("HTTP/%d down: %d bytes, %v", version, n, err)
		}
	}
	if p := peak(); p > most {
		t.Errorf("the heap grew to %d MiB", p>>20)
	}
}

// watchMemory returns a function that returns the largest heap size since the call.
func watchMemory(t *testing.T) func() uint64 {
	stop, done := make(chan struct{}), make(chan uint64)
	go func() {
		var peak uint64
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapInuse)
			select {
			case <-stop:
				done <- peak
				return
			case <-tick.C:
			}
		}
	}()
	return func() uint64 { close(stop); return <-done }
}

// TestContextEndsConnection checks that everything ends with the context of the
// connection, which the gateway cancels when the policy changes.
func TestContextEndsConnection(t *testing.T) {
	w := newHarness(t)
	started, ended := make(chan struct{}), make(chan struct{})
	w.host(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
		close(ended)
	}), apiHost)
	conn := tls.Client(w.connect(apiHost, true), &tls.Config{RootCAs: w.roots(), ServerName: apiHost, NextProtos: []string{"http/1.1"}})
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", apiHost)
	<-started
	if err := w.x.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection goes on")
	}
}

func TestAuthority(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	certs := make([]string, 8)
	for i := range certs {
		wg.Go(func() {
			if a, err := LoadAuthority(dir); err == nil {
				certs[i] = string(a.CertificatePEM())
			}
		})
	}
	wg.Wait()
	for _, c := range certs {
		if c == "" || c != certs[0] || strings.Contains(c, "PRIVATE") {
			t.Fatalf("certificates differ: %q", c)
		}
	}
	a, err := LoadAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := a.NewIssuer()
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := ParseIssuer(text)
	if err != nil {
		t.Fatal(err)
	}
	if issuer.key.Equal(a.key) {
		t.Error("a cell has the authority's key")
	}
	for i := range maxLeaves + 10 {
		if _, err := issuer.certificate(fmt.Sprintf("host-%d.example", i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(issuer.leaves); n != maxLeaves || issuer.recent.Len() != n {
		t.Errorf("%d certificates are kept", n)
	}
	one, _ := issuer.certificate("host-500.example")
	two, _ := issuer.certificate("host-500.example")
	if one != two {
		t.Error("a certificate is made anew each time")
	}
	for _, bad := range []string{"", "x", string(a.CertificatePEM()), string(text[:len(text)/2])} {
		if _, err := ParseIssuer([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// HTTP/2 in the clear, as gRPC uses it inside networks.
func TestPlainHTTP2(t *testing.T) {
	w := newHarness(t)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Proto, r.Host) }))
	srv.Config.Protocols = protocols(true, false, true)
	srv.Start()
	defer srv.Close()
	w.at(srv.Listener.Addr().String(), otherHost)
	tr := &http.Transport{Protocols: protocols(false, false, true), DialContext: func(context.Context, string, string) (net.Conn, error) {
		return w.connect(otherHost, false), nil
	}}
	defer tr.CloseIdleConnections()
	if res, body := do(t, &http.Client{Transport: tr}, "GET", "http://"+otherHost+"/", ""); res.StatusCode != 200 || body != "HTTP/2.0"+otherHost {
		t.Errorf("%d %q", res.StatusCode, body)
	}
}

// TestOldHost checks that a host that only speaks HTTP/1 serves a client that speaks
// HTTP/2, with many requests at once.
func TestOldHost(t *testing.T) {
	w := newHarness(t)
	var all sync.WaitGroup
	all.Add(20)
	w.hostTLS(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		all.Done()
		all.Wait()
		rw.Header().Set("Connection", "close")
		fmt.Fprint(rw, r.Proto, r.Header.Get("X-Api-Key") == value)
	}), &tls.Config{Certificates: []tls.Certificate{w.certificate(apiHost)}, NextProtos: []string{"http/1.1"}}, apiHost)
	c := w.client(2)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+apiHost+"/", nil)
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("X-Api-Key", placeholder)
			res, err := c.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if string(b) != "HTTP/1.1true" || res.ProtoMajor != 2 || err != nil {
				t.Errorf("%s %s %q: %v", res.Proto, res.Status, b, err)
			}
		})
	}
	wg.Wait()
}

// TestPanicsAreLogged checks that what the server logs about panics is passed on, without
// their values.
func TestPanicsAreLogged(t *testing.T) {
	var out strings.Builder
	p := panicLog{slog.New(slog.NewTextHandler(&out, nil))}
	l := log.New(p, "", 0)
	l.Printf("http: TLS handshake error from %s", value)
	l.Printf("http: panic serving x: %s\ngoroutine 1 [running]:\nmain.f()", value)
	if got := out.String(); strings.Contains(got, value) || !strings.Contains(got, "main.f") || strings.Count(got, "\n") != 1 {
		t.Errorf("logged %s", got)
	}
}
