package mcpserver

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/sandbox"
)

// unbuilt has a template that was not built yet.
type unbuilt struct {
	*fake
	builds atomic.Int32
}

func (u *unbuilt) Create(_ context.Context, _ sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	if u.builds.Load() == 0 {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "template node is not built yet")
	}
	return &sandbox.Sandbox{ID: "sbx-1", State: sandbox.StateRunning}, nil
}

func (u *unbuilt) GetTemplate(context.Context, string) (*sandbox.Template, error) {
	return &sandbox.Template{Name: "node", State: sandbox.TemplateAvailable, Packages: []string{"nodejs", "git"}}, nil
}

func (u *unbuilt) StartBuild(context.Context, sandbox.BuildTemplateRequest) (*sandbox.Build, error) {
	u.builds.Add(1)
	return &sandbox.Build{ID: "bld-1", Template: "node", State: sandbox.BuildRunning}, nil
}

func (u *unbuilt) FollowBuild(context.Context, string, func(sandbox.BuildEvent) error) (*sandbox.Build, error) {
	return &sandbox.Build{ID: "bld-1", Template: "node", State: sandbox.BuildReady}, nil
}

// Before a template is built, the client's user is asked, in sessions and without. If
// the client cannot ask, the template is built at once.
func TestAskBeforeBuilding(t *testing.T) {
	for name, tt := range map[string]struct {
		revision string
		answer   string // of the user; empty: cannot be asked
		builds   int32
		want     string
	}{
		"session, yes":         {"2025-11-25", "accept", 1, "Created sandbox sbx-1"},
		"session, no":          {"2025-11-25", "decline", 0, "the user does not want it built now"},
		"session, dismissed":   {"2025-11-25", "cancel", 0, "the user does not want it built now"},
		"session, cannot":      {"2025-11-25", "", 1, "Created sandbox sbx-1"},
		"stateless, yes":       {statelessRevision, "accept", 1, "Created sandbox sbx-1"},
		"stateless, no":        {statelessRevision, "decline", 0, "the user does not want it built now"},
		"stateless, dismissed": {statelessRevision, "cancel", 0, "the user does not want it built now"},
		"stateless, cannot":    {statelessRevision, "", 1, "Created sandbox sbx-1"},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unbuilt{fake: newFake()}
			w := serve(t, Config{Service: u})
			var asked []string
			opts := &mcp.ClientOptions{}
			if tt.answer != "" {
				opts.ElicitationHandler = func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					asked = append(asked, r.Params.Message)
					return &mcp.ElicitResult{Action: tt.answer, Content: map[string]any{}}, nil
				}
			}
			client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, opts)
			cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url + "/mcp", HTTPClient: w.client}, &mcp.ClientSessionOptions{ProtocolVersion: tt.revision})
			if err != nil {
				t.Fatal(err)
			}
			defer cs.Close()
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_create", Arguments: map[string]any{"template": "node"}})
			if err != nil {
				t.Fatal(err)
			}
			text := res.Content[0].(*mcp.TextContent).Text
			if !strings.Contains(text, tt.want) || res.IsError != (tt.builds == 0) || u.builds.Load() != tt.builds {
				t.Errorf("%d builds, it says %q, want %q", u.builds.Load(), text, tt.want)
			}
			if want := min(len(tt.answer), 1); len(asked) != want || want == 1 && !strings.Contains(asked[0], "Template node is not built yet. That is done once: it downloads 2 Debian packages") {
				t.Errorf("asked %q", asked)
			}
		})
	}
}

// waiting has a sandbox whose policy asks: a command ends when somebody has answered, or
// its caller has given up.
type waiting struct {
	*fake
	answered chan sandbox.AnswerApprovalRequest
}

// forksOf has a sandbox whose forks ask, and one of another's forks.
type forksOf struct{ *waiting }

