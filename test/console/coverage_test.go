package console

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

// actionTests says which test makes each request that the console can make to a server,
// as its sources have it, with "*" for a part of the path. Each of these tests ends
// with [everyAction].
var actionTests = map[string]string{
	"DELETE /console/session":                 "TestConsole",
	"DELETE /console/sessions/*":              "TestMoreActions",
	"DELETE /v1/keys/*":                       "TestMoreActions",
	"DELETE /v1/sandboxes/*":                  "TestMoreActions",
	"DELETE /v1/sandboxes/*/files":            "TestMoreActions",
	"DELETE /v1/sandboxes/*/previews/*":       "TestMoreActions",
	"DELETE /v1/sandboxes/*/secrets/*":        "TestMoreActions",
	"DELETE /v1/secrets/*":                    "TestMoreActions",
	"DELETE /v1/snapshots/*":                  "TestMoreActions",
	"DELETE /v1/templates/*":                  "TestMoreActions",
	"DELETE /v1/volumes/*":                    "TestMoreActions",
	"PATCH /v1/sandboxes/*":                   "TestMoreActions",
	"POST /console/session":                   "TestMoreActions",
	"POST /console/sso":                       "TestSignOn",
	"POST /v1/approvals/*":                    "TestConsole",
	"POST /v1/builds":                         "TestMoreActions",
	"POST /v1/builds/*/cancel":                "TestMoreActions",
	"POST /v1/diff/*":                         "TestMoreActions",
	"POST /v1/keys":                           "TestMoreActions",
	"POST /v1/orphans/*/recover":              "TestMoreActions",
	"POST /v1/sandboxes":                      "TestMoreActions",
	"POST /v1/sandboxes/*/code":               "TestMoreActions",
	"POST /v1/sandboxes/*/computer/view":      "TestMoreComputer",
	"POST /v1/sandboxes/*/contexts/*/*/*":     "TestMoreActions", // interrupt and restart
	"POST /v1/sandboxes/*/exec":               "TestMoreActions",
	"POST /v1/sandboxes/*/files/mkdir":        "TestMoreActions",
	"POST /v1/sandboxes/*/files/move":         "TestMoreActions",
	"POST /v1/sandboxes/*/fork":               "TestMoreActions",
	"POST /v1/sandboxes/*/jobs/*/resize":      "TestMoreActions",
	"POST /v1/sandboxes/*/jobs/*/signal":      "TestMoreActions",
	"POST /v1/sandboxes/*/jobs/*/stdin":       "TestConsole",
	"POST /v1/sandboxes/*/merge":              "TestConsole",
	"POST /v1/sandboxes/*/network":            "TestMoreActions",
	"POST /v1/sandboxes/*/pause":              "TestMoreActions",
	"POST /v1/sandboxes/*/previews":           "TestMoreActions",
	"POST /v1/sandboxes/*/previews/*/link":    "TestMoreActions",
	"POST /v1/sandboxes/*/processes/*/signal": "TestMoreActions",
	"POST /v1/sandboxes/*/restore":            "TestMoreActions",
	"POST /v1/sandboxes/*/resume":             "TestMoreActions",
	"POST /v1/sandboxes/*/secrets":            "TestMoreActions",
	"POST /v1/sandboxes/*/snapshots":          "TestMoreActions",
	"POST /v1/sandboxes/*/try":                "TestMoreActions",
	"POST /v1/secrets":                        "TestMoreActions",
	"POST /v1/secrets/*/rotate":               "TestMoreActions",
	"POST /v1/volumes":                        "TestMoreActions",
	"PUT /v1/sandboxes/*/files/content":       "TestMoreActions",
}

// request is a request that a page has made, with its answer.
type request struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Status int    `json:"status"`
}

// tell makes a page report each request of its scripts, through the binding "told".
const tell = `(() => {
	const real = window.fetch, told = window.told;
	window.fetch = async (what, init) => {
		const r = await real(what, init);
		told(JSON.stringify({method: init?.method ?? what.method ?? "GET", path: new URL(what.url ?? what, location.href).pathname, status: r.status}));
		return r;
	};
})()`

// told has the requests that pages have made in each test, by the test's first name.
var told struct {
	sync.Mutex
	in map[string][]request
}

// listen notes the requests that a page makes from now on, for the test.
func (p *tab) listen() {
	p.t.Helper()
	test, _, _ := strings.Cut(p.t.Name(), "/")
	chromedp.ListenTarget(p.ctx, func(ev any) {
		e, ok := ev.(*runtime.EventBindingCalled)
		var r request
		if !ok || e.Name != "told" || json.Unmarshal([]byte(e.Payload), &r) != nil {
			return
		}
		told.Lock()
		defer told.Unlock()
		if told.in == nil {
			told.in = map[string][]request{}
		}
		told.in[test] = append(told.in[test], r)
	})
	add := page.AddScriptToEvaluateOnNewDocument(tell)
	p.run(runtime.AddBinding("told"), chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := add.Do(ctx)
		return err
	}))
}

