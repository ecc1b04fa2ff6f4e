package egress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/sandbox"
)

// webs is an internet with a good and an evil web server.
func webs(t *testing.T, change ...func(*Config, *Network)) *internet {
	t.Helper()
	in := newInternet(t, strict("good.example", "*.good.example"), change...)
	in.address("good.example", publicAddr)
	in.address("evil.example", otherAddr)
	in.web(publicAddr+":80", "good")
	in.web(otherAddr+":80", "evil")
	return in
}

// say sends a request and returns the status code and the body of the answer.
func say(t *testing.T, c net.Conn, request string) (int, string) {
	t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	return hear(t, bufio.NewReader(c))
}

func hear(t *testing.T, r *bufio.Reader) (int, string) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestPlainHTTPGoesToItsHost(t *testing.T) {
	in := webs(t)
	// The request reaches the host whatever address the sandbox chose.
	code, body := say(t, in.mustConnect(otherAddr+":80"), "GET /a//b?x=1;y=%zz HTTP/1.1\r\nHost: good.example\r\n\r\n")
	if code != 200 || body != `good: GET /a//b?x=1;y=%zz host=good.example body=""` {
		t.Errorf("got %d %q", code, body)
	}
	code, body = say(t, in.mustConnect(publicAddr+":80"), "POST /p HTTP/1.1\r\nHost: Good.Example:80\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
	if code != 200 || body != `good: POST /p host=Good.Example:80 body="hello"` {
		t.Errorf("got %d %q", code, body)
	}
}

// Attack: an allowed host in the first request of a connection, others after.
func TestEveryRequestIsJudged(t *testing.T) {
	in := webs(t)
	c := in.mustConnect(publicAddr + ":80")
	r := bufio.NewReader(c)
	fmt.Fprint(c, "GET /0 HTTP/1.1\r\nHost: first.evil.example\r\n\r\nGET /1 HTTP/1.1\r\nHost: good.example\r\n\r\nGET /2 HTTP/1.1\r\nHost: evil.example\r\n\r\nGET /3 HTTP/1.1\r\nHost: good.example\r\n\r\n")
	for i, want := range []int{403, 200, 403, 200} {
		if code, body := hear(t, r); code != want {
			t.Errorf("request %d: got %d %q, want %d", i+1, code, body, want)
		}
	}
	c.Close()
	in.idle()
	var recorded []string
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, e := range in.events {
		// A connection that lasts for a second is also recorded while it is open.
		if e.Kind == sandbox.NetworkConnection && !e.Open {
			recorded = append(recorded, e.Host+" "+string(e.Verdict)+" "+string(e.Match))
		}
	}
	if want := []string{"first.evil.example blocked cidr", "evil.example blocked cidr", "good.example allowed domain"}; !slices.Equal(recorded, want) {
		t.Errorf("recorded %q, want %q", recorded, want)
	}
	if slices.Contains(in.dialled, otherAddr+":80") {
		t.Error("the evil server was dialled")
	}
}

// Attack: hosts that two programs read differently.
func TestHostMismatch(t *testing.T) {
	for name, request := range map[string]string{
		"another host":           "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"absolute form":          "GET http://evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"two hosts":              "GET / HTTP/1.1\r\nHost: good.example\r\nHost: evil.example\r\n\r\n",
		"no host":                "GET / HTTP/1.0\r\n\r\n",
		"empty host":             "GET / HTTP/1.1\r\nHost:\r\n\r\n",
		"user in host":           "GET / HTTP/1.1\r\nHost: good.example@evil.example\r\n\r\n",
		"two names":              "GET / HTTP/1.1\r\nHost: good.example,evil.example\r\n\r\n",
		"name with space":        "GET / HTTP/1.1\r\nHost: good.example evil.example\r\n\r\n",
		"folded header":          "GET / HTTP/1.1\r\nX: 1\r\n Host: good.example\r\n\r\n",
		"space before colon":     "GET / HTTP/1.1\r\nHost : good.example\r\n\r\n",
		"address as host":        "GET / HTTP/1.1\r\nHost: 203.0.113.10\r\n\r\n",
		"decimal address":        "GET / HTTP/1.1\r\nHost: 3405803786\r\n\r\n",
		"octal address":          "GET / HTTP/1.1\r\nHost: 0313.0.0161.012\r\n\r\n",
		"lower-case method":      "get / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"empty lines before":     "\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"space before":           " GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"tab in line":            "GET\t/\tHTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"HTTP/0.9":               "GET /\r\n",
		"tunnel":                 "CONNECT evil.example:443 HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"another language":       "\x00\x01\x02\x03",
		"line without an end":    "GET / evil",
		"bare LF":                "GET / HTTP/1.1\nHost: evil.example\n\n",
		"zero byte in the name":  "GET / HTTP/1.1\r\nHost: evil.example\x00.good.example\r\n\r\n",
		"percent in the name":    "GET / HTTP/1.1\r\nHost: evil.example%2f.good.example\r\n\r\n",
		"backslash in the name":  "GET / HTTP/1.1\r\nHost: evil.example\\.good.example\r\n\r\n",
		"host as port":           "GET / HTTP/1.1\r\nHost: good.example:80@evil.example\r\n\r\n",
		"name that ends in none": "GET / HTTP/1.1\r\nHost: evil.example.\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			in := webs(t)
			in.lookup("good.example")
			for _, to := range []string{publicAddr + ":80", otherAddr + ":80"} {
				c := in.mustConnect(to)
				_, _ = io.WriteString(c, request)
				_ = c.CloseWrite()
				answer, _ := io.ReadAll(c)
				if strings.Contains(string(answer), " 200 ") {
					t.Errorf("to %s: got %q", to, answer)
				}
			}
			if slices.Contains(in.dials(), otherAddr+":80") {
				t.Error("the evil server was dialled")
			}
		})
	}
}

