package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/pods"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

// podsAPI is a cluster that notes what it is asked about Pods, which prove who they are by
// their names, and "@" with what else is in the UID. A Pod's UID is "uid-" and its name.
type podsAPI struct {
	mu      sync.Mutex
	gone    map[string]bool // guarded by mu; by name
	broken  map[string]int  // guarded by mu; how many calls for a Pod still fail, by name
	asked   map[string]int  // guarded by mu; how often it was asked whether a Pod is gone, by name
	deleted []pods.Pod      // guarded by mu
	// deleting is called when a Pod is being deleted.
	deleting func(pod pods.Pod)
}

func (p *podsAPI) Prove(_ context.Context, token string) (pods.Pod, error) {
	name, other, _ := strings.Cut(token, "@")
	return pods.Pod{Name: name, UID: "uid-" + name + other}, nil
}

// fails reports whether a call for a Pod fails. The caller holds mu.
func (p *podsAPI) fails(pod pods.Pod) error {
	if p.broken[pod.Name] == 0 {
		return nil
	}
	p.broken[pod.Name]--
	return errors.New("the cluster's API is away")
}

func (p *podsAPI) Exists(_ context.Context, pod pods.Pod) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone[pod.Name], nil
}

func (p *podsAPI) Gone(_ context.Context, pod pods.Pod) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[pod.Name]++
	return p.gone[pod.Name] && pod.UID == "uid-"+pod.Name, p.fails(pod)
}

func (p *podsAPI) Delete(_ context.Context, pod pods.Pod) error {
	p.deleting(pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.fails(pod); err != nil {
		return err
	}
	p.deleted = append(p.deleted, pod)
	return nil
}

// dedicatedWorld is a server with a cluster, whose nodes are lost and vacant soon.
type dedicatedWorld struct {
	*world
	t    *testing.T
	pods *podsAPI
	// stored are the checkpoints that are in the object store.
	stored map[string]bool
}

func newDedicatedWorld(t *testing.T) *dedicatedWorld {
	t.Helper()
	w := &dedicatedWorld{t: t, pods: &podsAPI{gone: map[string]bool{}, broken: map[string]int{}, asked: map[string]int{}}, stored: map[string]bool{}}
	w.world = newWorldOf(t, w.pods, fleet.Config{Lease: 100 * time.Millisecond, Rest: time.Nanosecond})
	return w
}

// join starts a node, which is a Pod or joins with a token. It is stopped when the test ends.
func (w *dedicatedWorld) join(name string, pod, dedicated bool) (stop func()) {
	w.t.Helper()
	id, _ := w.identity(w.t)
	var err error
	if pod {
		err = id.JoinAsPod(w.t.Context(), w.files(w.t, name), name, dedicated)
	} else {
		err = id.Join(w.t.Context(), w.token(w.t), name, dedicated)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	_, _, stop = w.runWith(w.t, id, remote.Report{FreeMemory: 8 << 30, FreeDisk: 8 << 30, Dedicated: dedicated})
	w.until("node "+name+" is ready", func() bool { return w.is(name, sandbox.NodeReady) })
	return stop
}

// is reports whether there is a node, which is in a state.
func (w *dedicatedWorld) is(name string, state sandbox.NodeState) bool {
	return slices.ContainsFunc(w.fleet.Nodes(w.t.Context()), func(n sandbox.Node) bool { return n.Name == name && n.State == state })
}

// has reports whether there is a node.
func (w *dedicatedWorld) has(name string) bool {
	return slices.ContainsFunc(w.fleet.Nodes(w.t.Context()), func(n sandbox.Node) bool { return n.Name == name })
}

func (w *dedicatedWorld) until(what string, happened func() bool) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !happened(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("it does not come to that: %s", what)
		}
	}
}

