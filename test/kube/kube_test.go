//go:build kube

package kube

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/deploytest"
	"github.com/cove-sh/cove/sandbox"
)

// TestKubernetes installs Cove, with what deploy/kustomize enforces, and uses it.
func TestKubernetes(t *testing.T) {
	i := install(t, plain)
	podSecurity(t, i)
	chart(t, i)
	i.awaitNodes(t)
	for name, test := range map[string]func(*testing.T, *installation){"life": life, "tokens": tokens, "doctor": doctor} {
		t.Run(name, func(t *testing.T) { test(t, i) })
	}
	// Each takes something away.
	t.Run("server restarts", func(t *testing.T) { serverRestarts(t, i) })
	t.Run("pod is replaced", func(t *testing.T) { podReplaced(t, i) })
	t.Run("volume is lost", func(t *testing.T) { volumeLost(t, i) })
	t.Run("pod is drained", func(t *testing.T) {
		i.storeObjects(t)
		podDrained(t, i)
	})
	t.Run("image changes", func(t *testing.T) { imageChanges(t, i) })
	t.Run("dedicated", func(t *testing.T) { dedicated(t, i) })
	t.Run("autoscaling", func(t *testing.T) { autoscaled(t, i) })
}

// life does with sandboxes on both nodes what can be done with any.
func life(t *testing.T, i *installation) {
	ctx, c := t.Context(), i.client
	for node, id := range i.onEach(t) {
		if got := i.sh(t, id, "id -un; pwd"); got != "user\n/workspace" {
			t.Errorf("on %s it says %q", node, got)
		}
		if _, err := c.WriteFile(ctx, id, sandbox.WriteFileRequest{Path: "/workspace/file"}, strings.NewReader(strings.Repeat("0123456789abcdef", 1<<16))); err != nil {
			t.Fatal(err)
		}
		if got := i.sh(t, id, "wc -c < file"); got != "1048576" {
			t.Errorf("the file has %s bytes", got)
		}
		code := func(id, line, want string) {
			t.Helper()
			res, err := c.RunCode(ctx, id, sandbox.RunCodeRequest{Language: "python", Code: line}, nil)
			if err != nil || strings.TrimSpace(res.Stdout) != want {
				t.Errorf("RunCode: %+v, %v", res, err)
			}
		}
		code(id, "x = 6*7\nprint(x)", "42")

		if _, err := c.Pause(ctx, id); err != nil {
			t.Fatalf("pause: %v", err)
		}
		code(id, "print(x+1)", "43") // which resumes it, with its memory
		snapshot, err := c.CreateSnapshot(ctx, id, sandbox.CreateSnapshotRequest{})
		if err != nil {
			t.Fatalf("snapshot: %v", err)
		}
		code(id, "x = 0\nprint(x)", "0")
		if _, err := c.RestoreSnapshot(ctx, id, sandbox.RestoreRequest{Snapshot: snapshot.ID}); err != nil {
			t.Fatalf("restore: %v", err)
		}
		code(id, "print(x)", "42")

		forks, err := c.Fork(ctx, id, sandbox.ForkRequest{Count: 8})
		if err != nil {
			t.Fatalf("fork: %v", err)
		}
		for _, f := range forks.Items {
			if f.Node != node {
				t.Errorf("fork %s is on %s, its parent on %s", f.ID, f.Node, node)
			}
			code(f.ID, "print(x)", "42")
			i.kill(t, f.ID)
		}
		preview(t, i, id)
		i.kill(t, id)
	}
}

// preview opens a port of a sandbox through the server.
func preview(t *testing.T, i *installation, id string) {
	t.Helper()
	p, err := i.client.CreatePreview(t.Context(), id, sandbox.CreatePreviewRequest{Port: 8000})
	if err != nil {
		t.Fatal(err)
	}
	i.sh(t, id, "mkdir -p /tmp/site; echo home > /tmp/site/index.html")
	if _, err := i.client.Exec(t.Context(), id, sandbox.ExecRequest{Shell: "exec python3 -m http.server -d /tmp/site 8000", Background: true}, nil); err != nil {
		t.Fatal(err)
	}
	outside := &http.Client{Transport: &http.Transport{DialContext: i.Dial}}
	var body string
	if !covetest.Eventually(time.Minute, func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+apiAddress+":7777/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = strings.TrimPrefix(p.URL, "http://")
		req.Header.Set("Cove-Preview-Key", p.Key)
		res, err := outside.Do(req)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		body = string(data)
		return err == nil && body == "home\n"
	}) {
		t.Errorf("the preview shows %q", body)
	}
}

