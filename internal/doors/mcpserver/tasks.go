package mcpserver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The tasks extension of the protocol, revision 2026-07-28: a call that takes
// long is answered with a task, which the client polls. See
// https://modelcontextprotocol.github.io/ext-tasks/specification/2026-07-28/tasks.html
const (
	tasksExtension = "io.modelcontextprotocol/tasks"

	methodTasksGet    = "tasks/get"
	methodTasksUpdate = "tasks/update"
	methodTasksCancel = "tasks/cancel"

	resultTask     = "task"
	resultComplete = "complete"
)

const (
	// taskAfter is how long a request waits for its call before it is answered
	// with a task.
	taskAfter = 5 * time.Second
	// taskPoll is the polling interval that clients are asked to use.
	taskPoll = time.Second
	// taskKept is how long the result of a task is retained.
	taskKept = time.Hour
	// maxTasks bounds the tasks of one caller, ended ones included; further calls
	// block as they do for clients without tasks.
	maxTasks = 32
	// maxTaskBytes bounds the results that are retained for one caller, in bytes of
	// JSON: beyond it, the tasks that ended first are removed.
	maxTaskBytes = 32 << 20
)

// tasks keeps the tasks of all callers.
type tasks struct {
	maxBytes int // see maxTaskBytes
	wg       sync.WaitGroup

	mu     sync.Mutex
	closed bool                        // guarded by mu
	all    map[string]map[string]*task // by owner and id; guarded by mu
}

func newTasks() *tasks {
	return &tasks{maxBytes: maxTaskBytes, all: make(map[string]map[string]*task)}
}

// begin runs a call that may become a task, or returns nil if its caller has the most
// tasks already.
func (s *tasks) begin(ctx context.Context, owner string, run func(context.Context, *task)) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.makeRoom(owner) {
		return nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := newTask(owner, cancel)
	t.namespace = namespaceOf(ctx)
	if s.all[owner] == nil {
		s.all[owner] = make(map[string]*task)
	}
	s.all[owner][t.id] = t
	s.wg.Go(func() {
		defer cancel()
		run(ctx, t)
		s.trim(owner)
	})
	return t
}

// makeRoom removes tasks that ended too long ago and then, if necessary, tasks whose
// result the client has read. The caller holds mu.
func (s *tasks) makeRoom(owner string) bool {
	var seen []*task
	for id, t := range s.all[owner] {
		t.mu.Lock()
		switch {
		case t.ended() && time.Since(t.updated) > taskKept:
			delete(s.all[owner], id)
		case t.ended() && t.fetched:
			seen = append(seen, t)
		}
		t.mu.Unlock()
	}
	slices.SortFunc(seen, func(a, b *task) int { return a.created.Compare(b.created) })
	for len(s.all[owner]) >= maxTasks && len(seen) > 0 {
		delete(s.all[owner], seen[0].id)
		seen = seen[1:]
	}
	return len(s.all[owner]) < maxTasks
}

// trim removes a caller's oldest results beyond maxBytes, but never the newest.
func (s *tasks) trim(owner string) {
	type result struct {
		id    string
		bytes int
		at    time.Time
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var ended []result
	total := 0
	for id, t := range s.all[owner] {
		t.mu.Lock()
		if t.ended() {
			ended = append(ended, result{id, len(t.result), t.updated})
			total += len(t.result)
		}
		t.mu.Unlock()
	}
	slices.SortFunc(ended, func(a, b result) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id, b.id)) })
	for i := 0; total > s.maxBytes && i < len(ended)-1; i++ {
		total -= ended[i].bytes
		delete(s.all[owner], ended[i].id)
	}
}

// forget drops a task that its request has answered itself.
func (s *tasks) forget(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all[t.owner], t.id)
	if len(s.all[t.owner]) == 0 {
		delete(s.all, t.owner)
	}
}

// find returns a task of a caller in a namespace. A task of somebody else is
// indistinguishable from one that does not exist.
func (s *tasks) find(owner, namespace, id string) (*task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.all[owner][id]
	if t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
	}
	if t == nil || t.namespace != namespace || !t.handedOver || t.ended() && time.Since(t.updated) > taskKept {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "no such task; the end of a task is kept for an hour, and a server that starts anew knows none"}
	}
	return t, nil
}

