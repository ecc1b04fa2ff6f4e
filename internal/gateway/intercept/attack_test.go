package intercept

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// raw sends bytes over TLS to a host and returns the first response.
func (w *harness) raw(host, text string) *http.Response {
	w.t.Helper()
	conn := tls.Client(w.connect(host, true), &tls.Config{RootCAs: w.roots(), ServerName: host, NextProtos: []string{"http/1.1"}})
	if _, err := io.WriteString(conn, text); err != nil {
		w.t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		w.t.Fatalf("%q: %v", text, err)
	}
	return res
}

// Attack: send the placeholder to a host of the attacker's, hoping that the value is put
// in for every host.
func TestAttackWrongHost(t *testing.T) {
	w := newHarness(t)
	var g got
	for _, name := range []string{otherHost, "wild.example", "evilwild.example", apiHost + ".evil.example", "x" + apiHost} {
		w.host(&g, name)
		do(t, w.client(2), "POST", "https://"+name+"/"+placeholder+"?x-api-key="+placeholder, placeholder, "X-Api-Key: "+placeholder)
		r, body, _ := g.request()
		if sent := fmt.Sprint(r.Header, r.URL, body); strings.Contains(sent, "live-THE") || !strings.Contains(sent, placeholder) {
			t.Errorf("%s got %s", name, sent)
		}
	}
	w.setAction(secret(), value, sandbox.PlaceholderBlock)
	_, _, before := g.request()
	for _, place := range []string{"X-Api-Key: " + placeholder, "Authorization: " + basic("a", placeholder), "User-Agent: " + placeholder} {
		res, body := do(t, w.client(1), "GET", "https://"+otherHost+"/", "", place)
		if res.StatusCode != 403 || res.Header.Get(HeaderError) != "true" || res.Header.Get(HeaderReason) != "credential_host_mismatch" {
			t.Errorf("%s: %d %v", place, res.StatusCode, res.Header)
		}
		if !strings.Contains(body, apiHost) || !strings.Contains(body, `"code":"credential_host_mismatch"`) || strings.Contains(body, "live-THE") {
			t.Errorf("body %s", body)
		}
	}
	for _, url := range []string{"/" + placeholder, "/?a=" + placeholder, "/?a=%73" + placeholder[1:], "/%73" + placeholder[1:]} {
		if res, _ := do(t, w.client(1), "GET", "https://"+otherHost+url, ""); res.StatusCode != 403 {
			t.Errorf("%s: %d", url, res.StatusCode)
		}
	}
	if _, _, after := g.request(); after != before {
		t.Errorf("%d requests got through", after-before)
	}
	for _, e := range w.requests(5 + 7)[5:] {
		if e.Verdict != sandbox.NetworkBlocked || e.Status != 403 {
			t.Errorf("event %+v", e)
		}
	}
}

// Attack: connect to an allowed host and ask, inside TLS, for another one behind the same
// front end (domain fronting) that the policy or the secret does not permit.
func TestAttackFronting(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, apiHost, otherHost)
	for _, version := range []int{1, 2} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+otherHost+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = apiHost
		r.Header.Set("X-Api-Key", placeholder)
		res, err := w.client(version).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusMisdirectedRequest || res.Header.Get(HeaderReason) != "host_mismatch" {
			t.Errorf("HTTP/%d: %d", version, res.StatusCode)
		}
	}
	for _, e := range w.requests(2) {
		if e.Verdict != sandbox.NetworkBlocked || e.Match != sandbox.MatchDomain || e.Host != apiHost || e.Status != 421 || e.Secret != "" || e.Rule != "" {
			t.Errorf("event %+v", e)
		}
	}
	for _, head := range []string{
		"GET / HTTP/1.1\r\nHost: " + apiHost + "\r\n",
		"GET https://" + apiHost + "/ HTTP/1.1\r\nHost: " + otherHost + "\r\n",
		"GET / HTTP/1.1\r\nHost: " + apiHost + "@" + otherHost + "\r\n",
		"GET / HTTP/1.1\r\nHost: " + otherHost + "." + apiHost + "\r\n",
		"GET / HTTP/1.1\r\n",
	} {
		if res := w.raw(otherHost, head+"Connection: close\r\n\r\n"); res.StatusCode != 421 && res.StatusCode != 400 {
			t.Errorf("%q: %d", head, res.StatusCode)
		}
	}
	for _, target := range []string{"https:" + apiHost + "/", "x:y", "https:" + placeholder} {
		if res := w.raw(otherHost, "GET "+target+" HTTP/1.1\r\nHost: "+otherHost+"\r\n\r\n"); res.StatusCode != 400 {
			t.Errorf("%s: %d", target, res.StatusCode)
		}
	}
	if _, _, n := g.request(); n != 0 {
		t.Errorf("%d requests got through", n)
	}
	if res := w.raw(otherHost, "GET / HTTP/1.0\r\n\r\n"); res.StatusCode != 200 {
		t.Errorf("without a host: %d", res.StatusCode)
	} else if r, _, _ := g.request(); r.Host != otherHost {
		t.Errorf("without a host the other was asked for %q", r.Host)
	}
	// The same host in other letter case, with its port or a trailing dot, is the same host.
	for _, host := range []string{strings.ToUpper(otherHost), otherHost + ":443", otherHost + "."} {
		if res := w.raw(otherHost, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); res.StatusCode != 200 {
			t.Errorf("%s: %d", host, res.StatusCode)
		}
	}
}

