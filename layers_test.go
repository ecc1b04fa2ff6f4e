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

// A room is a part of the tree and what it may import of the rest.
type room struct{ path, imports string }

// rooms are named after the process in which their code runs, as ARCHITECTURE.md
// tells: a package belongs to the longest path here that it begins with, and may
// import the packages of its own room and of the rooms beside it.
var rooms = []room{
	// The domain, and what any process uses. The standard library only, but for machine and silence.
	{"sandbox", ""},
	{"internal/clip", ""},
	{"internal/durable", ""},
	{"internal/lazyregexp", ""}, // which every room may import
	{"internal/limits", "sandbox"},
	{"internal/machine", "sandbox"},
	{"internal/silence", ""},

	// In the sandbox: the agent. What speaks with the agent is beside it.
	{"internal/guest", "sandbox internal/clip internal/template/layer/apply"},

	// In "cove cell".
	{"internal/gateway", "sandbox internal/clip internal/durable internal/engine"},
	{"internal/cell", "sandbox internal/engine internal/gateway internal/guest internal/machine"},

	// In "cove serve".
	{"internal/engine", "sandbox"},
	{"internal/engine/checkpoint", "internal/durable internal/engine internal/machine"},
	{"internal/engine/cells", "sandbox internal/cell internal/durable internal/engine internal/engine/checkpoint internal/gateway internal/guest internal/machine"},
	{"internal/objects", "internal/durable"},
	{"internal/engine/remote", "sandbox internal/engine"},
	{"internal/engine/fleet", "sandbox internal/durable internal/engine internal/engine/remote"},
	{"internal/engine/memory", "sandbox internal/daemon/store internal/engine internal/guest internal/template/layer/apply"},
	{"internal/engine/tiered", "sandbox internal/durable internal/engine internal/objects"},
	{"internal/engine/enginetest", "sandbox internal/engine internal/guest internal/testing"},
	{"internal/template", "sandbox internal/durable internal/engine internal/gateway internal/machine internal/template/layer/apply"},
	{"internal/template/layer/apply", ""},
	{"internal/daemon", "sandbox internal/clip internal/durable internal/gateway internal/limits internal/machine internal/objects"},
	{"internal/daemon/store", "sandbox internal/durable internal/limits internal/silence"},
	{"internal/daemon/backup", "sandbox internal/durable internal/engine/checkpoint internal/daemon/store"},
	{"internal/daemon/pods", "sandbox"},
	{"internal/daemon/nodes", "sandbox internal/daemon/pods internal/engine/fleet internal/engine/remote internal/limits internal/durable"},
	{"internal/daemon/sso", "sandbox internal/clip internal/daemon/auth"},
	{"internal/daemon/service/", belowService}, // what packages of its own stand on
	{"internal/daemon/service/builds", belowService + " internal/daemon/service/ internal/engine internal/template"},
	{"internal/daemon/service/events", belowService + " internal/daemon/service/"},
	{"internal/daemon/service/expose", belowService + " internal/daemon/service/"},
	{"internal/daemon/service/recovery", belowService + " internal/daemon/service/ internal/daemon/service/volumes"},
	{"internal/daemon/service/secrets", belowService + " internal/daemon/service/"},
	{"internal/daemon/service/volumes", belowService + " internal/daemon/service/ internal/engine"},
	{"internal/daemon/service/webhooks", belowService + " internal/daemon/service/"},
	{"internal/daemon/service", belowService + " internal/daemon/service/ internal/daemon/service/builds internal/daemon/service/events internal/daemon/service/expose internal/daemon/service/recovery internal/daemon/service/secrets internal/daemon/service/volumes internal/daemon/service/webhooks internal/engine internal/template"},
	{"internal/daemon/server", "*"},

	// In "cove node".
	{"internal/node", "sandbox internal/daemon/nodes internal/durable internal/engine internal/engine/remote"},

	// The doors: in "cove serve", "cove mcp" and the other commands. They know the domain.
	{"client", "sandbox internal/doors/operation internal/silence"},
	{"internal/doors", "sandbox internal/clip internal/durable internal/limits internal/doors/operation internal/daemon/auth"},
	{"internal/doors/operation", "sandbox"},
	{"internal/daemon/auth", "sandbox internal/clip internal/limits"},
	{"internal/doors/cli", "*"},
	{"cmd", "*"},

	// In tests.
	{"internal/testing", "*"},
	{"test", "*"},
	{"examples", "*"},
	{"deploy", ""},
}

const belowService = "sandbox internal/clip internal/daemon internal/daemon/auth internal/daemon/store internal/engine internal/gateway internal/guest"

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

// roomOf returns the room of a package of ours.
func roomOf(name string) (room, bool) {
	var best room
	for _, r := range rooms {
		under := strings.HasPrefix(name+"/", strings.TrimSuffix(r.path, "/")+"/")
		if strings.HasSuffix(r.path, "/") {
			under = strings.HasPrefix(name, r.path)
		}
		if under && len(r.path) > len(best.path) {
			best = r
		}
	}
	return best, best.path != ""
}

func (r room) mayImport(other room) bool {
	return r.path == other.path || other.path == "internal/lazyregexp" || r.imports == "*" && other.path != "internal/testing" ||
		slices.Contains(strings.Fields(r.imports), other.path) || isTest(r) && other.path == "internal/testing"
}

func isTest(r room) bool {
	return r.path == "test" || r.path == "examples" || r.path == "internal/testing"
}

func TestImportsBetweenRooms(t *testing.T) {
	used := map[string]bool{}
	for _, p := range listPackages(t) {
		if p.ImportPath == module {
			continue
		}
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		from, ok := roomOf(name)
		if !ok {
			t.Errorf("%s is in no room of the table", name)
			continue
		}
		used[from.path] = true
		for _, imp := range p.Imports {
			imp, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			to, _ := roomOf(imp)
			if !from.mayImport(to) {
				t.Errorf("%s (room %s) must not import %s (room %s)", name, from.path, imp, to.path)
			}
			used[from.path+" "+to.path] = true
		}
	}
	for _, r := range rooms {
		if !used[r.path] {
			t.Errorf("room %s is empty: take it out of the table", r.path)
		}
		for _, imp := range strings.Fields(strings.TrimSuffix(r.imports, "*")) {
			if !used[r.path+" "+imp] && !strings.HasPrefix(r.imports, belowService) {
				t.Errorf("room %s does not import %s: take it out of the table", r.path, imp)
			}
		}
	}
}
