package auth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// keyTable is a KeyStore in memory.
type keyTable struct {
	keys    map[string]*sandbox.Key // by hash
	touched []string
	err     error

	mu sync.Mutex // guards keys in KeyByID, which runs concurrently with tests
}

func (k *keyTable) KeyByHash(_ context.Context, hash []byte) (sandbox.Key, []byte, error) {
	if k.err != nil {
		return sandbox.Key{}, nil, k.err
	}
	key, ok := k.keys[string(hash)]
	if !ok {
		return sandbox.Key{}, nil, sandbox.Errorf(sandbox.CodeNotFound, "no such key")
	}
	return *key, hash, nil
}

func (k *keyTable) KeyByID(_ context.Context, id string) (sandbox.Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range k.keys {
		if k.err == nil && key.ID == id {
			return *key, nil
		}
	}
	if k.err != nil {
		return sandbox.Key{}, k.err
	}
	return sandbox.Key{}, sandbox.Errorf(sandbox.CodeNotFound, "no such key")
}

func (k *keyTable) ListKeys(_ context.Context, team string, _ sandbox.Page) ([]sandbox.Key, string, error) {
	var found []sandbox.Key
	for _, key := range k.keys {
		if key.Team == team {
			found = append(found, *key)
		}
	}
	return found, "", k.err
}

func (k *keyTable) TouchKey(_ context.Context, id string, at time.Time) error {
	k.touched = append(k.touched, id)
	for _, key := range k.keys {
		if key.ID == id {
			key.LastUsedAt = &at
		}
	}
	return nil
}

func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		in := func(d time.Duration) *time.Time { at := now.Add(d); return &at }
		table := &keyTable{keys: map[string]*sandbox.Key{
			string(Hash("good")):    {ID: "key-good", Team: "red", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}, ExpiresAt: in(time.Hour)},
			string(Hash("revoked")): {ID: "key-revoked", Team: "red", RevokedAt: in(-1)},
			string(Hash("expired")): {ID: "key-expired", Team: "red", ExpiresAt: in(0)},
		}}
		a := &Keys{Store: table, Log: slog.New(slog.DiscardHandler)}
		for _, c := range []struct {
			secret, says string
			want         sandbox.Caller
		}{
			{secret: "good", want: sandbox.Caller{KeyID: "key-good", Team: "red", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}}},
			{secret: "revoked", says: "was revoked"},
			{secret: "expired", says: "has expired"},
			{secret: "", says: "is needed"},
			{secret: "Good", says: "not known"},
			{secret: strings.Repeat("x", 600), says: "is needed"},
		} {
			got, err := a.Authenticate(t.Context(), c.secret)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%.20s: differs (-want +got):\n%s", c.secret, diff)
			}
			if c.says == "" && err == nil {
				continue
			}
			if sandbox.CodeOf(err) != sandbox.CodeUnauthenticated || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%.20s: error %v, want unauthenticated that says %q", c.secret, err, c.says)
			}
		}
		for range 3 {
			time.Sleep(touchEvery / 2)
			if _, err := a.Authenticate(t.Context(), "good"); err != nil {
				t.Error(err)
			}
		}
		if want := []string{"key-good", "key-good"}; !slices.Equal(table.touched, want) {
			t.Errorf("recorded uses %v, want %v: once a minute", table.touched, want)
		}
		time.Sleep(time.Hour)
		if _, err := a.Authenticate(t.Context(), "good"); sandbox.CodeOf(err) != sandbox.CodeUnauthenticated {
			t.Errorf("after its expiry: %v", err)
		}
		table.err = errors.New("disk on fire")
		if _, err := a.Authenticate(t.Context(), "good"); sandbox.CodeOf(err) != sandbox.CodeInternal {
			t.Errorf("with a broken store: %v", err)
		}
	})
}

