package limits

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// MemoryBudgetConfig limits the memory of request bodies. All fields are required.
type MemoryBudgetConfig struct {
	// Total is the budget of all callers together, in bytes; PerCaller is the budget of
	// one caller.
	Total, PerCaller int64
	// MaxBody is the size charged for a body without a Content-Length until it has been
	// read.
	MaxBody int64
	// Wait is how long a request waits for memory.
	Wait time.Duration
	// ReadTimeout is how long reading a body may take once memory is reserved for it.
	ReadTimeout time.Duration
}

const (
	// SmallBody is the size up to which bodies are not charged: a connection costs as much
	// anyway. Ordinary requests are small and never wait.
	SmallBody = 16 << 10
	// busyRetry is the Retry-After of a refused request.
	busyRetry = 2 * time.Second
)

// ErrBusy is the error of [MemoryBudget.Hold] when memory did not become available in
// time.
var ErrBusy error = &sandbox.Error{
	Code: sandbox.CodeUnavailable, RetryAfter: busyRetry,
	Message: "the server works on as many large requests as it has memory for; try again in a moment",
}

// MemoryBudget limits the memory of bodies that are read as a whole. It is safe for
// concurrent use.
type MemoryBudget struct {
	cfg MemoryBudgetConfig

	mu      sync.Mutex
	used    int64            // guarded by mu
	usedBy  map[string]int64 // by caller; guarded by mu
	changed chan struct{}    // guarded by mu; closed when there is more room
}

// NewMemoryBudget returns an unused budget.
func NewMemoryBudget(cfg MemoryBudgetConfig) *MemoryBudget {
	cfg.PerCaller = min(cfg.PerCaller, cfg.Total)
	return &MemoryBudget{cfg: cfg, usedBy: make(map[string]int64), changed: make(chan struct{})}
}

// Hold reserves memory for the body of a caller's request and replaces r.Body, so r must
// be a copy of the HTTP server's own request. Once the body has been read, memory that it
// did not need is returned; release returns the rest, and must be called when the body is
// no longer used. The error is [ErrBusy], or that of the request's context.
func (m *MemoryBudget) Hold(r *http.Request, who string) (release func(), err error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength >= 0 && r.ContentLength <= SmallBody {
		return func() {}, nil
	}
	n := r.ContentLength
	if n < 0 {
		n = m.cfg.MaxBody
	}
	n = min(n, m.cfg.MaxBody, m.cfg.PerCaller)
	if err := m.take(r.Context(), who, n); err != nil {
		return nil, err
	}
	within(r.Body, m.cfg.ReadTimeout)
	h := &held{ReadCloser: r.Body, m: m, who: who, has: n}
	r.Body = h
	return func() { h.shrink(0) }, nil
}

// take reserves n bytes, and waits for them if necessary.
func (m *MemoryBudget) take(ctx context.Context, who string, n int64) error {
	timer := time.NewTimer(m.cfg.Wait)
	defer timer.Stop()
	for {
		m.mu.Lock()
		if m.used+n <= m.cfg.Total && m.usedBy[who]+n <= m.cfg.PerCaller {
			m.used += n
			m.usedBy[who] += n
			m.mu.Unlock()
			return nil
		}
		changed := m.changed
		m.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
			return ErrBusy
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *MemoryBudget) give(who string, n int64) {
	if n <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= n
	if m.usedBy[who] -= n; m.usedBy[who] == 0 {
		delete(m.usedBy, who)
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

// held is a body for which memory is reserved.
type held struct {
	io.ReadCloser
	m   *MemoryBudget
	who string

	read int64
	mu   sync.Mutex
	has  int64 // guarded by mu
}

func (h *held) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	h.read += int64(n)
	if err == io.EOF {
		need := h.read
		if need <= SmallBody {
			need = 0 // a call may take hours
		}
		h.shrink(need)
	}
	return n, err
}

// shrink returns the reserved memory above n bytes.
func (h *held) shrink(n int64) {
	h.mu.Lock()
	over := h.has - n
	if over > 0 {
		h.has = n
	}
	h.mu.Unlock()
	h.m.give(h.who, over)
}
