package tiered

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// create makes an instance of the root from a golden checkpoint, which is not stored.
func (m *machine) create() {
	m.t.Helper()
	m.add("gld-one", "", content("golden", 1))
	_, err := m.read("gld-one")
	m.must(err)
}

// replaced returns the next server of the same nodes on a machine that has none of the roots.
func (m *machine) replaced() *machine {
	m.t.Helper()
	m.stop()
	next := newMachine(m.t, m.bucket)
	next.inner, next.spread, next.build = m.inner, m.spread, m.build
	next.must(next.start())
	return next
}

// withNodes runs a test with a server of nodes whose instance of a root has been made.
func withNodes(t *testing.T, test func(t *testing.T, b *memoryBucket, m *machine)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		m := newMachine(t, b)
		m.roots.root = content("root", 2)
		m.spread = &spreadEngine{plainEngine: m.inner, standing: engine.StandingReady}
		m.build = program
		m.must(m.start())
		m.create()
		synctest.Wait()
		test(t, b, m)
	})
}

func inUse(digests ...string) func(context.Context) (map[string]bool, error) {
	return func(context.Context) (map[string]bool, error) {
		all := map[string]bool{}
		for _, d := range digests {
			all[d] = true
		}
		return all, nil
	}
}

// A server on another machine stores what sandboxes keep that the one before has made, and
// what is stored has the root.
func TestRootOfServerBefore(t *testing.T) {
	withNodes(t, func(t *testing.T, b *memoryBucket, m *machine) {
		next := m.replaced()
		next.e.SetRootsInUse(inUse(rootDigest))
		wait(3 * grace)
		next.add("ckp-one", "red", content("one", 1))
		wait(lastPause)
		wantPlace(t, next.e, "ckp-one", engine.PlaceStored)
		next.wants("ckp-one", content("one", 1))
		next.stop()
		other := newMachine(t, b)
		other.must(other.start())
		other.wants("ckp-one", content("one", 1))
		if other.roots.root == nil {
			t.Error("the root was not fetched")
		}
		other.stop()
	})
}

// What is on a node continues there although neither this machine nor the bucket has its
// root, and although the bucket does not work.
func TestRootOfNode(t *testing.T) {
	withNodes(t, func(t *testing.T, b *memoryBucket, m *machine) {
		clear(b.objects)
		next := m.replaced()
		next.add("ckp-one", "red", content("one", 1))
		wait(lastPause)
		next.wants("ckp-one", content("one", 1))
		b.breaks(errors.New("it is down"))
		next.wants("ckp-one", content("one", 1))
		b.breaks(nil)
		next.stop()
	})
}

// Roots that no sandbox needs are collected, and stored again when one does. If nobody can say
// which sandboxes need, none are.
func TestRootsAreCollected(t *testing.T) {
	withNodes(t, func(t *testing.T, b *memoryBucket, m *machine) {
		for _, step := range []struct {
			inUse func(context.Context) (map[string]bool, error)
			want  bool
		}{
			{func(context.Context) (map[string]bool, error) { return nil, errors.New("the database is away") }, true},
			{inUse(rootDigest, "sha256-none"), true},
			{inUse(), false},
		} {
			m.e.SetRootsInUse(step.inUse)
			m.e.mu.Lock()
			m.e.dirty = true
			m.e.mu.Unlock()
			wait(3 * grace)
			if got := m.hasRoot(); got != step.want {
				t.Errorf("the bucket has the root: %t, want %t", got, step.want)
			}
			if _, err := m.e.Health(); err != nil {
				t.Errorf("the bucket is said not to work: %v", err)
			}
		}
		m.create()
		synctest.Wait()
		m.e.mu.Lock()
		m.e.dirty = true
		m.e.mu.Unlock()
		wait(time.Minute) // long before the service knows of the sandbox
		m.must(m.e.sweep(t.Context()))
		if !m.hasRoot() {
			t.Error("the root of a sandbox is not stored again")
		}
		m.stop()
	})
}

// hasRoot reports whether the bucket has the root.
func (m *machine) hasRoot() bool {
	object, err := m.e.vessel.sharedObject(sharedRoot(rootDigest))
	m.must(err)
	_, err = m.bucket.Stat(context.Background(), object)
	return err == nil
}

// A server stores the roots of the sandboxes that it finds, too.
func TestRootsOfFoundSandboxes(t *testing.T) {
	withNodes(t, func(t *testing.T, b *memoryBucket, m *machine) {
		m.stop()
		clear(b.objects)
		m.must(m.start())
		m.e.SetRootsInUse(inUse(rootDigest, "sha256-elsewhere"))
		synctest.Wait()
		if !m.hasRoot() {
			t.Error("the root is not stored")
		}
		m.stop()
	})
}

