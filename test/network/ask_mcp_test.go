package network

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/mcpserver"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/sandbox"
)

// newestRevision is the revision of MCP in which a server asks with the result of a call.
const newestRevision = "2026-07-28"

// mcpUser is an MCP client of the newest revision whose user answers questions.
type mcpUser struct {
	*mcp.ClientSession
	t *testing.T
	// answer is how the user answers; nil leaves the questions to the test.
	answer func(question string) (allow bool)
	asked  []string
}

func (u *mcpUser) connect(transport mcp.Transport) *mcpUser {
	u.t.Helper()
	opts := &mcp.ClientOptions{
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: u.answer == nil},
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			u.asked = append(u.asked, r.Params.Message)
			if u.answer(r.Params.Message) {
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{}}, nil
			}
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts).Connect(u.t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: newestRevision})
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { _ = cs.Close() }) // a daemon that was killed is the test's matter
	u.ClientSession = cs
	return u
}

// call calls a tool and decodes its structured content.
func (u *mcpUser) call(tool string, args map[string]any, into any) {
	u.t.Helper()
	res, err := u.CallTool(u.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		u.t.Fatalf("%s: %v", tool, err)
	}
	data, err := json.Marshal(res.StructuredContent)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil || res.IsError {
		u.t.Fatalf("%s: %v: %s", tool, err, data)
	}
}

// overHTTP is the daemon's own door, with a key.
func overHTTP(t *testing.T, d *covetest.Daemon) mcp.Transport {
	t.Helper()
	k, err := d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "test", Team: sandbox.DefaultTeam, Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite}})
	if err != nil {
		t.Fatal(err)
	}
	return &mcp.StreamableClientTransport{Endpoint: d.URL + "/mcp/x/all", HTTPClient: &http.Client{Transport: bearer(k.Secret)}}
}

type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// ran is the result of a command or code.
type ran struct {
	State    sandbox.JobState `json:"state"`
	ExitCode int              `json:"exit_code"`
	EndCause sandbox.EndCause `json:"end_cause"`
	Stdout   string           `json:"stdout"`
}

// The user of a client of the newest revision of MCP answers while a command, code or attempts
// run: each runs once, and its result has all that it has written. In "make test",
// TestUserAnswersPolicyStateless and TestParkedCall of package mcpserver stand for it.
func TestRealMoreAskMCP(t *testing.T) {
	own(t, func(t *testing.T, d *covetest.Daemon) {
		n := internet.Here(t)
		n.SetName("good.mcp.test", netip.MustParseAddr("203.0.113.10"))
		n.SetName("bad.mcp.test", netip.MustParseAddr("203.0.113.10"))
		doors := map[string]func(t *testing.T) mcp.Transport{
			"stdio": func(*testing.T) mcp.Transport {
				return &mcp.CommandTransport{Command: d.Command(context.Background(), "mcp", "--toolsets", "all")}
			},
			"HTTP": func(t *testing.T) mcp.Transport { return overHTTP(t, d) },
		}
		for name, transport := range doors {
			t.Run(name, func(t *testing.T) {
				u := (&mcpUser{t: t, answer: func(q string) bool { return strings.Contains(q, "good.mcp.test:80") }}).connect(transport(t))
				const line = "echo run >> /tmp/runs; for i in good bad good; do curl -fsS -o /dev/null --max-time 100 http://$i.mcp.test/ 2>/dev/null && echo $i yes || echo $i no; done; wc -l < /tmp/runs"
				const want = "good yes\nbad no\ngood yes\n1\n"
				for tool, args := range map[string]map[string]any{
					"sandbox_exec": {"shell": line}, "run_code": {"code": line, "language": "bash"},
				} {
					args["sandbox"] = create(t, d, askAll)
					u.asked = nil
					var got ran
					if u.call(tool, args, &got); got.Stdout != want || len(u.asked) != 3 {
						t.Errorf("%s: %+v, want the output %q; asked %q", tool, got, want, u.asked)
					}
				}
				id := create(t, d, askAll)
				u.asked = nil
				var tried struct{ Attempts []ran }
				u.call("sandbox_try", map[string]any{"sandbox": id, "commands": []string{line, "echo quiet"}}, &tried)
				if len(tried.Attempts) != 2 || tried.Attempts[0].Stdout != want || len(u.asked) != 3 || slices.ContainsFunc(u.asked, func(q string) bool { return strings.Contains(q, id) }) {
					t.Errorf("tried %+v, want the output %q; asked %q", tried, want, u.asked)
				}
			})
		}
		t.Run("timeout", func(t *testing.T) {
			id := create(t, d, askAll)
			u := &mcpUser{t: t, answer: func(string) bool {
				openQuestions(t, d, id, 0) // the command is gone, and with it the question
				return true
			}}
			u.connect(overHTTP(t, d))
			var got ran
			if u.call("sandbox_exec", map[string]any{"sandbox": id, "shell": "echo begun; curl -s http://good.mcp.test/", "timeout_ms": 3000}, &got); got.EndCause != sandbox.EndTimeout || got.Stdout != "begun\n" {
				t.Errorf("it ended as %+v", got)
			}
		})
	})
}