func (w *forksOf) Get(_ context.Context, ref string) (*sandbox.Sandbox, error) {
	return map[string]*sandbox.Sandbox{
		"work": {ID: "sbx-0"}, "sbx-1": {ID: "sbx-1", ForkedFrom: "sbx-0"}, "sbx-2": {ID: "sbx-2", ForkedFrom: "sbx-9"},
	}[ref], nil
}

func (w *forksOf) ListApprovals(ctx context.Context, req sandbox.ListApprovalsRequest) (*sandbox.List[sandbox.Approval], error) {
	if req.Sandbox != "" {
		return &sandbox.List[sandbox.Approval]{}, nil
	}
	list, err := w.waiting.ListApprovals(ctx, req)
	other := list.Items[0]
	other.ID, other.SandboxID, other.Host = "apr-2", "sbx-2", "other.example"
	list.Items = append([]sandbox.Approval{other}, list.Items...)
	return list, err
}

func (w *forksOf) Try(ctx context.Context, _ string, _ sandbox.TryRequest, _ func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	if _, err := w.Exec(ctx, "", sandbox.ExecRequest{}, nil); err != nil {
		return nil, err
	}
	return &sandbox.TryResult{}, nil
}

// Attempts run in forks, which ask in their own names.
func TestUserAnswersPolicyOfForks(t *testing.T) {
	u := &forksOf{&waiting{newFake(), make(chan sandbox.AnswerApprovalRequest, 1)}}
	w := serve(t, Config{Service: u})
	var asked []string
	opts := &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		asked = append(asked, r.Params.Message)
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{}}, nil
	}}
	client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, opts)
	cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url + "/mcp/x/time", HTTPClient: w.client}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "sandbox_try", Arguments: map[string]any{"sandbox": "work", "commands": []string{"curl https://example.com"}}}); err != nil {
		t.Error(err)
	}
	if len(asked) != 1 || !strings.Contains(asked[0], "sandbox sbx-1 wants to connect to example.com:443") {
		t.Errorf("asked %q", asked)
	}
}

func (w *waiting) ListApprovals(context.Context, sandbox.ListApprovalsRequest) (*sandbox.List[sandbox.Approval], error) {
	return &sandbox.List[sandbox.Approval]{Items: []sandbox.Approval{{
		ID: "apr-1", SandboxID: "sbx-1", ApprovalSubject: sandbox.ApprovalSubject{Protocol: "tcp", Host: "example.com", Port: 443},
	}}}, nil
}

func (w *waiting) FollowEvents(ctx context.Context, _ sandbox.FollowEventsRequest, sink func(sandbox.Event) error) error {
	if err := sink(sandbox.Event{Kind: sandbox.EventBegun}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (w *waiting) AnswerApproval(_ context.Context, _ string, req sandbox.AnswerApprovalRequest) (*sandbox.Approval, error) {
	w.answered <- req
	return &sandbox.Approval{}, nil
}

func (w *waiting) Exec(ctx context.Context, _ string, _ sandbox.ExecRequest, _ sandbox.JobSink) (*sandbox.Job, error) {
	select {
	case req := <-w.answered:
		if req.Scope != "" {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "the user has answered for longer than once")
		}
		code := 0
		if !req.Allow {
			code = 7
		}
		return &sandbox.Job{ID: "job-1", State: sandbox.JobExited, ExitCode: code}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (w *waiting) GetJob(context.Context, string, string) (*sandbox.Job, error) {
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no such job")
}

func (w *waiting) Attach(ctx context.Context, name, id string, _ sandbox.AttachRequest, _ sandbox.JobSink) (*sandbox.Job, error) {
	return w.GetJob(ctx, name, id)
}

// asksTwice has two questions open.
type asksTwice struct{ *waiting }

func (a *asksTwice) ListApprovals(ctx context.Context, req sandbox.ListApprovalsRequest) (*sandbox.List[sandbox.Approval], error) {
	list, err := a.waiting.ListApprovals(ctx, req)
	other := list.Items[0]
	other.ID = "apr-2"
	list.Items = append(list.Items, other)
	return list, err
}

// A question that the user has dismissed is not asked again in the same call.
func TestUserDismissesStateless(t *testing.T) {
	w := serve(t, Config{Service: &asksTwice{&waiting{newFake(), make(chan sandbox.AnswerApprovalRequest, 2)}}})
	asked := 0
	opts := &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		asked++
		return &mcp.ElicitResult{Action: "cancel"}, nil
	}}
	client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, opts)
	cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url + "/mcp", HTTPClient: w.client}, &mcp.ClientSessionOptions{ProtocolVersion: statelessRevision})
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "job_get", Arguments: map[string]any{"sandbox": "sbx-1", "job_id": "job-1"}})
	if err != nil || !res.IsError || asked != 2 {
		t.Errorf("asked %d times; got %+v, %v", asked, res, err)
	}
}

