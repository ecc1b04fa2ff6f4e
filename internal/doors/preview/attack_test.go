package preview

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func recorder() *httptest.ResponseRecorder { return httptest.NewRecorder() }

func request(t *testing.T, target string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// Attack: a host name that looks like a preview's to one part of the server
// and like the API's to another. Whatever is below the domain, however spelt,
// is the proxy's, and only the one right spelling leads anywhere.
func TestHostGames(t *testing.T) {
	inside := new(seen)
	_, front := newHarness(t, inside)
	for host, want := range map[string]string{
		"3001-sbx-abc.localhost":                 "inside",
		"3001-SBX-abc.LocalHost":                 "inside",
		"3001-sbx-abc.localhost:7777":            "inside",
		"3001-sbx-abc.localhost.":                "404",
		"3001-sbx-abc.localhost..":               "404",
		"3001-sbx-abc.localhost:":                "404",
		"3001-sbx-abc.localhost:80:80":           "404",
		"3001-sbx-abc.localhost:+80":             "404",
		"3001-sbx-abc.localhost:99999":           "404",
		"03001-sbx-abc.localhost":                "404",
		"+3001-sbx-abc.localhost":                "404",
		"0-sbx-abc.localhost":                    "404",
		"65536-sbx-abc.localhost":                "404",
		"3001.localhost":                         "404",
		"-sbx-abc.localhost":                     "404",
		"3001-.localhost":                        "404",
		"x.3001-sbx-abc.localhost":               "404",
		"3001-sbx-abc.x.localhost":               "404",
		"user@3001-sbx-abc.localhost":            "HTTP/1.1 400",
		"user:pw@3001-sbx-abc.localhost":         "HTTP/1.1 400",
		"localhost":                              "the API",
		"api.localhost":                          "the API",
		"API.localhost.":                         "the API",
		"127.0.0.1":                              "the API",
		"[::1]:7777":                             "the API",
		"[3001-sbx-abc.localhost]":               "the API",
		"evillocalhost":                          "the API",
		"3001-sbx-abc.localhost.evil.test":       "the API",
		".localhost":                             "404",
		"..localhost":                            "404",
		"3001-sbx_abc.localhost":                 "404",
		"3001-sbx-abc%2elocalhost":               "the API",
		"３００１-sbx-abc.localhost":                 "HTTP/1.1 400",
		"3001-sbx-abc.localhost/x":               "HTTP/1.1 400",
		strings.Repeat("3", 70) + "-x.localhost": "404",
	} {
		got := raw(t, front, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
		status, _, _ := strings.Cut(got, "\r\n")
		if want == "404" {
			want = "HTTP/1.1 404"
		}
		if !strings.HasSuffix(got, want) && !strings.HasPrefix(status, want) {
			t.Errorf("Host %q: got %q, want %q", host, status, want)
		}
	}
	// Two hosts, and none.
	if got := raw(t, front, "GET / HTTP/1.1\r\nHost: 3001-sbx-abc.localhost\r\nHost: localhost\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 400") {
		t.Errorf("two hosts: %q", got)
	}
	if got := raw(t, front, "GET / HTTP/1.1\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 400") {
		t.Errorf("no host: %q", got)
	}
}

// Attack: a request line that contains another host, or requests a tunnel.
// The only target is the port in the host name.
func TestTheProxyCannotBeSteered(t *testing.T) {
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "STRANGER") }))
	defer stranger.Close()
	evil := stranger.Listener.Addr().String()
	inside := new(seen)
	_, front := newHarness(t, inside)
	host := "Host: 3001-sbx-abc.localhost\r\nConnection: close\r\n\r\n"
	for _, line := range []string{
		"GET http://" + evil + "/ HTTP/1.1\r\n" + host,
		"GET //" + evil + "/ HTTP/1.1\r\n" + host,
		"GET /\\" + evil + "/ HTTP/1.1\r\n" + host,
		"GET /@" + evil + "/ HTTP/1.1\r\n" + host,
		"GET /../../" + evil + " HTTP/1.1\r\n" + host,
		"GET http://x@" + evil + "/ HTTP/1.1\r\n" + host,
		"GET http://3001-sbx-abc.localhost@" + evil + "/ HTTP/1.1\r\n" + host,
		"GET http://3001-sbx-abc.localhost:" + evil[strings.IndexByte(evil, ':')+1:] + "/ HTTP/1.1\r\n" + host,
		"GET / HTTP/1.1\r\nX-Forwarded-Host: " + evil + "\r\nX-Original-URL: http://" + evil + "\r\n" + host,
		"CONNECT " + evil + " HTTP/1.1\r\n" + host,
		"CONNECT 3001-sbx-abc.localhost:80 HTTP/1.1\r\n" + host,
		"TRACE / HTTP/1.1\r\n" + host,
	} {
		got := raw(t, front, line)
		if strings.Contains(got, "STRANGER") {
			t.Errorf("%q reached a stranger", line)
		}
		if (strings.HasPrefix(line, "CONNECT 3001") || strings.HasPrefix(line, "TRACE")) && !strings.HasPrefix(got, "HTTP/1.1 405") {
			t.Errorf("%q: %q", line, got)
		}
	}
	// The password in a target is not made into a header.
	raw(t, front, "GET http://user:pw@3001-sbx-abc.localhost/u HTTP/1.1\r\n"+host)
	if last := inside.request(t); last.RequestURI != "/u" || last.Header.Get("Authorization") != "" {
		t.Errorf("saw %s with %v", last.RequestURI, last.Header)
	}
}

