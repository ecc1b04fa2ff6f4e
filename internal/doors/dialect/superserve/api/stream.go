package api

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// keepAlive is the interval at which something is written on a silent stream, so that
// neither side thinks the other gone.
const keepAlive = 15 * time.Second

// stream sends events as Server-Sent Events, and comments between them. It is safe for
// concurrent use. Nothing is written before the first event or comment, so an error before
// that can still set the status.
type stream struct {
	w     http.ResponseWriter
	mu    sync.Mutex
	begun bool // guarded by mu
	over  bool // guarded by mu
	timer *time.Timer
}

func newStream(w http.ResponseWriter) *stream {
	s := &stream{w: w}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(keepAlive, func() { _ = s.write([]byte(": keepalive\n\n")) }) // the next event returns the error
	return s
}

func (s *stream) send(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.write(append(append([]byte("data: "), data...), "\n\n"...))
}

func (s *stream) write(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return http.ErrHandlerTimeout
	}
	if !s.begun {
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		s.begun = true
	}
	s.timer.Reset(keepAlive)
	if _, err := s.w.Write(p); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}

// started reports whether anything was written.
func (s *stream) started() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// close prevents further writes.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.timer.Stop()
}
