package egress

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// TestEndIsRecordedAfterStart ends a connection while its start is recorded: its
// end must be recorded later.
func TestEndIsRecordedAfterStart(t *testing.T) {
	var mu sync.Mutex
	var events []bool // whether the connection is open
	began, ended := make(chan struct{}), make(chan struct{})
	in := newInternet(t, sandbox.NetworkPolicy{}, func(c *Config, _ *Network) {
		c.Record = func(e sandbox.NetworkEvent) {
			if e.Open {
				close(began)
				select { // the end would be recorded here
				case <-ended:
				case <-time.After(100 * time.Millisecond):
				}
			} else {
				close(ended)
			}
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e.Open)
		}
	})
	f := in.g.begin(t.Context(), "tcp", netip.MustParseAddrPort(publicAddr+":80"))
	var open sync.WaitGroup
	open.Go(f.recordOpen)
	<-began
	f.end()
	open.Wait()
	if len(events) != 2 || !events[0] || events[1] {
		t.Errorf("recorded in the order %v, want the beginning first", events)
	}
}