// use runs an instance of a family on a node for a moment. What it leaves there are checkpoints.
func (w *dedicatedWorld) use(name, family string, checkpoints ...string) {
	w.t.Helper()
	id := "one-on-" + name
	if _, err := w.fleet.Create(w.t.Context(), engine.Spec{ID: id, Place: name, Family: family, Root: engine.Root{Digest: digest}}); err != nil {
		w.t.Fatal(err)
	}
	for _, c := range checkpoints {
		if _, err := w.fleet.Checkpoint(w.t.Context(), id, c, engine.CheckpointOptions{Owner: "red"}); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := w.fleet.Destroy(w.t.Context(), id); err != nil {
		w.t.Fatal(err)
	}
}

// lose stops a node and waits until it is lost.
func (w *dedicatedWorld) lose(name string, stop func()) {
	w.t.Helper()
	stop()
	w.until("node "+name+" is lost", func() bool { return w.is(name, sandbox.NodeLost) })
}

// retire looks after used nodes until the test ends.
func (w *dedicatedWorld) retire() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.RetireUsed(ctx, func(_ context.Context, ids []string) bool {
			return !slices.ContainsFunc(ids, func(id string) bool { return !w.stored[id] })
		})
	}()
	w.t.Cleanup(func() { cancel(); <-ended })
}

