// Package oidctest runs a real OpenID provider on loopback for tests, and signs people in
// with it as a browser does. The provider is the program test/sso/provider, a module of
// its own. What tests have go wrong goes wrong on the way to it.
package oidctest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

const (
	// Password is everybody's.
	Password = "a password"
	// Secret is that of all clients.
	Secret = "the secret of the client"
)

// Provider is an identity provider. Its people are alice (groups platform and staff), bob
// (staff), carol, whose address is not verified and who has no groups, dave, of another
// domain and with a script for a group, and erin (platform), who has no address. Its
// clients are cove, whole, which is told all in the ID token, and late, whose ID tokens
// have expired.
type Provider struct {
	// Issuer is its address.
	Issuer string

	down atomic.Bool
	mu   sync.Mutex
	// change changes answers by path; guarded by mu.
	change map[string]func([]byte) []byte
}

// program is an open file of the provider, which is built once and has no name any more.
var program = sync.OnceValues(func() (*os.File, error) {
	root, err := covetest.Root()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "cove-provider-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "provider")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Dir = filepath.Join(root, "test", "sso", "provider")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the provider: %w\n%s", err, out)
	}
	return os.Open(path)
})

// Start starts a provider that ends with the test.
func Start(t testing.TB) *Provider {
	t.Helper()
	file, err := program()
	if err != nil {
		t.Fatal(err)
	}
	p := &Provider{change: map[string]func([]byte) []byte{}}
	var target atomic.Pointer[url.URL]
	front := httptest.NewServer(p.handler(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target.Load())
			r.Out.Header.Del("Accept-Encoding") // answers are to be read
		},
		ModifyResponse: p.modify,
	}))
	t.Cleanup(front.Close)
	p.Issuer = front.URL

	cmd := exec.Command(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()), "-issuer", p.Issuer, "-secret", Secret)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // it ends with that
		_ = cmd.Wait()
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the provider does not start: %v", err)
	}
	target.Store(&url.URL{Scheme: "http", Host: strings.TrimSpace(addr)})
	return p
}

func (p *Provider) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.down.Load() {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

// Down says whether the provider breaks each connection.
func (p *Provider) Down(down bool) { p.down.Store(down) }

// Change has the bodies of answers at a path changed; nil leaves them as they are.
func (p *Provider) Change(path string, change func([]byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change[path] = change
}

func (p *Provider) modify(resp *http.Response) error {
	p.mu.Lock()
	change := p.change[resp.Request.URL.Path]
	p.mu.Unlock()
	if change == nil {
		return nil
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	body = change(body)
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	resp.Header.Set("Content-Length", fmt.Sprint(len(body)))
	return nil
}

// formID is the hidden field of the page on which people sign in.
var formID = regexp.MustCompile(`name="id" value="([^"]+)"`)

// SignIn goes to the address at which a sign-in begins, signs somebody in there, and
// returns the address to which the provider sends the browser back. Nobody goes there.
func SignIn(t testing.TB, begin, user string) *url.URL {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	var back *url.URL
	browser := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.Path, "/console/") {
			back = r.URL
			return http.ErrUseLastResponse
		}
		return nil
	}}
	defer browser.CloseIdleConnections()
	page := fetch(t, browser, "GET", begin, nil)
	if back != nil {
		return back // the provider refuses at once
	}
	id := formID.FindStringSubmatch(page)
	if id == nil {
		t.Fatalf("the provider shows no form at %s: %s", begin, page)
	}
	at, err := url.Parse(begin)
	if err != nil {
		t.Fatal(err)
	}
	page = fetch(t, browser, "POST", "http://"+at.Host+"/login/username", url.Values{"id": {id[1]}, "username": {user}, "password": {Password}})
	if back == nil {
		t.Fatalf("the provider does not send %s back: %s", user, page)
	}
	return back
}

func fetch(t testing.TB, browser *http.Client, method, address string, form url.Values) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := browser.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