// everyAction fails the test unless its pages have successfully made the requests that
// actionTests has for it.
func everyAction(t *testing.T) {
	test, _, _ := strings.Cut(t.Name(), "/")
	told.Lock()
	defer told.Unlock()
	for route, by := range actionTests {
		if by == test && !slices.ContainsFunc(told.in[test], func(r request) bool { return r.Status < 300 && matches(route, r) }) {
			t.Errorf("no page has made the request %s with success", route)
		}
	}
}

// matches reports whether a request is one of a route.
func matches(route string, r request) bool {
	method, path, _ := strings.Cut(route, " ")
	want, have := strings.Split(path, "/"), strings.Split(r.Path, "/")
	return method == r.Method && slices.EqualFunc(want, have, func(w, h string) bool { return w == h || w == "*" && h != "" })
}

var (
	// written is a request as the sources write it: as a call's method and path, or as
	// the first two arguments of a function.
	written = regexp.MustCompile("(?s)(?:method: \"(POST|PUT|PATCH|DELETE)\",\\s*path: |\\w(?:<[^()]*?>)?\\(\\s*\"(POST|PUT|PATCH|DELETE)\",\\s*)((?:at\\(|[`\"]/).*?),?\\n")
	// fetched matches a request in the sources that is made without these functions.
	fetched = regexp.MustCompile(`fetch\("(/[^"]*)", \{\s*method: "(POST|DELETE)"`)
	// of is the path of something of a sandbox: at(id, rest).
	of = regexp.MustCompile("^at\\(id(?:, [\"`](.*?)[\"`])?\\)")
	// literal is a path in quotes.
	literal = regexp.MustCompile("^[\"`](.*?)[\"`]")
	// hole matches a placeholder in a path.
	hole = regexp.MustCompile(`\$\{[^}]*\}`)
)

// sources returns the text of the console's sources, by their path.
func sources(t *testing.T) map[string]string {
	t.Helper()
	root, err := covetest.Root()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	err = filepath.WalkDir(filepath.Join(root, "console/src"), func(name string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.Contains(name, ".test.") || strings.HasSuffix(name, ".d.ts") {
			return err
		}
		data, err := os.ReadFile(name)
		rel, _ := strings.CutPrefix(name, root+"/console/src/")
		all[rel] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Each request that the console can make to a server is made by a test, in a browser. A
// new request in the sources must be added to actionTests.
func TestEveryActionHasATest(t *testing.T) {
	found := map[string]bool{}
	for name, text := range sources(t) {
		for _, m := range written.FindAllStringSubmatch(text, -1) {
			method, path := m[1]+m[2], m[3]
			if w := of.FindStringSubmatch(path); w != nil {
				path = "/v1/sandboxes/*" + w[1]
			} else if w := literal.FindStringSubmatch(path); w != nil {
				path = w[1]
			} else {
				t.Fatalf("%s: the path of %s %s is not understood", name, method, path)
			}
			path, _, _ = strings.Cut(hole.ReplaceAllString(path, "*"), "?")
			found[method+" "+path] = true
		}
		for _, m := range fetched.FindAllStringSubmatch(text, -1) {
			found[m[2]+" "+m[1]] = true
		}
	}
	for _, route := range slices.Sorted(maps.Keys(found)) {
		if actionTests[route] == "" {
			t.Errorf("no test does %s; have one do it, and name it in actionTests", route)
		}
	}
	for _, route := range slices.Sorted(maps.Keys(actionTests)) {
		if !found[route] {
			t.Errorf("the console has no %s any more", route)
		}
	}
}

var (
	pageOf = regexp.MustCompile(`\{ to: "(/[^"]*)"`)
	tabOf  = regexp.MustCompile(`\bid: "([a-z]+)",\s*text: `)
)

// pagesOf returns the pages of the console's navigation and the parts of a sandbox, by
// the sources: a page that is new is looked at too.
func pagesOf(t *testing.T) (pages, parts []string) {
	t.Helper()
	src := sources(t)
	for _, m := range pageOf.FindAllStringSubmatch(src["nav.ts"], -1) {
		pages = append(pages, m[1])
	}
	for _, m := range tabOf.FindAllStringSubmatch(src["pages/sandbox.tsx"], -1) {
		parts = append(parts, m[1])
	}
	if len(pages) < 12 || len(parts) < 10 {
		t.Fatalf("the sources have the pages %q and the parts %q", pages, parts)
	}
	return pages, parts
}
