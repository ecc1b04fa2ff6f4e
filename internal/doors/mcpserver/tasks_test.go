package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/sandbox"
)

// withTasks makes a request of the newer era one of a client that takes tasks.
func withTasks(body string) string {
	return strings.Replace(body, `clientCapabilities":{}`, `clientCapabilities":{"extensions":{"`+tasksExtension+`":{}}}`, 1)
}

// seenTask is a task as a client sees it.
type seenTask struct {
	ResultType    string              `json:"resultType"`
	TaskID        string              `json:"taskId"`
	Status        taskStatus          `json:"status"`
	StatusMessage string              `json:"statusMessage"`
	TTLMS         *int64              `json:"ttlMs"`
	Result        *mcp.CallToolResult `json:"result"`
	Error         *jsonrpc.Error      `json:"error"`
}

func (w *web) task(body string, headers []string) seenTask {
	w.t.Helper()
	status, m := w.post("/mcp", withTasks(body), headers...)
	var seen seenTask
	if status != http.StatusOK || m.Error != nil || json.Unmarshal(m.Result, &seen) != nil {
		w.t.Fatalf("%s: %d %+v", body, status, m)
	}
	return seen
}

// beginTask calls a tool that does not end by itself and returns its task.
func (w *web) beginTask(shell string, headers ...string) seenTask {
	w.t.Helper()
	body, own := newEraCall(2, "sandbox_exec", `{"sandbox":"s","shell":"`+shell+`"}`)
	seen := w.task(body, append(own, headers...))
	if seen.ResultType != resultTask || seen.Status != taskWorking || seen.TaskID == "" || seen.TTLMS != nil {
		w.t.Fatalf("the call was answered with %+v, want a task", seen)
	}
	return seen
}

func aboutTask(method, id string) (string, []string) {
	return newEra(3, method, id, fmt.Sprintf(`"taskId":%q,"inputResponses":{}`, id))
}

// endOfTask returns a task once its work has ended; no other task may run.
func (w *web) endOfTask(id string, headers ...string) seenTask {
	w.t.Helper()
	w.handler.tasks.wg.Wait()
	body, own := aboutTask(methodTasksGet, id)
	return w.task(body, append(own, headers...))
}

// A call that takes long is answered with a task, and its request is over. The command
// may take longer than a call may, and the client polls for its end.
func TestTask(t *testing.T) {
	f := newFake()
	w := serve(t, Config{Service: f, TaskAfter: time.Millisecond})
	seen := w.beginTask("hold")
	close(f.release)
	seen = w.endOfTask(seen.TaskID)
	if seen.ResultType != resultComplete || seen.Status != taskCompleted || seen.Result == nil || seen.Result.IsError || seen.TTLMS == nil || *seen.TTLMS < taskKept.Milliseconds() {
		t.Fatalf("the task ended as %+v", seen)
	}
	var result struct {
		State sandbox.JobState `json:"state"`
	}
	if data, err := json.Marshal(seen.Result.StructuredContent); err != nil || json.Unmarshal(data, &result) != nil || result.State != sandbox.JobExited {
		t.Errorf("the result is %+v (%v)", seen.Result, err)
	}
	if got := f.detachTimes(); len(got) != 1 || got[0] != sandbox.MaxExecTimeout {
		t.Errorf("the command was waited for %v, want %v", got, sandbox.MaxExecTimeout)
	}
	// The result can be requested again.
	if again := w.endOfTask(seen.TaskID); again.Status != taskCompleted {
		t.Errorf("asked again: %+v", again)
	}
}

