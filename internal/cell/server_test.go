package cell

import (
	"testing"
	"time"
)

// TestLastStatusIsDelivered checks that watchers learn why the sandbox has ended, however busy
// the machine is.
func TestLastStatusIsDelivered(t *testing.T) {
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
	time.AfterFunc(1500*time.Millisecond, c.mu.Unlock) // the notification comes late
	c.closeSockets()
	if last, err := statuses.Next(); err != nil || last.Reason != "why" {
		t.Errorf("at the end: %v, %v", last, err)
	}
}