// Attack: bodies whose end the proxy and the sandbox see in different places,
// so that a request hides in another and, on a connection that visitors
// share, is answered to somebody else.
func TestSmuggling(t *testing.T) {
	hidden := "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, text := range map[string]string{
		"CL.TE":              "Content-Length: 47\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"TE.CL":              "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n26\r\n" + hidden + "\r\n0\r\n\r\n",
		"TE.TE":              "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + hidden,
		"obscure TE":         "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + hidden,
		"TE with a space":    "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + hidden,
		"two lengths":        "Content-Length: 0\r\nContent-Length: 38\r\n\r\n" + hidden,
		"length with a sign": "Content-Length: +0\r\n\r\n" + hidden,
		"bare line feed":     "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"chunk extension":    "Transfer-Encoding: chunked\r\n\r\n0;\n\r\n\r\n" + hidden,
		"line in a header":   "X: a\rContent-Length: 5\r\n\r\n" + hidden,
		"GET with a body":    "Content-Length: 38\r\n\r\n" + hidden,
	} {
		t.Run(name, func(t *testing.T) {
			inside := new(seen)
			_, front := newHarness(t, inside)
			// The hidden request's own host is x: if the front takes it for the
			// next request, it is the API's and not the sandbox's.
			rawFor(t, front, "POST /front HTTP/1.1\r\nHost: 3001-sbx-abc.localhost\r\n"+text, time.Second)
			for _, r := range []string{"GET /hidden", "POST /hidden"} {
				if strings.Contains(inside.list(), r) {
					t.Errorf("the sandbox saw %s", inside.list())
				}
			}
		})
	}
}

// Attack: in the browser of somebody who may see both, the page of one sandbox opens a
// WebSocket to the private preview of another. To the browser they are one site, so it
// sends the cookie; the origin decides.
func TestWebSocketFromAnotherOrigin(t *testing.T) {
	_, front := newHarness(t, echo())
	cookie := cookieName + "=" + encodeCookie(credential{key: goodKey})
	for _, origin := range []string{
		"http://3001-sbx-evil.localhost", "http://evil.test", "null", "", "http://localhost", "http://3000-sbx-abc.localhost.evil.test",
		"http://3000-sbx-abc.localhost@evil.test", "http://evil.test#3000-sbx-abc.localhost", "file://3000-sbx-abc.localhost", "http://x.3000-sbx-abc.localhost",
	} {
		conn, res, err := websocket.Dial(t.Context(), at+"/", &websocket.DialOptions{HTTPClient: browser(t, front), HTTPHeader: http.Header{"Cookie": {cookie}, "Origin": {origin}}})
		if err == nil {
			_ = conn.CloseNow()
			t.Errorf("from %q: opened", origin)
		} else if res == nil || res.StatusCode != http.StatusForbidden {
			t.Errorf("from %q: %v", origin, err)
		}
	}
}

