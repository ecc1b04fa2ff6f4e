package egress

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// A connection that ends as its beginning is recorded is not recorded as ended
// before that.
func TestEndIsRecordedAfterTheBeginning(t *testing.T) {
	var mu sync.Mutex
	var events []bool // whether the connection is open
	began, ended := make(chan struct{}), make(chan struct{})
	in := newInternet(t, sandbox.NetworkPolicy{}, func(c *Config, _ *Network) {
		c.Record = func(e sandbox.NetworkEvent) {
			if e.Open {
				close(began)
				select { // the end would come now
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
