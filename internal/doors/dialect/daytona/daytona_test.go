package daytona

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestBelow(t *testing.T) {
	for target, want := range map[string]string{
		"/daytona/api/sandbox": "/sandbox", "/daytona/api//sandbox": "/sandbox", "/daytona/api/snapshots/a%2Fb": "/snapshots/a%2Fb",
		"/daytona/apix": "", "/daytona/api": "", "/other": "", "/daytona/%61pi/x%2Fy": "",
	} {
		r, ok := below(httptest.NewRequest("GET", target, nil), "/daytona/api")
		got := ""
		if ok {
			got = r.URL.EscapedPath()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
}

func TestClaimsHost(t *testing.T) {
	d := &Door{domain: "localhost"}
	for host, want := range map[string]bool{
		"3000-sbx-abc.localhost": true, "3000-SBX-abc.localhost:8777": true, "3000-sbxabc.localhost": false, "0-sbx-abc.localhost": false,
		"03-sbx-abc.localhost": false, "3000-sbx-abc.localhost.evil": false, "3000-sbx-abc.b.localhost": false, "localhost": false, "70000-sbx-a.localhost": false,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		if d.ClaimsHost(r) {
			t.Errorf("%s is claimed without a token", host)
		}
		r.Header.Set("X-Daytona-Preview-Token", "x")
		if got := d.ClaimsHost(r); got != want {
			t.Errorf("%s: %v", host, got)
		}
	}
}

// A client gets the addresses of the planes with the host that it has used, including a
// proxy's; over the socket, which has no host, it gets the server's own address.
func TestURL(t *testing.T) {
	d := &Door{cfg: Config{Base: func() string { return "https://cove.example:8443" + Prefix }, Trusted: func(r *http.Request) bool { return r.Host == "unix" }}}
	for host, want := range map[string]string{
		"127.0.0.1:8777": "http://127.0.0.1:8777/daytona/api", "cove.example:8443": "https://cove.example:8443/daytona/api", "unix": "https://cove.example:8443/daytona/api",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		if got := d.url(ControlPath)(r); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}
