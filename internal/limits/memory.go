package limits

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// MemoryConfig says how much memory bodies have. All are required.
type MemoryConfig struct {
	// Total is what the bodies of all callers have together, in bytes, and Each
	// what those of one have.
	Total, Each int64
	// Most is what a body without a length in front counts for, until it has
	// been read.
	Most int64
	// Wait is how long a request waits for its turn.
	Wait time.Duration
	// Within is how long a body may take to come, once memory is set aside for
	// it.
	Within time.Duration
}

const (
	// SmallBody is the size up to which bodies count for nothing: they cost what
	// a connection costs anyway. Ordinary requests are small, and never wait.
	SmallBody = 16 << 10
	// busyRetry is when a refused client may try again.
	busyRetry = 2 * time.Second
)

// ErrBusy is the error of [Memory.Hold] when there was no room.
var ErrBusy error = &sandbox.Error{
	Code: sandbox.CodeUnavailable, RetryAfter: busyRetry,
	Message: "the server works on as many large requests as it has memory for; try again in a moment",
}

// Memory bounds the memory of bodies that are read as a whole. It is safe for
// concurrent use.
type Memory struct {
	cfg MemoryConfig

	mu      sync.Mutex
	used    int64            // guarded by mu
	by      map[string]int64 // guarded by mu
	changed chan struct{}    // guarded by mu; closed when there is more room
}

// NewMemory returns memory of which nothing is used.
func NewMemory(cfg MemoryConfig) *Memory {
	cfg.Each = min(cfg.Each, cfg.Total)
	return &Memory{cfg: cfg, by: make(map[string]int64), changed: make(chan struct{})}
}

// Hold sets memory aside for the body of a request of somebody. When the body
// has been read, what it did not need is given back; release gives back the
// rest, and must be called when the body is no longer used. The error is
// [ErrBusy], or that of the request's context. The request gets another body, so
// it must be a copy of the HTTP server's own.
func (m *Memory) Hold(r *http.Request, who string) (release func(), err error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength >= 0 && r.ContentLength <= SmallBody {
		return func() {}, nil
	}
	n := r.ContentLength
	if n < 0 {
		n = m.cfg.Most
	}
	n = min(n, m.cfg.Most, m.cfg.Each)
	if err := m.take(r.Context(), who, n); err != nil {
		return nil, err
	}
	within(r.Body, m.cfg.Within)
	h := &held{ReadCloser: r.Body, m: m, who: who, has: n}
	r.Body = h
	return func() { h.keep(0) }, nil
}

// take waits for room.
func (m *Memory) take(ctx context.Context, who string, n int64) error {
	timer := time.NewTimer(m.cfg.Wait)
	defer timer.Stop()
	for {
		m.mu.Lock()
		if m.used+n <= m.cfg.Total && m.by[who]+n <= m.cfg.Each {
			m.used += n
			m.by[who] += n
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

func (m *Memory) give(who string, n int64) {
	if n <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= n
	if m.by[who] -= n; m.by[who] == 0 {
		delete(m.by, who)
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

// held is a body for which memory is set aside.
type held struct {
	io.ReadCloser
	m   *Memory
	who string

	read int64
	mu   sync.Mutex
	has  int64 // guarded by mu
}

// Read implements [io.Reader].
func (h *held) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	h.read += int64(n)
	if err == io.EOF {
		need := h.read
		if need <= SmallBody {
			need = 0 // a call may take hours
		}
		h.keep(need)
	}
	return n, err
}

// keep gives back what is more than n bytes.
func (h *held) keep(n int64) {
	h.mu.Lock()
	over := h.has - n
	if over > 0 {
		h.has = n
	}
	h.mu.Unlock()
	h.m.give(h.who, over)
}