// TestRetireUsed checks which nodes are replaced when nothing runs on them, and how: all of
// them are looked at together, since that is done every few seconds.
func TestRetireUsed(t *testing.T) {
	w := newDedicatedWorld(t)
	w.stored["ckp-stored"] = true
	const pod, dedicated = true, true

	w.join("pod-used", pod, dedicated)
	w.use("pod-used", "f1", "ckp-stored")
	w.join("pod-only-copy", pod, dedicated)
	w.use("pod-only-copy", "f2", "ckp-only")
	w.join("pod-unused", pod, dedicated)
	w.join("pod-ordinary", pod, !dedicated)
	w.use("pod-ordinary", "")
	w.join("pod-refused", pod, dedicated)
	w.use("pod-refused", "f3")
	w.pods.broken["pod-refused"] = 1

	w.join("host-used", !pod, dedicated)
	w.use("host-used", "f4")
	w.join("host-only-copy", !pod, dedicated)
	w.use("host-only-copy", "f5", "ckp-only-too")

	// A Pod had the name of this one.
	w.lose("host-was-pod", w.join("host-was-pod", pod, dedicated))
	if err := w.Remove("host-was-pod"); err != nil {
		t.Fatal(err)
	}
	w.join("host-was-pod", !pod, dedicated)
	w.use("host-was-pod", "f12")

	w.join("pod-running", pod, dedicated)
	if _, err := w.fleet.Create(t.Context(), engine.Spec{ID: "runs", Place: "pod-running", Family: "f6", Root: engine.Root{Digest: digest}}); err != nil {
		t.Fatal(err)
	}

	w.lose("lost-gone", w.join("lost-gone", pod, dedicated))
	w.pods.gone["lost-gone"] = true
	stop := w.join("lost-gone-used", pod, dedicated)
	w.use("lost-gone-used", "f7", "ckp-went")
	w.lose("lost-gone-used", stop)
	w.pods.gone["lost-gone-used"] = true
	w.lose("lost-there", w.join("lost-there", pod, dedicated))
	stop = w.join("lost-only-copy", pod, dedicated)
	w.use("lost-only-copy", "f8", "ckp-lost")
	w.lose("lost-only-copy", stop)
	w.lose("lost-unclear", w.join("lost-unclear", pod, dedicated))
	w.pods.gone["lost-unclear"], w.pods.broken["lost-unclear"] = true, 1
	w.lose("lost-unknown", w.join("lost-unknown", pod, dedicated))
	w.pods.broken["lost-unknown"] = 1000
	w.lose("lost-ordinary", w.join("lost-ordinary", pod, !dedicated))
	w.pods.gone["lost-ordinary"] = true
	stop = w.join("lost-host", !pod, dedicated)
	w.use("lost-host", "f9")
	w.lose("lost-host", stop)

	stop = w.join("lost-used", pod, dedicated)
	w.use("lost-used", "f10", "ckp-stored-too")
	w.lose("lost-used", stop)
	w.stored["ckp-stored-too"] = true

	// While this Pod is being deleted, another one of the name joins; and this one tries to join
	// again, also before, when it was used and is not empty.
	w.join("pod-replaced", pod, dedicated)
	w.use("pod-replaced", "f11")
	w.join("pod-again", pod, dedicated)
	w.use("pod-again", "f13")
	next, _ := w.identity(t)
	again := func(name, when string) {
		id, _ := w.identity(t)
		if err := id.JoinAsPod(t.Context(), w.files(t, name), name, dedicated); sandbox.CodeOf(err) != sandbox.CodeForbidden || id.Joined() {
			t.Errorf("%s: the used Pod %s joins again: %v", when, name, err)
		}
	}
	again("pod-only-copy", "used")
	w.pods.deleting = func(deleted pods.Pod) {
		switch deleted.Name {
		case "pod-again":
			again(deleted.Name, "being deleted")
		case "pod-replaced":
			again(deleted.Name, "being deleted")
			if err := next.JoinAsPod(t.Context(), w.files(t, deleted.Name+"@another"), deleted.Name, dedicated); err != nil {
				t.Error(err)
			}
		}
	}

	w.retire()
	// All were looked at when they are looked at again, and then what had failed succeeds.
	w.until("what failed is tried again", func() bool {
		w.pods.mu.Lock()
		defer w.pods.mu.Unlock()
		return w.pods.asked["lost-there"] > 1 && len(w.pods.deleted) > 7 && !w.has("lost-unclear") && !w.has("pod-refused")
	})
	w.pods.mu.Lock()
	defer w.pods.mu.Unlock()
	var deleted []string
	for _, p := range w.pods.deleted {
		deleted = append(deleted, p.Name+" "+p.UID)
	}
	slices.Sort(deleted)
	if want := []string{"host-was-pod uid-host-was-pod", "lost-gone uid-lost-gone", "lost-unclear uid-lost-unclear", "lost-used uid-lost-used", "pod-again uid-pod-again", "pod-refused uid-pod-refused", "pod-replaced uid-pod-replaced", "pod-used uid-pod-used"}; !slices.Equal(deleted, want) {
		t.Errorf("the Pods that were deleted are %q, want %q", deleted, want)
	}
	if w.pods.broken["pod-refused"]+w.pods.broken["lost-unclear"] > 0 {
		t.Errorf("no call has failed: %v", w.pods.broken) // then the rest tests nothing
	}
	for name, n := range w.pods.asked {
		if !strings.HasPrefix(name, "lost-") && name != "pod-replaced" { // which has joined and does not connect
			t.Errorf("it was asked %d times whether %s is gone", n, name)
		}
	}
	// What is left of the nodes, and whose they are.
	want := map[string]string{
		"pod-replaced": "lost ", "pod-only-copy": "ready f2", "pod-unused": "ready ", "pod-ordinary": "ready ", "pod-running": "ready f6",
		"host-used": "ready ", "host-only-copy": "ready f5",
		"host-was-pod": "ready ", "lost-unknown": "lost ", "lost-there": "lost ", "lost-only-copy": "lost f8", "lost-gone-used": "lost f7", "lost-ordinary": "lost ", "lost-host": "lost f9",
	}
	got := map[string]string{}
	for _, n := range w.fleet.Nodes(t.Context()) {
		got[n.Name] = fmt.Sprint(n.State, " ", n.DedicatedTo)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the nodes are (-want +got):\n%s", diff)
	}
	w.use("host-used", "another")
	again("pod-again", "its node was removed")
}

// TestRemovedPod checks that a dedicated Pod whose node was removed by hand is deleted, and does
// not join again, until it is gone.
func TestRemovedPod(t *testing.T) {
	w := newDedicatedWorld(t)
	w.pods.deleting = func(pods.Pod) {}
	join := func(token string) error {
		id, _ := w.identity(t)
		return id.JoinAsPod(t.Context(), w.files(t, token), "pod", true)
	}
	for _, name := range []string{"pod", "ended", "ordinary"} {
		w.lose(name, w.join(name, true, name != "ordinary"))
		if err := w.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := join("pod"); sandbox.CodeOf(err) != sandbox.CodeForbidden {
		t.Errorf("the Pod joins again: %v", err)
	}
	w.pods.gone["ended"] = true
	w.retire()
	w.until("the Pod is deleted", func() bool {
		w.pods.mu.Lock()
		defer w.pods.mu.Unlock()
		return slices.Equal(w.pods.deleted, []pods.Pod{{Name: "pod", UID: "uid-pod"}})
	})
	if err := join("pod@another"); err != nil {
		t.Errorf("another Pod of the name: %v", err)
	}
}