// Attack: a second request hidden in the body of the first, by two lengths that
// gateway and server read differently.
func TestRequestSmuggling(t *testing.T) {
	const hidden = "GET /hidden HTTP/1.1\r\nHost: evil.example\r\n\r\n"
	for name, request := range map[string]string{
		"length and chunks":     fmt.Sprintf("POST /s HTTP/1.1\r\nHost: good.example\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n%s", 5+len(hidden), hidden),
		"two lengths":           fmt.Sprintf("POST /s HTTP/1.1\r\nHost: good.example\r\nContent-Length: 0\r\nContent-Length: %d\r\n\r\n%s", len(hidden), hidden),
		"chunks of two kinds":   "POST /s HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + hidden,
		"unknown encoding":      "POST /s HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden,
		"chunked with tab":      "POST /s HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding:\tchunked, \r\n\r\n0\r\n\r\n" + hidden,
		"negative length":       "POST /s HTTP/1.1\r\nHost: good.example\r\nContent-Length: -1\r\n\r\n" + hidden,
		"length with plus":      "POST /s HTTP/1.1\r\nHost: good.example\r\nContent-Length: +0\r\n\r\n" + hidden,
		"chunk size overflows":  "POST /s HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\n\r\n" + hidden,
		"chunk extension":       "POST /s HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n0;x=\n\r\n" + hidden,
		"upgrade that is none":  "GET /s HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + hidden,
		"body of a get":         fmt.Sprintf("GET /s HTTP/1.1\r\nHost: good.example\r\nContent-Length: %d\r\n\r\n%s", len(hidden), hidden),
		"body after its answer": fmt.Sprintf("POST /s HTTP/1.1\r\nHost: good.example\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n%s", len(hidden), hidden),
	} {
		t.Run(name, func(t *testing.T) {
			in := newInternet(t, strict("good.example"))
			in.address("good.example", publicAddr)
			in.address("evil.example", publicAddr) // one server for both, as on a CDN
			var seen []string                      // guarded by in.mu
			in.listen(publicAddr+":80", func(c net.Conn) {
				r := bufio.NewReader(c)
				for {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					body, _ := io.ReadAll(req.Body)
					in.mu.Lock()
					seen = append(seen, req.Host+req.URL.Path)
					in.mu.Unlock()
					fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				}
			})
			c := in.mustConnect(publicAddr + ":80")
			_, _ = io.WriteString(c, request)
			_ = c.CloseWrite()
			_, _ = io.ReadAll(c)
			c.Close()
			in.event(func(e sandbox.NetworkEvent) bool { return e.Kind == sandbox.NetworkConnection })
			in.g.Close()
			in.mu.Lock()
			defer in.mu.Unlock()
			for _, s := range seen {
				if s != "good.example/s" {
					t.Errorf("the server saw a request for %s", s)
				}
			}
		})
	}
}