// TestCallerOf checks that rights derived from a key end with it.
func TestCallerOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		later := time.Now().Add(time.Hour)
		table := &keyTable{keys: map[string]*sandbox.Key{
			"a": {ID: "key-a", Team: "red", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}, ExpiresAt: &later},
			"b": {ID: "key-b", Team: "red", RevokedAt: &later},
			"c": {ID: "key-c", Team: "blue"},
		}}
		k := &Keys{Store: table}
		want := sandbox.Caller{KeyID: "key-a", Team: "red", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}}
		if got, err := k.CallerOf(t.Context(), "key-a"); err != nil || !cmp.Equal(got, want) {
			t.Errorf("got %v, %v", got, err)
		}
		if got, err := k.CallersOf(t.Context(), "red"); err != nil || !cmp.Equal(got, []sandbox.Caller{want}) {
			t.Errorf("of the team: %v, %v", got, err)
		}
		time.Sleep(time.Hour)
		for _, id := range []string{"key-a", "key-b", "key-x", ""} {
			if got, err := k.CallerOf(t.Context(), id); sandbox.CodeOf(err) != sandbox.CodeUnauthenticated {
				t.Errorf("%q: %v, %v", id, got, err)
			}
		}
		if got, err := k.CallersOf(t.Context(), "red"); err != nil || len(got) != 0 {
			t.Errorf("of the team, later: %v, %v", got, err)
		}
		table.err = errors.New("disk on fire")
		if _, err := k.CallerOf(t.Context(), "key-a"); sandbox.CodeOf(err) != sandbox.CodeInternal {
			t.Errorf("with a broken store: %v", err)
		}
	})
}

func TestGenerateKey(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		secret, hint := GenerateKey("")
		text := secret.Reveal()
		if !strings.HasPrefix(text, hint) || !strings.HasPrefix(hint, DefaultPrefix) || len(text) < len(DefaultPrefix)+26 || len(hint) > len(DefaultPrefix)+4 {
			t.Fatalf("secret of %d bytes with hint %q", len(text), hint)
		}
		if seen[text] || !validToken(text) {
			t.Fatalf("secret with hint %q is repeated or no bearer token", hint)
		}
		seen[text] = true
	}
	if secret, _ := GenerateKey("acme_"); !strings.HasPrefix(secret.Reveal(), "acme_") {
		t.Error("the prefix is not used")
	}
}

func TestSecretNeverShows(t *testing.T) {
	const text = "cove_TOPSECRET"
	s := NewSecret(text)
	holder := struct {
		Public  Secret
		private Secret
		P       *Secret
	}{s, s, &s}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p"} {
		fmt.Fprintf(&out, verb+verb+verb, s, holder, &holder)
	}
	var logs bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&logs, nil), slog.NewJSONHandler(&logs, nil)} {
		slog.New(h).Info("x", "secret", s, "holder", holder, "p", &s)
	}
	out.WriteString(logs.String())
	if b, err := json.Marshal(s); err == nil {
		t.Errorf("encoded as %s", b)
	}
	if b, err := json.Marshal(map[string]any{"x": holder}); err == nil {
		t.Errorf("encoded as %s", b)
	}
	for _, leak := range []string{text, fmt.Sprintf("%x", text), fmt.Sprintf("%X", text), "TOPSECRET"} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("%q shows in %s", leak, out.String())
		}
	}
	if s.Reveal() != text || (Secret{}).Reveal() != "" {
		t.Error("Reveal does not return the text")
	}
}

type fixedAuth struct{ secret string }

func (f fixedAuth) Authenticate(_ context.Context, secret string) (sandbox.Caller, error) {
	if secret != f.secret {
		return sandbox.Caller{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "no")
	}
	return sandbox.Caller{KeyID: "key-x", Team: "red"}, nil
}

func TestMiddleware(t *testing.T) {
	whoami := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := sandbox.CallerOf(r.Context())
		fmt.Fprint(w, c.KeyID, " ", ok)
	})
	for _, c := range []struct {
		name      string
		cfg       Config
		header    []string
		status    int
		body      string
		challenge string
	}{
		{"good", Config{Authenticator: fixedAuth{"s"}}, []string{"Bearer s"}, 200, "key-x true", ""},
		{"scheme in any case", Config{Authenticator: fixedAuth{"s"}}, []string{"bEARER s"}, 200, "key-x true", ""},
		{"wrong", Config{Authenticator: fixedAuth{"s"}}, []string{"Bearer x"}, 401, "unauthenticated", `Bearer realm="cove", error="invalid_token"`},
		{"none", Config{Authenticator: fixedAuth{"s"}}, nil, 401, "unauthenticated", `Bearer realm="cove"`},
		{"two", Config{Authenticator: fixedAuth{"s"}}, []string{"Bearer s", "Bearer s"}, 401, "more than one", `Bearer realm="cove", error="invalid_token"`},
		{"basic", Config{Authenticator: fixedAuth{"s"}}, []string{"Basic s"}, 401, "unauthenticated", `Bearer realm="cove", error="invalid_token"`},
		{"dev mode", Config{Authenticator: Local{}, Anonymous: true}, nil, 200, "local true", ""},
		{"dev mode with a key", Config{Authenticator: Local{}, Anonymous: true}, []string{"Bearer x"}, 200, "local true", ""},
		{"trusted", Config{Authenticator: fixedAuth{"s"}, Trusted: func(*http.Request) bool { return true }}, nil, 200, "local true", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.Header["Authorization"] = c.header
			w := httptest.NewRecorder()
			Middleware(c.cfg)(whoami).ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.body) || w.Header().Get("WWW-Authenticate") != c.challenge {
				t.Errorf("got %d %q with challenge %q, want %d %q %q", w.Code, w.Body, w.Header().Get("WWW-Authenticate"), c.status, c.body, c.challenge)
			}
		})
	}
}

