//go:build kube

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/kubetest"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) {
	kubetest.Main()
	os.Exit(m.Run())
}

const (
	image = "kubetest.invalid/cove"
	// These replace the names of Services, because the cluster has no DNS.
	nodesAddress, apiAddress = "10.96.0.50", "10.96.0.51"
	user                     = 10001
)

// installation is Cove on a cluster.
type installation struct {
	*kubetest.Cluster
	root   string // of the repository
	dir    string
	client *client.Client

	tag        string   // of the image
	components []string // of deploy/kustomize
	servers    int
	small      bool // the Pods of the pool have little memory
}

// install starts a cluster, and installs Cove on it, as prepare wants.
func install(t testing.TB, prepare func(*installation)) *installation {
	t.Helper()
	ctx := t.Context()
	root, err := covetest.Root()
	if err != nil {
		t.Fatal(err)
	}
	programs, err := kubetest.Build(ctx, root)
	if err != nil {
		t.Fatal(err)
	}
	// Not in /tmp, which may be in memory.
	dir, err := os.MkdirTemp("/var/tmp", "cove-kube-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := covetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	images := []string{makeImage(t, root, programs, dir, program, "test"), makeImage(t, root, programs, dir, nextBuild(t, program, dir), "next")}
	began := time.Now()
	cluster, err := kubetest.Start(ctx, kubetest.Config{
		Programs: programs, Dir: dir, Nodes: 2, Images: images, Seccomp: map[string]string{"cove.json": filepath.Join(root, "deploy/seccomp/cove.json")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the cluster is ready after %s", time.Since(began).Round(time.Millisecond))
	i := &installation{Cluster: cluster, root: root, dir: dir, tag: "test", servers: 1}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(i.state())
		}
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	write(t, filepath.Join(dir, "volumes.yaml"), i.volumes(t))
	i.kubectl(t, "apply", "-f", filepath.Join(dir, "volumes.yaml"))
	i.kubectl(t, "kustomize", filepath.Join(root, "deploy/kustomize/overlays/example"))
	prepare(i)
	i.apply(t)
	i.rolledOut(t)
	key := i.kubectl(t, "-n", "cove", "exec", i.active(t), "--", "cove", "key", "create", "test", "--scope", "sandboxes:read,sandboxes:write,files:write,admin")
	if i.client, err = client.New(client.Config{
		URL: "http://" + apiAddress + ":7777", Key: client.Secret(key), HTTPClient: &http.Client{Transport: &http.Transport{DialContext: i.Dial}},
	}); err != nil {
		t.Fatal(err)
	}
	return i
}

// makeImage makes the image as docs/kubernetes.md says, on a Debian of this machine's
// release, which is made once: no registry is needed.
func makeImage(t testing.TB, root, cache, dir, program, tag string) string {
	t.Helper()
	release := run(t, root, "sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME")
	base := filepath.Join(filepath.Dir(cache), "debian-"+release+".tar")
	if _, err := os.Stat(base); err != nil {
		part := base + ".part"
		run(t, root, "mmdebstrap", "--quiet", "--variant=minbase", "--format=tar", "--include=python3", release, part)
		if err := os.Rename(part, base); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, tag+".tar")
	t.Logf("image %s", run(t, root, "go", "run", "./deploy/image", "--program", program, "--base-tar", base, "--tag", image+":"+tag, "--out", out))
	return out
}

// nextBuild makes the program of another build: its sum differs, and nothing else.
func nextBuild(t testing.TB, program, dir string) string {
	t.Helper()
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "next")
	if err := os.WriteFile(path, append(data, 0), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t testing.TB, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, errs.String())
	}
	return strings.TrimSpace(string(out))
}

// plain is an installation of the base alone.
func plain(*installation) {}

// apply applies deploy/kustomize/base and components, with what this cluster needs: the
// name of the image, addresses in place of names, and the shortest lease.
func (i *installation) apply(t testing.TB) {
	t.Helper()
	overlay := filepath.Join(i.dir, "overlay")
	if err := os.MkdirAll(overlay, 0o755); err != nil {
		t.Fatal(err)
	}
	deploy := func(name string) string {
		rel, err := filepath.Rel(overlay, filepath.Join(i.root, "deploy/kustomize", name))
		if err != nil {
			t.Fatal(err)
		}
		return rel
	}
	var components []string
	for _, c := range i.components {
		components = append(components, deploy("components/"+c))
	}
	more := ""
	if i.small {
		more += smallPool
	}
	if slices.Contains(i.components, "autoscaling") {
		more += hastyScaler
	}
	if slices.Contains(i.components, "dedicated") {
		more += `  - patch: |
      {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "cove-dedicated-node", "namespace": "cove-nodes"}, "spec": {"template": {"spec": {
        "hostAliases": [{"ip": "` + nodesAddress + `", "hostnames": ["cove-nodes.cove.svc"]}],
        "containers": [{"name": "cove", "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}}}]}}}}
`
	}
	write(t, filepath.Join(overlay, "kustomization.yaml"), `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [`+deploy("base")+`]
components: [`+strings.Join(components, ", ")+`]
images: [{name: registry.example.com/cove, newName: `+image+`, newTag: `+i.tag+`}]
patches:
  - patch: |
      {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "cove", "namespace": "cove"}, "spec": {"clusterIP": "`+apiAddress+`"}}
  - patch: |
      {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "cove-nodes", "namespace": "cove"}, "spec": {"clusterIP": "`+nodesAddress+`"}}
  - patch: |
      {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "cove-server", "namespace": "cove"}, "spec": {"template": {"spec": {
        "containers": [{"name": "cove", "env": [{"name": "COVE_NODE_LEASE", "value": "30s"}]}]}}}}
  - patch: |
      {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "cove-node", "namespace": "cove-nodes"}, "spec": {"template": {"spec": {
        "hostAliases": [{"ip": "`+nodesAddress+`", "hostnames": ["cove-nodes.cove.svc"]}],
        "containers": [{"name": "cove", "env": [{"name": "COVE_WARM", "value": "1"}], "resources": {"requests": {"cpu": "100m"}}}]}}}}
`+more)
	i.kubectl(t, "apply", "-k", overlay)
}

// rolledOut waits until all Pods are those that were applied, and ready.
func (i *installation) rolledOut(t testing.TB) {
	t.Helper()
	if i.servers == 1 {
		i.kubectl(t, "-n", "cove", "rollout", "status", "--timeout=5m", "statefulset/cove-server")
	} else {
		i.active(t)
	}
	i.kubectl(t, "-n", "cove-nodes", "rollout", "status", "--timeout=5m", "statefulset/cove-node")
}

// active waits until one server is ready, and returns its Pod.
func (i *installation) active(t testing.TB) string {
	t.Helper()
	var ready []string
	if !covetest.Eventually(5*time.Minute, func() bool {
		var pods struct {
			Items []struct {
				Metadata struct{ Name string }
				Status   struct {
					Conditions []struct{ Type, Status string }
				}
			}
		}
		if err := json.Unmarshal([]byte(i.kubectl(t, "-n", "cove", "get", "pods", "-l", "app.kubernetes.io/component=server", "-o", "json")), &pods); err != nil {
			t.Fatal(err)
		}
		ready = nil
		for _, p := range pods.Items {
			for _, c := range p.Status.Conditions {
				if c.Type == "Ready" && c.Status == "True" {
					ready = append(ready, p.Metadata.Name)
				}
			}
		}
		return len(ready) == 1
	}) {
		t.Fatalf("ready servers are %v", ready)
	}
	return ready[0]
}

// storeObjects gives the installation an object store: a directory of the server, which Pods
// of the pool never see.
func (i *installation) storeObjects(t testing.TB) {
	t.Helper()
	const store = "/var/lib/cove/state/store"
	i.kubectl(t, "-n", "cove", "exec", "cove-server-0", "--", "mkdir", store)
	i.kubectl(t, "-n", "cove", "create", "secret", "generic", "cove-objects", "--from-literal=COVE_OBJECTS=file://"+store)
	i.components = []string{"objects"}
	i.apply(t)
	i.rolledOut(t)
}

// volumes are local ones on both nodes, one more than needed on each.
func (i *installation) volumes(t testing.TB) string {
	t.Helper()
	var out strings.Builder
	out.WriteString(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
`)
	for n := range 2 {
		for v := range 3 {
			dir := filepath.Join(i.dir, "volumes", fmt.Sprint(n, v))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, `---
apiVersion: v1
kind: PersistentVolume
metadata: {name: volume-%d-%d}
spec:
  capacity: {storage: 100Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: local
  local: {path: %s}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}]}}
