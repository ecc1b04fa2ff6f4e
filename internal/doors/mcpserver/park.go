package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// maxQuestions is how many questions end a request of one call: clients repeat a call
// ten times at most.
const maxQuestions = 8

// errNotAsked is the error of a question that the client's user is not asked.
var errNotAsked = errors.New("the client's user cannot be asked now; the question stays open for others")

// parked is a call of a tool that asks a question while it runs. In revision 2026-07-28,
// the client gets the question as the result of its request, and repeats the request
// with the answer. The work therefore does not belong to one request: while a question
// is open, the call is parked and no request waits for it; the repeat has the call's
// state, and waits for the same work.
type parked struct {
	lot    *parking
	owner  string
	caller sandbox.Caller
	tool   string
	args   json.RawMessage
	cancel context.CancelFunc
	told   relay
	done   chan struct{} // closed when the work has ended

	outcome outcome // once done

	id    string    // the state that a repeat has, once there was a question; guarded by lot.mu
	bytes int       // of the outcome as JSON, if there was a question; guarded by lot.mu
	ended time.Time // guarded by lot.mu

	mu        sync.Mutex
	waiting   int                        // requests that wait; guarded by mu
	since     time.Time                  // when the last one began to wait; guarded by mu
	asked     int                        // questions so far; guarded by mu
	questions map[string]*parkedQuestion // open ones, by key; guarded by mu
	changed   chan struct{}              // closed when one of the fields above changes; guarded by mu
	away      *time.Timer                // runs until the call is given up; guarded by mu
	returned  bool                       // a request has returned the outcome; guarded by mu
}

// parkedQuestion is an open question.
type parkedQuestion struct {
	request mcp.InputRequest
	answer  chan dialect.Answer
}

// park makes a call that can be parked, and waits for its result or first question. If
// the request ends while it waits, the call ends too.
func (b *builder) park(ctx context.Context, req *mcp.CallToolRequest, p *progress, run func(context.Context, *parked) (*mcp.CallToolResult, error)) (*mcp.CallToolResult, error) {
	caller, _ := sandbox.CallerOf(ctx)
	k := &parked{
		owner: ownerOf(ctx), caller: caller, tool: req.Params.Name, args: req.Params.Arguments, done: make(chan struct{}),
		questions: make(map[string]*parkedQuestion), changed: make(chan struct{}),
	}
	work := func(ctx context.Context, _ string, _ mcp.Request) (mcp.Result, error) { return run(ctx, k) }
	k.enter(p)
	if !b.parking.begin(ctx, k, func(ctx context.Context) outcome {
		res, err := b.guarded(ctx, work, methodCallTool, req)
		return outcome{res, err}
	}) {
		return run(ctx, nil)
	}
	return k.wait(ctx)
}

// resume waits for a call that was parked, with the answers of its client. A call of
// somebody else, or another call, is indistinguishable from one that does not exist.
func (b *builder) resume(ctx context.Context, req *mcp.CallToolRequest, p *progress) (*mcp.CallToolResult, error) {
	k := b.parking.find(ownerOf(ctx), req.Params.RequestState)
	if k == nil || !k.sameAs(ctx, req.Params) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "this call cannot be continued: it was another one, it is over, its client was away for more than 15 minutes, or the server has started anew; what it began may still run, so look first (job_list), and then make the call without requestState"}
	}
	k.enter(p)
	k.answer(req.Params.InputResponses)
	return k.wait(ctx)
}

// sameAs reports whether a call repeats this one: with the same rights, the same tool
// and the same arguments.
func (k *parked) sameAs(ctx context.Context, params *mcp.CallToolParamsRaw) bool {
	caller, _ := sandbox.CallerOf(ctx)
	return params.Name == k.tool && slices.Equal(caller.Scopes, k.caller.Scopes) && caller.Namespace == k.caller.Namespace && sameJSON(params.Arguments, k.args)
}

// sameJSON compares two documents: clients may write the keys of an object in any order.
func sameJSON(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	one, err1 := sortedJSON(a)
	other, err2 := sortedJSON(b)
	return err1 == nil && err2 == nil && bytes.Equal(one, other)
}

// sortedJSON returns a document without spaces, with the keys of objects in order.
func sortedJSON(data json.RawMessage) ([]byte, error) {
	var v any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// enter begins the wait of a request. From now on, its client gets the progress.
func (k *parked) enter(p *progress) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting++
	k.since = time.Now()
	if k.away != nil {
		k.away.Stop()
	}
	k.told.turn(p)
	k.change()
}