// If a user takes longer to answer than a call waits for a command, the call still waits for
// the command after the answer. In "make test", TestParkedCallDetached of package mcpserver
// stands for it.
func TestRealMoreAskMCPDetached(t *testing.T) {
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		const detachAfter = 2 * time.Second
		h, err := mcpserver.NewHTTP(mcpserver.Config{Service: d.Client, DetachAfter: detachAfter})
		if err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r.WithContext(sandbox.WithCaller(r.Context(), sandbox.LocalCaller())))
		}))
		t.Cleanup(func() {
			_ = h.Close()
			srv.CloseClientConnections()
			srv.Close()
		})
		id := create(t, d, askAll)
		u := &mcpUser{t: t, answer: func(string) bool {
			if !covetest.Eventually(time.Minute, func() bool {
				list, err := d.Client.ListJobs(t.Context(), id, sandbox.Page{})
				return err == nil && len(list.Items) == 1 && time.Since(list.Items[0].StartedAt) > detachAfter+time.Second
			}) {
				t.Error("the command does not run")
			}
			return true
		}}
		u.connect(&mcp.StreamableClientTransport{Endpoint: srv.URL + "/mcp"})
		var got ran
		if u.call("sandbox_exec", map[string]any{"sandbox": id, "shell": "echo first; curl -fsS -o /dev/null http://example.com/; echo then $?"}, &got); got.State != sandbox.JobExited || got.Stdout != "first\nthen 0\n" {
			t.Errorf("it ended as %+v", got)
		}
	})
}

// The daemon dies while a user is asked: the repeat of the call says that it cannot continue
// and where to look, and runs nothing. The command and its question still exist. In "make
// test", TestParkedCallEnds of package mcpserver and TestApprovalOutlivesTheDaemon of package
// service stand for it.
func TestRealMoreAskMCPOutlivesTheDaemon(t *testing.T) {
	own(t, func(t *testing.T, d *covetest.Daemon) {
		id := create(t, d, askAll)
		u := (&mcpUser{t: t}).connect(overHTTP(t, d))
		args := map[string]any{"sandbox": id, "shell": "echo run >> /tmp/runs; curl -fsS -o /dev/null --max-time 100 http://example.com/"}
		res, err := u.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_exec", Arguments: args})
		if err != nil || len(res.InputRequests) != 1 || res.RequestState == "" {
			t.Fatalf("got %+v, %v, want a question", res, err)
		}
		q := openQuestions(t, d, id, 1)[0]
		d.Kill()
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		again := (&mcpUser{t: t}).connect(overHTTP(t, d))
		yes := mcp.InputResponseMap{q.ID: &mcp.ElicitResult{Action: "accept", Content: map[string]any{}}}
		_, err = again.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_exec", Arguments: args, RequestState: res.RequestState, InputResponses: yes})
		if err == nil || !strings.Contains(err.Error(), "cannot be continued") || !strings.Contains(err.Error(), "job_list") {
			t.Errorf("the repeat says %v", err)
		}
		if still := openQuestions(t, d, id, 1)[0]; still.ID != q.ID {
			t.Errorf("asked is %+v", still)
		}
		// A call that follows the command asks the same.
		var jobs struct {
			Jobs []struct {
				ID string `json:"job_id"`
			}
		}
		again.call("job_list", map[string]any{"sandbox": id}, &jobs)
		if len(jobs.Jobs) != 1 {
			t.Fatalf("the jobs are %+v", jobs)
		}
		follower := (&mcpUser{t: t, answer: func(string) bool { return true }}).connect(overHTTP(t, d))
		var got ran
		if follower.call("job_get", map[string]any{"sandbox": id, "job_id": jobs.Jobs[0].ID, "wait_ms": 30_000}, &got); got.State != sandbox.JobExited || got.ExitCode != 0 || len(follower.asked) != 1 {
			t.Errorf("it ended as %+v, asked %q", got, follower.asked)
		}
		if runs := works(t, d, id, "wc -l < /tmp/runs"); runs != "1" {
			t.Errorf("it ran %s times", runs)
		}
	})
}