`, n, v, dir, kubetest.NodeName(n+1))
		}
	}
	return out.String()
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// kubectl runs kubectl, and returns what it prints.
func (i *installation) kubectl(t testing.TB, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := i.Kubectl(t.Context(), nil, &out, args...); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

// state describes the cluster for whoever reads that a test has failed.
func (i *installation) state() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	for _, args := range []string{
		"get pods,pvc,nodes -A -o wide", "get events -A --sort-by=.lastTimestamp",
		"-n cove logs cove-server-0 --all-containers --tail=60", "-n cove logs cove-server-1 --all-containers --tail=60", "-n cove-nodes logs cove-node-0 --tail=60", "-n cove-nodes logs cove-node-1 --tail=60",
	} {
		fmt.Fprintf(&out, "== kubectl %s\n", args)
		if err := i.Kubectl(ctx, nil, &out, strings.Fields(args)...); err != nil {
			fmt.Fprintln(&out, err)
		}
	}
	if os.Getenv("KUBETEST_LOGS") != "" {
		out.WriteString(i.Logs())
	}
	return out.String()
}

// nodes returns the nodes of the server by name.
func (i *installation) nodes(t testing.TB) map[string]sandbox.Node {
	t.Helper()
	list, err := i.client.ListNodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return byName(list)
}

func byName(list *sandbox.List[sandbox.Node]) map[string]sandbox.Node {
	all := map[string]sandbox.Node{}
	for _, n := range list.Items {
		all[n.Name] = n
	}
	return all
}

// awaitNodes waits until both nodes are ready.
func (i *installation) awaitNodes(t testing.TB) {
	t.Helper()
	var all map[string]sandbox.Node
	if !covetest.Eventually(5*time.Minute, func() bool {
		list, err := i.client.ListNodes(t.Context())
		if err != nil {
			return false // no server is ready
		}
		all = byName(list)
		return len(all) == 2 && all["cove-node-0"].State == sandbox.NodeReady && all["cove-node-1"].State == sandbox.NodeReady
	}) {
		t.Fatalf("the nodes are %+v", all)
	}
}

// sh runs a shell line in a sandbox.
func (i *installation) sh(t testing.TB, id, line string) string {
	t.Helper()
	return strings.TrimSpace((&covetest.Daemon{Client: i.client}).Sh(t, id, line))
}

// onEach creates a sandbox on each node.
func (i *installation) onEach(t testing.TB) map[string]string {
	t.Helper()
	return i.eachOf(t, covetest.Small())
}

// eachOf creates such a sandbox on each node.
func (i *installation) eachOf(t testing.TB, req sandbox.CreateRequest) map[string]string {
	t.Helper()
	found := map[string]string{}
	for range 6 {
		sb, err := i.client.Create(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if found[sb.Node] != "" {
			i.kill(t, sb.ID)
			continue
		}
		found[sb.Node] = sb.ID
		if len(found) == 2 {
			return found
		}
	}
	t.Fatalf("six sandboxes were not spread over both nodes: %v", found)
	return nil
}

func uidOf(t testing.TB, i *installation, namespace, pod string) string {
	t.Helper()
	var p struct{ Metadata struct{ UID string } }
	if err := json.Unmarshal([]byte(i.kubectl(t, "-n", namespace, "get", "pod", pod, "-o", "json")), &p); err != nil {
		t.Fatal(err)
	}
	return p.Metadata.UID
}

func (i *installation) kill(t testing.TB, id string) {
	t.Helper()
	if _, err := i.client.Kill(t.Context(), id); err != nil {
		t.Error(err)
	}
}

// warnings runs kubectl, and returns what the API warns of.
func (i *installation) warnings(t testing.TB, args ...string) string {
	t.Helper()
	out, err := i.KubectlCommand(t.Context(), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v: %s", args, err, out)
	}
	return string(out)
}