// leave ends the wait of a request. After the last one, the call is given up if its
// client does not come back in time.
func (k *parked) leave(patience time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.waiting--; k.waiting == 0 {
		k.away = time.AfterFunc(patience, k.giveUp)
	}
}

// giveUp ends a call whose client has not come back.
func (k *parked) giveUp() {
	k.mu.Lock()
	back := k.waiting > 0
	k.mu.Unlock()
	if !back {
		k.lot.forget(k)
		k.cancel()
	}
}

// change wakes all who wait for a change. The caller holds mu.
func (k *parked) change() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// wait returns the result of the call, or its questions with the state that parks it.
func (k *parked) wait(ctx context.Context) (*mcp.CallToolResult, error) {
	for {
		k.mu.Lock()
		requests, changed := k.requests(), k.changed
		k.mu.Unlock()
		select {
		case <-k.done:
			return k.finish()
		case <-ctx.Done():
			return k.hangUp(ctx)
		default:
		}
		if len(requests) > 0 {
			k.leave(k.lot.patience)
			return &mcp.CallToolResult{InputRequests: requests, RequestState: k.lot.state(k)}, nil
		}
		select {
		case <-changed:
		case <-k.done:
		case <-ctx.Done():
		}
	}
}

// requests returns the open questions. The caller holds mu.
func (k *parked) requests() mcp.InputRequestMap {
	requests := make(mcp.InputRequestMap, len(k.questions))
	for key, q := range k.questions {
		requests[key] = q.request
	}
	return requests
}

// finish ends the wait of a request with the result of the call.
func (k *parked) finish() (*mcp.CallToolResult, error) {
	k.mu.Lock()
	k.returned = true
	k.mu.Unlock()
	if k.lot.state(k) != "" {
		k.leave(resultKept)
	}
	return k.result()
}

// hangUp handles a request that ends before its call. If no other request waits, the
// call ends too.
func (k *parked) hangUp(ctx context.Context) (*mcp.CallToolResult, error) {
	k.mu.Lock()
	k.waiting--
	last := k.waiting == 0
	k.mu.Unlock()
	if !last {
		return nil, ctx.Err()
	}
	k.lot.forget(k)
	k.cancel()
	<-k.done
	return k.result()
}

// result returns a copy of the result of a call that is done: the library writes into
// what it sends, and two requests may wait for one result.
func (k *parked) result() (*mcp.CallToolResult, error) {
	res, ok := k.outcome.res.(*mcp.CallToolResult)
	if k.outcome.err != nil || !ok || res == nil {
		return nil, k.outcome.err
	}
	copied := *res
	return &copied, nil
}

// elicit is [dialect.Call.Elicit]: it parks the call.
func (k *parked) elicit(ctx context.Context, key, question string) (dialect.Answer, error) {
	if err := k.lot.admit(k); err != nil {
		return dialect.NoAnswer, err
	}
	q := &parkedQuestion{&mcp.ElicitParams{Message: question, RequestedSchema: yesOrNo}, make(chan dialect.Answer, 1)}
	k.mu.Lock()
	if k.asked == maxQuestions {
		k.mu.Unlock()
		return dialect.NoAnswer, errNotAsked
	}
	k.asked++
	k.questions[key] = q
	k.change()
	k.mu.Unlock()
	select {
	case answer := <-q.answer:
		return answer, nil
	case <-ctx.Done():
		k.mu.Lock()
		delete(k.questions, key)
		k.mu.Unlock()
		return dialect.NoAnswer, ctx.Err()
	}
}

// answer takes answers to open questions. It ignores others; unanswered questions are
// asked again.
func (k *parked) answer(given mcp.InputResponseMap) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, q := range k.questions {
		if answer, ok := given[key].(*mcp.ElicitResult); ok && answer != nil {
			delete(k.questions, key)
			q.answer <- answerOf(answer)
		}
	}
}

// waitingSince is [dialect.Call.WaitingSince].
func (k *parked) waitingSince(ctx context.Context) (time.Time, error) {
	for {
		k.mu.Lock()
		waiting, since, changed := k.waiting, k.since, k.changed
		k.mu.Unlock()
		if waiting > 0 {
			return since, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}
