package server_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// http2Conn opens a connection on which a test speaks HTTP/2 frame by frame.
func http2Conn(t *testing.T, address string, roots *x509.CertPool) (*http2.Framer, net.Conn) {
	t.Helper()
	raw, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: "cove.test", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(conn, conn)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if p := conn.ConnectionState().NegotiatedProtocol; p != "h2" {
		t.Fatalf("the daemon speaks %q", p)
	}
	return f, conn
}

// headers encodes the header of a request, with more at its end.
func headers(path string, more ...hpack.HeaderField) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, h := range append([]hpack.HeaderField{
		{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "cove.test"}, {Name: ":path", Value: path},
	}, more...) {
		_ = e.WriteField(h) // a buffer takes everything
	}
	return b.Bytes()
}

// Attack: a stranger abuses HTTP/2, or the handshake before it, to take memory and processor
// time: streams that are reset at once, headers without an end, floods of frames that want an
// answer which is never read, headers that unpack to many times their size, handshakes that
// stand still. "make test" sends less, and leaves out handshakes that stand still.
func TestAbuseOfHTTP2(t *testing.T) {
	cert, key, roots := certificate(t, t.TempDir(), "cove.test")
	d := mustStart(t, func(c *config.Config) {
		c.TLS.Cert, c.TLS.Key = cert, key
		c.AllowedHosts = []string{"cove.test"}
	})
	address := d.tcp.String()
	// They have begun, and say nothing more.
	var stalled []net.Conn
	if needs.More() {
		stalled = []net.Conn{dial(t, "tcp", address, ""), dial(t, "tcp", address, "\x16\x03\x01\x02\x00\x01")}
	}
	for _, conn := range stalled {
		_ = conn.SetDeadline(time.Now().Add(5 * time.Minute)) // the test's own bound
	}
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	// Each attack sends until it is cut off, or has sent enough to be seen in the
	// daemon's memory: at 1 KiB for each.
	most := 2_000
	if needs.More() {
		most = 20_000
	}
	if needs.Soak() {
		most = 100_000
	}
	for name, attack := range map[string]struct {
		most int
		cut  bool // it must be
		send func(f *http2.Framer, n int) error
	}{
		// One acknowledgement is owed for all, so they cost nothing but their way.
		"settings": {most, false, func(f *http2.Framer, _ int) error { return f.WriteSettings() }},
		// They are cut off only when the daemon falls behind.
		"streams that are reset": {most / 2, false, func(f *http2.Framer, n int) error {
			id := uint32(2*n + 1)
			h := http2.HeadersFrameParam{StreamID: id, BlockFragment: headers("/v1/sandboxes"), EndStream: true, EndHeaders: true}
			return errors.Join(f.WriteHeaders(h), f.WriteRSTStream(id, http2.ErrCodeCancel))
		}},
		"headers without an end": {4096, true, func(f *http2.Framer, n int) error { // 16 KiB each
			if n == 0 {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers("/healthz"), EndStream: true})
			}
			var b bytes.Buffer
			_ = hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("~", 8<<10), Sensitive: true})
			return f.WriteContinuation(1, false, b.Bytes())
		}},
		"pings":         {4_000_000, true, func(f *http2.Framer, n int) error { return f.WritePing(false, [8]byte{byte(n)}) }},
		"resets of new": {4_000_000, true, func(f *http2.Framer, n int) error { return f.WriteRSTStream(uint32(2*n+1), http2.ErrCodeCancel) }},
	} {
		f, _ := http2Conn(t, address, roots)
		sent := 0
		for sent < attack.most && attack.send(f, sent) == nil {
			sent++
		}
		if attack.cut && sent == attack.most {
			t.Errorf("%s: all %d went through", name, sent)
		}
		t.Logf("%s: %d sent", name, sent)
	}

	// 16 MiB of headers in 20 KiB: one long field, and its index again and again.
	long := hpack.HeaderField{Name: "x-long", Value: strings.Repeat("~", 3<<10)}
	bomb := make([]hpack.HeaderField, 5000)
	for i := range bomb {
		bomb[i] = long
	}
	f, _ := http2Conn(t, address, roots)
	block := headers("/healthz", bomb...)
	first := block[:min(len(block), 16<<10)]
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first, EndStream: true, EndHeaders: len(first) == len(block)}); err != nil {
		t.Fatal(err)
	}
	if len(first) < len(block) {
		_ = f.WriteContinuation(1, true, block[len(first):]) // it may have cut off by now
	}
	for {
		frame, err := f.ReadFrame()
		if os.IsTimeout(err) {
			t.Fatal("headers that unpack to 16 MiB have no answer")
		}
		if err != nil {
			break // it was cut off
		}
		if h, ok := frame.(*http2.HeadersFrame); ok {
			got, err := hpack.NewDecoder(4096, nil).DecodeFull(h.HeaderBlockFragment())
			if err != nil || len(got) == 0 || got[0].Value != "431" {
				t.Errorf("headers that unpack to 16 MiB: %v, %v", got, err)
			}
			break
		}
	}

	// Others are served meanwhile, and nothing of it stays.
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "cove.test", MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Get("https://" + address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	if _ = res.Body.Close(); res.StatusCode != http.StatusOK {
		t.Errorf("after the attacks: %s", res.Status)
	}
	var grown int64
	if !covetest.Eventually(covetest.DetectionLimit, func() bool { // handlers end after their connections
		var after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&after)
		grown = int64(after.HeapAlloc) - int64(before.HeapAlloc)
		return grown <= 64<<20
	}) {
		t.Errorf("the attacks left %d MiB", grown>>20)
	}
	for _, conn := range stalled {
		if _, err := io.Copy(io.Discard, conn); os.IsTimeout(err) {
			t.Error("a handshake may stand still")
		}
	}
}
