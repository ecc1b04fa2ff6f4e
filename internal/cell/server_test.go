package cell

import (
	"testing"
	"time"
)

// Who watches is told why the sandbox has ended, however busy the machine is.
func TestLastStatusIsTold(t *testing.T) {
	c := newCell(t.Context())
	c.spec.Dir, c.status.Phase = t.TempDir(), PhaseRunning
	if err := c.serve(); err != nil {
		t.Fatal(err)
	}
	client := NewClient(c.spec.Dir, Protocol, nil)
	defer client.Close()
	statuses, first, err := client.Watch(t.Context())
	if err != nil || first.Phase != PhaseRunning {
		t.Fatalf("at first: %v, %v", first, err)
	}
	c.mu.Lock()
	c.status = Status{Phase: PhaseFailed, Reason: "why"}
	close(c.changed)
	time.AfterFunc(1500*time.Millisecond, c.mu.Unlock) // who tells comes late
	c.closeSockets()
	if last, err := statuses.Next(); err != nil || last.Reason != "why" {
		t.Errorf("at the end: %v, %v", last, err)
	}
}