// withTemplate runs a test with a server without nodes that has the root of a template.
func withTemplate(t *testing.T, test func(t *testing.T, b *memoryBucket, m *machine)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		m := newMachine(t, b)
		m.roots.root = content("root", 2)
		m.must(m.start())
		test(t, b, m)
	})
}

// A server on another machine brings the root of a sandbox of its nodes there when the root is
// to be read.
func TestLocalRoot(t *testing.T) {
	withNodes(t, func(t *testing.T, b *memoryBucket, m *machine) {
		next := m.replaced()
		r := engine.Root{Digest: rootDigest, Dir: "/not here"}
		b.breaks(errors.New("it is down"))
		if _, err := next.e.LocalRoot(t.Context(), r); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("while the bucket is down: %v", err)
		}
		b.breaks(nil)
		_, err := next.e.LocalRoot(t.Context(), r)
		next.must(err)
		if next.roots.root == nil {
			t.Error("the root was not fetched")
		}
		if _, err := next.e.LocalRoot(t.Context(), engine.Root{Digest: "sha256-elsewhere", Dir: "/not here"}); sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "neither on this server") {
			t.Errorf("a root that is nowhere: %v", err)
		}
		next.stop()
	})
}

// The root of a template is stored without a sandbox of it, by a server without nodes too, and
// fetched by the next server on another machine.
func TestRootsOfTemplates(t *testing.T) {
	withTemplate(t, func(t *testing.T, b *memoryBucket, m *machine) {
		m.e.KeepRoot(rootDigest)
		synctest.Wait()
		m.e.SetRootsInUse(inUse(rootDigest))
		wait(3 * grace)
		if !m.hasRoot() {
			t.Error("the root is not stored")
		}
		m.stop()

		next := newMachine(t, b)
		next.must(next.start())
		if err := next.e.FetchRoot(t.Context(), "sha256-elsewhere"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a root that is not stored: %v", err)
		}
		b.breaks(errors.New("it is down"))
		if err := next.e.FetchRoot(t.Context(), rootDigest); sandbox.CodeOf(err) != sandbox.CodeUnavailable || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("while the bucket is down: %v", err)
		}
		b.breaks(nil)
		next.must(next.e.FetchRoot(t.Context(), rootDigest))
		if next.roots.root == nil {
			t.Error("the root was not fetched")
		}
		next.stop()
	})
}

// A root that is needed and that the bucket has lost is stored again by the next sweep.
func TestLostRootIsStoredAgain(t *testing.T) {
	withTemplate(t, func(t *testing.T, b *memoryBucket, m *machine) {
		m.e.SetRootsInUse(inUse(rootDigest))
		m.e.KeepRoot(rootDigest)
		wait(3 * grace)
		object, err := m.e.vessel.sharedObject(sharedRoot(rootDigest))
		m.must(err)
		m.must(b.Delete(t.Context(), []string{object}))
		m.e.CollectRoots()
		wait(3 * grace)
		if !m.hasRoot() {
			t.Error("the root is not stored again")
		}
		m.stop()
	})
}

// The root of a template that was deleted is removed, though nothing else has changed.
func TestUnusedRootIsRemoved(t *testing.T) {
	withTemplate(t, func(t *testing.T, _ *memoryBucket, m *machine) {
		m.e.SetRootsInUse(inUse(rootDigest))
		m.e.KeepRoot(rootDigest)
		wait(3 * grace)
		if !m.hasRoot() {
			t.Error("the root is not stored")
		}
		m.e.SetRootsInUse(inUse())
		m.e.CollectRoots()
		wait(3 * grace)
		if m.hasRoot() {
			t.Error("the root is still stored")
		}
		m.stop()
	})
}

// A fetch goes on when its caller ends, and those who come meanwhile wait for it.
func TestRootIsFetchedOnce(t *testing.T) {
	withTemplate(t, func(t *testing.T, b *memoryBucket, m *machine) {
		m.e.KeepRoot(rootDigest)
		synctest.Wait()
		m.stop()
		next := newMachine(t, b)
		next.must(next.start())
		hold := make(chan struct{})
		next.roots.unpacking = func() { <-hold }
		ctx, cancel := context.WithCancel(t.Context())
		var got [4]error
		var wg sync.WaitGroup
		for i := range got {
			ctx := ctx
			if i > 0 {
				ctx = t.Context()
			}
			wg.Go(func() { got[i] = next.e.FetchRoot(ctx, rootDigest) })
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		if !errors.Is(got[0], context.Canceled) {
			t.Errorf("the caller that ended got %v", got[0])
		}
		close(hold)
		wg.Wait()
		if err := errors.Join(got[1:]...); err != nil {
			t.Error(err)
		}
		if n := next.roots.unpacked; n != 1 {
			t.Errorf("the root was fetched %d times", n)
		}
		next.stop()
	})
}