// A client that does not support tasks, or a call that is too short for one, gets the
// result itself.
func TestNoTask(t *testing.T) {
	f := newFake()
	w := serve(t, Config{Service: f, TaskAfter: time.Hour})
	body, headers := newEraCall(2, "sandbox_exec", `{"sandbox":"s","shell":"quick"}`)
	if seen := w.task(body, headers); seen.ResultType != resultComplete || seen.TaskID != "" {
		t.Errorf("a quick call: %+v", seen)
	}
	soon := serve(t, Config{Service: f, TaskAfter: time.Nanosecond})
	close(f.release)
	body, headers = newEraCall(2, "sandbox_exec", `{"sandbox":"s","shell":"hold"}`)
	if status, m := soon.post("/mcp", body, headers...); status != http.StatusOK || strings.Contains(string(m.Result), "taskId") {
		t.Errorf("a client without tasks: %d %s", status, m.Result)
	}
	if got := f.detachTimes(); got[len(got)-1] >= time.Minute {
		t.Errorf("its command was waited for %v", got)
	}
	for _, method := range []string{methodTasksGet, methodTasksUpdate, methodTasksCancel} {
		body, headers := aboutTask(method, "task-x")
		if status, m := soon.post("/mcp", body, headers...); status != http.StatusBadRequest || m.Error == nil || m.Error.Code != mcp.CodeMissingRequiredClientCapabilities || !strings.Contains(string(m.Error.Data), tasksExtension) {
			t.Errorf("%s of a client without tasks: %d %+v", method, status, m.Error)
		}
	}
}

// Attack: a task of another key or namespace is as unknown as one that never existed.
func TestTasksOfOthers(t *testing.T) {
	f := newFake()
	w := serve(t, Config{Service: f, TaskAfter: time.Millisecond})
	seen := w.beginTask("hold", "X-Test-Key", "a")
	var refusals []string
	for _, method := range []string{methodTasksGet, methodTasksUpdate, methodTasksCancel} {
		for _, id := range []string{seen.TaskID, "task-never"} {
			for _, other := range [][]string{{"X-Test-Key", "b"}, {"X-Test-Key", "a", "Cove-Namespace", "other"}} {
				body, headers := aboutTask(method, id)
				_, m := w.post("/mcp", withTasks(body), append(headers, other...)...)
				if m.Error == nil || m.Error.Code != jsonrpc.CodeInvalidParams {
					t.Fatalf("%s: %s %+v", method, m.Result, m.Error)
				}
				refusals = append(refusals, m.Error.Message)
			}
		}
	}
	for _, text := range refusals {
		if text != refusals[0] {
			t.Errorf("refused with %q and with %q", text, refusals[0])
		}
	}
	close(f.release)
	if end := w.endOfTask(seen.TaskID, "X-Test-Key", "a"); end.Status != taskCompleted {
		t.Errorf("the task ended as %+v", end)
	}
	// The header, which proxies go by, says the same as the request.
	body, headers := aboutTask(methodTasksGet, seen.TaskID)
	for i := range headers {
		headers[i] = strings.Replace(headers[i], seen.TaskID, "task-other", 1)
	}
	if status, m := w.post("/mcp", withTasks(body), headers...); status != http.StatusBadRequest || m.Error == nil || m.Error.Code != mcp.CodeHeaderMismatch || string(m.ID) != "3" {
		t.Errorf("another name in the header: %d %s %+v", status, m.ID, m.Error)
	}
}