// Attack: show an allowed host to the gateway's policy and another one to the TLS
// termination (two ClientHellos, or parsers that differ).
func TestAttackOtherClientHello(t *testing.T) {
	w := newHarness(t)
	conn := tls.Client(w.connect(otherHost, true), &tls.Config{InsecureSkipVerify: true, ServerName: apiHost})
	if err := conn.HandshakeContext(t.Context()); err == nil {
		t.Error("the handshake succeeded")
	}
	w.reason("names")
}

// Attack: smuggle a second request past the gateway in one that two parsers
// read differently.
func TestAttackSmuggling(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, otherHost)
	head := "POST /one HTTP/1.1\r\nHost: " + otherHost + "\r\n"
	second := "GET /smuggled HTTP/1.1\r\nHost: " + apiHost + "\r\nX-Api-Key: " + placeholder + "\r\n\r\n"
	for name, text := range map[string]string{
		"CL and TE":          head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second,
		"TE and CL":          head + "Transfer-Encoding: chunked\r\nContent-Length: " + itoa(5+len(second)) + "\r\n\r\n0\r\n\r\n" + second,
		"two lengths":        head + "Content-Length: 0\r\nContent-Length: 10\r\n\r\n" + second,
		"list of lengths":    head + "Content-Length: 0, 10\r\n\r\n" + second,
		"signed length":      head + "Content-Length: +0\r\n\r\n" + second,
		"unknown coding":     head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + second,
		"coding twice":       head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + second,
		"coding with tab":    head + "Transfer-Encoding:\tchunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + second,
		"space before colon": head + "Transfer-Encoding : chunked\r\nContent-Length: 3\r\n\r\nabc" + second,
		"folded":             head + "X-A: b\r\n Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc" + second,
		"bare CR":            head + "X-A: b\rTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc" + second,
		"zero byte":          head + "X-A: b\x00\r\nContent-Length: 3\r\n\r\nabc" + second,
		"two hosts":          "GET / HTTP/1.1\r\nHost: " + otherHost + "\r\nHost: " + apiHost + "\r\n\r\n",
		"chunk extension":    head + "Transfer-Encoding: chunked\r\n\r\n3;a=\nb\r\nabc\r\n0\r\n\r\n" + second,
		"negative chunk":     head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n" + second,
		"injected request":   head + "X-A: b\nGET /smuggled HTTP/1.1\nHost: " + apiHost + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn := tls.Client(w.connect(otherHost, true), &tls.Config{RootCAs: w.roots(), ServerName: otherHost, NextProtos: []string{"http/1.1"}})
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			if err := conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			br := bufio.NewReader(conn)
			for {
				res, err := http.ReadResponse(br, nil)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, res.Body)
			}
			// If a second request was seen at all, it was judged separately and found to be for
			// another host.
			if r, _, n := g.request(); n > 0 && r.URL.Path == "/smuggled" {
				t.Errorf("the host was asked for %s %s", r.Host, r.URL)
			}
		})
	}
}

