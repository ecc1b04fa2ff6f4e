package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// sandboxEvent is an event of a sandbox of team red.
func sandboxEvent(id string, s sandbox.State) Entry {
	return Entry{Team: "red", Event: sandbox.Event{Kind: sandbox.EventSandbox, SandboxID: id, Sandbox: &sandbox.Sandbox{ID: id, State: s}}}
}

func statsEvent(id string, memory int64) Entry {
	return Entry{Team: "red", Event: sandbox.Event{Kind: sandbox.EventStats, SandboxID: id, Stats: &sandbox.StatsPoint{MemoryBytes: memory}}}
}

func everything(*Entry) bool { return true }

// told returns the events of a log after an event, without waiting.
func told(t *testing.T, l *Log, after string) (events []sandbox.Event) {
	t.Helper()
	err := l.Follow(t.Context(), after, true, everything, func(e sandbox.Event) error {
		events = append(events, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// text returns a short text for each event.
func text(events []sandbox.Event) (texts []string) {
	for _, e := range events {
		s := string(e.Kind) + " " + e.SandboxID
		if e.Missed {
			s += "missed"
		}
		texts = append(texts, s)
	}
	return texts
}

func TestResume(t *testing.T) {
	l := NewLog()
	if got := text(told(t, l, sandbox.EventsOldest)); !slices.Equal(got, []string{"begun "}) {
		t.Errorf("an empty log tells %q", got)
	}
	for _, id := range []string{"a", "b", "c"} {
		l.Add(sandboxEvent(id, sandbox.StateRunning))
	}
	all := told(t, l, sandbox.EventsOldest)
	for _, c := range []struct {
		after string
		want  []string
	}{
		{sandbox.EventsOldest, []string{"begun ", "sandbox a", "sandbox b", "sandbox c"}},
		{"", []string{"begun "}},
		{all[0].ID, []string{"begun ", "sandbox a", "sandbox b", "sandbox c"}},
		{all[1].ID, []string{"begun ", "sandbox b", "sandbox c"}},
		{all[3].ID, []string{"begun "}},
		{l.id(99), []string{"begun missed"}},
		{NewLog().id(1), []string{"begun missed"}},
		{"nonsense", []string{"begun missed"}},
		{l.run + "-18446744073709551616", []string{"begun missed"}},
	} {
		if got := text(told(t, l, c.after)); !slices.Equal(got, c.want) {
			t.Errorf("after %q: %q, not %q", c.after, got, c.want)
		}
	}
}

// Events that are no longer kept are reported as missed, and the kept ones are bounded.
func TestForgets(t *testing.T) {
	l := NewLog()
	l.Add(sandboxEvent("first", sandbox.StateRunning))
	first := l.id(1)
	for range 5 * sandbox.EventsKept {
		l.Add(sandboxEvent("x", sandbox.StateRunning))
	}
	if got := text(told(t, l, first)); !slices.Equal(got, []string{"begun missed"}) {
		t.Errorf("after a forgotten event: %q", got)
	}
	if got := told(t, l, sandbox.EventsOldest); len(got) != 1+sandbox.EventsKept || got[0].Missed {
		t.Errorf("%d events are told, the first %+v", len(got), got[0])
	}
	if n := cap(l.entries); n > 2*sandbox.EventsKept {
		t.Errorf("room for %d events is held", n)
	}
}

// The last sample of a sandbox is kept for as long as the sandbox lives.
func TestSamples(t *testing.T) {
	l := NewLog()
	l.Add(sandboxEvent("a", sandbox.StateRunning))
	for i := range int64(3 * sandbox.EventsKept) {
		l.Add(statsEvent("a", i))
	}
	l.Add(statsEvent("b", 1))
	got := told(t, l, sandbox.EventsOldest)
	if want := []string{"begun ", "sandbox a", "stats a", "stats b"}; !slices.Equal(text(got), want) {
		t.Fatalf("%q, not %q", text(got), want)
	}
	if m := got[2].Stats.MemoryBytes; m != 3*sandbox.EventsKept-1 {
		t.Errorf("the sample is number %d", m)
	}
	l.Add(sandboxEvent("a", sandbox.StateKilled))
	l.Add(Entry{Event: sandbox.Event{Kind: sandbox.EventSandboxDeleted, SandboxID: "b"}})
	if len(l.samples) != 0 {
		t.Errorf("samples of ended sandboxes stay: %v", l.samples)
	}
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog()
		ctx, cancel := context.WithCancel(t.Context())
		var got []sandbox.Event
		done := make(chan error, 1)
		wanted := func(e *Entry) bool { return e.SandboxID != "hidden" }
		go func() {
			done <- l.Follow(ctx, "", false, wanted, func(e sandbox.Event) error {
				got = append(got, e)
				return nil
			})
		}()
		synctest.Wait()
		l.Add(sandboxEvent("a", sandbox.StateRunning))
		l.Add(sandboxEvent("hidden", sandbox.StateRunning))
		synctest.Wait()
		l.Add(statsEvent("a", 7))
		synctest.Wait()
		if want := []string{"begun ", "sandbox a", "stats a"}; !slices.Equal(text(got), want) {
			t.Errorf("%q, not %q", text(got), want)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the end is %v", err)
		}
	})
}

// A follower that is too slow gets an event that says so, and continues from there.
func TestSlowFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog()
		ctx, cancel := context.WithCancel(t.Context())
		proceed, done := make(chan struct{}), make(chan error, 1)
		var got []sandbox.Event
		go func() {
			done <- l.Follow(ctx, "", false, everything, func(e sandbox.Event) error {
				got = append(got, e)
				<-proceed
				return nil
			})
		}()
		synctest.Wait() // the follower holds the first event
		for range 3 * sandbox.EventsKept {
			l.Add(sandboxEvent("x", sandbox.StateRunning))
		}
		close(proceed)
		synctest.Wait()
		l.Add(sandboxEvent("last", sandbox.StateRunning))
		synctest.Wait()
		cancel()
		<-done
		if want := []string{"begun ", "begun missed", "sandbox last"}; !slices.Equal(text(got), want) {
			t.Errorf("%q, not %q", text(got), want)
		}
	})
}