// Attack: the same with plain requests: forms, fetch, scripts, images.
func TestRequestsFromAnotherOrigin(t *testing.T) {
	_, front := newHarness(t, new(seen))
	cookie := []string{"Cookie", cookieName + "=" + encodeCookie(credential{key: goodKey})}
	for _, test := range []struct {
		name, method string
		header       []string
		want         int
	}{
		{"a form of another sandbox", "POST", []string{"Origin", "http://3001-sbx-evil.localhost", "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate"}, 403},
		{"a script element of another sandbox", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		{"fetch from another site", "GET", []string{"Origin", "http://evil.test", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"}, 403},
		{"two origins", "POST", []string{"Origin", at, "Origin", "http://evil.test"}, 403},
		{"a link on another site", "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 200},
		{"a form of its own", "POST", []string{"Origin", at, "Sec-Fetch-Site", "same-origin"}, 200},
		{"fetch from another port of the sandbox", "POST", []string{"Origin", "http://8000-sbx-abc.localhost:7777", "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}, 200},
		{"its own script", "GET", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "no-cors"}, 200},
		{"typed into the address bar", "GET", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"}, 200},
	} {
		if got := send(t, browser(t, front), test.method, at+"/", "", append(test.header, cookie...)...); got.status != test.want {
			t.Errorf("%s: %d, want %d", test.name, got.status, test.want)
		}
	}
	// The form that takes the key cannot be sent from elsewhere either.
	form := []string{"Content-Type", "application/x-www-form-urlencoded", "Origin", "http://evil.test"}
	if got := send(t, browser(t, front), "POST", at+unlockPath, "key="+goodKey, form...); got.status != 403 || got.header.Get("Set-Cookie") != "" {
		t.Errorf("the form from elsewhere: %+v", got)
	}
}

// Attack: a sandbox sets cookies for the whole domain, so that they are sent to
// the previews of others, or shadows the proxy's own.
func TestCookieTossing(t *testing.T) {
	_, front := newHarness(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Add("Set-Cookie", "session=1; Domain=localhost; Path=/; HttpOnly")
		h.Add("Set-Cookie", "b=2; domain = .localhost ;Secure")
		h.Add("Set-Cookie", "c=3; DOMAIN=localhost; Domain=x; Max-Age=5")
		h.Add("Set-Cookie", "cove_preview=evil; Path=/a")
		h.Add("Set-Cookie", " __Host-Cove_preview =evil; Path=/; Secure")
		h.Add("Alt-Svc", `h2="evil.test:443"`)
		h.Set("Clear-Site-Data", `"cookies"`)
		h.Set(errorHeader, "not_found")
	}))
	got := get(t, browser(t, front), "http://3001-sbx-abc.localhost/")
	want := []string{"session=1; Path=/; HttpOnly", "b=2;Secure", "c=3; Max-Age=5"}
	if strings.Join(got.header["Set-Cookie"], "|") != strings.Join(want, "|") {
		t.Errorf("cookies %q, want %q", got.header["Set-Cookie"], want)
	}
	if got.header.Get("Alt-Svc") != "" || got.header.Get("Clear-Site-Data") != "" || got.header.Get(errorHeader) != "" {
		t.Errorf("header %v", got.header)
	}
}

// Attack: a cookie that another host has set, from a script, stands before the
// real one and locks the visitor out.
// Browsers have one jar for all ports of a host name, so the console's cookie can come
// with requests for a preview.
func TestServersCookiesStayOut(t *testing.T) {
	inside := &seen{}
	_, front := newHarness(t, inside)
	for sent, want := range map[string]string{
		"cove_console=s":                                                  "",
		"a=1; cove_console=s; b=2":                                        "a=1; b=2",
		"__Host-cove_console=s; a=1":                                      "a=1",
		"Cove_Console=s;a=1 ;__host-Cove_console=s":                       "a=1",
		"cove_preview=" + encodeCookie(credential{}) + ";xcove_console=1": "xcove_console=1",
	} {
		if got := get(t, browser(t, front), "http://3001-sbx-abc.localhost/", "Cookie", sent); got.body != "inside" {
			t.Fatalf("%q: %d %s", sent, got.status, got.body)
		}
		if got := inside.request(t).Header.Get("Cookie"); got != want {
			t.Errorf("of %q the sandbox saw %q, want %q", sent, got, want)
		}
	}
}

func TestTossedCookieDoesNotShadow(t *testing.T) {
	_, front := newHarness(t, new(seen))
	real := cookieName + "=" + encodeCookie(credential{key: goodKey})
	for _, cookies := range []string{"cove_preview=evil; " + real, "cove_preview=" + encodeCookie(credential{key: "other"}) + "; " + real, real + "; cove_preview=;"} {
		if got := get(t, browser(t, front), at+"/", "Cookie", cookies); got.body != "inside" {
			t.Errorf("%s: %+v", cookies, got)
		}
	}
	// And many of them cost no more than a few looks.
	if got := get(t, browser(t, front), at+"/", "Cookie", strings.Repeat("cove_preview="+encodeCookie(credential{key: "other"})+"; ", 200)+real); got.status != 403 {
		t.Errorf("200 cookies: %+v", got)
	}
}

// Attack: a link to a preview whose path a browser takes for another host.
func TestNoOpenRedirect(t *testing.T) {
	_, front := newHarness(t, new(seen))
	for path, want := range map[string]string{
		"//evil.test/":        "/evil.test/",
		"/%2f/evil.test":      "/%2f/evil.test",
		"///evil.test":        "/evil.test",
		"/\\evil.test":        "/%5Cevil.test",
		"/\\/evil.test":       "/%5C/evil.test",
		"/a//b":               "/a//b",
		"/a?u=//evil.test&":   "/a?u=//evil.test&",
		"/.//evil.test":       "/.//evil.test",
		"/%0d%0aX:%20y":       "/%0d%0aX:%20y",
		"/@evil.test":         "/@evil.test",
		"/http://evil.test":   "/http://evil.test",
		"/;//evil.test?x=%0a": "/;//evil.test?x=%0a",
	} {
		sep := "?"
		if strings.Contains(path, "?") {
			sep = "&"
		}
		got := raw(t, front, "GET "+path+sep+"cove_preview="+goodLink+" HTTP/1.1\r\nHost: "+label+".localhost\r\nAccept: text/html\r\nConnection: close\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(got)), nil)
		if err != nil {
			t.Errorf("%s: %v in %q", path, err, got)
			continue
		}
		_ = res.Body.Close()
		location := res.Header.Get("Location")
		if strings.TrimSuffix(location, "&") != strings.TrimSuffix(want, "&") {
			t.Errorf("%s: to %q, want %q", path, location, want)
		}
		if u := mustParse(t, at+"/x").ResolveReference(mustParse(t, location)); u.Host != label+".localhost" {
			t.Errorf("%s leads to %s", path, u.Host)
		}
	}
	for to, want := range map[string]string{"": "/", "https://evil.test/": "/", "//evil.test/x": "/evil.test/x", "/\\evil.test": "/%5Cevil.test", "javascript:alert(1)": "/", "/ok?a=1": "/ok?a=1", "ok": "/"} {
		if got := localTarget(to); got != want {
			t.Errorf("form to %q: %q, want %q", to, got, want)
		}
	}
}

// Attack: what listens in the sandbox does not speak HTTP, or speaks it badly.
// The visitor gets an answer, and the proxy lives on.
func TestSandboxAnswersGarbage(t *testing.T) {
	w, front := newHarness(t, new(seen))
	for name, text := range map[string]string{
		"nothing":                   "",
		"noise":                     "\x00\x01\x02SSH-2.0-OpenSSH\r\n\r\n",
		"half a header":             "HTTP/1.1 200 OK\r\nContent-Le",
		"bad status":                "HTTP/1.1 999999 Huh\r\n\r\n",
		"negative length":           "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
		"two lengths":               "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
		"header bomb":               "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 1000) + "\r\n",
		"a switch nobody asked for": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nevil",
		"endless information":       strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n", 20_000),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
					_, _ = conn.Read(make([]byte, 4096))
					_, _ = io.WriteString(conn, text)
					_ = conn.Close()
				}
			}()
			w.mu.Lock()
			w.ports["3001-sbx-abc"] = l.Addr().String()
			w.mu.Unlock()
			got := get(t, browser(t, front), "http://3001-sbx-abc.localhost/")
			if got.status != http.StatusBadGateway || got.header.Get(errorHeader) != "bad_answer" {
				t.Errorf("%+v", got)
			}
		})
	}
	w.mu.Lock()
	w.ports["3001-sbx-abc"] = w.ports[label]
	w.mu.Unlock()
	if got := get(t, browser(t, front), "http://3001-sbx-abc.localhost/"); got.body != "inside" {
		t.Errorf("afterwards: %+v", got)
	}
}

// Attack: hints before the answer carry cookies past the filter.
func TestInformationalResponsesStayInside(t *testing.T) {
	_, front := newHarness(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "a=1; Domain=localhost")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Set-Cookie")
		_, _ = io.WriteString(w, "answer")
	}))
	got := raw(t, front, "GET / HTTP/1.1\r\nHost: 3001-sbx-abc.localhost\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 200") || strings.Contains(got, "Domain") || !strings.HasSuffix(got, "answer") {
		t.Errorf("%q", got)
	}
}

