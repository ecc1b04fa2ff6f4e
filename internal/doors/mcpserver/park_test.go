package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/sandbox"
)

// quiz has a sandbox whose command is asked about, one question after the other, prints
// each answer, and then waits for release.
type quiz struct {
	*fake
	questions []string // ids
	events    chan sandbox.Event
	answers   chan string   // such as "apr-1 true"
	runs      chan string   // tools that ran
	detach    chan struct{} // closed to detach the command
	detached  chan struct{} // closed when it is

	mu   sync.Mutex
	open *sandbox.Approval // guarded by mu
}

func newQuiz(questions ...string) *quiz {
	return &quiz{
		fake: newFake(), questions: questions, events: make(chan sandbox.Event, 64), answers: make(chan string, 64), runs: make(chan string, 64),
		detach: make(chan struct{}), detached: make(chan struct{}),
	}
}

func (q *quiz) ask(id string) {
	a := &sandbox.Approval{ID: id, SandboxID: "sbx-1", ApprovalSubject: sandbox.ApprovalSubject{Protocol: "tcp", Host: id + ".example", Port: 443}}
	q.mu.Lock()
	q.open = a
	q.mu.Unlock()
	q.events <- sandbox.Event{Kind: sandbox.EventApprovalAsked, Approval: a}
}

func (q *quiz) AnswerApproval(_ context.Context, id string, req sandbox.AnswerApprovalRequest) (*sandbox.Approval, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open == nil || q.open.ID != id {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "somebody has answered already")
	}
	q.open = nil
	q.answers <- fmt.Sprintf("%s %t", id, req.Allow)
	return &sandbox.Approval{}, nil
}

func (q *quiz) ListApprovals(context.Context, sandbox.ListApprovalsRequest) (*sandbox.List[sandbox.Approval], error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := &sandbox.List[sandbox.Approval]{}
	if q.open != nil {
		list.Items = append(list.Items, *q.open)
	}
	return list, nil
}