func TestSinkFails(t *testing.T) {
	l := NewLog()
	l.Add(sandboxEvent("a", sandbox.StateRunning))
	calls := 0
	err := l.Follow(t.Context(), sandbox.EventsOldest, false, everything, func(sandbox.Event) error {
		if calls++; calls == 2 {
			return errors.ErrUnsupported
		}
		return nil
	})
	if !errors.Is(err, errors.ErrUnsupported) || calls != 2 {
		t.Errorf("after %d calls: %v", calls, err)
	}
}

// With many that add and follow, each follower sees each event once, in order.
func TestConcurrently(t *testing.T) {
	l := NewLog()
	const writers, each = 4, 200
	var group sync.WaitGroup
	seen := make([][]string, 3)
	for i := range seen {
		begun := make(chan struct{})
		group.Go(func() {
			_ = l.Follow(t.Context(), "", false, everything, func(e sandbox.Event) error {
				if e.Kind == sandbox.EventBegun {
					close(begun)
					return nil
				}
				if seen[i] = append(seen[i], e.SandboxID); len(seen[i]) == writers*each {
					return errors.ErrUnsupported
				}
				return nil
			})
		})
		<-begun
	}
	for w := range writers {
		group.Go(func() {
			for i := range each {
				l.Add(sandboxEvent(fmt.Sprintf("%d-%d", w, i), sandbox.StateRunning))
			}
		})
	}
	group.Wait()
	for _, other := range seen[1:] {
		if diff := cmp.Diff(seen[0], other); diff != "" {
			t.Fatalf("two who follow see different events:\n%s", diff)
		}
	}
	next := map[string]int{}
	for _, id := range seen[0] {
		var w string
		var n int
		if _, err := fmt.Sscanf(id, "%1s-%d", &w, &n); err != nil || n != next[w] {
			t.Fatalf("%s is out of order", id)
		}
		next[w]++
	}
}

// The end of the server ends all followers, and later ones do not wait.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog()
		done := make(chan error, 1)
		follow := func(after string) {
			done <- l.Follow(t.Context(), after, false, everything, func(sandbox.Event) error { return nil })
		}
		go follow("")
		synctest.Wait()
		l.Close()
		l.Close()
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("who followed ended with %v", err)
		}
		l.Add(sandboxEvent("a", sandbox.StateRunning))
		go follow(sandbox.EventsOldest)
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("who follows later ends with %v", err)
		}
	})
}

func TestKeepSamples(t *testing.T) {
	l := NewLog()
	l.Add(statsEvent("a", 1))
	l.Add(statsEvent("b", 1))
	l.KeepSamples(func(id string) bool { return id == "b" })
	if got := text(told(t, l, sandbox.EventsOldest)); !slices.Equal(got, []string{"begun ", "stats b"}) && !slices.Equal(got, []string{"begun "}) {
		t.Errorf("%q", got)
	}
	if len(l.samples) != 1 {
		t.Errorf("there are %d samples", len(l.samples))
	}
}
