package oci

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/cove-sh/cove/sandbox"
)

const loginPassword = "hunter2-of-the-build"

func login(password string) *sandbox.RegistryLogin {
	return &sandbox.RegistryLogin{Username: "builder", Password: sandbox.NewSecretValue(password)}
}

// stranger is a host that records the requests it gets.
type stranger struct {
	*httptest.Server
	mu   sync.Mutex
	told []string // under mu
}

// newStranger starts a host that answers with answer, or with 404 if that is nil.
func newStranger(t *testing.T, answer http.HandlerFunc) *stranger {
	t.Helper()
	s := &stranger{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<16))
		s.mu.Lock()
		s.told = append(s.told, fmt.Sprint(r.Method, " ", r.URL, " ", r.Header, " ", string(body)))
		s.mu.Unlock()
		if answer == nil {
			http.NotFound(w, r)
			return
		}
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *stranger) host() string { return strings.TrimPrefix(s.URL, "http://") }

// heard fails the test if the host received any part of a login. It returns the number of
// requests.
func (s *stranger) heard(t *testing.T) (asked int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.told {
		if strings.Contains(text, "Authorization") || strings.Contains(text, loginPassword) || strings.Contains(text, "builder") {
			t.Errorf("another host was told %s", text)
		}
	}
	return len(s.told)
}

// TestLogin checks that a login opens the registry for its own build only, and that the
// server's own login is not used for it.
func TestLogin(t *testing.T) {
	w := newHarness(t, false)
	w.account = "builder:" + loginPassword
	img, want := imageOf(t, platform.Architecture)
	ref := w.push(t, "private:1", img)
	r := client(t, Config{Insecure: []string{w.host}, Keychain: authn.NewMultiKeychain()})
	got, err := r.Resolve(t.Context(), ref, login(loginPassword))
	if err != nil {
		t.Fatal(err)
	}
	read(t, got, want)
	again, err := r.Resolve(t.Context(), ref, login(loginPassword))
	if err != nil || again.Layers[0].From == got.Layers[0].From {
		t.Errorf("two logins share their downloads: %v", err)
	}
	_, err = r.Resolve(t.Context(), ref, nil)
	wantCode(t, err, sandbox.CodeForbidden, "docker login")
	_, err = r.Resolve(t.Context(), ref, login("wrong"))
	wantCode(t, err, sandbox.CodeForbidden, "the login of this build")
}

// TestLoginIsRedacted attacks with a registry that repeats the login, so that it would
// get into a log.
func TestLoginIsRedacted(t *testing.T) {
	w := newHarness(t, false)
	w.set(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "" {
			rw.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			rw.WriteHeader(http.StatusUnauthorized)
			return true
		}
		rw.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(rw, `{"errors":[{"code":"DENIED","message":"%s %s"}]}`, r.Header.Get("Authorization"), loginPassword)
		return true
	})
	r := client(t, Config{Insecure: []string{w.host}, Keychain: authn.NewMultiKeychain()})
	_, err := r.Resolve(t.Context(), w.host+"/app:1", login(loginPassword))
	e, ok := err.(*sandbox.Error)
	if !ok {
		t.Fatalf("the error is %v", err)
	}
	if text := e.Detail(); strings.Contains(text, loginPassword) || strings.Contains(text, "YnVpbGRlcjp") || !strings.Contains(text, "[redacted]") {
		t.Errorf("the log has %s", text)
	}
}

