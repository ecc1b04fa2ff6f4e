package network

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// webProxy is an HTTP proxy on the host's own network. It records requests.
type webProxy struct {
	n *internet.Internet

	mu    sync.Mutex
	asked []string // guarded by mu
}

// ServeHTTP implements [http.Handler].
func (p *webProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.RequestURI)
	p.mu.Unlock()
	if r.Method != http.MethodConnect {
		_, _ = io.WriteString(w, "from the proxy")
		return
	}
	there, err := p.n.Dial(context.Background(), "tcp", net.JoinHostPort(internet.Public[1].String(), "443"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer there.Close()
	w.WriteHeader(http.StatusOK)
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer here.Close()
	go func() {
		_, _ = io.Copy(there, buffered)
		there.Close()
	}()
	_, _ = io.Copy(here, there)
}

// Sandboxes' connections go through the proxy of the daemon's environment, except to hosts that
// the environment excludes. In "make test", TestHostsProxy and TestProxySettings of package
// egress stand for it.
func TestMoreProxyOfTheHost(t *testing.T) {
	needs.GVisor(t)
	n := internet.Here(t)
	l, err := n.Listen("10.0.0.5:3128")
	if err != nil {
		t.Fatal(err)
	}
	p := &webProxy{n: n}
	srv := &http.Server{Handler: p}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
	const url = "http://10.0.0.5:3128"
	d := covetest.Start(t, covetest.Options{Args: n.Args(), Env: []string{"HTTPS_PROXY=" + url, "HTTP_PROXY=", "http_proxy=" + url, "ALL_PROXY=", "NO_PROXY=other.test"}})
	id := create(t, d, sandbox.NetworkPolicy{AllowOut: []string{"api.example.com", "example.com", "other.test"}, DenyOut: []string{"0.0.0.0/0"}})
	if r := asked(t, works(t, d, id, curl("https://api.example.com/over", "-k"))); r.Path != "/over" || r.TLSName != "api.example.com" {
		t.Errorf("over the proxy the server was asked %+v", r)
	}
	if got := works(t, d, id, curl("http://example.com/plain")); got != "from the proxy" {
		t.Errorf("plain HTTP got %q", got)
	}
	if r := asked(t, works(t, d, id, curl("https://other.test/", "-k"))); r.TLSName != "other.test" {
		t.Errorf("past the proxy the server was asked %+v", r)
	}
	fails(t, d, id, curl("https://evil.test/", "-k"))
	p.mu.Lock()
	defer p.mu.Unlock()
	if want := []string{"CONNECT api.example.com:443", "GET http://example.com/plain"}; !slices.Equal(p.asked, want) {
		t.Errorf("the proxy was asked %q, want %q", p.asked, want)
	}
}
