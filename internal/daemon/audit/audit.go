// Package audit writes the audit record: who did what. Frequent verbs are recorded in
// batches, in the background. Verbs that change permissions, or create or end a sandbox,
// are stored before they return.
package audit

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// flushEvery bounds how long an event waits, and so what a crash of the daemon can
	// lose.
	flushEvery = 200 * time.Millisecond
	// maxWaiting bounds the events in memory. When it is exceeded, the caller waits.
	maxWaiting = 4096
	// maxDetail bounds the text of an event in bytes.
	maxDetail = 512
	// writeTimeout bounds one write in the background.
	writeTimeout = 10 * time.Second
)

// Log stores events.
type Log interface {
	// AppendAudit adds events in order and gives them ids.
	AppendAudit(ctx context.Context, events []sandbox.AuditEvent) error
}

// Recorder collects events for a [Log]. It is safe for concurrent use.
type Recorder struct {
	log  Log
	slog *slog.Logger

	// writing is held while events are taken and written, so that they are
	// stored in the order in which they came. It is locked before mu.
	writing sync.Mutex
	mu      sync.Mutex
	waiting []sandbox.AuditEvent // guarded by mu

	wake chan struct{}
	stop chan struct{}
	done chan struct{}
}

// NewRecorder starts a recorder. [Recorder.Close] stops it.
func NewRecorder(log Log, logger *slog.Logger) *Recorder {
	r := &Recorder{log: log, slog: logger, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go r.run()
	return r
}

// Record queues an event, which is stored soon.
func (r *Recorder) Record(e sandbox.AuditEvent) {
	if r.add(e) {
		if err := r.background(); err != nil {
			r.slog.Error("write audit events", "error", err)
		}
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// add queues an event, and reports whether there are now so many that the caller has to
// write them.
func (r *Recorder) add(e sandbox.AuditEvent) bool {
	e.Detail = clip.Text(e.Detail, maxDetail)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, e)
	return len(r.waiting) >= maxWaiting
}

// Write stores an event, and all that are queued, before it returns.
func (r *Recorder) Write(ctx context.Context, e sandbox.AuditEvent) error {
	r.add(e)
	return r.Flush(ctx)
}

// Flush stores all queued events. Events that cannot be stored stay queued, up to a bound.
func (r *Recorder) Flush(ctx context.Context) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	events := r.waiting
	r.waiting = nil
	r.mu.Unlock()
	if len(events) == 0 {
		return nil
	}
	if err := r.log.AppendAudit(ctx, events); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if keep := maxWaiting - len(r.waiting) - 1; len(events) > keep {
			r.slog.Error("audit events were lost: the store does not accept them", "count", len(events)-max(keep, 0))
			events = events[:max(keep, 0)]
		}
		r.waiting = append(events, r.waiting...)
		return err
	}
	return nil
}

func (r *Recorder) background() error {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	return r.Flush(ctx)
}

func (r *Recorder) run() {
	defer close(r.done)
	timer := time.NewTimer(flushEvery)
	defer timer.Stop()
	for {
		select {
		case <-r.wake:
		case <-r.stop:
			return
		}
		timer.Reset(flushEvery)
		select {
		case <-timer.C:
		case <-r.stop:
			return
		}
		if err := r.background(); err != nil {
			r.slog.Error("write audit events", "error", err)
		}
	}
}

// Close stores the queued events and stops the recorder.
func (r *Recorder) Close() error {
	close(r.stop)
	<-r.done
	return r.background()
}
