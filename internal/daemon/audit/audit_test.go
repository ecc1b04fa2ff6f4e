package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type memLog struct {
	mu     sync.Mutex
	events []sandbox.AuditEvent
	calls  int
	err    error
}

func (l *memLog) AppendAudit(_ context.Context, events []sandbox.AuditEvent) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if l.err != nil {
		return l.err
	}
	l.events = append(l.events, events...)
	return nil
}

func (l *memLog) details() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, e := range l.events {
		all = append(all, e.Detail)
	}
	return strings.Join(all, " ")
}

func event(i int) sandbox.AuditEvent { return sandbox.AuditEvent{Detail: fmt.Sprint(i)} }

func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memLog{}
		r := NewRecorder(log, slog.New(slog.DiscardHandler))
		r.Record(event(1))
		r.Record(event(2))
		synctest.Wait()
		if got := log.details(); got != "" {
			t.Errorf("stored at once: %q", got)
		}
		if err := r.Write(t.Context(), event(3)); err != nil {
			t.Error(err)
		}
		if got := log.details(); got != "1 2 3" {
			t.Errorf("stored %q, want all in order", got)
		}
		r.Record(event(4))
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if got := log.details(); got != "1 2 3 4" || log.calls != 2 {
			t.Errorf("stored %q in %d writes, want all in 2", got, log.calls)
		}
	})
}

func TestBrokenLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &memLog{err: errors.New("disk full")}
		r := NewRecorder(log, slog.New(slog.DiscardHandler))
		if err := r.Write(t.Context(), event(0)); err == nil {
			t.Error("Write hid the failure")
		}
		for i := range 2 * maxWaiting {
			r.Record(event(i + 1))
		}
		r.mu.Lock()
		n := len(r.waiting)
		r.mu.Unlock()
		if n > maxWaiting {
			t.Errorf("%d events wait, over the bound", n)
		}
		log.mu.Lock()
		log.err = nil
		log.mu.Unlock()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if got := log.details(); !strings.HasPrefix(got, "0 1 2 3 ") {
			t.Errorf("after the repair it stored %.20q", got)
		}
	})
}
