//go:build kube

package kube

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// Patches for Pods that are soon full, and for an autoscaler that does not wait before it takes one
// away.
const (
	smallPool = `  - patch: |
      {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "cove-node", "namespace": "cove-nodes"}, "spec": {"template": {"spec": {
        "containers": [{"name": "cove", "resources": {"requests": {"memory": "512Mi"}, "limits": {"memory": "1536Mi"}}}]}}}}
`
	hastyScaler = `  - patch: |
      {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "cove-node", "namespace": "cove-nodes"}, "spec": {"behavior": {
        "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}]}}}}
`
)

// autoscaled fills the pool until an autoscaler adds a Pod, and empties it until that one goes:
// its sandbox continues elsewhere. Prometheus and the adapter are configured as
// docs/kubernetes.md says.
func autoscaled(t *testing.T, i *installation) {
	ctx := t.Context()
	key := filepath.Join(i.dir, "metrics-key")
	write(t, key, i.kubectl(t, "-n", "cove", "exec", i.active(t), "--", "cove", "key", "create", "prometheus", "--scope", "admin"))
	scrape := strings.NewReplacer("cove.cove.svc:7777", apiAddress+":7777", "/etc/prometheus/cove-metrics/key", key, "scrape_interval: 10s", "scrape_interval: 1s").Replace(documented(t, i, "scrape_configs:"))
	if err := i.ServeMetrics(ctx, i.root, scrape, documented(t, i, "externalRules:")); err != nil {
		t.Fatal(err)
	}
	i.small = true
	i.apply(t)
	i.rolledOut(t)
	i.awaitReady(t, 2)
	// The autoscaler takes over a pool that is in use: no Pod goes for that.
	before := uidOf(t, i, "cove-nodes", "cove-node-1")
	i.kubectl(t, strings.Fields(strings.TrimPrefix(documentedLine(t, i, "kubectl -n cove-nodes annotate"), "kubectl "))...)
	i.components = append(i.components, "autoscaling")
	i.apply(t)
	i.awaitPool(t, 2)
	if now := uidOf(t, i, "cove-nodes", "cove-node-1"); now != before {
		t.Error("a Pod of the pool was replaced when the autoscaler took over")
	}

	// What fills a Pod is in the memory of sandboxes, which the Pod's limit is for.
	var fill []string
	for len(fill) < 8 && i.poolSize(t) < 3 {
		sb, err := i.client.Create(ctx, covetest.Small(func(r *sandbox.CreateRequest) { r.Resources.MemoryMiB = 512 }))
		if sandbox.CodeOf(err) == sandbox.CodeQuotaExceeded {
			break // the pool is full
		}
		if err != nil {
			t.Fatal(err)
		}
		fill = append(fill, sb.ID)
		if _, err := i.client.Exec(ctx, sb.ID, sandbox.ExecRequest{Shell: `exec python3 -c 'import time; x = b"x" * (300 << 20); time.sleep(3600)'`, Background: true, TimeoutMS: -1}, nil); err != nil {
			t.Fatal(err)
		}
		i.sh(t, sb.ID, "sleep 3") // for the Pod to report it
	}
	i.awaitPool(t, 3)
	last, err := i.client.Create(ctx, covetest.Small())
	if err != nil {
		t.Fatal(err)
	}
	if last.Node != "cove-node-2" {
		t.Fatalf("with a new Pod, a sandbox is on %s", last.Node)
	}
	i.sh(t, last.ID, ticker)
	for _, id := range fill {
		i.kill(t, id)
	}
	i.awaitPool(t, 2)
	i.ticks(t, last.ID)
	if sb, err := i.client.Get(ctx, last.ID); err != nil || sb.Node == "cove-node-2" {
		t.Errorf("the sandbox of the Pod that was taken away is %+v, %v", sb, err)
	}
	i.kill(t, last.ID)
}

// poolSize is how many nodes of the pool are ready.
func (i *installation) poolSize(t *testing.T) (ready int) {
	t.Helper()
	for name, n := range i.nodes(t) {
		if strings.HasPrefix(name, "cove-node-") && n.State == sandbox.NodeReady {
			ready++
		}
	}
	return ready
}

// awaitReady waits until so many nodes of the pool are ready.
func (i *installation) awaitReady(t *testing.T, want int) {
	t.Helper()
	if !covetest.Eventually(5*time.Minute, func() bool { return i.poolSize(t) == want }) {
		t.Fatalf("%d Pods are ready, want %d", i.poolSize(t), want)
	}
}

// awaitPool waits until so many nodes of the pool are ready, and the autoscaler wants as many.
func (i *installation) awaitPool(t *testing.T, want int) {
	t.Helper()
	var scaler struct {
		Status struct{ CurrentReplicas, DesiredReplicas int }
	}
	ready := 0
	if !covetest.Eventually(5*time.Minute, func() bool {
		if err := json.Unmarshal([]byte(i.kubectl(t, "-n", "cove-nodes", "get", "hpa", "cove-node", "-o", "json")), &scaler); err != nil {
			t.Fatal(err)
		}
		ready = i.poolSize(t)
		return ready == want && scaler.Status.DesiredReplicas == want && scaler.Status.CurrentReplicas == want
	}) {
		t.Fatalf("%d Pods are ready, want %d; the autoscaler: %s", ready, want, i.kubectl(t, "-n", "cove-nodes", "describe", "hpa", "cove-node"))
	}
}

// documented returns a block of docs/kubernetes.md that begins with a line.
func documented(t *testing.T, i *installation, line string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(i.root, "docs", "kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), line+"\n")
	indent := before[strings.LastIndex(before, "\n")+1:]
	block, _, ended := strings.Cut(line+"\n"+rest, indent+"```")
	if !ok || !ended {
		t.Fatalf("docs/kubernetes.md has no block with %q", line)
	}
	return strings.ReplaceAll(block, "\n"+indent, "\n")
}

// documentedLine returns the command of docs/kubernetes.md that begins in this way.
func documentedLine(t *testing.T, i *installation, begin string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(i.root, "docs", "kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ "); ok && strings.HasPrefix(command, begin) {
			return command
		}
	}
	t.Fatalf("docs/kubernetes.md has no command %q", begin)
	return ""
}