// close ends all tasks and returns when their work has ended.
func (s *tasks) close() {
	s.mu.Lock()
	s.closed = true
	for _, owned := range s.all {
		for _, t := range owned {
			t.stop()
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
}

type taskKey struct{}

// taskOf returns the task that a call may become, or nil.
func taskOf(ctx context.Context) *task {
	t, _ := ctx.Value(taskKey{}).(*task)
	return t
}

// takesTasks reports whether the client of a request supports tasks, which it declares
// with each request.
func takesTasks(req mcp.Request) bool {
	r, ok := req.(interface {
		ClientCapabilities() *mcp.ClientCapabilities
		ProtocolVersion() string
	})
	if !ok || r.ProtocolVersion() < statelessRevision {
		return false
	}
	caps := r.ClientCapabilities()
	if caps == nil {
		return false
	}
	_, ok = caps.Extensions[tasksExtension]
	return ok
}

// withTasks is a middleware that answers calls that take long with tasks.
func (b *builder) withTasks(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch req.GetParams().(type) {
		case *taskParams, *updateTaskParams:
			if !takesTasks(req) {
				return nil, MissingTasks("method")
			}
		}
		call, ok := req.(*mcp.CallToolRequest)
		if !ok || !takesTasks(req) {
			return next(ctx, method, req)
		}
		t := b.tasks.begin(ctx, userOf(ctx), func(ctx context.Context, t *task) {
			b.work(context.WithValue(ctx, taskKey{}, t), t, next, method, call)
		})
		if t == nil {
			return next(ctx, method, req)
		}
		return b.await(ctx, t)
	}
}

// await waits for a call for as long as a request may take, and then hands it over. If
// the request is cancelled, so is the call.
func (b *builder) await(ctx context.Context, t *task) (mcp.Result, error) {
	timer := time.NewTimer(b.cfg.TaskAfter)
	defer timer.Stop()
	select {
	case <-t.settled:
	case <-ctx.Done():
		t.cancel()
		<-t.settled
	case <-timer.C:
		if t.handOver() {
			return t.view(resultTask), nil
		}
	}
	b.tasks.forget(t)
	return t.outcome.res, t.outcome.err
}

// work makes the call, and repeats it with the client's answers when the tool asks for
// input. Before the call is handed over, its request asks the client.
func (b *builder) work(ctx context.Context, t *task, next mcp.MethodHandler, method string, req *mcp.CallToolRequest) {
	for {
		res, err := b.guarded(ctx, next, method, req)
		if t.settle(outcome{res, err}) {
			return
		}
		asks, ok := res.(*mcp.CallToolResult)
		if err != nil || !ok || asks.InputRequests == nil {
			t.finish(outcome{res, err})
			return
		}
		// A call that is parked may end before its client has answered.
		answers, err := t.ask(ctx, asks.InputRequests, b.parking.over(ownerOf(ctx), asks.RequestState))
		if err != nil {
			b.parking.end(ownerOf(ctx), asks.RequestState)
			t.finish(outcome{nil, err})
			return
		}
		params := *req.Params
		params.InputResponses, params.RequestState = answers, asks.RequestState
		again := *req
		again.Params = &params
		req = &again
	}
}

// MissingTasks is the error of a method or tool that requires a client with tasks.
func MissingTasks(what string) error {
	required := &mcp.ClientCapabilities{}
	required.AddExtension(tasksExtension, nil)
	data, err := json.Marshal(mcp.MissingRequiredClientCapabilityData{RequiredCapabilities: required})
	if err != nil {
		return err
	}
	return &jsonrpc.Error{Code: mcp.CodeMissingRequiredClientCapabilities, Message: "this " + what + " is for clients that declare the extension " + tasksExtension + " with the request", Data: data}
}

type taskParams struct {
	mcp.ParamsBase
	TaskID string `json:"taskId"`
}

type updateTaskParams struct {
	mcp.ParamsBase
	TaskID string `json:"taskId"`
	// InputResponses are decoded when the questions are known.
	InputResponses map[string]json.RawMessage `json:"inputResponses"`
}

// acknowledged is an answer without content.
type acknowledged struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
}

// taskMethods adds the methods by which clients poll, answer and cancel tasks.
func (b *builder) taskMethods(s *mcp.Server) error {
	get := func(ctx context.Context, _ *mcp.ServerSession, p *taskParams) (*taskResult, error) {
		t, err := b.tasks.find(userOf(ctx), namespaceOf(ctx), p.TaskID)
		if err != nil {
			return nil, err
		}
		return t.detail(), nil
	}
	change := func(ctx context.Context, id string, with func(*task) error) (*acknowledged, error) {
		t, err := b.tasks.find(userOf(ctx), namespaceOf(ctx), id)
		if err == nil {
			err = with(t)
		}
		if err != nil {
			return nil, err
		}
		return &acknowledged{ResultType: resultComplete}, nil
	}
	cancel := func(ctx context.Context, _ *mcp.ServerSession, p *taskParams) (*acknowledged, error) {
		return change(ctx, p.TaskID, func(t *task) error { t.stop(); return nil })
	}
	update := func(ctx context.Context, _ *mcp.ServerSession, p *updateTaskParams) (*acknowledged, error) {
		return change(ctx, p.TaskID, func(t *task) error { return t.answer(p.InputResponses) })
	}
	return errors.Join(
		mcp.AddReceivingCustomMethod(s, methodTasksGet, get),
		mcp.AddReceivingCustomMethod(s, methodTasksCancel, cancel),
		mcp.AddReceivingCustomMethod(s, methodTasksUpdate, update),
	)
}

// refuseMismatch refuses a request whose header names another task than its body, and
// reports whether it did: proxies route by the header.
func refuseMismatch(w http.ResponseWriter, r *http.Request, body []byte) bool {
	name := r.Header.Get(headerName)
	if name == "" || !bytes.Contains(body, []byte(`"tasks/`)) {
		return false
	}
	var msg struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params taskParams      `json:"params"`
	}
	if json.Unmarshal(body, &msg) != nil {
		return false // for the library to say
	}
	switch msg.Method {
	case methodTasksGet, methodTasksUpdate, methodTasksCancel:
		if msg.Params.TaskID != name {
			refuseID(w, msg.ID, http.StatusBadRequest, mcp.CodeHeaderMismatch, "header "+headerName+" names another task than params.taskId")
			return true
		}
	}
	return false
}
