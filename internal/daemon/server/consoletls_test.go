package server_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/sandbox"
)

func TestConsoleOverHTTPS(t *testing.T) {
	cert, key, roots := certificate(t, t.TempDir(), "cove.test")
	r := mustStart(t, func(c *config.Config) {
		c.TLS.Cert, c.TLS.Key = cert, key
		c.AllowedHosts = []string{"cove.test"}
	})
	secret := r.key(t, sandbox.CreateKeyRequest{Name: "k"}).Secret
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", r.tcp.String())
	}}
	defer transport.CloseIdleConnections()
	do := func(method, path, cookie, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "https://cove.test"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Sec-Fetch-Site", "same-origin")
		if cookie != "" {
			req.Header.Set("Cookie", cookie)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp
	}
	resp := do("POST", "/console/session", "", `{"key":"`+secret+`"}`)
	line := resp.Header.Get("Set-Cookie")
	for _, want := range []string{"__Host-cove_console=", "; Path=/", "; HttpOnly", "; Secure", "; SameSite=Strict"} {
		if !strings.Contains(line, want) {
			t.Errorf("over HTTPS the cookie is %q, without %q", line, want)
		}
	}
	if strings.Contains(line, "Domain") {
		t.Errorf("the cookie is %q", line)
	}
	cookie := strings.Split(line, ";")[0]
	if resp := do("GET", "/v1/sandboxes", cookie, ""); resp.StatusCode != 200 {
		t.Errorf("with the cookie: %s", resp.Status)
	}
	// The other name is one that a page of plain HTTP could have set.
	if resp := do("GET", "/v1/sandboxes", strings.TrimPrefix(cookie, "__Host-"), ""); resp.StatusCode != 401 {
		t.Errorf("with the name of plain HTTP: %s", resp.Status)
	}
}

// A proxy that ends TLS is told by the page's origin.
func TestConsoleBehindAProxy(t *testing.T) {
	r := mustStart(t, func(c *config.Config) { c.AllowedHosts = []string{"cove.example"} })
	resp, _ := r.request(t, "POST", "/console/session", script("Host", "cove.example", "Origin", "https://cove.example"), `{"link":"`+r.link(t)+`"}`)
	line := resp.Header.Get("Set-Cookie")
	if !strings.HasPrefix(line, "__Host-cove_console=") || !strings.Contains(line, "; Secure") {
		t.Fatalf("%s, cookie %q", resp.Status, line)
	}
	if resp, text := r.request(t, "GET", "/v1/sandboxes", script("Host", "cove.example", "Cookie", strings.Split(line, ";")[0]), ""); resp.StatusCode != 200 {
		t.Errorf("with the cookie: %s %s", resp.Status, text)
	}
}
