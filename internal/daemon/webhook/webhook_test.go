package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/sandbox"
)

// TestSign compares with the example of standardwebhooks.com.
func TestSign(t *testing.T) {
	k, err := key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	got := Sign(k, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSend(t *testing.T) {
	type seen struct {
		header http.Header
		body   string
	}
	got := make(chan seen, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.Header.Clone(), string(body)}
		switch r.URL.Path {
		case "/gone":
			w.WriteHeader(http.StatusGone)
		case "/busy":
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/moved":
			http.Redirect(w, r, "/ok", http.StatusTemporaryRedirect)
		}
	}))
	defer srv.Close()
	s := New(Config{AllowPrivate: true, Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }})
	defer s.Close()
	for _, tt := range []struct {
		path  string
		want  Result
		error string
	}{
		{"/ok", Result{Status: 200}, ""},
		{"/gone", Result{Status: 410, Final: true}, "410"},
		{"/busy", Result{Status: 503, RetryAfter: 7 * time.Second}, "503"},
		{"/moved", Result{Status: 307}, "redirects are not followed"},
	} {
		t.Run(tt.path, func(t *testing.T) {
			r := s.Send(t.Context(), &Message{
				ID: "whd-1", URL: srv.URL + tt.path, Body: []byte(`{"a":1}`), Secret: "0123456789abcdef", Header: map[string]string{"authorization": "Bearer x"},
			})
			if (r.Err == nil) != (tt.error == "") || r.Err != nil && !strings.Contains(r.Err.Error(), tt.error) {
				t.Errorf("got error %v, want %q", r.Err, tt.error)
			}
			if r.Err = nil; r != tt.want {
				t.Errorf("got %+v, want %+v", r, tt.want)
			}
			req := <-got
			stamp := req.header.Get("Webhook-Timestamp")
			mac := hmac.New(sha256.New, []byte("0123456789abcdef"))
			mac.Write([]byte("whd-1." + stamp + "." + req.body))
			if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); req.header.Get("Webhook-Signature") != want {
				t.Errorf("signature is %s, want %s", req.header.Get("Webhook-Signature"), want)
			}
			if req.header.Get("Authorization") != "Bearer x" || req.header.Get("Webhook-Id") != "whd-1" || req.body != `{"a":1}` {
				t.Errorf("got %+v", req)
			}
		})
	}
}

// TestInternalAddresses tries to reach a server on loopback: by its address, by a
// name that leads there, and through a proxy.
func TestInternalAddresses(t *testing.T) {
	reached := false
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer srv.Close()
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	proxy, _ := url.Parse(srv.URL)
	for _, tt := range []struct {
		name, url string
		proxy     *url.URL
	}{
		{"address", srv.URL, nil},
		{"mapped", "http://[::ffff:127.0.0.1]:" + port, nil},
		{"name", "http://localhost:" + port, nil},
		{"other spelling", "http://127.1:" + port, nil},
		{"number", "http://2130706433:" + port, nil},
		{"all addresses", "http://0.0.0.0:" + port, nil},
		{"by proxy", "http://127.0.0.1:1", proxy},
		{"metadata by proxy", "http://169.254.169.254/", proxy},
		{"number by proxy", "http://2130706433/", proxy},
		{"other spelling by proxy", "http://0x7f.1/", proxy},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := New(Config{Proxy: func(*http.Request) (*url.URL, error) { return tt.proxy, nil }})
			defer s.Close()
			r := s.Send(t.Context(), &Message{ID: "x", URL: tt.url})
			if r.Err == nil || reached {
				t.Errorf("it was reached: %+v", r)
			}
		})
	}
}

func TestPublic(t *testing.T) {
	internal := egress.NewInternalAddrs(nil)
	for addr, want := range map[string]bool{
		"93.184.216.34": true, "198.51.100.10": true, "2606:2800:220:1::1": true, "::ffff:8.8.8.8": true, "64:ff9b::808:808": true,
		"127.0.0.1": false, "10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false, "169.254.169.254": false, "100.64.0.1": false,
		"0.0.0.0": false, "224.0.0.1": false, "255.255.255.255": false, "198.18.0.1": false, "::1": false, "::": false, "fe80::1": false,
		"fd00::1": false, "ff02::1": false, "64:ff9b::7f00:1": false, "2002:7f00:1::": false, "2001::1": false, "::7f00:1": false,
		"::ffff:10.0.0.1": false, "240.0.0.1": false, "192.0.0.8": false, "168.63.129.16": false, "::ffff:0:7f00:1": false,
	} {
		if got := !internal.Has(netip.MustParseAddr(addr)); got != want {
			t.Errorf("public(%s) = %v", addr, got)
		}
	}
}

