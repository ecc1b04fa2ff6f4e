package mcpserver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// taskStatus is the state of a task, in the words of the extension.
type taskStatus string

const (
	taskWorking       taskStatus = "working"
	taskInputRequired taskStatus = "input_required"
	taskCompleted     taskStatus = "completed"
	taskCancelled     taskStatus = "cancelled"
	taskFailed        taskStatus = "failed"
)

// outcome is the result of a tool call.
type outcome struct {
	res mcp.Result
	err error
}

// task is a tool call of a client that supports tasks. At first the request waits for
// it; once it is handed over, the client polls it.
type task struct {
	id        string
	owner     string
	namespace string // in which it was started
	created   time.Time
	cancel    context.CancelFunc
	// settled is closed when the call has ended before it was handed over, so that
	// its request can return the outcome.
	settled chan struct{}
	// notifying is held while a notification of the call is sent: none may follow
	// the answer that hands the call over.
	notifying sync.Mutex

	mu         sync.Mutex
	handedOver bool                // guarded by mu
	outcome    outcome             // once settled
	status     taskStatus          // guarded by mu
	message    string              // guarded by mu
	updated    time.Time           // guarded by mu
	cancelling bool                // guarded by mu
	result     json.RawMessage     // of a completed task; guarded by mu
	failure    *jsonrpc.Error      // of a failed task; guarded by mu
	questions  map[string]question // unanswered, by id; guarded by mu
	answers    mcp.InputResponseMap
	answered   chan struct{} // closed when all questions are
	fetched    bool          // the client has read the result, or has cancelled the task; guarded by mu
}

// question is a request for input with the key that the tool gave it. Ids of a task's
// questions are never reused; a tool uses the same keys in each round.
type question struct {
	key     string
	request mcp.InputRequest
}

func newTask(owner string, cancel context.CancelFunc) *task {
	now := time.Now()
	return &task{
		id: "task-" + strings.ToLower(rand.Text()), owner: owner, created: now, updated: now,
		cancel: cancel, settled: make(chan struct{}), status: taskWorking,
	}
}

// settle ends a call that was not handed over. It reports false for one that was.
func (t *task) settle(o outcome) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.handedOver {
		return false
	}
	t.outcome = o
	close(t.settled)
	return true
}

// handOver makes the call one that its client polls, unless it has settled.
func (t *task) handOver() bool {
	t.notifying.Lock()
	defer t.notifying.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.settled:
		return false
	default:
		t.handedOver = true
		return true
	}
}

// notify sends a notification of the call while its request is open.
func (t *task) notify(send func() error) error {
	if t == nil {
		return send()
	}
	t.notifying.Lock()
	defer t.notifying.Unlock()
	t.mu.Lock()
	over := t.handedOver
	t.mu.Unlock()
	if over {
		return errHandedOver
	}
	return send()
}

var errHandedOver = errors.New("the request has been answered with a task")

// describe sets the status message.
func (t *task) describe(message string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.message, t.updated = message, time.Now()
}

// finish ends a task that was handed over.
func (t *task) finish(o outcome) {
	result, err := json.Marshal(o.res)
	if o.err != nil {
		err = o.err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.updated, t.questions, t.message = time.Now(), nil, ""
	switch {
	case t.cancelling:
		t.status = taskCancelled
	case err != nil:
		t.status, t.failure = taskFailed, wireError(err)
		t.message = t.failure.Message
	default:
		t.status, t.result = taskCompleted, result
	}
}

// wireError converts an error to one of the protocol.
func wireError(err error) *jsonrpc.Error {
	if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return wire
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
}

// ask suspends a task that was handed over until its client has answered all
// questions, or they are over.
func (t *task) ask(ctx context.Context, requests mcp.InputRequestMap, over <-chan struct{}) (mcp.InputResponseMap, error) {
	t.mu.Lock()
	t.questions, t.answers, t.answered = make(map[string]question), make(mcp.InputResponseMap), make(chan struct{})
	for key, r := range requests {
		t.questions["ask-"+strings.ToLower(rand.Text())] = question{key, r}
	}
	t.status, t.updated = taskInputRequired, time.Now()
	if len(requests) == 0 {
		close(t.answered)
	}
	answered := t.answered
	t.mu.Unlock()
	select {
	case <-answered:
	case <-over:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.status, t.updated, t.questions = taskWorking, time.Now(), nil
	return t.answers, nil
}

// answer accepts answers to open questions; others are ignored, as the extension
// requires.
func (t *task) answer(given map[string]json.RawMessage) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	read := make(map[string]mcp.InputResponse)
	for id, data := range given {
		if _, ok := t.questions[id]; !ok {
			continue
		}
		var one mcp.InputResponseMap
		wrapped, err := json.Marshal(map[string]json.RawMessage{id: data})
		if err == nil {
			err = json.Unmarshal(wrapped, &one)
		}
		if err != nil {
			return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
		}
		read[id] = one[id]
	}
	for id, response := range read {
		t.answers[t.questions[id].key] = response
		delete(t.questions, id)
		t.updated = time.Now()
	}
	if len(read) > 0 && len(t.questions) == 0 {
		close(t.answered)
	}
	return nil
}

// stop cancels the work. The task ends when the work has.
func (t *task) stop() {
	t.mu.Lock()
	if !t.ended() {
		t.cancelling, t.fetched, t.message, t.updated = true, true, "being cancelled", time.Now()
	}
	t.mu.Unlock()
	t.cancel()
}

// ended reports whether the task has come to an end. The caller holds mu.
func (t *task) ended() bool {
	return t.status == taskCompleted || t.status == taskCancelled || t.status == taskFailed
}

// taskResult is a task on the wire: the answer to a call, and in detail that to
// tasks/get.
type taskResult struct {
	mcp.ResultBase
	ResultType     string              `json:"resultType"`
	TaskID         string              `json:"taskId"`
	Status         taskStatus          `json:"status"`
	StatusMessage  string              `json:"statusMessage,omitempty"`
	CreatedAt      time.Time           `json:"createdAt"`
	LastUpdatedAt  time.Time           `json:"lastUpdatedAt"`
	TTLMS          *int64              `json:"ttlMs"`
	PollIntervalMS int64               `json:"pollIntervalMs"`
	InputRequests  mcp.InputRequestMap `json:"inputRequests,omitempty"`
	Result         json.RawMessage     `json:"result,omitempty"`
	Error          *jsonrpc.Error      `json:"error,omitempty"`
}

// view returns the task without its details, the answer that hands it over.
func (t *task) view(resultType string) *taskResult {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.viewLocked(resultType)
}

func (t *task) viewLocked(resultType string) *taskResult {
	r := &taskResult{
		ResultType: resultType, TaskID: t.id, Status: t.status, StatusMessage: t.message,
		CreatedAt: t.created.UTC(), LastUpdatedAt: t.updated.UTC(), PollIntervalMS: taskPoll.Milliseconds(),
	}
	if t.ended() { // a running task has no time limit
		ttl := t.updated.Add(taskKept).Sub(t.created).Milliseconds()
		r.TTLMS = &ttl
	}
	return r
}

// detail returns all of the task.
func (t *task) detail() *taskResult {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.viewLocked(resultComplete)
	r.Result, r.Error = t.result, t.failure
	if len(t.questions) > 0 {
		r.InputRequests = make(mcp.InputRequestMap, len(t.questions))
		for id, q := range t.questions {
			r.InputRequests[id] = q.request
		}
	}
	t.fetched = t.fetched || t.ended()
	return r
}