func TestHTTP2WithoutTLS(t *testing.T) {
	in := webs(t)
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(context.Context, string, string) (net.Conn, error) {
		return in.connect(publicAddr + ":80")
	}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	for host, want := range map[string]int{"good.example": 200, "evil.example": 403} {
		resp, err := (&http.Client{Transport: tr}).Get("http://" + host + "/x")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want || resp.ProtoMajor != 2 {
			t.Errorf("%s: got %s %d %q, want %d over HTTP/2", host, resp.Proto, resp.StatusCode, body, want)
		}
	}
}

func TestWebSocketInPlainHTTP(t *testing.T) {
	in := newInternet(t, strict("ws.example"))
	in.address("ws.example", publicAddr)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		typ, b, err := c.Read(r.Context())
		if err == nil {
			_ = c.Write(r.Context(), typ, b)
		}
		_, _, _ = c.Read(r.Context())
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	in.at("tcp", publicAddr+":80", l.Addr())
	go s.Serve(l) //nolint:errcheck // it is closed
	t.Cleanup(func() { s.Close() })
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return in.connect(publicAddr + ":80")
	}}}
	c, _, err := websocket.Dial(t.Context(), "ws://ws.example/chat", &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if err := c.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(t.Context()); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	in.set(rules("none"))
	if _, _, err := c.Read(t.Context()); err == nil {
		t.Error("the connection outlives its policy")
	}
}

// Attack: upgrade an allowed request to HTTP/2, and ask for other hosts of the
// same server inside.
func TestUpgradeToHTTP2IsNotPassedOn(t *testing.T) {
	in := newInternet(t, strict("good.example"))
	in.address("good.example", publicAddr)
	upgrades := make(chan string, 1)
	in.listen(publicAddr+":80", func(c net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		upgrades <- req.Header.Get("Upgrade") + req.Header.Get("Connection")
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})
	code, _ := say(t, in.mustConnect(publicAddr+":80"), "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n")
	if got := <-upgrades; got != "" || code != 200 {
		t.Errorf("the server was asked to upgrade to %q, and the sandbox got %d", got, code)
	}
}

// proxyServer is a proxy of the host's environment, for CONNECT and for requests.
func proxyServer(t *testing.T, in *internet, asked chan<- string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.RequestURI + " " + r.Header.Get("Proxy-Authorization")
		if r.Method != http.MethodConnect {
			fmt.Fprint(w, "by proxy")
			return
		}
		in.mu.Lock()
		real := in.servers["tcp "+strings.Replace(strings.Replace(r.Host, "good.example", publicAddr, 1), "inside.example", publicAddr, 1)]
		in.mu.Unlock()
		up, err := net.Dial("tcp", real)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		c, _, _ := http.NewResponseController(w).Hijack()
		fmt.Fprint(c, "HTTP/1.1 200 Connection established\r\n\r\n")
		go func() { defer c.Close(); _, _ = io.Copy(c, up) }()
		go func() { defer up.Close(); _, _ = io.Copy(up, c) }()
	})}
	go s.Serve(l) //nolint:errcheck // it is closed
	t.Cleanup(func() { s.Close() })
	in.at("tcp", l.Addr().String(), l.Addr())
	return l.Addr().String()
}

