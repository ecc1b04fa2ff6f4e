package mcpserver

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Progress is told after a second, and then at this interval.
const (
	firstProgress = time.Second
	nextProgress  = 2 * time.Second
)

// progress tells the client of one call, if it asked for that, how long the
// call takes and what is going on. Its value is the seconds since the start,
// so it always increases.
type progress struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	message string // guarded by mu
}

func startProgress(ctx context.Context, req *mcp.CallToolRequest) *progress {
	p := &progress{cancel: func() {}}
	token := req.Params.GetProgressToken()
	if token == nil {
		return p
	}
	ctx, p.cancel = context.WithCancel(ctx)
	p.done.Go(func() { p.run(ctx, req.Session, token) })
	return p
}

func (p *progress) status(message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.message = message
}

// stop returns when no notification can follow: none may come after the
// result.
func (p *progress) stop() {
	p.cancel()
	p.done.Wait()
}

func (p *progress) run(ctx context.Context, session *mcp.ServerSession, token any) {
	start := time.Now()
	timer := time.NewTimer(firstProgress)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		p.mu.Lock()
		message := p.message
		p.mu.Unlock()
		err := session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: time.Since(start).Seconds(), Message: message,
		})
		if err != nil {
			return
		}
		timer.Reset(nextProgress)
	}
}
