// Package preview tests previews, port forwarding and published ports from
// outside, on real sandboxes: as root and as an ordinary user.
package preview

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

//go:embed testdata/server.js
var nodeServer string

const patience = 2 * time.Minute

// serveNode starts the server of testdata in a sandbox.
func serveNode(t *testing.T, d *covetest.Daemon, id string, port int) {
	t.Helper()
	needs.Command(t, "node")
	if _, err := d.Client.WriteFile(t.Context(), id, sandbox.WriteFileRequest{Path: "/workspace/server.js"}, strings.NewReader(nodeServer)); err != nil {
		t.Fatal(err)
	}
	background(t, d, id, fmt.Sprintf("exec node /workspace/server.js %d", port))
}

// background starts a command that continues to run.
func background(t *testing.T, d *covetest.Daemon, id, line string) {
	t.Helper()
	if _, err := d.Client.Exec(t.Context(), id, sandbox.ExecRequest{Shell: line, Background: true, TimeoutMS: sandbox.MaxExecTimeout.Milliseconds()}, nil); err != nil {
		t.Fatal(err)
	}
}

// create makes a preview.
func create(t *testing.T, d *covetest.Daemon, id string, req sandbox.CreatePreviewRequest) *sandbox.NewPreview {
	t.Helper()
	p, err := d.Client.CreatePreview(t.Context(), id, req)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// browser is a client with cookies. It resolves *.localhost as browsers do.
func browser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport}
}

type answer struct {
	status int
	header http.Header
	body   string
	url    *url.URL
}

func fetch(t *testing.T, c *http.Client, target string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(body), res.Request.URL}
}

// until fetches until something listens.
func until(t *testing.T, c *http.Client, target string, header ...string) answer {
	t.Helper()
	var got answer
	if !covetest.Eventually(patience, func() bool {
		got = fetch(t, c, target, header...)
		return got.header.Get("Cove-Preview-Error") != "not_listening"
	}) {
		t.Fatalf("nothing listens at %s: %s", target, got.body)
	}
	return got
}