// tokens tries to join with tokens that are not those of a Pod of the pool.
func tokens(t *testing.T, i *installation) {
	authority := filepath.Join(t.TempDir(), "authority.pem")
	write(t, authority, i.kubectl(t, "-n", "cove-nodes", "get", "configmap", "cove-nodes", "-o", `jsonpath={.data.authority\.pem}`))
	program, err := covetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	ofPod := []string{"--bound-object-kind=Pod", "--bound-object-name=cove-node-0", "--bound-object-uid=" + uidOf(t, i, "cove-nodes", "cove-node-0")}
	for name, test := range map[string]struct {
		account string
		args    []string
		node    string
		want    string
	}{
		"of another ServiceAccount":  {"default", []string{"--audience=cove-nodes"}, "cove-node-5", "only Pods of the ServiceAccount cove-nodes/cove-node can join"},
		"of no Pod":                  {"cove-node", []string{"--audience=cove-nodes"}, "cove-node-5", "the token is not bound to a Pod"},
		"for the API":                {"cove-node", ofPod, "cove-node-0", "must be for the audience cove-nodes"},
		"of a Pod with another name": {"cove-node", append([]string{"--audience=cove-nodes"}, ofPod...), "cove-node-5", `the token is that of the Pod "cove-node-0", which can only join as the node of this name`},
		"of a ServiceAccount that is ours, for another audience": {"cove-node", append([]string{"--audience=vault"}, ofPod...), "cove-node-0", "must be for the audience cove-nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			token, state := filepath.Join(t.TempDir(), "token"), t.TempDir()
			write(t, token, i.kubectl(t, append([]string{"-n", "cove-nodes", "create", "token", test.account}, test.args...)...))
			cmd := i.Command(t.Context(), program, "node", "run", "--state-dir", state, "--server", nodesAddress+":7780", "--pod-token", token, "--authority", authority, "--name", test.node)
			cmd.Env = os.Environ()
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), test.want) {
				t.Errorf("it says %s, %v; want %s", out, err, test.want)
			}
		})
	}
	if all := i.nodes(t); len(all) != 2 {
		t.Errorf("the nodes are %+v", all)
	}
}

// serverRestarts replaces the server's Pod: sandboxes continue, with what is in memory.
func serverRestarts(t *testing.T, i *installation) {
	all := i.onEach(t)
	for _, id := range all {
		i.sh(t, id, ticker)
	}
	before := uidOf(t, i, "cove", "cove-server-0")
	i.kubectl(t, "-n", "cove", "delete", "pod", "cove-server-0")
	i.kubectl(t, "-n", "cove", "rollout", "status", "--timeout=5m", "statefulset/cove-server")
	if uidOf(t, i, "cove", "cove-server-0") == before {
		t.Fatal("the server's Pod was not replaced")
	}
	i.awaitNodes(t)
	for _, id := range all {
		i.ticks(t, id)
		i.kill(t, id)
	}
}

