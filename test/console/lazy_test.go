package console

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

// heavy are libraries that only some parts of the console need, each with a text that
// occurs only in its code.
var heavy = map[string]string{
	"xterm.js":   "xterm-helper-textarea",
	"CodeMirror": "cm-lineWrapping",
	"uPlot":      `"uplot"`,
	"noVNC":      "QEMUExtendedKeyEvent",
}

// heavyFiles returns the name of the one script of the build that has each library.
func heavyFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for name, text := range scripts(t) {
		for library, mark := range heavy {
			if !strings.Contains(text, mark) {
				continue
			}
			if files[library] != "" {
				t.Errorf("%s is in %s and in %s", library, files[library], name)
			}
			files[library] = name
		}
	}
	if len(files) != len(heavy) {
		t.Fatalf("of %v only %v are in the build", slices.Sorted(maps.Keys(heavy)), files)
	}
	return files
}

// scripts returns the text of the build's scripts by their names.
func scripts(t *testing.T) map[string]string {
	t.Helper()
	root, err := covetest.Root()
	if err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(root + "/internal/doors/console/dist/assets/*.js")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d scripts, %v; make build builds the console", len(names), err)
	}
	all := map[string]string{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(name)] = string(data)
	}
	return all
}

// imported is a script that another one loads with itself.
var imported = regexp.MustCompile(`(?:import|from)\s*"\./([^"]+\.js)"`)

// Large libraries are in separate scripts, which the first script of a page does not
// load.
func TestLargePartsAreSeparate(t *testing.T) {
	all, files := scripts(t), heavyFiles(t)
	var entry string
	for name := range all {
		if strings.HasPrefix(name, "index-") {
			entry = name
		}
	}
	seen := map[string]bool{}
	var load func(name string)
	load = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		for _, m := range imported.FindAllStringSubmatch(all[name], -1) {
			load(m[1])
		}
	}
	load(entry)
	for library, name := range files {
		if seen[name] {
			t.Errorf("%s, in %s, is loaded with the first page", library, name)
		}
	}
}

// loads fails the test unless the page has loaded these libraries and no others.
func loads(p *tab, files map[string]string, what string, libraries ...string) {
	p.t.Helper()
	const names = `performance.getEntriesByType("resource").map((e) => e.name.split("/").at(-1))`
	for _, library := range libraries {
		p.waitFor(names + `.includes(` + quote(files[library]) + `)`)
	}
	var loaded []string
	p.eval(names, &loaded)
	for library, name := range files {
		if slices.Contains(loaded, name) && !slices.Contains(libraries, library) {
			p.t.Errorf("%s loads %s", what, library)
		}
	}
}

// lateParts goes through the pages: large libraries are loaded where they are used.
func lateParts(p *tab, d *covetest.Daemon, id string) {
	files := heavyFiles(p.t)
	d.Sh(p.t, id, "echo text > late.txt")
	pages, _ := pagesOf(p.t)
	for _, part := range []string{"jobs", "network", "previews", "history", "settings", "files"} {
		pages = append(pages, "/s/"+id+"/"+part)
	}
	for _, path := range pages {
		p.visit(path)
		p.waitFor(`!!document.querySelector("main .bar") && !document.querySelector("main .loading")`)
		loads(p, files, path)
	}
	p.choose("late.txt")
	p.waitFor(`!!document.querySelector(".cm-content")`)
	loads(p, files, "an open file", "CodeMirror")
	p.click("Metrics")
	p.waitFor(`!!document.querySelector(".uplot")`)
	loads(p, files, "charts, after an open file", "CodeMirror", "uPlot")
	p.visit("/s/" + id + "/terminal")
	p.waitFor(`!!document.querySelector(".xterm")`)
	loads(p, files, "a terminal", "xterm.js")
}