func TestHostsProxy(t *testing.T) {
	asked := make(chan string, 16)
	hold := webs(t)
	addr := proxyServer(t, hold, asked)
	p := Proxy{HTTPProxy: "http://" + addr, HTTPSProxy: "http://user:pw@" + addr, NoProxy: "direct.good.example"}
	in := hold
	out, err := newHostDialer(in, p)
	if err != nil {
		t.Fatal(err)
	}
	in.g.out = out
	in.secureWeb(publicAddr+":443", "good.example")

	if got, err := reached(in.mustConnect(publicAddr+":443"), "good.example"); err != nil || got != "good.example" {
		t.Errorf("TLS: reached %q, %v", got, err)
	}
	if got := <-asked; got != "CONNECT good.example:443 Basic dXNlcjpwdw==" {
		t.Errorf("the proxy was asked %q", got)
	}
	if code, body := say(t, in.mustConnect(publicAddr+":80"), "GET /x HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n"); code != 200 || body != "by proxy" {
		t.Errorf("HTTP: got %d %q", code, body)
	}
	if got := <-asked; got != "GET http://good.example/x " && got != "GET http://good.example:80/x " {
		t.Errorf("the proxy was asked %q", got)
	}
	if code, _ := say(t, in.mustConnect(publicAddr+":80"), "GET /x HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"); code != 403 {
		t.Errorf("HTTP to a denied host: got %d", code)
	}
	// A name that only the proxy knows.
	in.set(strict("inside.example"))
	addrs := in.lookup("inside.example")
	if len(addrs) != 1 || !syntheticRange.Contains(netip.MustParseAddr(addrs[0])) {
		t.Fatalf("resolves to %v, want a synthetic address", addrs)
	}
	if _, err := reached(in.mustConnect(addrs[0]+":443"), "inside.example"); err != nil {
		t.Errorf("by a name that only the proxy knows: %v", err)
	}
	if got := <-asked; !strings.HasPrefix(got, "CONNECT inside.example:443") {
		t.Errorf("the proxy was asked %q", got)
	}
	// Attack: single-label names, and names reserved for one machine or one local network,
	// are what the proxy's own network calls its hosts.
	in.set(sandbox.NetworkPolicy{})
	for _, host := range []string{"intranet", "proxyhost", "nas.local", "localhost", "a.localhost", "peer.sandbox"} {
		// TLS may go to the address that the sandbox chose, but not under such a name.
		_, _ = reached(in.mustConnect(publicAddr+":443"), host)
		if code, _ := say(t, in.mustConnect(publicAddr+":80"), "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); code == 200 {
			t.Errorf("HTTP: reached %s", host)
		}
	}
	// Attack: the header names an address or port other than what was judged, and the proxy
	// follows the header.
	for _, host := range []string{"169.254.169.254", "10.0.0.1:80", "[::1]", "good.example:22"} {
		_, _ = say(t, in.mustConnect(publicAddr+":80"), "GET /header HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
		for len(asked) > 0 {
			got := <-asked
			if u, err := url.Parse(strings.Fields(got)[1]); err == nil && u.Path == "/header" && u.Host != publicAddr && u.Host != "good.example" {
				t.Errorf("for %s, the proxy was asked %q", host, got)
			}
		}
	}
	for len(asked) > 0 {
		if got := <-asked; !strings.Contains(got, publicAddr) {
			t.Errorf("the proxy was also asked %q", got)
		}
	}
}

func TestProxySettings(t *testing.T) {
	if _, err := newHostDialer(nil, Proxy{HTTPSProxy: "ftp://proxy.example"}); err == nil {
		t.Error("a proxy of an unknown kind was taken")
	}
	o, err := newHostDialer(nil, Proxy{AllProxy: "socks5://proxy.example:1080", NoProxy: "10.0.0.0/8,.direct.example"})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{"a.example": "socks5://proxy.example:1080", "x.direct.example": "", "10.1.2.3": ""} {
		var got string
		if u, _ := o.proxyFor(host, 22); u != nil {
			got = u.String()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", host, got, want)
		}
	}
}
