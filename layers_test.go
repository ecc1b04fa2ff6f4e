package cove_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/cove-sh/cove"

// layers is the order of the packages: a package may import those of lower
// layers, and the ones of its own layer that sameLayer names. ARCHITECTURE.md
// tells what the layers mean.
var layers = map[string]int{
	"sandbox":          0,
	"internal/clip":    0,
	"internal/durable": 0,

	"internal/agentbin":         1,
	"internal/audit":            1,
	"internal/auth":             1,
	"internal/cgroup":           1,
	"internal/egress":           1,
	"internal/egress/...":       1,
	"internal/engine":           1,
	"internal/intake":           1,
	"internal/layer":            1,
	"internal/layer/...":        1,
	"internal/machine":          1,
	"internal/needs":            1,
	"internal/netstack":         1,
	"internal/oci":              1,
	"internal/operation":        1,
	"internal/orphan":           1,
	"internal/rfb":              1,
	"internal/runsc":            1,
	"internal/sandboxdoc":       1,
	"internal/sandboxdoc/...":   1,
	"internal/service/ids":      1,
	"internal/store":            1,
	"internal/templatefile":     1,
	"internal/volume":           1,
	"internal/vault":            1,
	"internal/webhook":          1,
	"internal/wire/agentv1":     1,
	"internal/wire/agentv1/...": 1,

	"internal/agent":       2,
	"internal/agent/...":   2,
	"internal/agentclient": 2,
	"internal/cell":        2,
	"internal/checkpoint":  2,
	"internal/image":       2,

	"internal/engine/...":       3,
	"internal/store/...":        3,
	"internal/service/startup":  3,
	"internal/service/validate": 3,

	"internal/store/sqlite/sqlitetest": 4,
	"internal/backup":                  4,
	"internal/service":                 4,
	"internal/service/call":            4,
	"internal/service/builds":          4,
	"internal/service/expose":          4,
	"internal/service/volumes":         4,
	"internal/service/webhooks":        4,
	"internal/janitor":                 4,

	"client":                 5,
	"internal/api":           5,
	"internal/api/...":       5,
	"internal/dialect":       5,
	"internal/dialect/...":   5,
	"internal/mcpserver":     5,
	"internal/mcpserver/...": 5,
	"internal/preview":       5,

	"internal/config": 6,
	"internal/server": 6,
	"internal/cli":    6,
	"cmd/...":         6,
}

// sameLayer lists the imports within a layer.
var sameLayer = map[string][]string{
	"internal/agent":            {"internal/agent/..."},
	"internal/agent/...":        {"internal/agent/..."},
	"internal/auth":             {"internal/intake", "internal/store"},
	"internal/egress":           {"internal/egress/...", "internal/engine", "internal/netstack"},
	"internal/egress/...":       {"internal/egress", "internal/egress/...", "internal/engine"},
	"internal/layer":            {"internal/layer/..."},
	"internal/machine":          {"internal/cgroup"},
	"internal/needs":            {"internal/cgroup", "internal/machine"},
	"internal/audit":            {"internal/store"},
	"internal/oci":              {"internal/egress"},
	"internal/orphan":           {"internal/volume"},
	"internal/store":            {"internal/intake"},
	"internal/webhook":          {"internal/egress"},
	"internal/wire/agentv1/...": {"internal/wire/agentv1"},
	"internal/janitor":          {"internal/service"},
	"internal/service":          {"internal/service/builds", "internal/service/call", "internal/service/expose", "internal/service/volumes", "internal/service/webhooks"},
	"internal/service/builds":   {"internal/service/call"},
	"internal/service/expose":   {"internal/service/call"},
	"internal/service/volumes":  {"internal/service/call"},
	"internal/service/webhooks": {"internal/service/call"},
	"internal/dialect/...":      {"internal/dialect", "internal/dialect/..."},
	"internal/mcpserver":        {"internal/mcpserver/...", "internal/dialect", "internal/dialect/..."},
	"internal/mcpserver/...":    {"internal/mcpserver", "internal/dialect", "internal/dialect/..."},
	"internal/api/...":          {"internal/api"},
	"internal/server":           {"internal/config"},
	"internal/cli":              {"internal/config", "internal/server"},
	"cmd/...":                   {"internal/cli"},
	"internal/engine/...":       {},
}

// onlyImporters names who alone may import a dependency.
var onlyImporters = map[string][]string{
	"gvisor.dev/gvisor/runsc":     {"internal/runsc"},
	"gvisor.dev/gvisor/pkg/tcpip": {"internal/netstack"},
	"modernc.org/sqlite":          {"internal/store/sqlite"},
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func listPackages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// place returns the table's key for a package of ours, the longest that fits.
func place(path string) (string, bool) {
	name := strings.TrimPrefix(path, module+"/")
	if _, ok := layers[name]; ok {
		return name, true
	}
	for dir := name; strings.Contains(dir, "/"); {
		dir = dir[:strings.LastIndexByte(dir, '/')]
		if _, ok := layers[dir+"/..."]; ok {
			return dir + "/...", true
		}
	}
	return "", false
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range listPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if p.ImportPath == module || strings.HasPrefix(name, "test/") || strings.HasPrefix(name, "examples/") || name == "internal/dialect/dialecttest" {
			continue // the last is a package for tests too, beside those that it tests
		}
		from, ok := place(p.ImportPath)
		if !ok {
			t.Errorf("%s has no place in the table of layers", name)
			continue
		}
		for _, imp := range p.Imports {
			checkForeign(t, name, imp)
			if !strings.HasPrefix(imp, module) {
				continue
			}
			to, ok := place(imp)
			if !ok {
				t.Errorf("%s imports %s, which has no place in the table of layers", name, imp)
				continue
			}
			if layers[to] < layers[from] || slices.Contains(sameLayer[from], to) {
				continue
			}
			t.Errorf("%s (layer %d) must not import %s (layer %d)", name, layers[from], to, layers[to])
		}
	}
}

func checkForeign(t *testing.T, name, imp string) {
	t.Helper()
	for dep, allowed := range onlyImporters {
		if (imp == dep || strings.HasPrefix(imp, dep+"/")) && !slices.Contains(allowed, name) {
			t.Errorf("%s imports %s: only %v may", name, imp, allowed)
		}
	}
}

// The domain and the doors stay free of what they must not know.
func TestDomainImportsOnlyStandardLibrary(t *testing.T) {
	for _, p := range listPackages(t) {
		if p.ImportPath != module+"/sandbox" {
			continue
		}
		for _, imp := range p.Imports {
			if strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
				t.Errorf("package sandbox imports %s", imp)
			}
		}
	}
}

func TestDoorsKnowOnlyTheDomain(t *testing.T) {
	forbidden := []string{"internal/service", "internal/engine", "internal/store", "internal/cell", "internal/agent"}
	for _, p := range listPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		key, _ := place(p.ImportPath)
		if layers[key] != 5 {
			continue
		}
		for _, imp := range p.Imports {
			for _, f := range forbidden {
				if strings.HasPrefix(imp, module+"/"+f) {
					t.Errorf("%s imports %s: a door is written against package sandbox", name, imp)
				}
			}
		}
	}
}