// podReplaced deletes a Pod of the pool. Its running sandboxes have failed with the reason;
// the Pod that takes its place has its volume, and with it a paused sandbox.
func podReplaced(t *testing.T, i *installation) {
	ctx := t.Context()
	all := i.onEach(t)
	paused, err := i.client.Fork(ctx, all["cove-node-0"], sandbox.ForkRequest{Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	kept := paused.Items[0].ID
	i.sh(t, kept, "echo kept > note")
	if _, err := i.client.Pause(ctx, kept); err != nil {
		t.Fatal(err)
	}
	before := uidOf(t, i, "cove-nodes", "cove-node-0")
	i.kubectl(t, "-n", "cove-nodes", "delete", "pod", "cove-node-0")
	i.kubectl(t, "-n", "cove-nodes", "rollout", "status", "--timeout=5m", "statefulset/cove-node")
	if uidOf(t, i, "cove-nodes", "cove-node-0") == before {
		t.Fatal("the Pod was not replaced")
	}
	i.awaitFailed(t, all["cove-node-0"])
	i.awaitNodes(t)
	if got := i.sh(t, all["cove-node-1"], "echo runs"); got != "runs" {
		t.Errorf("the sandbox on the other node says %q", got)
	}
	if got := i.sh(t, kept, "cat note"); got != "kept" {
		t.Errorf("the paused sandbox says %q", got)
	}
	for _, id := range []string{all["cove-node-1"], kept} {
		i.kill(t, id)
	}
}

// podDrained deletes a Pod of the pool where there is an object store: its sandboxes continue
// in the other Pod, with what is in memory.
func podDrained(t *testing.T, i *installation) {
	i.awaitNodes(t)
	all := i.onEach(t)
	moving := all["cove-node-0"]
	pid := i.sh(t, moving, ticker)
	i.kubectl(t, "-n", "cove-nodes", "delete", "pod", "cove-node-0")
	i.ticks(t, moving)
	if got := i.sh(t, moving, "kill "+pid+" && echo killed"); got != "killed" {
		t.Errorf("the process has not moved: %q", got)
	}
	if sb, err := i.client.Get(t.Context(), moving); err != nil || sb.Node != "cove-node-1" {
		t.Errorf("the sandbox is %+v, %v", sb, err)
	}
	i.awaitNodes(t)
	for _, id := range all {
		i.kill(t, id)
	}
}

// imageChanges has Kubernetes replace the server, and one Pod of the pool after the other,
// with another build. Sandboxes continue, although none of them was ever stored.
func imageChanges(t *testing.T, i *installation) {
	w := i.watch(t, covetest.Small())
	i.tag = "next"
	i.apply(t)
	i.rolledOut(t)
	i.hasImage(t, "next")
	w.goesOn(t)
	for id := range w.pids {
		i.kill(t, id)
	}
	for _, id := range i.onEach(t) { // which run the new build
		i.kill(t, id)
	}
}

// hasImage checks which image all Pods have.
func (i *installation) hasImage(t *testing.T, tag string) {
	t.Helper()
	for namespace, name := range map[string]string{"cove": "server", "cove-nodes": "node"} {
		got := strings.Fields(i.kubectl(t, "-n", namespace, "get", "pods", "-l", "app.kubernetes.io/component="+name, "-o", "jsonpath={.items[*].spec.containers[0].image}"))
		if slices.ContainsFunc(got, func(of string) bool { return of != image+":"+tag }) || len(got) == 0 {
			t.Errorf("Pods in %s have the images %v", namespace, got)
		}
	}
}

// awaitFailed waits until a sandbox has failed, with a reason.
func (i *installation) awaitFailed(t *testing.T, id string) {
	t.Helper()
	var got *sandbox.Sandbox
	if !covetest.Eventually(5*time.Minute, func() bool {
		var err error
		got, err = i.client.Get(t.Context(), id)
		return err == nil && got.State == sandbox.StateFailed
	}) {
		t.Fatalf("the sandbox is %+v", got)
	}
	if got.Reason == "" {
		t.Error("the sandbox has failed without a reason")
	}
	t.Logf("failed: %s", got.Reason)
}

// volumeLost deletes a Pod with its volume: the new one proves that the old one is gone,
// and joins under its name.
func volumeLost(t *testing.T, i *installation) {
	all := i.onEach(t)
	i.kubectl(t, "-n", "cove-nodes", "delete", "pvc", "state-cove-node-1", "--wait=false")
	i.kubectl(t, "-n", "cove-nodes", "delete", "pod", "cove-node-1")
	i.awaitFailed(t, all["cove-node-1"])
	i.awaitNodes(t)
	var claim struct {
		Metadata struct{ CreationTimestamp time.Time }
		Status   struct{ Phase string }
	}
	if err := json.Unmarshal([]byte(i.kubectl(t, "-n", "cove-nodes", "get", "pvc", "state-cove-node-1", "-o", "json")), &claim); err != nil || claim.Status.Phase != "Bound" {
		t.Errorf("the volume's claim is %+v, %v", claim, err)
	}
	i.kill(t, all["cove-node-0"])
	again := i.onEach(t)
	for _, id := range again {
		i.kill(t, id)
	}
}

// podSecurity checks that both namespaces enforce "restricted", which the Pods in them
// satisfy.
func podSecurity(t *testing.T, i *installation) {
	t.Helper()
	const label = "pod-security.kubernetes.io/enforce"
	for _, name := range []string{"cove", "cove-nodes"} {
		if got := i.kubectl(t, "get", "namespace", name, "-o", `jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}`); got != "restricted" {
			t.Errorf("namespace %s enforces %q", name, got)
		}
		// A namespace that begins to enforce a standard says which Pods violate it.
		i.kubectl(t, "label", "--overwrite", "namespace", name, label+"=privileged")
		if said := i.warnings(t, "label", "--overwrite", "namespace", name, label+"=restricted"); strings.Contains(said, "violate") {
			t.Errorf("of \"restricted\", Pods in %s violate: %s", name, said)
		}
	}
}

// doctor checks what "cove doctor" says in a Pod of the pool: sandboxes run there, with the
// /proc of the Pod.
func doctor(t *testing.T, i *installation) {
	var report sandbox.MachineReport
	if err := json.Unmarshal([]byte(i.kubectl(t, "-n", "cove-nodes", "exec", "cove-node-0", "--", "cove", "doctor", "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if !report.OK {
		t.Errorf("it finds the Pod unfit: %+v", report)
	}
	for _, c := range report.Checks {
		if c.Name == "proc" && !strings.Contains(c.Detail, "all processes of the container") {
			t.Errorf("of /proc it says %q", c.Detail)
		}
	}
}

// chart has the API server look at what the Helm chart makes, in place of what is installed.
func chart(t *testing.T, i *installation) {
	t.Helper()
	for name, args := range map[string][]string{
		"defaults":   nil,
		"everything": {"--values", filepath.Join(i.dir, "everything.yaml"), "--set", "namespaces.server=cove,namespaces.nodes=cove-nodes,namespaces.create=true,network.policies=true"},
	} {
		write(t, filepath.Join(i.dir, "everything.yaml"), deploytest.Everything)
		file := filepath.Join(i.dir, name+".rendered.yaml")
		write(t, file, deploytest.Template(t, args...))
		i.kubectl(t, "apply", "--server-side", "--force-conflicts", "--validate=strict", "--dry-run=server", "-f", file)
	}
}
