package miosa_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/miosa"
	"github.com/cove-sh/cove/internal/doors/mcpserver"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/sandbox"
)

// differences matches what is never the same, and has its replacement.
var differences = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`req_[a-z0-9]{26}`), "<request>"},
	{regexp.MustCompile(`("boot_ms": )\d+|("size_bytes": )\d{5,}`), "$1$2<n>"},
	{regexp.MustCompile(`http://(\d+-<id-\d+>)\.[a-z.]+:\d+`), "http://$1.<domain>"},
	{regexp.MustCompile(`cove_preview=[A-Za-z0-9._-]+`), "cove_preview=<link>"},
	{regexp.MustCompile(`image/png [A-Za-z0-9+/=]+`), "image/png <picture>"},
	{regexp.MustCompile(`(there is no template .*; use one of )[a-z, -]+[a-z]`), "$1<templates>"},
}

func hide(s string) string {
	for _, d := range differences {
		s = d.what.ReplaceAllString(s, d.with)
	}
	return s
}

// once checks that the text of a result equals its structured content, and removes one of
// them.
func once(t *testing.T, call dialecttest.Caller) dialecttest.Caller {
	return func(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
		res, err := call(ctx, tool, args)
		if err != nil || res.StructuredContent == nil {
			return res, err
		}
		data, err := json.Marshal(res.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := res.Content[0].(*mcp.TextContent)
		if res.IsError {
			var e struct {
				Error struct {
					Code, Message string
					Status        int
					RequestID     string `json:"request_id"`
				}
			}
			if err := json.Unmarshal(data, &e); err != nil {
				t.Error(err)
			}
			want := fmt.Sprintf("Error: %s (%d %s, request_id %s)", e.Error.Message, e.Error.Status, e.Error.Code, e.Error.RequestID)
			if len(res.Content) != 1 || text == nil || text.Text != want {
				t.Errorf("%s: the text differs from %s: %+v", tool, want, res.Content)
			}
			return &mcp.CallToolResult{IsError: true, Content: res.Content}, nil
		}
		var structured, said any
		if len(res.Content) != 1 || text == nil || json.Unmarshal([]byte(text.Text), &said) != nil ||
			json.Unmarshal(data, &structured) != nil || !reflect.DeepEqual(said, structured) {
			t.Errorf("%s: the text differs from %s: %+v", tool, data, res.Content)
		}
		return &mcp.CallToolResult{StructuredContent: res.StructuredContent}, nil
	}
}

// TestConversations has the conversations that need no machine, over the service with
// sandboxes in memory.
func TestConversations(t *testing.T) {
	d := miosa.New()
	dialecttest.Conversations(t, d, "testdata/memory", func(t *testing.T) (dialecttest.Caller, func(string) string) {
		call, normalize := dialecttest.InMemory(d)(t)
		return once(t, call), func(s string) string { return hide(normalize(s)) }
	})
}

// revision is the newest protocol version with sessions.
const revision = "2025-11-25"

// harness is a daemon and a transport to its tools.
type harness struct {
	*covetest.Daemon
	// open connects as the harness's clients do.
	open func(t *testing.T) *mcp.ClientSession
	// hasty connects to a server that detaches commands as jobs after a few seconds.
	hasty func(t *testing.T) *mcp.ClientSession
}

// localHarness returns an ordinary user's daemon that requires no key, used over standard
// input and output.
func localHarness(t *testing.T) *harness {
	t.Helper()
	d := covetest.Borrow(t, dialecttest.Ordinary())
	connect := func(door func(t *testing.T) dialecttest.Door) func(t *testing.T) *mcp.ClientSession {
		return func(t *testing.T) *mcp.ClientSession { return dialecttest.Connect(t, door(t)(), revision) }
	}
	return &harness{
		Daemon: d,
		open:   connect(func(*testing.T) dialecttest.Door { return dialecttest.Stdio(d, miosa.Name) }),
		hasty: connect(func(t *testing.T) dialecttest.Door {
			return dialecttest.InProcess(t, d, mcpserver.Config{Dialect: miosa.Name, DetachAfter: 4 * time.Second})
		}),
	}
}

// seedScopes are the scopes that the product recommends for an agent's key.
var seedScopes = []sandbox.Scope{sandbox.ScopeSandboxesWrite, sandbox.ScopeComputersWrite, sandbox.ScopeFilesWrite}

// remoteHarness returns an ordinary user's daemon with keys like the product's, used over
// HTTP.
func remoteHarness(t *testing.T) *harness {
	t.Helper()
	opts := dialecttest.Ordinary("--key-prefix", "msk_u_")
	opts.Dev = false
	w := &harness{Daemon: covetest.Borrow(t, opts)}
	key := w.key(t, sandbox.DefaultTeam, seedScopes...)
	w.open = func(t *testing.T) *mcp.ClientSession { return dialecttest.Connect(t, w.http(key), revision) }
	return w
}

func (w *harness) key(t *testing.T, team string, scopes ...sandbox.Scope) string {
	t.Helper()
	k, err := w.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "test", Team: team, Scopes: scopes})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(k.Secret, "cove_") && !strings.HasPrefix(k.Secret, "msk_u_") {
		t.Errorf("the key begins with %.6s", k.Secret)
	}
	return k.Secret
}

// http returns the transport over HTTP with a key.
func (w *harness) http(key string) mcp.Transport {
	return &mcp.StreamableClientTransport{Endpoint: w.URL + "/mcp/" + miosa.Name, HTTPClient: &http.Client{Transport: bearer(key)}}
}

// bearer sends a key with each request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// converse runs the conversations of a directory.
func converse(t *testing.T, w *harness, scripts string) {
	dialecttest.Conversations(t, miosa.New(), scripts, func(t *testing.T) (dialecttest.Caller, func(string) string) {
		t.Cleanup(func() { dialecttest.KillAll(t, w.Daemon) })
		return once(t, dialecttest.Over(w.open(t))), hide
	})
}
