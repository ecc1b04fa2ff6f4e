package mcpserver

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// Progress is sent after firstProgress, and then at intervals of nextProgress.
const (
	firstProgress = time.Second
	nextProgress  = 2 * time.Second
)

// outputLevel is the level of log messages with output.
const outputLevel = "info"

// progress sends the client of one call, if it asked for that, progress notifications.
// Their value is the seconds since the start, or a percentage with a total if the work
// reports a fraction; it always increases, as the protocol requires. Output is sent as
// log messages, to clients that have set a level.
type progress struct {
	ctx     context.Context // of the call
	session *mcp.ServerSession
	task    *task // that the call may become, or nil
	tool    string
	token   any // nil if the client did not ask
	start   time.Time
	cancel  context.CancelFunc
	done    sync.WaitGroup

	mu      sync.Mutex
	message string  // guarded by mu
	percent float64 // done, 0 if unknown; guarded by mu

	sending sync.Mutex
	last    float64 // what was sent last; guarded by sending
	ended   bool    // guarded by sending
}

func startProgress(ctx context.Context, req *mcp.CallToolRequest) *progress {
	p := &progress{ctx: ctx, session: req.Session, task: taskOf(ctx), tool: req.Params.Name, token: req.Params.GetProgressToken(), start: time.Now(), cancel: func() {}}
	if p.token == nil {
		return p
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	p.done.Go(p.run)
	return p
}

func (p *progress) status(message string) {
	p.task.describe(message)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.message = message
}

// fraction sets how much of the work is done.
func (p *progress) fraction(done float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.percent = max(p.percent, 100*min(done, 1))
}

// stop returns when no notification can follow: none may come after the
// result.
func (p *progress) stop() {
	p.cancel()
	p.done.Wait()
	p.sending.Lock()
	defer p.sending.Unlock()
	p.ended = true
}

// tell sends a message at once.
func (p *progress) tell(message string) {
	if p.token != nil {
		_ = p.send(message) // the client is gone, which ends the call too
	}
}

// output sends a piece of output at once. The library knows whether the client wants
// it: clients set the level for a session up to revision 2025-11-25, and with each
// request since.
func (p *progress) output(o dialect.Output) {
	p.sending.Lock()
	defer p.sending.Unlock()
	if p.ended {
		return
	}
	params := &mcp.LoggingMessageParams{Level: outputLevel, Logger: p.tool, Data: o}
	if p.token != nil { // by which the client can match the message to its call
		params.Meta = mcp.Meta{"progressToken": p.token}
	}
	_ = p.task.notify(func() error { // an error means that the client is gone
		return p.session.Log(p.ctx, params)
	})
}

func (p *progress) send(message string) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	if p.ended {
		return nil
	}
	p.mu.Lock()
	value, total := p.percent, 100.0
	p.mu.Unlock()
	if value == 0 {
		value, total = time.Since(p.start).Seconds(), 0
	}
	p.last = max(value, p.last+1e-6)
	if p.last > total {
		total = 0 // progress beyond the total cannot be displayed
	}
	return p.task.notify(func() error {
		return p.session.NotifyProgress(p.ctx, &mcp.ProgressNotificationParams{
			ProgressToken: p.token, Progress: p.last, Total: total, Message: message,
		})
	})
}

func (p *progress) run() {
	timer := time.NewTimer(firstProgress)
	defer timer.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-timer.C:
		}
		p.mu.Lock()
		message := p.message
		p.mu.Unlock()
		if err := p.send(message); err != nil {
			return
		}
		timer.Reset(nextProgress)
	}
}

// teller tells a client of the progress of its call.
type teller interface {
	status(message string)
	fraction(done float64)
	tell(message string)
	output(o dialect.Output)
}

// relay is the teller of a call for which several requests wait one after the other. It
// reports progress to the client of the latest request.
type relay struct {
	mu      sync.Mutex
	to      *progress // guarded by mu
	message string    // guarded by mu
}

// turn makes relay report to p.
func (r *relay) turn(p *progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = p
	p.status(r.message)
}

func (r *relay) now() *progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.to
}

func (r *relay) status(message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.message = message
	r.to.status(message)
}

func (r *relay) fraction(done float64)   { r.now().fraction(done) }
func (r *relay) tell(message string)     { r.now().tell(message) }
func (r *relay) output(o dialect.Output) { r.now().output(o) }