// Attack: escape judgement through CONNECT, an upgrade to HTTP/2, or a protocol that the
// gateway does not examine.
func TestAttackOtherProtocols(t *testing.T) {
	w := newHarness(t)
	upgrades := make(chan string, 10)
	h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { upgrades <- r.Header.Get("Upgrade") })
	w.host(h, apiHost)
	w.plainHost(h, "plain.example")
	if res := w.raw(apiHost, "CONNECT "+apiHost+":443 HTTP/1.1\r\nHost: "+apiHost+"\r\n\r\n"); res.StatusCode != 405 {
		t.Errorf("CONNECT: %d", res.StatusCode)
	}
	conn := w.connect("plain.example", false)
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: plain.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
	if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != 200 {
		t.Fatalf("%v, %v", res, err)
	}
	if got := <-upgrades; got != "" {
		t.Errorf("the host was asked to upgrade to %q", got)
	}
	// The client offers only a foreign protocol to a host that a secret is for.
	tc := tls.Client(w.connect(apiHost, true), &tls.Config{RootCAs: w.roots(), ServerName: apiHost, NextProtos: []string{"foreign"}})
	if err := tc.HandshakeContext(t.Context()); err == nil {
		t.Error("a foreign protocol got through to a secret's host")
	}
	w.reason("offers no HTTP")
	// Requests in disguise, in TLS that does not declare its protocol.
	for _, text := range []string{
		"\r\nGET / HTTP/1.1\r\nHost: evil\r\n\r\n", "get / http/1.1\r\nhost: evil\r\n\r\n", "GET\t/ HTTP/1.1\r\nHost: evil\r\n\r\n",
		"X-Y /a HTTP/1.1\r\nHost: evil\r\n\r\n", "GET http://evil/ HTTP/1.1\r\n\r\n", "GET evil/ HTTP/1.1\r\nHost: evil\r\n\r\n", "connect evil:443\r\n\r\n",
	} {
		tc := tls.Client(w.connect(apiHost, true), &tls.Config{RootCAs: w.roots(), ServerName: apiHost})
		if _, err := io.WriteString(tc, text); err != nil {
			t.Fatal(err)
		}
		_ = tc.SetReadDeadline(time.Now().Add(20 * time.Second))
		if res, err := http.ReadResponse(bufio.NewReader(tc), nil); err != nil || res.StatusCode == 200 {
			t.Errorf("%q: %v, %v", text, res, err)
		}
	}
	if len(upgrades) > 0 {
		t.Errorf("%d requests got through", len(upgrades))
	}
}

