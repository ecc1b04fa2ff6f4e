package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/sandbox"
)

// sdkAnswer is what a door for an SDK answers.
type sdkAnswer struct {
	status int
	header http.Header
	text   string
}

func (a sdkAnswer) decode(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.text), v); err != nil {
		t.Fatalf("%s: %v", a.text, err)
	}
}

// sdkClient asks the doors for SDKs of a daemon.
type sdkClient struct {
	t        *testing.T
	tcp, key string
}

// send makes one request, with the path as it is. Headers come in pairs; "Host" is the
// host name.
func (c *sdkClient) send(method, path, body string, headers ...string) sdkAnswer {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, "http://"+c.tcp+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		} else {
			req.Header.Add(headers[i], headers[i+1])
		}
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		c.t.Fatal(err)
	}
	return sdkAnswer{resp.StatusCode, resp.Header, string(data)}
}

// sdkServer starts a daemon, with a client of one SDK for each of some teams.
func sdkServer[C any](t *testing.T, change func(*config.Config), of func(sdkClient) C, teams ...string) (*running, []C) {
	t.Helper()
	r := mustStart(t, change)
	t.Cleanup(func() { r.end(t) })
	var clients []C
	for _, team := range teams {
		clients = append(clients, of(sdkKey(t, r, team)))
	}
	return r, clients
}

// sdkKey makes a key of a team with these scopes, or without a limit, and a client with it.
func sdkKey(t *testing.T, r *running, team string, scopes ...sandbox.Scope) sdkClient {
	t.Helper()
	k, err := r.client(t).CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: team, Team: team, Scopes: scopes})
	if err != nil {
		t.Fatal(err)
	}
	return sdkClient{t, r.tcp.String(), k.Secret}
}

func revokeKeys(t *testing.T, r *running, team string) {
	t.Helper()
	keys, err := sandbox.All(t.Context(), r.client(t).ListKeys)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if k.Team != team {
			continue
		}
		if _, err := r.client(t).RevokeKey(t.Context(), k.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// testPorts checks that a stranger opens a port of a sandbox that the SDK has created, but
// none of which its owner has or had a private preview.
func testPorts(t *testing.T, r *running, create func() (id string), visit func(id, port string) sdkAnswer) {
	t.Helper()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer page.Close()
	at, err := url.Parse(page.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	private := func(id string) error {
		_, err := r.client(t).CreatePreview(t.Context(), id, sandbox.CreatePreviewRequest{Port: port})
		return err
	}
	for _, c := range []struct {
		name   string
		before func(id string) error
		want   int
	}{
		{name: "new", before: func(string) error { return nil }, want: http.StatusOK},
		{name: "private", before: private, want: http.StatusUnauthorized},
		{name: "private and deleted", want: http.StatusNotFound, before: func(id string) error {
			if err := private(id); err != nil {
				return err
			}
			return r.client(t).DeletePreview(t.Context(), id, port)
		}},
	} {
		id := create()
		if err := c.before(id); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			a := visit(id, at.Port())
			if a.status != c.want || c.want == http.StatusOK && a.text != "hello" {
				t.Errorf("%s: %d %s, want %d", c.name, a.status, a.text, c.want)
			}
		}
	}
}
