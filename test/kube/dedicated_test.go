//go:build kube

package kube

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// dedicated runs sandboxes in Pods of their own, of which each is replaced when it was used.
func dedicated(t *testing.T, i *installation) {
	ctx := t.Context()
	i.components = append(i.components, "dedicated")
	i.apply(t)
	i.rolledOut(t)
	i.kubectl(t, "-n", "cove-nodes", "rollout", "status", "--timeout=5m", "deployment/cove-dedicated-node")
	before := i.awaitFree(t, 2)
	podSecurity(t, i)
	create := func() *sandbox.Sandbox {
		t.Helper()
		sb, err := i.client.Create(ctx, covetest.Small(func(r *sandbox.CreateRequest) { yes := true; r.Dedicated = &yes }))
		if err != nil {
			t.Fatal(err)
		}
		return sb
	}

	first := create()
	if !slices.Contains(before, first.Node) || i.nodes(t)[first.Node].DedicatedTo != first.ID {
		t.Fatalf("the sandbox %+v is on %+v", first, i.nodes(t)[first.Node])
	}
	i.sh(t, first.ID, ticker)
	forks, err := i.client.Fork(ctx, first.ID, sandbox.ForkRequest{Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range forks.Items {
		if f.Node != first.Node {
			t.Errorf("a fork is on %s, its parent on %s", f.Node, first.Node)
		}
		i.ticks(t, f.ID)
		i.kill(t, f.ID)
	}

	// A paused sandbox gives its Pod back, and continues in another one.
	if _, err := i.client.Pause(ctx, first.ID); err != nil {
		t.Fatal(err)
	}
	after := i.awaitFree(t, 2)
	if slices.Contains(after, first.Node) {
		t.Errorf("the Pod %s was used and is not replaced: %v", first.Node, after)
	}
	i.ticks(t, first.ID)
	second, err := i.client.Get(ctx, first.ID)
	if err != nil || !slices.Contains(after, second.Node) {
		t.Fatalf("it has continued as %+v, %v", second, err)
	}

	// A Pod that is deleted while its sandbox runs hands it on.
	i.kubectl(t, "-n", "cove-nodes", "delete", "pod", second.Node)
	i.ticks(t, first.ID)
	i.kill(t, first.ID)
	if last := i.awaitFree(t, 2); slices.Contains(last, second.Node) {
		t.Errorf("the node of the deleted Pod %s is still there", second.Node)
	}
}

// awaitFree waits until so many dedicated nodes are free, and there are no others of them, and
// returns their names, which are those of the Pods.
func (i *installation) awaitFree(t *testing.T, want int) []string {
	t.Helper()
	var all map[string]sandbox.Node
	var free []string
	if !covetest.Eventually(5*time.Minute, func() bool {
		all, free = i.nodes(t), nil
		maps.DeleteFunc(all, func(_ string, n sandbox.Node) bool { return !n.Dedicated })
		for name, n := range all {
			if n.State == sandbox.NodeReady && n.DedicatedTo == "" {
				free = append(free, name)
			}
		}
		return len(free) == want && len(all) == want
	}) {
		t.Fatalf("%d dedicated nodes should be free: %+v", want, all)
	}
	return free
}
