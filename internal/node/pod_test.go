package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/pods"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/node"
	"github.com/cove-sh/cove/sandbox"
)

// tokens proves Pods by their tokens, as the API of a cluster does.
type tokens map[string]pods.Pod

func (k tokens) Prove(_ context.Context, token string) (pods.Pod, error) {
	if pod, ok := k[token]; ok {
		return pod, nil
	}
	return pods.Pod{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "the cluster does not accept the Pod's token")
}

func (tokens) Exists(context.Context, pods.Pod) (bool, error) { return true, nil }

func (tokens) Gone(context.Context, pods.Pod) (bool, error) { return false, nil }
func (tokens) Delete(context.Context, pods.Pod) error       { return nil }

// files writes what a Pod joins with.
func (w *world) files(t *testing.T, token string) node.PodFiles {
	t.Helper()
	dir := t.TempDir()
	f := node.PodFiles{Token: filepath.Join(dir, "token"), Authority: filepath.Join(dir, "authority.pem")}
	for path, text := range map[string]string{f.Token: token + "\n", f.Authority: w.Authority()} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestJoinAsPod lets Pods join, and another of the same name in place of one that is gone.
func TestJoinAsPod(t *testing.T) {
	w := newWorldWith(t, tokens{"one": {Name: "pool-0", UID: "1"}, "two": {Name: "pool-0", UID: "2"}, "local": {Name: "local", UID: "3"}, "by-hand": {Name: "by-hand", UID: "4"}})
	refused := func(token, name, want string, code sandbox.Code) {
		t.Helper()
		id, _ := w.identity(t)
		err := id.JoinAsPod(t.Context(), w.files(t, token), name, false)
		if sandbox.CodeOf(err) != code || !strings.Contains(sandbox.MessageOf(err), want) || id.Joined() {
			t.Errorf("%s as %s: got %v, want %s", token, name, err, want)
		}
	}
	refused("none", "pool-0", "does not accept the Pod's token", sandbox.CodeUnauthenticated)
	refused("one", "pool-1", `the token is that of the Pod "pool-0"`, sandbox.CodeUnauthenticated)
	refused("local", "local", "is not valid as the name of a node", sandbox.CodeInvalid)

	first, _ := w.identity(t)
	if err := first.JoinAsPod(t.Context(), w.files(t, "one"), "pool-0", false); err != nil {
		t.Fatal(err)
	}
	_, _, stop := w.run(t, first)
	if _, err := w.fleet.Create(t.Context(), engine.Spec{ID: "one", Root: engine.Root{Digest: digest}}); err != nil {
		t.Fatal(err)
	}
	refused("two", "pool-0", "1 sandboxes run on node pool-0", sandbox.CodeConflict)
	if err := w.fleet.Destroy(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	stop()
	second, _ := w.identity(t)
	if err := second.JoinAsPod(t.Context(), w.files(t, "two"), "pool-0", false); err != nil {
		t.Fatal(err)
	}
	w.run(t, second)
	if list := w.Nodes.Nodes(t.Context()); len(list) != 1 {
		t.Errorf("the nodes are %+v", list)
	}

	// A node that joined otherwise keeps its name.
	other, _ := w.identity(t)
	if err := other.Join(t.Context(), w.token(t), "by-hand", false); err != nil {
		t.Fatal(err)
	}
	refused("by-hand", "by-hand", "there is a node by-hand already", sandbox.CodeConflict)
}

// TestJoinOtherServer gives no token to a server with another authority.
func TestJoinOtherServer(t *testing.T) {
	w, other := newWorldWith(t, tokens{"one": {Name: "pool-0", UID: "1"}}), newWorld(t)
	id, _ := w.identity(t)
	if err := id.JoinAsPod(t.Context(), other.files(t, "one"), "pool-0", false); err == nil || id.Joined() {
		t.Errorf("joined a server with another authority: %v", err)
	}
	if list := w.Nodes.Nodes(t.Context()); len(list) != 0 {
		t.Errorf("the nodes are %+v", list)
	}
}

// TestNoPods asks a server that does not let Pods join.
func TestNoPods(t *testing.T) {
	w := newWorld(t)
	id, _ := w.identity(t)
	if err := id.JoinAsPod(t.Context(), w.files(t, "one"), "pool-0", false); !strings.Contains(sandbox.MessageOf(err), "--nodes-service-account") {
		t.Errorf("got %v", err)
	}
}

// busy is a cluster that answers when it is told to.
type busy struct {
	tokens
	asked, answer chan struct{}
}

func (b busy) Prove(context.Context, string) (pods.Pod, error) {
	b.asked <- struct{}{}
	<-b.answer
	return pods.Pod{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "no")
}

// TestTooManyPods checks that the cluster is asked about a few tokens at a time.
func TestTooManyPods(t *testing.T) {
	const most = 16
	cluster := busy{asked: make(chan struct{}, most), answer: make(chan struct{})}
	w := newWorldWith(t, cluster)
	id, _ := w.identity(t)
	files := w.files(t, "one")
	var wg sync.WaitGroup
	for range most {
		wg.Go(func() {
			if err := id.JoinAsPod(t.Context(), files, "pool-0", false); sandbox.CodeOf(err) != sandbox.CodeUnauthenticated {
				t.Errorf("got %v", err)
			}
		})
	}
	for range most {
		<-cluster.asked
	}
	if err := id.JoinAsPod(t.Context(), files, "pool-0", false); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("one more gets %v", err)
	}
	close(cluster.answer)
	wg.Wait()
}
