package service

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// order lists the files of this package from the bottom to the top, part by part. A
// file refers to those before it only.
var order = []struct{ part, files string }{
	{"ground: locks, holds, the record as callers see it, the connection to a sandbox", "doc transition hold source moments interval handle silence kept sandboxes"},
	{"open: the way of every call to its sandbox", "announce open history"},
	{"admit: what a new sandbox is made from, and whether there is room", "golden draft create templates keys"},
	{"use: calls into running sandboxes, changes of their records", "jobs code files computers update env network follow approvals observe machine metrics clock"},
	{"life: how sandboxes end and rest", "kill lost isolated doubt pause expire"},
	{"time travel", "snapshots checkpoints fork diff merge try"},
	{"upkeep, and the assembly of all", "collect reconcile moves nodes service"},
}

// upward are the references that run against the order. The list may only become
// shorter.
var upward = map[string]string{
	"open: wake":        "a call on a paused sandbox resumes it",
	"open: fail":        "a call finds that a sandbox is gone, and records it",
	"history: snapshot": "a step of the history is a snapshot, and deleting one is too",
}

func TestOrderOfFiles(t *testing.T) {
	files := parseFiles(t)
	rank := map[string]int{}
	for _, p := range order {
		for _, name := range strings.Fields(p.files) {
			if files[name] == nil {
				t.Errorf("%s.go is in the order, but does not exist", name)
			}
			rank[name] = len(rank) + 1
		}
	}
	home := declarations(files)
	found := map[string]bool{}
	for name, f := range files {
		if rank[name] == 0 {
			t.Errorf("%s.go has no place in the order", name)
			continue
		}
		for _, ref := range references(f) {
			if to, ok := home[ref]; ok && rank[to] > rank[name] {
				what := name + ": " + ref[strings.LastIndexByte(ref, '.')+1:]
				found[what] = true
				if upward[what] == "" {
					t.Errorf("%s.go refers to %s of %s.go, which comes later: move one of them", name, ref, to)
				}
			}
		}
	}
	for what := range upward {
		if !found[what] {
			t.Errorf("%q does not run upwards any more: take it out of the list", what)
		}
	}
}

func parseFiles(t *testing.T) map[string]*ast.File {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*ast.File{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".go")
		if !ok || strings.HasSuffix(name, "_test") {
			continue
		}
		if files[name], err = parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// receivers are the types whose methods are looked for, by the names that variables
// of these types have throughout the package.
var receivers = map[string]string{"s": "Service", "h": "handle", "from": "bootSource", "golden": "goldens"}

// declarations returns the file of each declaration. Methods are named like
// "Service.Create".
func declarations(files map[string]*ast.File) map[string]string {
	home := map[string]string{}
	for name, f := range files {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				home[receiverOf(d)+d.Name.Name] = name
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						home[s.Name.Name] = name
					case *ast.ValueSpec:
						for _, id := range s.Names {
							home[id.Name] = name
						}
					}
				}
			}
		}
	}
	delete(home, "Service") // every file has methods of it
	delete(home, "_")
	return home
}

func receiverOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name + "."
	}
	return "?."
}

// references returns the names that a file uses and does not declare, and the methods
// that it calls on variables of receivers.
func references(f *ast.File) []string {
	var refs []string
	for _, id := range f.Unresolved {
		refs = append(refs, id.Name)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		var name string
		switch x := sel.X.(type) {
		case *ast.Ident:
			name = x.Name
		case *ast.SelectorExpr:
			name = x.Sel.Name
		}
		if typ := receivers[name]; typ != "" {
			refs = append(refs, typ+"."+sel.Sel.Name)
		}
		return true
	})
	slices.Sort(refs)
	return slices.Compact(refs)
}