// TestNamespaceHeader checks that a request works in the namespace it names, whoever makes
// it.
func TestNamespaceHeader(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []string
		want   string
		good   bool
	}{
		{"none", nil, "", true},
		{"all", []string{"*"}, "", true},
		{"one", []string{"claude"}, "claude", true},
		{"two", []string{"a", "b"}, "", false},
		{"empty", []string{""}, "", false},
	} {
		for who, cfg := range map[string]Config{
			"local": {Trusted: func(*http.Request) bool { return true }}, "key": {Authenticator: fixedAuth{"s"}},
		} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.Header.Set("Authorization", "Bearer s")
			r.Header[NamespaceHeader] = c.values
			w := httptest.NewRecorder()
			Middleware(cfg)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				caller, _ := sandbox.CallerOf(r.Context())
				fmt.Fprint(w, caller.Namespace)
			})).ServeHTTP(w, r)
			if good := w.Code == http.StatusOK; good != c.good || good && w.Body.String() != c.want || !good && w.Code != http.StatusBadRequest {
				t.Errorf("%s, %s: %d %s", c.name, who, w.Code, w.Body)
			}
		}
	}
}

func TestViaUnixSocket(t *testing.T) {
	for network, want := range map[string]bool{"unix": true, "tcp": false} {
		address := "127.0.0.1:0"
		if network == "unix" {
			address = filepath.Join(t.TempDir(), "s")
		}
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan bool, 1)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- ViaUnixSocket(r) }))
		srv.Listener.Close()
		srv.Listener = l
		srv.Start()
		tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
		}}
		resp, err := (&http.Client{Transport: tr}).Get("http://cove/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if g := <-got; g != want {
			t.Errorf("a request by %s: ViaUnixSocket = %v", network, g)
		}
		tr.CloseIdleConnections()
		srv.Close()
	}
}

func TestCheckHost(t *testing.T) {
	h := CheckHost(HostConfig{Hosts: []string{"Cove.Example", "10.0.0.7", "[fd00::1]"}})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, c := range []struct {
		host    string
		origins []string
		want    int
	}{
		{"localhost", nil, 200},
		{"LOCALHOST:7777", nil, 200},
		{"127.0.0.1:1", nil, 200},
		{"127.1.2.3", nil, 200},
		{"[::1]:80", nil, 200},
		{"[::1]", nil, 200},
		{"cove.example:443", nil, 200},
		{"10.0.0.7", nil, 200},
		{"[fd00::1]:1", nil, 200},
		{"evil.example", nil, 403},
		{"localhost.evil.example", nil, 403},
		{"127.0.0.1.evil.example", nil, 403},
		{"localhost.", nil, 403},
		{"0.0.0.0", nil, 403},
		{"10.0.0.8", nil, 403},
		{"2130706433", nil, 403},
		{"::1", nil, 403},
		{"[::1%25lo]", nil, 403},
		{"user@localhost", nil, 403},
		{"localhost:80:80", nil, 403},
		{"localhost:http", nil, 403},
		{"", nil, 403},
		{"localhost:7777", []string{"http://localhost:7777"}, 200},
		{"localhost", []string{"http://localhost"}, 200},
		{"cove.example:443", []string{"https://cove.example"}, 200},
		{"localhost", []string{"https://cove.example"}, 200},
		{"localhost", []string{"https://cove.example:8443"}, 200},
		{"localhost:7777", []string{"http://localhost:3000"}, 403},
		{"localhost:7777", []string{"http://localhost"}, 403},
		{"localhost:7777", []string{"http://127.0.0.1:7777"}, 403},
		{"localhost", []string{"null"}, 403},
		{"localhost", []string{""}, 403},
		{"localhost", []string{"http://evil.example"}, 403},
		{"localhost", []string{"http://localhost.evil.example"}, 403},
		{"localhost", []string{"http://localhost@evil.example"}, 403},
		{"localhost", []string{"http://localhost", "http://evil.example"}, 403},
		{"localhost", []string{"file://localhost"}, 403},
		{"localhost", []string{"http://localhost/path"}, 403},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Host = c.host
		if c.origins != nil {
			r.Header["Origin"] = c.origins
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("host %q origin %q: %d, want %d", c.host, c.origins, w.Code, c.want)
		}
	}
}

