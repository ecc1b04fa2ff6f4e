package deploy

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/cove-sh/cove/internal/testing/deploytest"
)

var update = flag.Bool("update", false, "write the table of values in the chart's README.md")

// same are directories of deploy/kustomize and the values that make the same of the chart. A
// component is added to the base, with those that it needs.
var same = map[string]string{
	"base": ``,
	"overlays/example": `
image: {tag: "1.0"}
server: {storage: {className: standard}}
nodes:
  replicas: 3
  resources: {requests: {cpu: "4", memory: 16Gi}, limits: {memory: 32Gi}}
  storage: {size: 200Gi, className: standard}
`,
	"components/objects": `objects: {secret: cove-objects}`,
	"components/dedicated": `
dedicated: {enabled: true}
objects: {secret: cove-objects}
`,
	"components/autoscaling": `
autoscaling: {enabled: true}
objects: {secret: cove-objects}
`,
}

// kustomizeOnly are components that the chart does not have, as docs/kubernetes.md says.
var kustomizeOnly = []string{"components/agents", "components/high-availability"}

// TestMoreChart compares what the chart makes with what kustomize makes, object by object. In
// "make test", TestEverything stands for it.
func TestMoreChart(t *testing.T) {
	for _, kind := range []string{"components", "overlays"} {
		dirs, err := os.ReadDir(deploytest.Kustomize(t, kind))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dirs {
			name := kind + "/" + d.Name()
			if _, ok := same[name]; !ok && !slices.Contains(kustomizeOnly, name) {
				t.Errorf("deploy/kustomize/%s has no values here that make the same of the chart", name)
			}
		}
	}
	for name, values := range same {
		t.Run(name, func(t *testing.T) {
			got := normal(t, deploytest.Template(t, "--values", write(t, "values.yaml", values)))
			want := normal(t, kustomize(t, name))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("kustomize (-) and the chart (+) differ:\n%s", diff)
			}
		})
	}
}

// needs are components of which another says that it needs them.
var needs = map[string][]string{"components/autoscaling": {"components/objects"}, "components/dedicated": {"components/objects"}}