// With clients of the newest revision job_get asks before it looks: no request waits
// meanwhile.
func TestUserAnswersPolicyStateless(t *testing.T) {
	for answer, want := range map[string]string{"accept": "allowed", "decline": "refused", "cancel": "open"} {
		t.Run(answer, func(t *testing.T) {
			u := &waiting{newFake(), make(chan sandbox.AnswerApprovalRequest, 1)}
			w := serve(t, Config{Service: u})
			asked := 0
			opts := &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				asked++
				return &mcp.ElicitResult{Action: answer, Content: map[string]any{}}, nil
			}}
			client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, opts)
			cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url + "/mcp", HTTPClient: w.client}, &mcp.ClientSessionOptions{ProtocolVersion: statelessRevision})
			if err != nil {
				t.Fatal(err)
			}
			defer cs.Close()
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "job_get", Arguments: map[string]any{"sandbox": "sbx-1", "job_id": "job-1"}})
			if err != nil || !res.IsError || asked != 1 {
				t.Errorf("asked %d times; got %+v, %v", asked, res, err)
			}
			got := "open"
			select {
			case req := <-u.answered:
				got = "refused"
				if req.Allow {
					got = "allowed"
				}
			default:
			}
			if got != want {
				t.Errorf("the question is %s, want %s", got, want)
			}
		})
	}
}

// While a command runs, the user of a client with a session is asked what the sandbox's
// policy asks. Only a yes allows: a question that fails or is dismissed answers nothing.
func TestUserAnswersPolicy(t *testing.T) {
	for answer, code := range map[string]int{"accept": 0, "decline": 7, "cancel": -1, "fail": -1} {
		t.Run(answer, func(t *testing.T) {
			u := &waiting{newFake(), make(chan sandbox.AnswerApprovalRequest, 1)}
			w := serve(t, Config{Service: u})
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			var asked atomic.Pointer[string]
			opts := &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				asked.Store(&r.Params.Message)
				if code < 0 {
					defer giveUp() // nothing else will end the command
				}
				if answer == "fail" {
					return nil, context.DeadlineExceeded
				}
				return &mcp.ElicitResult{Action: answer, Content: map[string]any{}}, nil
			}}
			client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, opts)
			cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url + "/mcp", HTTPClient: w.client}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
			if err != nil {
				t.Fatal(err)
			}
			defer cs.Close()
			res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "sandbox_exec", Arguments: map[string]any{"sandbox": "sbx-1", "command": "curl https://example.com"}})
			if said := asked.Load(); said == nil || !strings.Contains(*said, "connect to example.com:443 (tcp)") {
				t.Errorf("asked %v", said)
			}
			if code < 0 {
				if err == nil {
					t.Errorf("it went on without an answer: %+v", res.Content[0])
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if text := res.Content[0].(*mcp.TextContent).Text; !strings.Contains(text, fmt.Sprintf("exit code %d ", code)) {
				t.Errorf("it says %q", text)
			}
		})
	}
}