// Attack: a connection that sends its header a byte at a time, and headers
// without end. Neither holds the server, and neither reaches a sandbox.
func TestSlowAndLargeHeaders(t *testing.T) {
	inside := new(seen)
	w, front := newHarness(t, inside)
	conn, err := net.Dial("tcp", serveFor(t, w, nil, time.Second).Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		for range 200 {
			if _, err := io.WriteString(conn, "X"); err != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Error("a slow header holds its connection")
	}
	if got := raw(t, front, "GET / HTTP/1.1\r\nHost: 3001-sbx-abc.localhost\r\n"+strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 200)+"\r\n"); got != "" && !strings.HasPrefix(got, "HTTP/1.1 431") {
		t.Errorf("a large header: %.60q", got)
	}
	if inside.list() != "" {
		t.Errorf("the sandbox saw %s", inside.list())
	}
}

// Attack: another protocol is carried through the proxy under the first
// request's rights.
func TestOnlyWebSocketsUpgrade(t *testing.T) {
	inside := new(seen)
	_, front := newHarness(t, inside)
	got := raw(t, front, "GET / HTTP/1.1\r\nHost: 3001-sbx-abc.localhost\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("got %q", got)
	}
	if h := inside.request(t).Header; h.Get("Upgrade") != "" || h.Get("Http2-Settings") != "" {
		t.Errorf("the sandbox saw %v", h)
	}
}