// kustomize builds a directory of deploy/kustomize.
func kustomize(t *testing.T, name string) string {
	t.Helper()
	dir := deploytest.Kustomize(t, name)
	if strings.HasPrefix(name, "components/") {
		overlay := t.TempDir()
		rel := func(target string) string {
			path, err := filepath.Rel(overlay, target)
			if err != nil {
				t.Fatal(err)
			}
			return path
		}
		components := []string{rel(dir)}
		for _, n := range needs[name] {
			components = append(components, rel(deploytest.Kustomize(t, n)))
		}
		text := fmt.Sprintf("resources: [%s]\ncomponents: [%s]\n", rel(deploytest.Kustomize(t, "base")), strings.Join(components, ", "))
		if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		dir = overlay
	}
	out, err := deploytest.Run(t, "kustomize", "build", dir)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// normal returns objects without what says that Helm has made them, and with variables,
// whose order has no meaning, by name.
func normal(t *testing.T, manifests string) map[string]map[string]any {
	t.Helper()
	all := deploytest.Objects(t, manifests)
	for _, object := range all {
		metadata := object["metadata"].(map[string]any)
		without(metadata, "labels", "helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance")
		without(metadata, "annotations", "helm.sh/resource-policy")
		sortEnv(object)
	}
	return all
}

func without(metadata map[string]any, field string, keys ...string) {
	values, _ := metadata[field].(map[string]any)
	for _, k := range keys {
		delete(values, k)
	}
	if len(values) == 0 {
		delete(metadata, field)
	}
}

func sortEnv(v any) {
	switch v := v.(type) {
	case map[string]any:
		if env, ok := v["env"].([]any); ok {
			slices.SortFunc(env, func(a, b any) int {
				return strings.Compare(fmt.Sprint(a.(map[string]any)["name"]), fmt.Sprint(b.(map[string]any)["name"]))
			})
		}
		for _, below := range v {
			sortEnv(below)
		}
	case []any:
		for _, below := range v {
			sortEnv(below)
		}
	}
}

// TestEverything sets all values, and looks for each in what the chart makes of them.
func TestEverything(t *testing.T) {
	objects := deploytest.Objects(t, deploytest.Template(t, "--values", write(t, "values.yaml", deploytest.Everything)))
	for id, object := range objects {
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		for id2, lines := range map[string][]string{
			"StatefulSet sandboxes/cove-server": {
				`"image":"registry.example.com/other:2.0"`, `"imagePullPolicy":"IfNotPresent"`, `"imagePullSecrets":[{"name":"registry"}]`,
				`--nodes-service-account=sandboxes-nodes/cove-node`, `{"name":"COVE_LOG_LEVEL","value":"debug"}`,
				`"envFrom":[{"secretRef":{"name":"cove-objects"}},{"secretRef":{"name":"cove-more"}}]`, `"envFrom":[{"secretRef":{"name":"cove-more"}}]`, `"nodeSelector":{"pool":"small"}`,
				`"tolerations":[{"key":"small","operator":"Exists"}]`, `{"name":"COVE_STORE","valueFrom":{"secretKeyRef":{"key":"address","name":"cove-postgres"}}}`,
				`{"name":"COVE_ALLOWED_HOSTS","value":"cove.example.com,cove.sandboxes.svc"}`, `{"name":"COVE_PREVIEW_DOMAIN","value":"preview.example.net"}`,
				`{"name":"COVE_PREVIEW_URL","value":"https://{label}.preview.example.net"}`,
			},
			"StatefulSet sandboxes-nodes/cove-node": {
				`"localhostProfile":"profiles/cove.json"`, `"terminationGracePeriodSeconds":630`, `{"name":"COVE_NODE_DRAIN_ON_EXIT","value":"10m"}`,
				`"value":"cove-nodes.sandboxes.svc:7780"`, `{"name":"COVE_WARM","value":"1"}`, `"nodeSelector":{"pool":"sandboxes"}`, `"effect":"NoSchedule"`,
			},
			"Deployment sandboxes-nodes/cove-dedicated-node": {
				`"replicas":5`, `"args":["node","run","--dedicated"]`, `"limits":{"memory":"6Gi"}`, `"emptyDir":{"sizeLimit":"30Gi"}`, `"nodeSelector":{"pool":"dedicated"}`, `"key":"dedicated"`,
				`"localhostProfile":"profiles/cove.json"`, `{"name":"COVE_NODE_DRAIN_ON_EXIT","value":"10m"}`, `{"name":"COVE_WARM","value":"1"}`,
			},
			"HorizontalPodAutoscaler sandboxes-nodes/cove-node": {`"minReplicas":3`, `"maxReplicas":30`, `"averageValue":"800m"`, `"periodSeconds":1200`},
			"Ingress sandboxes/cove": {
				`"ingressClassName":"nginx"`, `"host":"cove.example.com"`, `"host":"*.preview.example.net"`, `"secretName":"cove-tls"`, `"secretName":"preview-tls"`, `"example.com/timeout":"3600"`,
			},
		} {
			for _, line := range lines {
				if id == id2 && !strings.Contains(string(text), line) {
					t.Errorf("%s has no %s: %s", id, line, text)
				}
			}
		}
	}
	if spec := objects["StatefulSet sandboxes-nodes/cove-node"]["spec"].(map[string]any); spec["replicas"] != nil {
		t.Errorf("the chart says how many replicas there are: %v", spec["replicas"])
	}
	want := []string{
		"ClusterRole /cove-server", "ClusterRoleBinding /cove-server", "ConfigMap sandboxes-nodes/cove-nodes", "Deployment sandboxes-nodes/cove-dedicated-node", "HorizontalPodAutoscaler sandboxes-nodes/cove-node", "Ingress sandboxes/cove",
		"Role sandboxes-nodes/cove-server", "Role sandboxes-nodes/cove-server-pods", "RoleBinding sandboxes-nodes/cove-server", "RoleBinding sandboxes-nodes/cove-server-pods", "Service sandboxes/cove", "Service sandboxes/cove-nodes",
		"ServiceAccount sandboxes-nodes/cove-node", "ServiceAccount sandboxes/cove-server", "StatefulSet sandboxes-nodes/cove-node", "StatefulSet sandboxes/cove-server",
	}
	if got := slices.Sorted(maps.Keys(objects)); !slices.Equal(got, want) {
		t.Errorf("objects are %q", got)
	}
}

// TestMoreLint has Helm look at the chart. In "make test", TestEverything stands for it.
func TestMoreLint(t *testing.T) {
	for name, values := range map[string]string{"defaults": "", "everything": deploytest.Everything} {
		if out, err := deploytest.Run(t, "helm", "lint", "--strict", deploytest.Chart(t), "--values", write(t, "values.yaml", values)); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestMoreNotes reads what an installation says. In "make test", TestEverything stands for it.
func TestMoreNotes(t *testing.T) {
	for values, want := range map[string]string{
		"":                    "port-forward service/cove 7777",
		deploytest.Everything: "cove --url https://cove.example.com run -- id",
	} {
		out, err := deploytest.Run(t, "helm", "install", "cove", deploytest.Chart(t), "--dry-run=client", "--values", write(t, "values.yaml", values))
		if err != nil {
			t.Fatal(err)
		}
		_, notes, _ := strings.Cut(out, "NOTES:")
		if !strings.Contains(notes, want) || strings.Contains(notes, "objects.secret") != (values == "") {
			t.Errorf("the notes are %s", notes)
		}
	}
}

// TestMoreMistakes are values that the schema refuses. In "make test", TestSchema stands for it.
func TestMoreMistakes(t *testing.T) {
	for set, want := range map[string]string{
		"node.replicas=3":                     "'node' not allowed",
		"nodes.replica=3":                     "'replica' not allowed",
		"nodes.replicas=many":                 "'/nodes/replicas'",
		"nodes.resources.limit.memory=8Gi":    "'limit' not allowed",
		"nodes.resources.limits.memory=8GB":   "'/nodes/resources/limits/memory'",
		"nodes.storage.size=much":             "'/nodes/storage/size'",
		"server.storage.storageClass=fast":    "'storageClass' not allowed",
		"server.env[0].key=A":                 "'/server/env/0'",
		"image.pullPolicy=Sometimes":          "'/image/pullPolicy'",
		"image.tag=1:2":                       "'/image/tag'",
		"ingress.enabled=true":                "'/ingress/host'",
		"objects.secret=s3://bucket":          "'/objects/secret'",
		"autoscaling.enabled=true":            "'/objects/secret'",
		"dedicated.enabled=true":              "'/objects/secret'",
		"dedicated.disk=much":                 "'/dedicated/disk'",
		"objects.drainMinutes=0":              "'/objects/drainMinutes'",
		"network.deniedIPv4[0]=example.com":   "'/network/deniedIPv4/0'",
		"namespaces.server=Cove":              "'/namespaces/server'",
		"previews.domain=*.preview.localhost": "'/previews/domain'",
	} {
		out, err := deploytest.Run(t, "helm", "template", "cove", deploytest.Chart(t), "--set", set)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s\n%.200s", set, err, want, out)
		}
	}
}

// TestSchema compares the schema with values.yaml: it knows all values that have a default,
// no others, and refuses what it does not know.
func TestSchema(t *testing.T) {
	var schema node
	data, err := os.ReadFile(filepath.Join(deploytest.Chart(t), "values.schema.json"))
	if err == nil {
		err = json.Unmarshal(data, &schema)
	}
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	schema.walk(t, "", schema.Defs, known)
	delete(known, "global") // Helm's own
	documented := map[string]bool{}
	for _, v := range values(t) {
		documented[v.path] = true
		if v.about == "" {
			t.Errorf("%s has no comment in values.yaml", v.path)
		}
	}
	if diff := cmp.Diff(documented, known); diff != "" {
		t.Errorf("values.yaml (-) and values.schema.json (+) differ:\n%s", diff)
	}
}

// node is a part of a JSON schema.
type node struct {
	Ref        string          `json:"$ref"`
	Defs       map[string]node `json:"$defs"`
	Properties map[string]node `json:"properties"`
	Additional any             `json:"additionalProperties"`
}

// leaves are objects that have one row in README.md.
var leaves = []string{"server.resources", "nodes.resources", "dedicated.resources"}

func (n node) walk(t *testing.T, path string, defs map[string]node, known map[string]bool) {
	t.Helper()
	if n.Ref != "" {
		n = defs[strings.TrimPrefix(n.Ref, "#/$defs/")]
	}
	if n.Properties != nil && n.Additional != false {
		t.Errorf("the schema takes anything in %q", path)
	}
	if n.Properties == nil || slices.Contains(leaves, path) {
		known[path] = true
		return
	}
	for name, below := range n.Properties {
		below.walk(t, strings.TrimPrefix(path+"."+name, "."), defs, known)
	}
}

// value is a line of values.yaml.
type value struct{ path, about, deflt string }

// values reads values.yaml.
func values(t *testing.T) []value {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(deploytest.Chart(t), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	var all []value
	var walk func(path string, m *yaml.Node)
	walk = func(path string, m *yaml.Node) {
		for i := 0; i < len(m.Content); i += 2 {
			key, v := m.Content[i], m.Content[i+1]
			at := strings.TrimPrefix(path+"."+key.Value, ".")
			if v.Kind == yaml.MappingNode && len(v.Content) > 0 && !slices.Contains(leaves, at) {
				walk(at, v)
				continue
			}
			var content any
			if err := v.Decode(&content); err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(content)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, value{at, strings.TrimSpace(strings.ReplaceAll(key.HeadComment, "# ", "")), string(text)})
		}
	}
	walk("", doc.Content[0])
	return all
}

// TestValues compares the table of README.md with the comments in values.yaml.
func TestValues(t *testing.T) {
	path := filepath.Join(deploytest.Chart(t), "README.md")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const head = "| Value | Default | |\n|---|---|---|\n"
	before, _, found := strings.Cut(string(data), head)
	if !found {
		t.Fatalf("%s has no table", path)
	}
	var table strings.Builder
	for _, v := range values(t) {
		deflt := "`" + v.deflt + "`"
		if len(v.deflt) > 100 {
			deflt = "see `values.yaml`"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", v.path, deflt, v.about)
	}
	want := before + head + table.String()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(data) {
		t.Errorf("README.md is not up to date; run go test ./test/deploy -run Values -update:\n%s", cmp.Diff(string(data), want))
	}
}
