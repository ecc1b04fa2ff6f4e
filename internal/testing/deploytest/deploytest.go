// Package deploytest renders what deploy has for Kubernetes with the programs that users
// render it with: helm and kustomize, which are built from the module test/deploy/tools.
package deploytest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

// packages are those of the programs.
var packages = map[string]string{"helm": "helm.sh/helm/v4/cmd/helm", "kustomize": "sigs.k8s.io/kustomize/kustomize/v5"}

// programs are open files, which are built once and have no names any more.
var programs = map[string]func() (*os.File, error){"helm": program("helm"), "kustomize": program("kustomize")}

func program(name string) func() (*os.File, error) {
	return sync.OnceValues(func() (*os.File, error) {
		root, err := covetest.Root()
		if err != nil {
			return nil, err
		}
		dir, err := os.MkdirTemp("", "cove-deploy-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, name)
		cmd := exec.Command("go", "build", "-trimpath", "-o", path, packages[name])
		cmd.Dir = filepath.Join(root, "test", "deploy", "tools")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
		return os.Open(path)
	})
}

// Chart returns the directory of the Helm chart.
func Chart(t testing.TB) string { return filepath.Join(root(t), "deploy", "helm", "cove") }

// Kustomize returns a directory below deploy/kustomize.
func Kustomize(t testing.TB, name string) string {
	return filepath.Join(root(t), "deploy", "kustomize", name)
}

func root(t testing.TB) string {
	t.Helper()
	dir, err := covetest.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Run runs helm or kustomize, with an empty home, and returns what it prints. An error has what
// it printed to standard error.
func Run(t testing.TB, name string, args ...string) (string, error) {
	t.Helper()
	file, err := programs[name]()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()), args...)
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "KUBECONFIG=" + filepath.Join(home, "none")}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// Everything are values for all that can be set for the chart and has no default that tests
// compare with deploy/kustomize.
const Everything = `
image: {repository: registry.example.com/other, tag: "2.0", pullPolicy: IfNotPresent, pullSecrets: [registry]}
namespaces: {create: false, server: sandboxes, nodes: sandboxes-nodes}
server:
  env: [{name: COVE_LOG_LEVEL, value: debug}, {name: COVE_SECRETS_KEY, valueFrom: {secretKeyRef: {name: cove-key, key: key}}}]
  envSecrets: [cove-more]
  nodeSelector: {pool: small}
  tolerations: [{key: small, operator: Exists}]
nodes:
  seccompProfile: profiles/cove.json
  env: [{name: COVE_WARM, value: "1"}]
  nodeSelector: {pool: sandboxes}
  tolerations: [{key: sandboxes, operator: Equal, value: "yes", effect: NoSchedule}]
dedicated: {enabled: true, replicas: 5, resources: {requests: {cpu: "2"}, limits: {memory: 6Gi}}, disk: 30Gi, nodeSelector: {pool: dedicated}, tolerations: [{key: dedicated, operator: Exists}]}
autoscaling: {enabled: true, minReplicas: 3, maxReplicas: 30, memoryPercent: 80}
objects: {secret: cove-objects, drainMinutes: 10}
postgres: {secret: cove-postgres, key: address}
ingress: {enabled: true, className: nginx, annotations: {example.com/timeout: "3600"}, host: cove.example.com, tlsSecret: cove-tls}
previews: {domain: preview.example.net, tlsSecret: preview-tls}
network: {policies: false}
`

// Template renders the chart, with arguments for "helm template".
func Template(t testing.TB, args ...string) string {
	t.Helper()
	out, err := Run(t, "helm", append([]string{"template", "cove", Chart(t)}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Objects returns the objects of manifests by "KIND NAMESPACE/NAME".
func Objects(t testing.TB, manifests string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for d := yaml.NewDecoder(strings.NewReader(manifests)); ; {
		var object map[string]any
		if err := d.Decode(&object); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if object == nil {
			continue
		}
		metadata, _ := object["metadata"].(map[string]any)
		namespace, _ := metadata["namespace"].(string)
		id := fmt.Sprintf("%v %s/%v", object["kind"], namespace, metadata["name"])
		if all[id] != nil {
			t.Errorf("%s is there twice", id)
		}
		all[id] = object
	}
}