func (q *quiz) FollowEvents(ctx context.Context, _ sandbox.FollowEventsRequest, sink func(sandbox.Event) error) error {
	if err := sink(sandbox.Event{Kind: sandbox.EventBegun}); err != nil {
		return err
	}
	for {
		select {
		case e := <-q.events:
			if err := sink(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// work asks all questions and prints their answers.
func (q *quiz) work(ctx context.Context, tool string, print func(string) error) error {
	q.runs <- tool
	for _, id := range q.questions {
		q.ask(id)
		select {
		case answer := <-q.answers:
			if err := print(answer + "\n"); err != nil {
				return err
			}
		case <-ctx.Done():
			q.ended <- ctx.Err()
			return ctx.Err()
		}
	}
	q.started <- tool
	select {
	case <-q.release:
		return nil
	case <-ctx.Done():
		q.ended <- ctx.Err()
		return ctx.Err()
	}
}

func (q *quiz) Exec(ctx context.Context, _ string, _ sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	offset := int64(0)
	print := func(s string) error {
		defer func() { offset += int64(len(s)) }()
		return sink(sandbox.JobEvent{Stream: sandbox.Stdout, Offset: offset, Data: []byte(s)})
	}
	ended := make(chan error, 1)
	inner, stop := context.WithCancel(ctx)
	go func() { ended <- q.work(inner, "sandbox_exec", print) }()
	select {
	case err := <-ended:
		stop()
		return &sandbox.Job{ID: "job-1", State: sandbox.JobExited}, err
	case <-q.detach:
		stop()
		<-ended
		close(q.detached)
		return &sandbox.Job{ID: "job-1", State: sandbox.JobRunning}, nil
	}
}

// Attach is the end of a command that was detached.
func (q *quiz) Attach(_ context.Context, _, id string, req sandbox.AttachRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	text := fmt.Sprintf("goes on at %d for %t\n", req.StdoutOffset, req.DetachAfterMS > 0)
	return &sandbox.Job{ID: id, State: sandbox.JobExited, ExitCode: 3}, sink(sandbox.JobEvent{Stream: sandbox.Stdout, Offset: req.StdoutOffset, Data: []byte(text)})
}

func (q *quiz) RunCode(ctx context.Context, _ string, _ sandbox.RunCodeRequest, _ sandbox.CodeSink) (*sandbox.CodeResult, error) {
	var out strings.Builder
	err := q.work(ctx, "run_code", func(s string) error { _, err := out.WriteString(s); return err })
	return &sandbox.CodeResult{Stdout: out.String(), StdoutBytes: int64(out.Len())}, err
}

// parkedAnswer is the answer to a request of a client that repeats its calls itself.
type parkedAnswer struct {
	ResultType        string                     `json:"resultType"`
	RequestState      string                     `json:"requestState"`
	InputRequests     map[string]json.RawMessage `json:"inputRequests"`
	TaskID            string                     `json:"taskId"`
	Status            taskStatus                 `json:"status"`
	IsError           bool                       `json:"isError"`
	Result            *parkedAnswer              `json:"result"`
	StructuredContent struct {
		State    sandbox.JobState `json:"state"`
		ExitCode int              `json:"exit_code"`
		Stdout   string           `json:"stdout"`
	} `json:"structuredContent"`
	refused *jsonrpc.Error
}

// asking is the request of a client whose user can be asked.
func asking(body string) string {
	body = strings.Replace(body, `clientCapabilities":{`, `clientCapabilities":{"elicitation":{"form":{}},`, 1)
	return strings.Replace(body, "}},}", "}}}", 1)
}

// repeat is what a client adds to a repeated call.
func repeat(state, key, action string) string {
	answers := ""
	if key != "" {
		answers = fmt.Sprintf(`%q:{"action":%q,"content":{}}`, key, action)
	}
	return fmt.Sprintf(`,"requestState":%q,"inputResponses":{%s}`, state, answers)
}

const execArgs = `{"sandbox":"s","shell":"curl"}`

// exec calls sandbox_exec, with more parameters and headers.
func (w *web) exec(params string, headers ...string) parkedAnswer {
	return w.callTool("sandbox_exec", execArgs, params, headers...)
}

func (w *web) callTool(tool, args, params string, headers ...string) parkedAnswer {
	w.t.Helper()
	body, own := newEra(2, methodCallTool, tool, fmt.Sprintf(`"name":%q,"arguments":%s`, tool, args)+params)
	return w.answerTo(asking(body), append(own, headers...))
}

func (w *web) answerTo(body string, headers []string) parkedAnswer {
	w.t.Helper()
	status, m := w.post("/mcp", body, headers...)
	var got parkedAnswer
	if m.Error != nil {
		got.refused = &jsonrpc.Error{Code: int64(m.Error.Code), Message: m.Error.Message}
	} else if status != http.StatusOK || json.Unmarshal(m.Result, &got) != nil {
		w.t.Fatalf("%s: %d %+v", body, status, m)
	}
	return got
}

// parks calls sandbox_exec and returns the state of the parked call.
func (w *web) parks(headers ...string) string {
	w.t.Helper()
	got := w.exec("", headers...)
	if got.ResultType != "input_required" || len(got.InputRequests) != 1 || !strings.HasPrefix(got.RequestState, "call-") || len(got.RequestState) > 64 {
		w.t.Fatalf("the call was answered with %+v, want a question", got)
	}
	return got.RequestState
}

// The user of a client of the newest revision is asked while a command or code runs, one
// question after the other: the client repeats the call, the command runs once, and the
// result has all of its output.
func TestParkedCall(t *testing.T) {
	for tool, args := range map[string]map[string]any{
		"sandbox_exec": {"sandbox": "s", "shell": "curl"},
		"run_code":     {"sandbox": "s", "code": "curl", "language": "bash"},
	} {
		t.Run(tool, func(t *testing.T) {
			q := newQuiz("apr-1", "apr-2", "apr-3")
			close(q.release)
			w := serve(t, Config{Service: q})
			var asked []string
			opts := &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				asked = append(asked, r.Params.Message)
				action := "accept"
				if strings.Contains(r.Params.Message, "apr-2.example:443") {
					action = "decline"
				}
				return &mcp.ElicitResult{Action: action, Content: map[string]any{}}, nil
			}}
			client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, opts)
			cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url + "/mcp", HTTPClient: w.client}, &mcp.ClientSessionOptions{ProtocolVersion: statelessRevision})
			if err != nil {
				t.Fatal(err)
			}
			defer cs.Close()
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
			if err != nil || res.IsError || len(asked) != 3 || len(q.runs) != 1 {
				t.Fatalf("asked %q, ran %d times; got %+v, %v", asked, len(q.runs), res, err)
			}
			if got, want := res.StructuredContent.(map[string]any)["stdout"], "apr-1 true\napr-2 false\napr-3 true\n"; got != want {
				t.Errorf("the output is %q, want %q", got, want)
			}
		})
	}
}

