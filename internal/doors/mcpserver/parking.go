package mcpserver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// parkedFor is how long a parked call waits for its client: longer than a question
	// may be open.
	parkedFor = 15 * time.Minute
	// resultKept is how long the result of a call that was parked is retained after a
	// request has returned it: a repeat may come twice.
	resultKept = time.Minute
	// maxParked bounds the parked calls of one caller, including those whose result is
	// retained.
	maxParked = 16
	// maxParkedArgs bounds the arguments of a parked call, in bytes, and maxParkedBytes
	// the results that are retained for one caller, in bytes of JSON: beyond it, the
	// oldest are removed.
	maxParkedArgs  = 1 << 20
	maxParkedBytes = 32 << 20
)

// parking has the calls of all callers that can be parked.
type parking struct {
	maxBytes int           // see maxParkedBytes
	patience time.Duration // see parkedFor
	wg       sync.WaitGroup

	mu     sync.Mutex
	closed bool                          // guarded by mu
	live   map[*parked]struct{}          // calls whose work has not ended; guarded by mu
	all    map[string]map[string]*parked // calls that were parked, by owner and id; guarded by mu
}

func newParking() *parking {
	return &parking{maxBytes: maxParkedBytes, patience: parkedFor, live: make(map[*parked]struct{}), all: make(map[string]map[string]*parked)}
}

// begin starts the work of a call, apart from its request. It reports false when the
// server ends.
func (s *parking) begin(ctx context.Context, k *parked, run func(context.Context) outcome) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	k.lot, k.cancel = s, cancel
	s.live[k] = struct{}{}
	s.wg.Go(func() {
		defer cancel()
		k.outcome = run(ctx)
		close(k.done)
		s.ended(k)
	})
	return true
}

// ended is called when the work of a call has ended.
func (s *parking) ended(k *parked) {
	size := 0
	if s.state(k) != "" {
		data, _ := json.Marshal(k.outcome.res) // a result that cannot be encoded has no size
		size = len(data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, k)
	k.bytes, k.ended = size, time.Now()
	s.trim(k.owner)
}

// trim removes a caller's oldest results beyond maxBytes, but never the newest. The caller holds mu.
func (s *parking) trim(owner string) {
	var kept []*parked
	total := 0
	for _, k := range s.all[owner] {
		if !k.ended.IsZero() {
			kept = append(kept, k)
			total += k.bytes
		}
	}
	slices.SortFunc(kept, func(a, b *parked) int { return a.ended.Compare(b.ended) })
	for i := 0; total > s.maxBytes && i < len(kept)-1; i++ {
		total -= kept[i].bytes
		s.remove(kept[i])
	}
}

// admit gives a call the state with which a repeat finds it.
func (s *parking) admit(k *parked) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case k.id != "":
		return nil
	case s.closed || len(k.args) > maxParkedArgs || !s.makeRoom(k.owner):
		return errNotAsked
	}
	k.id = "call-" + strings.ToLower(rand.Text())
	if s.all[k.owner] == nil {
		s.all[k.owner] = make(map[string]*parked)
	}
	s.all[k.owner][k.id] = k
	return nil
}

// makeRoom removes, if necessary, a call whose result a request has returned. The caller
// holds mu.
func (s *parking) makeRoom(owner string) bool {
	for _, k := range s.all[owner] {
		if len(s.all[owner]) < maxParked {
			break
		}
		k.mu.Lock()
		returned := k.returned && k.waiting == 0
		k.mu.Unlock()
		if returned {
			s.remove(k)
		}
	}
	return len(s.all[owner]) < maxParked
}

// state returns the state with which a repeat finds a parked call.
func (s *parking) state(k *parked) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return k.id
}

// find returns a parked call of a caller, or nil.
func (s *parking) find(owner, state string) *parked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[owner][state]
}

// over returns a channel that is closed when a parked call no longer needs an answer. For an
// unknown call it is nil, and blocks.
func (s *parking) over(owner, state string) <-chan struct{} {
	if k := s.find(owner, state); k != nil {
		return k.done
	}
	return nil
}

// end ends a parked call whose client does not want the result.
func (s *parking) end(owner, state string) {
	if k := s.find(owner, state); k != nil {
		s.forget(k)
		k.cancel()
	}
}

// forget drops a call, so that no repeat can continue it.
func (s *parking) forget(k *parked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(k)
}

// remove is forget for a caller who holds mu.
func (s *parking) remove(k *parked) {
	delete(s.all[k.owner], k.id)
	if len(s.all[k.owner]) == 0 {
		delete(s.all, k.owner)
	}
}

// close ends all calls and returns when their work has ended.
func (s *parking) close() {
	s.mu.Lock()
	s.closed = true
	for k := range s.live {
		k.cancel()
	}
	s.mu.Unlock()
	s.wg.Wait()
}