// TestHostOfArrival checks that a probe may name the address at which it arrives, which a page
// of another origin cannot use.
func TestHostOfArrival(t *testing.T) {
	h := CheckHost(HostConfig{Hosts: []string{"cove.example"}})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, c := range []struct {
		at           net.IP
		host, origin string
		want         int
	}{
		{net.IPv4(10, 0, 0, 9), "10.0.0.9:7777", "", 200},
		{net.IPv4(10, 0, 0, 9), "10.0.0.8:7777", "", 403},
		{net.IPv4(10, 0, 0, 9), "evil.example", "", 403},
		{net.IPv4(10, 0, 0, 9), "10.0.0.9.evil.example", "", 403},
		{net.IPv4(10, 0, 0, 9), "10.0.0.9:7777", "http://10.0.0.9:7777", 200},
		{net.IPv4(10, 0, 0, 9), "10.0.0.9:7777", "http://10.0.0.9:3000", 403},
		{net.IPv4(10, 0, 0, 9), "10.0.0.9:7777", "http://evil.example", 403},
		{net.ParseIP("fd00::9"), "[fd00::9]:7777", "", 200},
		{net.ParseIP("fd00::9"), "[fd00::8]:7777", "", 403},
	} {
		ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: c.at, Port: 7777})
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		r.Host = c.host
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("at %s, host %q origin %q: %d, want %d", c.at, c.host, c.origin, w.Code, c.want)
		}
	}
}