// Attack: a state reaches only a call of the same caller, with the same tool and arguments.
// Anything else that is sent with it answers nothing.
func TestParkedCallOfOthers(t *testing.T) {
	q := newQuiz("apr-1")
	close(q.release)
	w := serve(t, Config{Service: q})
	state := w.parks()
	yes := repeat(state, "apr-1", "accept")
	var refusals []string
	for name, got := range map[string]parkedAnswer{
		"never":          w.exec(repeat("call-never", "apr-1", "accept")),
		"long":           w.exec(repeat(strings.Repeat("x", 1<<20), "apr-1", "accept")),
		"altered":        w.exec(repeat(state+"x", "apr-1", "accept")),
		"another key":    w.exec(yes, "X-Test-Key", "k2"),
		"namespace":      w.exec(yes, "Cove-Namespace", "other"),
		"sandbox":        w.callTool("sandbox_exec", `{"sandbox":"other","shell":"curl"}`, yes),
		"more arguments": w.callTool("sandbox_exec", `{"sandbox":"s","shell":"curl","user":"root"}`, yes),
		"another tool":   w.callTool("run_code", execArgs, yes),
	} {
		if got.refused == nil || got.refused.Code != jsonrpc.CodeInvalidParams {
			t.Fatalf("%s: %+v", name, got)
		}
		refusals = append(refusals, got.refused.Message)
	}
	for _, text := range refusals {
		if text != refusals[0] || !strings.Contains(text, "job_list") {
			t.Errorf("refused with %q and with %q", text, refusals[0])
		}
	}
	if len(q.answers) != 0 || len(q.runs) != 1 {
		t.Errorf("%d answers, %d runs", len(q.answers), len(q.runs))
	}
	// An answer to another question, or of another kind, does not count: the question is
	// asked again.
	for _, params := range []string{repeat(state, "apr-2", "accept"), repeat(state, "", ""), `,"requestState":"` + state + `"`} {
		if got := w.exec(params); got.RequestState != state || len(got.InputRequests) != 1 {
			t.Errorf("%s: %+v", params, got)
		}
	}
	// Its own caller may write the same arguments in another way, and come twice.
	for range 2 {
		got := w.callTool("sandbox_exec", `{"shell": "curl", "sandbox": "s"}`, yes)
		if got.ResultType != resultComplete || got.IsError || got.StructuredContent.Stdout != "apr-1 true\n" {
			t.Errorf("got %+v", got)
		}
	}
	if len(q.runs) != 1 {
		t.Errorf("%d runs", len(q.runs))
	}
}

// Two repeats at the same time wait for one command.
func TestParkedCallRepeatedAtOnce(t *testing.T) {
	q := newQuiz("apr-1")
	w := serve(t, Config{Service: q})
	state := w.parks()
	got := make(chan parkedAnswer, 2)
	for range 2 {
		go func() { got <- w.exec(repeat(state, "apr-1", "accept")) }()
	}
	waitFor(t, q.started, "the answer")
	lot := w.handler.parking
	lot.mu.Lock()
	var k *parked
	for _, owned := range lot.all {
		k = owned[state]
	}
	lot.mu.Unlock()
	for both := false; !both; {
		k.mu.Lock()
		changed := k.changed
		both = k.waiting == 2
		k.mu.Unlock()
		if !both {
			<-changed
		}
	}
	close(q.release)
	for range 2 {
		if r := <-got; r.ResultType != resultComplete || r.StructuredContent.Stdout != "apr-1 true\n" {
			t.Errorf("got %+v", r)
		}
	}
	if len(q.runs) != 1 || len(q.answers) != 0 {
		t.Errorf("%d runs, %d further answers", len(q.runs), len(q.answers))
	}
}