// A task that is cancelled ends its work; so do the end of the server and, until
// a task is made, the end of the request.
func TestTasksEnd(t *testing.T) {
	f := newFake()
	w := serve(t, Config{Service: f, TaskAfter: time.Millisecond})
	seen := w.beginTask("sleep")
	waitFor(t, f.started, "start")
	body, headers := aboutTask(methodTasksCancel, seen.TaskID)
	if ack := w.task(body, headers); ack.ResultType != resultComplete || ack.TaskID != "" {
		t.Errorf("acknowledged with %+v", ack)
	}
	if err := waitFor(t, f.ended, "end of the work"); !errors.Is(err, context.Canceled) {
		t.Errorf("the work ended with %v", err)
	}
	if end := w.endOfTask(seen.TaskID); end.Status != taskCancelled || end.Result != nil || end.Error != nil {
		t.Errorf("the task ended as %+v", end)
	}

	w.beginTask("sleep")
	waitFor(t, f.started, "start")
	if err := w.handler.Close(); err != nil {
		t.Fatal(err)
	}
	if err := waitFor(t, f.ended, "end of the work with the server"); !errors.Is(err, context.Canceled) {
		t.Errorf("the work ended with %v", err)
	}

	patient := serve(t, Config{Service: f, TaskAfter: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		waitFor(t, f.started, "start")
		cancel()
	}()
	body, headers = newEraCall(2, "sandbox_exec", `{"sandbox":"s","shell":"sleep"}`)
	patient.abandon(ctx, withTasks(body), headers)
	if err := waitFor(t, f.ended, "end of the work with its request"); !errors.Is(err, context.Canceled) {
		t.Errorf("the work ended with %v", err)
	}
}

// A panic is kept to its task.
func TestTaskPanics(t *testing.T) {
	b := &builder{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
	task := newTask("a", func() {})
	task.handOver()
	b.work(t.Context(), task, func(context.Context, string, mcp.Request) (mcp.Result, error) { panic("a secret: hunter2") }, "tools/call", &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{}})
	end := task.detail()
	if end.Status != taskFailed || end.Result != nil || end.Error == nil || strings.Contains(end.Error.Message, "hunter2") || end.StatusMessage != end.Error.Message {
		t.Errorf("the task ended as %+v", end)
	}
}

// A caller's tasks and results are bounded. Beyond the bound, calls block as they do
// without tasks, and tasks whose result the client has read are removed first.
func TestTasksAreBounded(t *testing.T) {
	s := newTasks()
	s.maxBytes = 3000
	defer s.close()
	release := make(chan struct{})
	result := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("x", 1000)}}}
	begin := func() *task {
		handed := make(chan struct{})
		t := s.begin(t.Context(), "a", func(_ context.Context, t *task) {
			<-handed
			<-release
			t.finish(outcome{result, nil})
		})
		if t != nil {
			t.handOver()
			close(handed)
		}
		return t
	}
	var all []*task
	for range maxTasks {
		all = append(all, begin())
	}
	if begin() != nil {
		t.Error("there is no bound")
	}
	close(release)
	s.wg.Wait()
	kept := 0
	for _, task := range all {
		if found, err := s.find("a", "", task.id); err == nil {
			kept++
			if found.detail().Status != taskCompleted {
				t.Errorf("%+v", found.detail())
			}
		}
	}
	if kept != 2 { // of over a third of the bound each
		t.Errorf("%d results are kept", kept)
	}
	for range maxTasks {
		if begin() == nil {
			t.Fatal("those that have ended and were seen take room")
		}
	}
}

// Over standard input and output, progress and output are sent until the task is made,
// and never afterwards.
func TestStdioTask(t *testing.T) {
	f := newFake()
	p := pipeTo(t, Config{Service: f, TaskAfter: 2 * time.Second})
	body, _ := newEraCall(2, "sandbox_exec", `{"sandbox":"s","shell":"hold"}`)
	body = strings.Replace(withTasks(body), `"_meta":{`, `"_meta":{"progressToken":"p","io.modelcontextprotocol/logLevel":"info",`, 1)
	p.send(body)
	var told []string
	var seen seenTask
	for seen.TaskID == "" {
		m := p.next()
		if m.Method != "" {
			told = append(told, m.Method)
			continue
		}
		if m.Error != nil || json.Unmarshal(m.Result, &seen) != nil {
			t.Fatalf("%+v", m)
		}
	}
	if len(told) == 0 {
		t.Error("nothing was told before the task")
	}
	close(f.release)
	for seen.Status == taskWorking {
		body, _ := aboutTask(methodTasksGet, seen.TaskID)
		p.send(withTasks(body))
		m := p.next()
		if m.Method != "" || m.Error != nil || json.Unmarshal(m.Result, &seen) != nil {
			t.Fatalf("after the task came %+v", m)
		}
	}
	if seen.Status != taskCompleted {
		t.Errorf("%+v", seen)
	}
}