// Attack: present a certificate for the secret's host that no authority has signed.
func TestAttackFalseUpstream(t *testing.T) {
	w := newHarness(t)
	var g got
	stranger, err := LoadAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, cert := range map[string]tls.Certificate{
		"unknown authority":     certify(t, stranger, apiHost),
		"name of another":       w.certificate(otherHost),
		"the sandbox's own":     certify(t, w.ca, apiHost),
		"parent of the name":    w.certificate("example.com"),
		"wildcard of the other": w.certificate("*.example.net"),
	} {
		w.hostTLS(&g, &tls.Config{Certificates: []tls.Certificate{cert}}, apiHost)
		res, body := do(t, w.client(1), "GET", "https://"+apiHost+"/", "", "X-Api-Key: "+placeholder)
		if res.StatusCode != 502 || res.Header.Get(HeaderReason) != "upstream_untrusted" || strings.Contains(body, "live-THE") {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
	}
	// An old version of TLS.
	w.hostTLS(&g, &tls.Config{Certificates: []tls.Certificate{w.certificate(apiHost)}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, apiHost)
	if res, _ := do(t, w.client(1), "GET", "https://"+apiHost+"/", ""); res.StatusCode != 502 {
		t.Errorf("TLS 1.1: %d", res.StatusCode)
	}
	// No TLS at all.
	w.plainHost(&g, apiHost)
	if res, _ := do(t, w.client(1), "GET", "https://"+apiHost+"/", ""); res.StatusCode != 502 || res.Header.Get(HeaderReason) != "upstream_unreachable" {
		t.Errorf("no TLS: %d", res.StatusCode)
	}
	if _, _, n := g.request(); n != 0 {
		t.Errorf("%d requests got through", n)
	}
	for _, e := range w.requests(5) {
		if e.Verdict != sandbox.NetworkFailed || e.Status != 502 || e.Reason == "" {
			t.Errorf("%+v", e)
		}
	}
}

// Attack: send a request to the secret's host in the clear, where others can read it.
func TestAttackPlainHTTP(t *testing.T) {
	w := newHarness(t)
	var g got
	w.plainHost(&g, apiHost, otherHost)
	c := w.client(1)
	do(t, c, "GET", "http://"+apiHost+"/a", "", "X-Api-Key: "+placeholder)
	r, _, _ := g.request()
	if r.Header.Get("X-Api-Key") != placeholder {
		t.Errorf("got %q", r.Header)
	}
	if e := w.requests(1)[0]; e.Protocol != "http" || !strings.Contains(e.Reason, "TLS only") || e.Host != apiHost {
		t.Errorf("event %+v", e)
	}
	// Each request is judged by its own host, even on one connection.
	conn := w.connect(otherHost, false)
	br := bufio.NewReader(conn)
	for host, want := range map[string]int{otherHost: 200, "denied.example": 403, apiHost: 200} {
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		if res.StatusCode != want {
			t.Errorf("%s: %d %s", host, res.StatusCode, b)
		}
	}
	w.setAction(secret(), value, sandbox.PlaceholderBlock)
	if res, _ := do(t, c, "GET", "http://"+apiHost+"/", "", "X-Api-Key: "+placeholder); res.StatusCode != 403 || res.Header.Get(HeaderReason) != "credential_needs_tls" {
		t.Errorf("%d", res.StatusCode)
	}
}

func TestRevokedAndMissing(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, apiHost, otherHost)
	b := secret()
	b.Revoked = true
	w.set(b, value)
	for _, host := range []string{apiHost, otherHost} {
		res, body := do(t, w.client(2), "GET", "https://"+host+"/", "", "X-Api-Key: "+placeholder)
		if res.StatusCode != 403 || res.Header.Get(HeaderReason) != "credential_revoked" || !strings.Contains(body, "deleted") {
			t.Errorf("%s: %d %s", host, res.StatusCode, body)
		}
	}
	if err := w.x.Set(&engine.Network{Bindings: []engine.Binding{secret()}}, nil); err != nil {
		t.Fatal(err)
	}
	if res, _ := do(t, w.client(2), "GET", "https://"+apiHost+"/", "", "X-Api-Key: "+placeholder); res.StatusCode != 503 {
		t.Errorf("without a value: %d", res.StatusCode)
	}
	if _, _, n := g.request(); n != 0 {
		t.Errorf("%d requests got through", n)
	}
	// The secret is detached: the placeholder is an ordinary word.
	if err := w.x.Set(&engine.Network{}, nil); err != nil {
		t.Fatal(err)
	}
	do(t, w.client(2), "GET", "https://"+apiHost+"/", "", "X-Api-Key: "+placeholder)
	if r, _, n := g.request(); n != 1 || r.Header.Get("X-Api-Key") != placeholder {
		t.Errorf("detached: %d, %v", n, r.Header)
	}
	for name, bad := range map[string]string{"line break": "a\r\nX: y-0123456789", "empty": "", "huge": strings.Repeat("x", sandbox.MaxSecretBytes+1)} {
		err := w.x.Set(&engine.Network{Bindings: []engine.Binding{secret()}}, valuesOf(map[string]string{placeholder: bad}))
		if err == nil || strings.Contains(err.Error(), "X: y") {
			t.Errorf("%s: %v", name, err)
		}
	}
	short := secret()
	short.Placeholder = "short"
	if err := w.x.Set(&engine.Network{Bindings: []engine.Binding{short}}, nil); err == nil {
		t.Error("a short placeholder was taken")
	}
}

// Attack: exhaust the gateway.
func TestAttackExhaustion(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, apiHost)
	huge := strings.Repeat("x", maxHeader+8<<10)
	if res := w.raw(apiHost, "GET / HTTP/1.1\r\nHost: "+apiHost+"\r\nX-A: "+huge+"\r\n\r\n"); res.StatusCode != 431 {
		t.Errorf("huge header: %d", res.StatusCode)
	}
	conn := w.connect(apiHost, true)
	// A ClientHello that never ends: one record of 16 KiB after another.
	record := append([]byte{22, 3, 1, 0x40, 0}, make([]byte, 0x4000)...)
	copy(record[5:], []byte{1, 0xff, 0xff, 0xff})
	var err error
	for range 1000 {
		if _, err = conn.Write(record); err != nil {
			break
		}
	}
	if err == nil {
		t.Error("an endless ClientHello is read on")
	}
	// Not TLS at all.
	conn = w.connect(apiHost, true)
	fmt.Fprint(conn, "GET / HTTP/1.1\r\n\r\n")
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("an answer to what is not TLS")
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Error("the connection stays open")
	}
	w.reason("no ClientHello")
}
