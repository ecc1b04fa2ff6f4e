package fleet

import (
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// hooked are files of which the test sees the writes.
type hooked struct {
	durable.Files
	write atomic.Pointer[func(name string, data []byte) error] // nil if the test does not care
}

func (h *hooked) Write(name string, data []byte) error {
	if write := h.write.Load(); write != nil {
		if err := (*write)(name, data); err != nil {
			return err
		}
	}
	return h.Files.Write(name, data)
}

func (h *hooked) onWrite(write func(name string, data []byte) error) { h.write.Store(&write) }

// away returns a fleet with a node that is away and has two instances, and whom to tell of
// their failures. It must be in a bubble of synctest.
func away(t *testing.T) (*Fleet, *site, *hooked, chan string) {
	t.Helper()
	files := &hooked{Files: durable.Dir(t.TempDir())}
	for name, data := range map[string]string{"node.json": `{"id": "a"}`, "instances/one": "{}", "instances/two": "{}"} {
		if err := files.Files.Write("a/"+name, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	f, err := New(Config{Files: files, Lease: time.Minute, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	told := make(chan string, 4)
	f.Notify(func(st engine.Status) { told <- st.ID })
	return f, f.sites["a"], files, told
}

// TestExpireWaitsAlone checks that nothing else waits while it is recorded that instances are
// given up, that neither they nor the node are said to be lost before that, and that the end of
// one that is abandoned meanwhile is no failure.
func TestExpireWaitsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s, files, told := away(t)
		abandoned := ""
		files.onWrite(func(name string, data []byte) error {
			id := strings.TrimPrefix(name, "a/instances/")
			if !strings.Contains(string(data), "given_up") || abandoned == id {
				return nil
			}
			if !f.mu.TryLock() {
				t.Errorf("all calls wait for the record of %s", id)
				return nil
			}
			f.mu.Unlock()
			if lost, _ := f.Lost(id); lost || len(told) > 0 {
				t.Errorf("%s is lost before that is recorded, or %d are told of", id, len(told))
			}
			if state := f.Nodes(t.Context())[0].State; state != sandbox.NodeUnreachable {
				t.Errorf("the node is %s meanwhile", state)
			}
			if abandoned == "" {
				abandoned = id
				f.abandon(t.Context(), id)
			}
			return nil
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(told) != 1 || <-told == abandoned || s.running != 0 {
			t.Errorf("not told of the other than %q; %d run", abandoned, s.running)
		}
	})
}

// TestExpireOrLease checks that a node has no new lease while its instances are given up: it
// waits, and then has one only if nothing was given up.
func TestExpireOrLease(t *testing.T) {
	for name, failure := range map[string]error{"recorded": nil, "not recorded": errors.New("the database is away")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s, files, told := away(t)
				began := make(chan error, 1)
				files.onWrite(func(string, []byte) error {
					files.write.Store(nil)
					go func() { began <- f.beginLease(s, []string{"one", "two"}) }()
					for range 1000 {
						runtime.Gosched()
					}
					if len(began) > 0 {
						t.Error("a lease began while it is recorded that the one before has run out")
					}
					return failure
				})
				time.Sleep(time.Minute)
				if err := <-began; (err == nil) != (failure != nil) {
					t.Errorf("the new lease: %v", err)
				}
				time.Sleep(time.Minute - time.Second)
				synctest.Wait()
				want := 2
				if failure != nil {
					want = 0
				}
				if len(told) != want {
					t.Errorf("told of %d, want %d", len(told), want)
				}
			})
		})
	}
}

// TestLateExpiry checks that a lease which runs out while the next one begins ends nothing.
func TestLateExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s, _, told := away(t)
		end := s.until
		time.Sleep(time.Minute - time.Nanosecond)
		if err := f.beginLease(s, []string{"one", "two"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Nanosecond)
		f.expire(s, end)
		if len(told) > 0 {
			t.Error("instances are given up that have a new lease")
		}
	})
}

// TestCloseWaitsForExpiry checks that nothing is written after the fleet is closed.
func TestCloseWaitsForExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, files, _ := away(t)
		writing, goOn := make(chan struct{}), make(chan struct{})
		writes := 0
		files.onWrite(func(string, []byte) error {
			writes++
			close(writing)
			<-goOn
			return nil
		})
		<-writing
		closed := make(chan error, 1)
		go func() { closed <- f.Close() }()
		synctest.Wait()
		if len(closed) > 0 {
			t.Error("it is closed while it writes")
		}
		close(goOn)
		if err := <-closed; err != nil || writes != 1 {
			t.Errorf("after %d writes: %v", writes, err)
		}
	})
}
