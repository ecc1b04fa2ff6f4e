// Package events keeps what has happened and reports it to those who follow.
//
// [Watch] wraps the store and reports each change after it is written: no verb can
// forget to, and nothing is reported that did not happen. A [Log] never waits for its
// followers.
package events

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Entry is an event and who may see it.
type Entry struct {
	// Team is the team that may see the event; empty is every team.
	Team      string
	Namespace string
	sandbox.Event

	number uint64
}

// Log keeps the last [sandbox.EventsKept] events, and the last sample of what each
// sandbox uses. It is safe for concurrent use.
type Log struct {
	// run is part of each event's id, since ids of another run of the server mean
	// nothing.
	run string

	mu      sync.Mutex
	entries []Entry          // guarded by mu; oldest first
	samples map[string]Entry // guarded by mu; by sandbox
	last    uint64           // guarded by mu; the number of the newest event
	closed  bool             // guarded by mu
	grown   chan struct{}    // guarded by mu; closed and replaced with each event
}

// NewLog returns an empty log.
func NewLog() *Log {
	return &Log{run: strings.ToLower(rand.Text()), samples: map[string]Entry{}, grown: make(chan struct{})}
}

// Add appends an event and wakes the followers. The log fills in ID and At.
func (l *Log) Add(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	e.number, e.ID, e.At = l.last, l.id(l.last), time.Now().UTC()
	if e.Kind == sandbox.EventStats {
		l.samples[e.SandboxID] = e
	} else {
		l.append(e)
	}
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *Log) append(e Entry) {
	if e.Kind == sandbox.EventSandboxDeleted || e.Sandbox != nil && e.Sandbox.State.Final() {
		delete(l.samples, e.SandboxID)
	}
	if len(l.entries) >= 2*sandbox.EventsKept {
		l.entries = append(make([]Entry, 0, 2*sandbox.EventsKept), l.entries[len(l.entries)-sandbox.EventsKept:]...)
	}
	l.entries = append(l.entries, e)
}

// KeepSamples drops the samples of sandboxes that do not run, since one may be added
// just after a sandbox's end.
func (l *Log) KeepSamples(runs func(sandboxID string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.samples, func(id string, _ Entry) bool { return !runs(id) })
}

// Close ends all followers. Later ones get the kept events and then end. Events can
// still be added.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *Log) id(number uint64) string { return l.run + "-" + strconv.FormatUint(number, 10) }

// position returns the number of the event with an id, and false if the log does not
// know what came after it.
func (l *Log) position(after string) (uint64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.kept()
	switch after {
	case "":
		return l.last, true
	case sandbox.EventsOldest:
		return l.before(kept), true
	}
	run, digits, _ := strings.Cut(after, "-")
	number, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || run != l.run || number > l.last || number < l.before(kept) {
		return l.last, false
	}
	return number, true
}

// kept returns the entries that are not too old. The caller holds mu.
func (l *Log) kept() []Entry {
	return l.entries[max(0, len(l.entries)-sandbox.EventsKept):]
}

// before returns the number before the oldest entry. The caller holds mu.
func (l *Log) before(kept []Entry) uint64 {
	if len(kept) == 0 {
		return l.last
	}
	if len(l.entries) <= sandbox.EventsKept {
		return 0 // only samples were dropped, which do not count as missed
	}
	return kept[0].number - 1
}

// since returns what came after a position, oldest first, and a channel that is closed
// when there is more. Whole is false if some of it is no longer kept; closed says that
// the log is closed.
func (l *Log) since(position uint64) (found []Entry, more <-chan struct{}, whole, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.kept()
	if position < l.before(kept) {
		return nil, l.grown, false, l.closed
	}
	first, _ := slices.BinarySearchFunc(kept, position+1, func(e Entry, n uint64) int { return cmp.Compare(e.number, n) })
	found = slices.Clone(kept[first:])
	for _, e := range l.samples {
		if e.number > position {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b Entry) int { return cmp.Compare(a.number, b.number) })
	return found, l.grown, true, l.closed
}

// ErrClosed is the error of [Log.Follow] when the log was closed.
var ErrClosed = errors.New("the log of events is closed")

// Follow passes the wanted events after the event with id after to sink, until ctx is
// cancelled, sink fails, the log is closed or, with once, all kept events were passed.
// The error is that of ctx or of sink, or [ErrClosed].
func (l *Log) Follow(ctx context.Context, after string, once bool, wanted func(*Entry) bool, sink func(sandbox.Event) error) error {
	position, known := l.position(after)
	if err := sink(l.begun(position, !known)); err != nil {
		return err
	}
	for {
		found, more, whole, closed := l.since(position)
		if !whole {
			position, _ = l.position("")
			if err := sink(l.begun(position, true)); err != nil {
				return err
			}
			continue
		}
		for i := range found {
			position = found[i].number
			if !wanted(&found[i]) {
				continue
			}
			if err := sink(found[i].Event); err != nil {
				return err
			}
		}
		switch {
		case once:
			return nil
		case closed:
			return ErrClosed
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		}
	}
}

func (l *Log) begun(position uint64, missed bool) sandbox.Event {
	return sandbox.Event{ID: l.id(position), At: time.Now().UTC(), Kind: sandbox.EventBegun, Missed: missed}
}