// TestForeignPagesAreRefused attacks with a page that a sandbox serves on a port of
// localhost. It makes the browser send requests that need no permission: without an Origin
// check, or without a Content-Type.
func TestForeignPagesAreRefused(t *testing.T) {
	for name, cfg := range map[string]HostConfig{"loopback": {}, "others reach it": {AnyHost: true}} {
		h := CheckHost(cfg)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for _, c := range []struct {
			name, method string
			header       []string
			want         int
		}{
			{"curl", "POST", nil, 200},
			{"fetch of Node.js", "POST", []string{"Sec-Fetch-Mode", "cors"}, 200},
			{"a page of the server", "POST", []string{"Origin", "http://localhost:7777", "Sec-Fetch-Site", "same-origin"}, 200},
			{"a page of the server behind a proxy", "POST", []string{"Origin", "https://cove.example", "Sec-Fetch-Site", "same-origin"}, 200},
			{"the address bar", "GET", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"}, 200},
			{"a link of another site", "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 200},
			{"fetch without cors from another port", "POST", []string{"Origin", "http://localhost:18081", "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, 403},
			{"the same without Origin", "POST", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, 403},
			{"an old browser", "POST", []string{"Origin", "http://localhost:18081"}, 403},
			{"a form of another site", "POST", []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 403},
			{"a form without Origin", "POST", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 403},
			{"an image of another port", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, 403},
			{"a WebSocket of another port", "GET", []string{"Origin", "http://localhost:18081", "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "websocket"}, 403},
			{"a preflight", "OPTIONS", []string{"Origin", "http://localhost:18081"}, 403},
		} {
			r := httptest.NewRequestWithContext(t.Context(), c.method, "/v1/sandboxes", nil)
			r.Host = "localhost:7777"
			for i := 0; i < len(c.header); i += 2 {
				r.Header.Add(c.header[i], c.header[i+1])
			}
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != c.want {
				t.Errorf("%s, %s: %d, want %d", name, c.name, w.Code, c.want)
			}
		}
	}
}

func FuzzBearerToken(f *testing.F) {
	for _, s := range []string{"", "Bearer ", "Bearer x", "bearer  a.b-c=", "Basic eDp5", "Bearer a b", "Bearer \x00", "Bearer ==="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token, err := BearerToken(http.Header{"Authorization": {s}})
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeUnauthenticated {
				t.Fatalf("%q: code %q", s, sandbox.CodeOf(err))
			}
			return
		}
		if token == "" || len(token) > maxToken || strings.ContainsAny(token, " \t\r\n\x00,\"") || !strings.HasSuffix(s, token) {
			t.Fatalf("%q gives the token %q", s, token)
		}
	})
}

func FuzzHostName(f *testing.F) {
	for _, s := range []string{"", "localhost", "localhost:80", "[::1]:80", "[::1", "::1", "a@b", "127.0.0.1:99999", "[fe80::1%25eth0]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, ok := hostName(s)
		if !ok {
			return
		}
		if name == "" || name != strings.ToLower(name) || strings.ContainsAny(name, "@/[] ") {
			t.Fatalf("%q gives the name %q", s, name)
		}
		if loopbackName(name) && name != "localhost" && !net.ParseIP(name).IsLoopback() {
			t.Fatalf("%q is taken for loopback", s)
		}
	})
}

// counted is a store that counts its calls.
type counted struct {
	*keyTable
	asked int
}

func (c *counted) KeyByHash(ctx context.Context, hash []byte) (sandbox.Key, []byte, error) {
	c.asked++
	return c.keyTable.KeyByHash(ctx, hash)
}

// TestGuessingKeys guesses keys from an address that it shares with honest callers.
func TestGuessingKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &counted{keyTable: &keyTable{keys: map[string]*sandbox.Key{
			string(Hash("used")): {ID: "key-used", Team: "red"}, string(Hash("idle")): {ID: "key-idle", Team: "red"},
		}}}
		h := WithAddress(Middleware(Config{Authenticator: &Keys{Store: table, Limiter: NewLoginLimiter()}})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		ask := func(address, key string) (int, string) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.RemoteAddr = address
			r.Header.Set("Authorization", "Bearer "+key)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code, w.Body.String()
		}
		want := func(what, address, key string, status int) {
			t.Helper()
			if got, body := ask(address, key); got != status {
				t.Errorf("%s: %d %s, want %d", what, got, body, status)
			}
		}
		const here, there = "192.0.2.1:1000", "192.0.2.2:1000"
		want("a good key", here, "used", 200)
		for i := range maxUnknownKeys {
			want("a guess", here, fmt.Sprint("guess", i), 401)
		}
		asked := table.asked
		for i := range 100 {
			want("one guess more", fmt.Sprintf("192.0.2.1:%d", 2000+i), fmt.Sprint("more", i), 429)
		}
		if table.asked != asked {
			t.Errorf("the store was asked for %d guesses after the last that counts", table.asked-asked)
		}
		want("a key that was good lately", here, "used", 200)
		want("a good key from another address", there, "idle", 200)
		want("the same from here, from now on", here, "idle", 200)
		table.keys[string(Hash("used"))].RevokedAt = new(time.Now())
		want("a key that was revoked", here, "used", 401)
		want("the same again, which is known no more", here, "used", 429)
		time.Sleep(refillEvery)
		want("a guess after a while", here, "later", 401)
		want("the next", here, "later", 429)
	})
}

// TestLongRequestEndsWithItsKey checks that a long-running request, such as a stream of
// events, ends soon after its key does.
func TestLongRequestEndsWithItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secret := NewSecret("cove_" + strings.Repeat("x", 40))
		key := &sandbox.Key{ID: "key-x", Team: "red", Scopes: []sandbox.Scope{sandbox.ScopeAdmin}}
		table := &keyTable{keys: map[string]*sandbox.Key{string(Hash(secret.Reveal())): key}}
		ended := make(chan struct{})
		handler := Middleware(Config{Authenticator: &Keys{Store: table}})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			close(ended)
		}))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/events", nil)
		r.Header.Set("Authorization", "Bearer "+secret.Reveal())
		go handler.ServeHTTP(httptest.NewRecorder(), r)
		time.Sleep(time.Hour)
		select {
		case <-ended:
			t.Error("the request ended while the key was valid")
		default:
		}
		table.mu.Lock()
		key.RevokedAt = new(time.Now())
		table.mu.Unlock()
		began := time.Now()
		<-ended
		if took := time.Since(began); took > recheckTime {
			t.Errorf("it ended %v after the key", took)
		}
	})
}
