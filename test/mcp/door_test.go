package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

// The revisions of the protocol that the tests speak: of the era with
// sessions, and of the one without.
const (
	sessionRevision   = "2025-11-25"
	statelessRevision = "2026-07-28"
)

// door is one way to reach a daemon.
type door struct {
	name     string
	revision string
	// transport makes a connection's transport.
	transport func() mcp.Transport
}

// doors are all ways to reach all tools of a daemon.
func doors(d *covetest.Daemon) []door {
	http := func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: d.URL + "/mcp" + everything} }
	stdio := func() mcp.Transport {
		return &mcp.CommandTransport{Command: coveMCP(d, "--toolsets", "all")}
	}
	return []door{
		{"HTTP, sessions", sessionRevision, http},
		{"HTTP, stateless", statelessRevision, http},
		{"stdio, sessions", sessionRevision, stdio},
		{"stdio, stateless", statelessRevision, stdio},
	}
}

// coveMCP is "cove mcp" on a daemon's socket. Whoever starts it ends it.
func coveMCP(d *covetest.Daemon, args ...string) *exec.Cmd {
	return d.Command(context.Background(), append([]string{"mcp"}, args...)...)
}

// withKey returns a client that sends a key.
func withKey(secret string) *http.Client {
	return &http.Client{Transport: keyTransport(secret)}
}

type keyTransport string

func (k keyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(k))
	return http.DefaultTransport.RoundTrip(r)
}

// session is a connected client.
type session struct {
	*mcp.ClientSession
	t *testing.T
	// progress has the messages of progress notifications, and output those
	// with output.
	progress, output chan string
	// meta goes with each call.
	meta mcp.Meta
}

// open connects a client and closes it with the test.
func (o door) open(t *testing.T) *session {
	t.Helper()
	s := &session{t: t, progress: make(chan string, 100), output: make(chan string, 100)}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			select {
			case s.progress <- req.Params.Message:
			default:
			}
		},
		LoggingMessageHandler: func(_ context.Context, req *mcp.LoggingMessageRequest) {
			data, _ := req.Params.Data.(map[string]any)
			select {
			case s.output <- fmt.Sprintf("%s %s: %s", req.Params.Logger, data["stream"], data["text"]):
			default:
			}
		},
	})
	cs, err := client.Connect(t.Context(), o.transport(), &mcp.ClientSessionOptions{ProtocolVersion: o.revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cs.Close() }) // a daemon that is gone is another test's matter
	if got := cs.InitializeResult().ProtocolVersion; got != o.revision {
		t.Fatalf("the server speaks %s, want %s", got, o.revision)
	}
	s.ClientSession = cs
	return s
}

// listen asks for output as it comes, in the way of the revision.
func (s *session) listen() {
	s.t.Helper()
	if s.InitializeResult().ProtocolVersion == statelessRevision {
		s.meta = mcp.Meta{mcp.MetaKeyLogLevel: "info"}
		return
	}
	if err := s.SetLoggingLevel(s.t.Context(), &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
		s.t.Fatal(err)
	}
}

// hears returns when the wanted output has arrived.
func (s *session) hears(want string) {
	s.t.Helper()
	late := time.After(30 * time.Second)
	var heard []string
	for {
		select {
		case o := <-s.output:
			if o == want {
				return
			}
			heard = append(heard, o)
		case <-late:
			s.t.Errorf("told %q, want %q", heard, want)
			return
		}
	}
}

// told returns the messages of progress so far.
func (s *session) told() []string {
	var messages []string
	for {
		select {
		case m := <-s.progress:
			messages = append(messages, m)
		default:
			return messages
		}
	}
}

// fields are the structured content of a result.
type fields map[string]any

// text returns a text field.
func (f fields) text(name string) string {
	s, _ := f[name].(string)
	return s
}

// number returns a number field.
func (f fields) number(name string) float64 {
	n, _ := f[name].(float64)
	return n
}

// call calls a tool, with progress, and returns its result.
func (s *session) call(tool string, args map[string]any) *mcp.CallToolResult {
	s.t.Helper()
	params := &mcp.CallToolParams{Name: tool, Arguments: args, Meta: maps.Clone(s.meta)}
	params.SetProgressToken(tool)
	res, err := s.CallTool(s.t.Context(), params)
	if err != nil {
		s.t.Fatalf("%s: %v", tool, err)
	}
	return res
}

// ok calls a tool that must succeed.
func (s *session) ok(tool string, args map[string]any) fields {
	s.t.Helper()
	res := s.call(tool, args)
	if res.IsError {
		s.t.Fatalf("%s: %s", tool, textOf(res))
	}
	return structured(s.t, res)
}

// refused calls a tool that must fail, with this code and with these words.
func (s *session) refused(tool string, args map[string]any, code string, words ...string) {
	s.t.Helper()
	res := s.call(tool, args)
	text := textOf(res)
	if !res.IsError || !strings.HasSuffix(text, "("+code+")") {
		s.t.Errorf("%s: isError %v, %s; want %s", tool, res.IsError, text, code)
	}
	for _, word := range words {
		if !strings.Contains(text, word) {
			s.t.Errorf("%s: %q does not say %q", tool, text, word)
		}
	}
}

func structured(t *testing.T, res *mcp.CallToolResult) fields {
	t.Helper()
	data, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	var f fields
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// textOf returns a result's texts.
func textOf(res *mcp.CallToolResult) string {
	var parts []string
	for _, c := range res.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			parts = append(parts, text.Text)
		}
	}
	return strings.Join(parts, "\n")
}