func FuzzHosts(f *testing.F) {
	for _, s := range []string{"3000-sbx-abc.localhost", "localhost", "[::1]:80", "a@b.localhost", "3000-x.localhost.:1", ""} {
		f.Add(s)
	}
	p := New(Config{Log: discard()})
	f.Fuzz(func(t *testing.T, host string) {
		at, ok := p.place(host)
		if !ok {
			return
		}
		if !p.Claims(&http.Request{Host: host}) {
			t.Errorf("%q leads to %+v and is not claimed", host, at)
		}
		if again, ok := p.place(at.label + ".localhost"); !ok || again != at {
			t.Errorf("%q: %+v is not its own name: %+v", host, at, again)
		}
	})
}

func FuzzCredentials(f *testing.F) {
	f.Add("a=1&cove_preview_key=x&b", "a=1; cove_preview=bGFiYw; c")
	f.Add("cove%5Fpreview=x&&;", "__Host-cove_preview=a=b;;; =")
	f.Fuzz(func(t *testing.T, query, cookie string) {
		r := &http.Request{URL: mustParse(t, "http://x/"), Header: http.Header{"Cookie": {cookie}}}
		r.URL.RawQuery = query
		if len(credentials(r)) > maxCredentials {
			t.Error("too many")
		}
		cleanCookies(r.Header)
		r.URL.RawQuery = cleanQuery(query)
		for _, c := range credentials(r) {
			t.Errorf("%q, %q: left %+v", query, cookie, c)
		}
		if target := cleanTarget(r.URL); !strings.HasPrefix(target, "/") || strings.HasPrefix(target, "//") {
			t.Errorf("target %q", target)
		}
	})
}

func TestWithoutParams(t *testing.T) {
	for query, want := range map[string]string{
		"a_b=x": "", "a=b&a_b=x&c=%20": "a=b&c=%20", "a%5Fb=x&a": "a", "a=a_b": "a=a_b", "x&c&%zz": "c&%zz", "": "",
	} {
		if got := WithoutParams(query, "a_b", "x"); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

// Attack: code in a sandbox asks an authority for a certificate for its public
// preview's name, and answers the validation.
func TestSandboxGetsNoCertificate(t *testing.T) {
	inside := new(seen)
	_, front := newHarness(t, inside)
	c := browser(t, front)
	for _, path := range []string{"/.well-known/acme-challenge/token", "/.well-known/pki-validation/file.txt", "/.well-known/%61cme-challenge/token"} {
		if got := get(t, c, "http://3001-sbx-abc.localhost"+path); got.status != http.StatusNotFound {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	if got := inside.list(); got != "" {
		t.Errorf("the sandbox was asked %s", got)
	}
	if got := get(t, c, "http://3001-sbx-abc.localhost/.well-known/openid-configuration"); got.status != http.StatusOK {
		t.Errorf("another well-known path: %d", got.status)
	}
}