// TestLoginIsNotForwarded attacks with registries that send a login elsewhere: by a redirect of
// a manifest or a blob, by another owner's token server, or by a token server that
// redirects.
func TestLoginIsNotForwarded(t *testing.T) {
	img, want := imageOf(t, platform.Architecture)
	t.Run("blobs of another host", func(t *testing.T) {
		w := newHarness(t, false)
		w.account = "builder:" + loginPassword
		ref := w.push(t, "app:1", img)
		far := newStranger(t, func(rw http.ResponseWriter, r *http.Request) {
			req, _ := http.NewRequestWithContext(r.Context(), http.MethodGet, w.URL+r.URL.Path+"?here", nil)
			req.SetBasicAuth("builder", loginPassword) // as for a blob store
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				rw.WriteHeader(http.StatusBadGateway)
				return
			}
			defer resp.Body.Close()
			_, _ = io.Copy(rw, resp.Body)
		})
		w.set(func(rw http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/blobs/") || r.URL.RawQuery == "here" {
				return false
			}
			http.Redirect(rw, r, far.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		})
		r := client(t, Config{Insecure: []string{w.host, far.host()}, Keychain: authn.NewMultiKeychain()})
		got, err := r.Resolve(t.Context(), ref, login(loginPassword))
		if err != nil {
			t.Fatal(err)
		}
		read(t, got, want)
		if far.heard(t) == 0 {
			t.Error("nothing was read from the other host")
		}
	})
	// The other host does not get the login that it requests in a challenge of its own.
	asks := func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("WWW-Authenticate", `Basic realm="give"`)
		rw.WriteHeader(http.StatusUnauthorized)
	}
	t.Run("manifests of another host", func(t *testing.T) {
		for name, answer := range map[string]http.HandlerFunc{"silent": nil, "asking": asks} {
			w, far := newHarness(t, false), newStranger(t, answer)
			w.account = "builder:" + loginPassword
			w.set(func(rw http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.URL.Path, "/manifests/") {
					http.Redirect(rw, r, far.URL+r.URL.Path, http.StatusPermanentRedirect)
					return true
				}
				return false
			})
			r := client(t, Config{Insecure: []string{w.host, far.host()}, Keychain: authn.NewMultiKeychain()})
			if _, err := r.Resolve(t.Context(), w.host+"/app:1", login(loginPassword)); err == nil {
				t.Errorf("%s: it was found", name)
			}
			if far.heard(t) == 0 {
				t.Errorf("%s: the other host was not asked", name)
			}
		}
	})
	// A registry whose token server is at the address that realm returns.
	tokens := func(t *testing.T, realm func(w *harness) string, own http.HandlerFunc) *harness {
		w := newHarness(t, false)
		w.set(func(rw http.ResponseWriter, r *http.Request) bool {
			switch {
			case r.URL.Path == "/token":
				own(rw, r)
			case r.Header.Get("Authorization") != "Bearer good":
				rw.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="x"`, realm(w)))
				rw.WriteHeader(http.StatusUnauthorized)
			default:
				return false
			}
			return true
		})
		return w
	}
	give := func(rw http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password == loginPassword {
			fmt.Fprint(rw, `{"token":"good"}`)
			return
		}
		rw.WriteHeader(http.StatusUnauthorized)
	}
	t.Run("tokens of its own", func(t *testing.T) {
		w := tokens(t, func(w *harness) string { return w.URL + "/token" }, give)
		r := client(t, Config{Insecure: []string{w.host}, Keychain: authn.NewMultiKeychain()})
		_, err := r.Resolve(t.Context(), w.host+"/app:1", login(loginPassword))
		wantCode(t, err, sandbox.CodeNotFound, "no image")
		_, err = r.Resolve(t.Context(), w.host+"/app:1", login("wrong"))
		wantCode(t, err, sandbox.CodeForbidden, "the login of this build")
	})
	t.Run("tokens of another host", func(t *testing.T) {
		far := newStranger(t, give)
		for _, name := range []string{far.URL, strings.Replace(far.URL, "127.0.0.1", "localhost", 1)} {
			w := tokens(t, func(*harness) string { return name + "/token" }, nil)
			r := client(t, Config{Insecure: []string{w.host, far.host(), strings.Replace(far.host(), "127.0.0.1", "localhost", 1)}, Keychain: authn.NewMultiKeychain()})
			if _, err := r.Resolve(t.Context(), w.host+"/app:1", login(loginPassword)); err == nil {
				t.Errorf("%s: it was found", name)
			}
		}
		far.heard(t)
	})
	t.Run("tokens that are moved", func(t *testing.T) {
		for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect} {
			far := newStranger(t, asks)
			w := tokens(t, func(w *harness) string { return w.URL + "/token" }, func(rw http.ResponseWriter, r *http.Request) {
				http.Redirect(rw, r, strings.Replace(far.URL, "127.0.0.1", "localhost", 1)+"/token", status)
			})
			r := client(t, Config{Insecure: []string{w.host, far.host(), strings.Replace(far.host(), "127.0.0.1", "localhost", 1)}, Keychain: authn.NewMultiKeychain()})
			if _, err := r.Resolve(t.Context(), w.host+"/app:1", login(loginPassword)); err == nil {
				t.Errorf("%d: it was found", status)
			}
			far.heard(t)
		}
	})
}

// TestLoginIsNotForMirrors checks that a login is not sent to a mirror of its registry.
func TestLoginIsNotForMirrors(t *testing.T) {
	w, mirror := newHarness(t, false), newStranger(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("WWW-Authenticate", `Basic realm="mirror"`)
		rw.WriteHeader(http.StatusUnauthorized)
	})
	w.account = "builder:" + loginPassword
	img, want := imageOf(t, platform.Architecture)
	ref := w.push(t, "private:1", img)
	r := client(t, Config{Insecure: []string{w.host, mirror.host()}, Mirrors: map[string][]string{w.host: {mirror.host()}}, Keychain: authn.NewMultiKeychain()})
	got, err := r.Resolve(t.Context(), ref, login(loginPassword))
	if err != nil {
		t.Fatal(err)
	}
	read(t, got, want)
	if mirror.heard(t) == 0 {
		t.Error("the mirror was not asked")
	}
}

func TestSameOwner(t *testing.T) {
	for _, tt := range []struct {
		registry, host string
		want           bool
	}{
		{"index.docker.io", "auth.docker.io", true}, {"registry.gitlab.com", "gitlab.com:443", true}, {"ghcr.io", "GHCR.io", true},
		{"ghcr.io", "ghcr.io.evil.example", false}, {"ghcr.io", "evilghcr.io", false}, {"registry.example.com", "example.org", false},
		{"a.github.io", "b.github.io", false}, {"a.co.uk", "b.co.uk", false}, {"localhost:5000", "localhost:5000", true},
		{"localhost:5000", "localhost:5001", false}, {"127.0.0.1:1", "127.0.0.1:2", false}, {"10.0.0.1:5000", "10.0.0.2:5000", false},
		{"registry", "tokens", false}, {"[::1]:5000", "[::1]:5000", true}, {"[::1]:5000", "[::1]:5001", false}, {"x.example.com", "", false},
	} {
		if got := sameOwner(tt.registry, tt.host); got != tt.want {
			t.Errorf("%s and %s: %v", tt.registry, tt.host, got)
		}
	}
}