// TestOwnAddress checks a host with a public address of its own, on which services meant
// for its network may listen.
func TestOwnAddress(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	s.internal = egress.NewInternalAddrs(func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("198.51.100.10")} })
	for at, want := range map[string]bool{"198.51.100.10:80": false, "[::ffff:198.51.100.10]:80": false, "198.51.100.11:80": true, "nothing": false} {
		if err := s.refusePrivate("tcp", at, nil); (err == nil) != want {
			t.Errorf("%s: got %v", at, err)
		}
	}
	proxy, _ := url.Parse("http://127.0.0.1:1")
	s.cfg.Proxy = func(*http.Request) (*url.URL, error) { return proxy, nil }
	if r := s.Send(t.Context(), &Message{ID: "x", URL: "http://198.51.100.10/"}); r.Err != errPrivate {
		t.Errorf("by a proxy: %v", r.Err)
	}
}

// TestDescribe checks errors that contain addresses of the host's network.
func TestDescribe(t *testing.T) {
	tcp := func(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "example.com", Server: "10.2.3.4:53", IsNotFound: true}}, "name is not known"},
		{&net.DNSError{Err: "dial udp 10.2.3.4:53: connect: network is unreachable", Name: "example.com", Server: "10.2.3.4:53"}, "cannot be looked up"},
		{&net.OpError{Op: "read", Net: "tcp", Source: tcp("10.2.3.4:999"), Addr: tcp("198.51.100.1:80"), Err: errors.New("connection reset by peer")}, "connection reset by peer"},
		{&net.OpError{Op: "proxyconnect", Net: "tcp", Err: &net.OpError{Op: "dial", Addr: tcp("10.2.3.4:3128"), Err: errors.New("connection refused")}}, "proxy"},
		{fmt.Errorf("x: %w", errPrivate), "own network"},
	} {
		got := describe(&url.Error{Op: "Post", URL: "http://example.com/token", Err: tt.err}).Error()
		if !strings.Contains(got, tt.want) || strings.Contains(got, "10.2.3.4") || strings.Contains(got, "token") {
			t.Errorf("%v: got %q", tt.err, got)
		}
	}
}

func TestCheck(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	many := map[string]string{}
	for i := range 40 {
		many["X-"+strings.Repeat("a", i+1)] = ""
	}
	for _, tt := range []struct {
		hook sandbox.Webhook
		want string
	}{
		{sandbox.Webhook{URL: "https://example.com/x?y=1"}, ""},
		{sandbox.Webhook{URL: "https://example.com", Secret: sandbox.NewSecretValue("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), Headers: map[string]string{"Authorization": "Bearer x"}}, ""},
		{sandbox.Webhook{URL: ""}, "not a URL"},
		{sandbox.Webhook{URL: "ftp://example.com"}, "not a URL"},
		{sandbox.Webhook{URL: "http://"}, "not a URL"},
		{sandbox.Webhook{URL: "http://u:p@example.com"}, "user name"},
		{sandbox.Webhook{URL: "http://localhost"}, "own network"},
		{sandbox.Webhook{URL: "http://127.0.0.1:80"}, "own network"},
		{sandbox.Webhook{URL: "http://[::1]"}, "own network"},
		{sandbox.Webhook{URL: "http://2130706433"}, "own network"},
		{sandbox.Webhook{URL: "http://0x7F.0x1."}, "own network"},
		{sandbox.Webhook{URL: "https://example.com", Secret: sandbox.NewSecretValue("whsec_!!")}, "base64"},
		{sandbox.Webhook{URL: "https://example.com", Secret: sandbox.NewSecretValue("short")}, "too short"},
		{sandbox.Webhook{URL: "https://example.com", Headers: map[string]string{"Host": "x"}}, "set by Cove"},
		{sandbox.Webhook{URL: "https://example.com", Headers: map[string]string{"webhook-id": "x"}}, "set by Cove"},
		{sandbox.Webhook{URL: "https://example.com", Headers: map[string]string{"X Y": "x"}}, "not valid"},
		{sandbox.Webhook{URL: "https://example.com", Headers: map[string]string{"X": "a\r\nY: b"}}, "not valid"},
		{sandbox.Webhook{URL: "https://example.com", Headers: many}, "at most"},
	} {
		err := s.Check(&tt.hook)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", tt.hook.URL, err, tt.want)
		}
		if err != nil && sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%q: code is %s", tt.hook.URL, sandbox.CodeOf(err))
		}
	}
}

func TestWait(t *testing.T) {
	s, total := New(Config{}), time.Duration(0)
	for i := 1; i < sandbox.WebhookAttempts; i++ {
		d := s.Wait(i)
		if i > 2 && d < s.Wait(i-2) {
			t.Errorf("attempt %d waits less than two before", i)
		}
		total += d
	}
	if total < 40*time.Minute || total > 70*time.Minute {
		t.Errorf("all attempts take %s, want about an hour", total)
	}
}

// TestSlowReceiver tests a receiver that accepts the request and never responds.
func TestSlowReceiver(t *testing.T) {
	block := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-block:
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	defer close(block)
	s := New(Config{AllowPrivate: true})
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if r := s.Send(ctx, &Message{ID: "x", URL: srv.URL}); r.Err == nil || errors.Is(r.Err, context.DeadlineExceeded) || r.Status != 0 {
		t.Errorf("got %+v", r)
	}
}