// The command ends if the client does not come back, if it comes back and hangs up, and at
// the end of the server.
func TestParkedCallEnds(t *testing.T) {
	t.Run("away", func(t *testing.T) {
		q := newQuiz("apr-1")
		w := serve(t, Config{Service: q})
		w.handler.parking.patience = time.Nanosecond
		state := w.parks()
		if err := waitFor(t, q.ended, "end of the work"); !errors.Is(err, context.Canceled) {
			t.Errorf("the work ended with %v", err)
		}
		if got := w.exec(repeat(state, "apr-1", "accept")); got.refused == nil || len(q.runs) != 1 {
			t.Errorf("%d runs, got %+v", len(q.runs), got)
		}
	})
	t.Run("hangs up", func(t *testing.T) {
		q := newQuiz("apr-1")
		w := serve(t, Config{Service: q})
		state := w.parks()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			waitFor(t, q.started, "the answer")
			cancel()
		}()
		body, headers := newEra(2, methodCallTool, "sandbox_exec", `"name":"sandbox_exec","arguments":`+execArgs+repeat(state, "apr-1", "accept"))
		w.abandon(ctx, body, headers)
		if err := waitFor(t, q.ended, "end of the work"); !errors.Is(err, context.Canceled) {
			t.Errorf("the work ended with %v", err)
		}
		if got := w.exec(repeat(state, "", "")); got.refused == nil {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("server", func(t *testing.T) {
		q := newQuiz("apr-1")
		w := serve(t, Config{Service: q})
		w.parks()
		if err := w.handler.Close(); err != nil {
			t.Fatal(err)
		}
		if err := waitFor(t, q.ended, "end of the work"); !errors.Is(err, context.Canceled) {
			t.Errorf("the work ended with %v", err)
		}
	})
}

// A command that is handed over while its client is away is waited for when the client
// is back, as long as a request waits.
func TestParkedCallDetached(t *testing.T) {
	q := newQuiz("apr-1", "apr-2")
	w := serve(t, Config{Service: q, DetachAfter: time.Hour})
	state := w.parks()
	got := w.exec(repeat(state, "apr-1", "accept"))
	if got.RequestState != state || got.InputRequests["apr-2"] == nil {
		t.Fatalf("got %+v, want the second question", got)
	}
	close(q.detach)
	<-q.detached
	<-q.ended
	got = w.exec(repeat(state, "apr-2", "decline"))
	if want := "apr-1 true\ngoes on at 11 for true\n"; got.StructuredContent.Stdout != want || got.StructuredContent.ExitCode != 3 {
		t.Errorf("got %+v, want the output %q", got, want)
	}
}

// A user is asked so often in one call; what else is asked stays open for others.
func TestParkedCallQuestionsAreBounded(t *testing.T) {
	var ids []string
	for i := range maxQuestions + 1 {
		ids = append(ids, fmt.Sprintf("apr-%d", i))
	}
	q := newQuiz(ids...)
	close(q.release)
	w := serve(t, Config{Service: q})
	params := ""
	for _, id := range ids[:maxQuestions] {
		got := w.exec(params)
		if got.InputRequests[id] == nil {
			t.Fatalf("got %+v, want the question %s", got, id)
		}
		params = repeat(got.RequestState, id, "accept")
	}
	answered := make(chan error, 1)
	go func() { // somebody else
		for {
			_, err := q.AnswerApproval(t.Context(), ids[maxQuestions], sandbox.AnswerApprovalRequest{Allow: true})
			if err == nil || t.Context().Err() != nil {
				answered <- err
				return
			}
		}
	}()
	got := w.exec(params)
	if got.ResultType != resultComplete || !strings.HasSuffix(got.StructuredContent.Stdout, ids[maxQuestions]+" true\n") {
		t.Errorf("got %+v", got)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// A caller's parked calls are bounded, in number and in bytes. Calls whose result was
// returned make room.
func TestParkingIsBounded(t *testing.T) {
	s := newParking()
	defer s.close()
	call := func(owner string) *parked { return &parked{lot: s, owner: owner, done: make(chan struct{})} }
	var all []*parked
	for range maxParked {
		all = append(all, call("a"))
		if err := s.admit(all[len(all)-1]); err != nil {
			t.Fatal(err)
		}
	}
	further := call("a")
	if s.admit(further) == nil {
		t.Error("there is no bound")
	}
	if err := s.admit(call("b")); err != nil {
		t.Errorf("another caller: %v", err)
	}
	large := call("b")
	large.args = make([]byte, maxParkedArgs+1)
	if s.admit(large) == nil {
		t.Error("there is no bound of arguments")
	}
	all[3].returned = true
	if err := s.admit(further); err != nil || s.find("a", all[3].id) != nil {
		t.Errorf("a result that was returned takes room: %v", err)
	}
	s.maxBytes = 1000
	result := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("x", 400)}}}
	for _, k := range all[:3] {
		k.outcome = outcome{result, nil}
		s.ended(k)
	}
	if s.find("a", all[0].id) != nil || s.find("a", all[1].id) == nil || s.find("a", all[2].id) == nil {
		t.Error("the results of the last two are not those that are kept")
	}
}

// A task asks as tasks do, and ends although nobody has answered when there is nothing
// left to answer; cancelled, it ends its command.
func TestParkedTask(t *testing.T) {
	begin := func(t *testing.T, q *quiz) (*web, parkedAnswer) {
		w := serve(t, Config{Service: q, TaskAfter: time.Nanosecond})
		body, headers := newEraCall(2, "sandbox_exec", execArgs)
		got := w.answerTo(asking(withTasks(body)), headers)
		for got.Status == taskWorking {
			body, headers := aboutTask(methodTasksGet, got.TaskID)
			got = w.answerTo(withTasks(body), headers)
		}
		if got.Status != taskInputRequired || len(got.InputRequests) != 1 || got.RequestState != "" {
			t.Fatalf("the task is %+v", got)
		}
		return w, got
	}
	ends := func(t *testing.T, w *web, id string) parkedAnswer {
		w.handler.tasks.wg.Wait()
		body, headers := aboutTask(methodTasksGet, id)
		return w.answerTo(withTasks(body), headers)
	}
	t.Run("answered", func(t *testing.T) {
		q := newQuiz("apr-1")
		close(q.release)
		w, task := begin(t, q)
		for id := range task.InputRequests {
			body, headers := newEra(3, methodTasksUpdate, task.TaskID, fmt.Sprintf(`"taskId":%q,"inputResponses":{%q:{"action":"accept","content":{}}}`, task.TaskID, id))
			w.answerTo(withTasks(body), headers)
		}
		if end := ends(t, w, task.TaskID); end.Status != taskCompleted || end.Result == nil || end.Result.StructuredContent.Stdout != "apr-1 true\n" || len(q.runs) != 1 {
			t.Errorf("the task ended as %+v", end)
		}
	})
	t.Run("answered by others", func(t *testing.T) {
		q := newQuiz("apr-1")
		close(q.release)
		w, task := begin(t, q)
		if _, err := q.AnswerApproval(t.Context(), "apr-1", sandbox.AnswerApprovalRequest{}); err != nil {
			t.Fatal(err)
		}
		if end := ends(t, w, task.TaskID); end.Status != taskCompleted || end.Result == nil || end.Result.StructuredContent.Stdout != "apr-1 false\n" {
			t.Errorf("the task ended as %+v", end)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		q := newQuiz("apr-1")
		w, task := begin(t, q)
		body, headers := aboutTask(methodTasksCancel, task.TaskID)
		w.answerTo(withTasks(body), headers)
		if err := waitFor(t, q.ended, "end of the work"); !errors.Is(err, context.Canceled) {
			t.Errorf("the work ended with %v", err)
		}
		if end := ends(t, w, task.TaskID); end.Status != taskCancelled {
			t.Errorf("the task ended as %+v", end)
		}
	})
}
