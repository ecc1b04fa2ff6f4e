package console

import (
	"fmt"
	"slices"
	"strings"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// keys presses keys, one after the other: those of package kb, or letters.
func (p *tab) keys(keys ...string) {
	p.t.Helper()
	for _, k := range keys {
		if k[0] < ' ' || len(k) > 1 {
			p.run(chromedp.KeyEvent(k))
			continue
		}
		// chromedp types a letter even where the page has taken its key.
		for _, kind := range []input.KeyType{input.KeyRawDown, input.KeyUp} {
			p.run(input.DispatchKeyEvent(kind).WithKey(k))
		}
	}
}

// focusOn is true when the element with this text or accessible name has the focus.
func focusOn(name string) string {
	return `((e) => [e.ariaLabel, e.innerText?.trim(), ...[...(e.labels ?? [])].map((l) => (l.querySelector("span") ?? l).innerText.trim())].includes(` + quote(name) + `))(document.activeElement)`
}

// tabTo presses Tab until an element has the focus.
func (p *tab) tabTo(name string) {
	p.t.Helper()
	for range 120 {
		p.keys(kb.Tab)
		var is bool
		if p.eval(focusOn(name), &is); is {
			return
		}
	}
	p.t.Fatalf("Tab does not come to %s; the page says:\n%s", name, p.text())
}

// stop is where Tab has come to.
type stop struct {
	Body, Seen, Shown bool
	Name, Key         string
}

// where describes the element with the focus: whether it is visible on the page, and whether
// it looks different from without the focus.
const where = `(() => {
	const e = document.activeElement;
	if (e === document.body || e === document.documentElement) return {Body: true};
	window.stops ??= new Map();
	if (!stops.has(e)) stops.set(e, String(stops.size));
	const looks = () => [e, e.parentElement, e.closest(".cm-editor, .search")].filter(Boolean).map((x) => {
		const s = getComputedStyle(x);
		return [s.boxShadow, s.borderColor, s.backgroundColor, s.outlineColor, s.outlineStyle, s.clipPath, s.transform, s.top].join();
	}).join(";");
	document.getAnimations().forEach((a) => a.effect.getComputedTiming().endTime < Infinity && a.finish());
	const on = looks(), r = e.getBoundingClientRect();
	e.blur();
	document.getAnimations().forEach((a) => a.effect.getComputedTiming().endTime < Infinity && a.finish());
	const off = looks();
	e.focus({preventScroll: true});
	return {Seen: e.checkVisibility() && r.width > 0 && r.bottom > 0 && r.top < innerHeight && r.right > 0 && r.left < innerWidth, Shown: on !== off, Name: e.outerHTML.slice(0, 160), Key: stops.get(e)};
})()`

// missed are the controls that Tab should have come to and has not. Of those that belong
// together, such as tabs, it comes to one; arrows lead to the others.
const missed = `[...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")].filter((e) =>
	!e.disabled && e.checkVisibility({visibilityProperty: true}) && !stops.has(e) && e.type !== "file" &&
	!e.closest(".toasts, [role=tab], [role=treeitem], .xterm, .cm-editor")).map((e) => e.outerHTML.slice(0, 160))`

// walk goes through a page with Tab: everything is come to, once, and seen to have the focus.
func (p *tab) walk(what string) {
	p.t.Helper()
	p.eval(`window.stops = new Map(); document.activeElement.blur(); getSelection().removeAllRanges()`, nil)
	var seen []string
	for {
		p.keys(kb.Tab)
		var s stop
		p.eval(where, &s)
		if s.Body || slices.Contains(seen, s.Key) {
			break
		}
		if !s.Seen || !s.Shown {
			p.t.Errorf("%s: the focus is on what is seen: %v, and shown: %v: %s", what, s.Seen, s.Shown, s.Name)
		}
		if seen = append(seen, s.Key); len(seen) > 200 {
			p.t.Fatalf("%s: Tab comes to no end", what)
		}
	}
	var not []string
	if p.eval(missed, &not); len(not) > 0 || len(seen) < 10 {
		p.t.Errorf("%s: of %d stops Tab does not come to:\n  %s", what, len(seen), strings.Join(not, "\n  "))
	}
}

// keyboard does with the keyboard alone what people mainly do: nothing needs a pointer, and
// it is always seen where one is.
func keyboard(p *tab, d *covetest.Daemon) {
	t := p.t
	s := d.Create(t, sandbox.CreateRequest{Name: "typed"})
	d.Sh(t, s.ID, "mkdir folder && echo inside > folder/file.txt")
	pages, parts := pagesOf(t)
	for _, part := range parts {
		if part != "screen" && part != "terminal" && part != "code" { // these use Tab themselves
			pages = append(pages, "/s/"+s.ID+"/"+part)
		}
	}
	for _, path := range pages {
		p.visit(path)
		p.waitFor(`!!document.querySelector("main .bar") && !document.querySelector("main .loading")`)
		p.walk(path)
	}

	// The first stop leads past the navigation.
	p.visit("/")
	p.waitFor(`document.querySelectorAll(".tree-row").length > 1`)
	p.keys(kb.Tab)
	p.waitFor(focusOn("Skip to content"))
	p.keys(kb.Enter, kb.Tab)
	p.waitFor(`!!document.activeElement.closest("main")`)

	// Search, choose in the tree, and open.
	p.keys(kb.Escape, "/")
	p.waitFor(`document.activeElement.type === "search"`)
	p.types("typed", true)
	p.waitFor(`document.querySelector(".panel h2")?.innerText === "typed"`)
	p.keys("t")
	p.waitFor(`!!document.querySelector("[role=table]")`)
	p.keys("k", "j")
	p.waitFor(`document.querySelector(".table-row.on")?.innerText.includes("typed")`)
	p.keys("t", kb.Enter)
	p.waitFor(`location.pathname.startsWith("/console/s/")`)
	p.sees("Connected")

	// A terminal takes keys, and can release the focus.
	p.waitFor(prompted + ` && !!document.activeElement.closest(".xterm")`)
	p.types("echo $((6*7))-keys", true)
	p.waitFor(said("42-keys"))
	p.run(chromedp.KeyEvent(kb.Escape, chromedp.KeyModifiers(input.ModifierCtrl, input.ModifierShift)))
	p.waitFor(`!document.activeElement.closest(".xterm")`)

	// Tabs by arrows and numbers.
	p.keys("4")
	p.waitFor(`location.pathname.endsWith("/jobs")`)
	p.tabTo("Jobs")
	p.keys(kb.ArrowLeft, kb.ArrowLeft)
	p.waitFor(`location.pathname.endsWith("/files") && document.activeElement.role === "tab" && document.activeElement.innerText === "Files"`)

	// The tree of files.
	p.waitFor(`document.querySelectorAll(".file").length === 1`)
	p.tabTo("Files")
	p.waitFor(`document.activeElement.role === "tree"`)
	p.keys(kb.ArrowDown, kb.ArrowRight)
	p.waitFor(`document.querySelectorAll(".file").length === 2`)
	p.keys(kb.ArrowDown)
	p.waitFor(`document.getElementById(document.activeElement.getAttribute("aria-activedescendant"))?.innerText === "file.txt"`)
	p.waitFor(`document.querySelector(".files-main .cm-content")?.innerText.includes("inside")`)

	// A menu, and the dialog that it opens: the keyboard comes back each time.
	p.tabTo("More actions on this file")
	p.keys(kb.Enter)
	p.waitFor(focusOn("Rename…"))
	p.keys(kb.ArrowUp)
	p.waitFor(focusOn("Delete…"))
	p.keys(kb.Home, kb.Escape)
	p.waitFor(`!document.querySelector("[role=menu]") && ` + focusOn("More actions on this file"))
	p.keys(kb.Enter)
	p.waitFor(focusOn("Rename…"))
	p.keys(kb.Enter)
	p.waitFor(`!!document.activeElement.closest("dialog") && document.activeElement.value.endsWith("file.txt")`)
	trapped(p)
	p.keys(kb.Escape)
	p.waitFor(`!document.querySelector("dialog") && ` + focusOn("More actions on this file"))

	// A command, its output, and a job that is ended.
	p.keys("4")
	p.tabTo("Command")
	p.types("echo by-$((6*7)); exec sleep 1006", false)
	p.keys(kb.Enter)
	p.waitFor(outputIs("by-42\n"))
	p.tabTo("Signals")
	p.keys(kb.Enter)
	p.waitFor(focusOn("Send TERM"))
	p.keys(kb.Enter)
	p.sees("TERM is sent")

	// Settings.
	p.keys("9")
	p.waitFor(`location.pathname.endsWith("/settings") && !!document.querySelector("form.card input:not([disabled])")`)
	p.tabTo("Name")
	p.run(chromedp.KeyEvent("a", chromedp.KeyModifiers(input.ModifierCtrl)))
	p.types("retyped", false)
	p.keys(kb.Enter)
	p.sees("The settings hold now")

	// The palette, from anywhere.
	p.run(chromedp.KeyEvent("k", chromedp.KeyModifiers(input.ModifierCtrl)))
	p.waitFor(`document.activeElement.role === "combobox"`)
	trapped(p)
	p.types("volumes", false)
	p.waitFor(`document.querySelector("[role=option]").innerText === "Go to Volumes"`)
	p.keys(kb.Enter)
	p.waitFor(`location.pathname === "/console/volumes"`)
	p.tabTo("New volume")
	p.keys(kb.Enter)
	p.waitFor(focusOn("Name"))
	p.types("typed", false)
	p.keys(kb.Enter)
	p.sees("The volume is there")
	p.waitFor(`!document.querySelector("dialog") && ` + focusOn("New volume"))
	p.tabTo("Delete the volume typed")
	p.keys(kb.Enter)
	// What would be done is under the keyboard; Escape does nothing.
	p.waitFor(focusOn("Delete"))
	p.keys(kb.Escape)
	p.waitFor(`!document.querySelector("dialog") && ` + focusOn("Delete the volume typed"))
	p.keys(kb.Enter)
	p.waitFor(focusOn("Delete"))
	p.keys(kb.Enter)
	p.sees("Deleted")

	// A fork, and the end of both.
	p.visit("/s/" + s.ID + "/history")
	p.sees("retyped")
	p.keys("f")
	p.waitFor(focusOn("How many"))
	p.keys(kb.Enter)
	p.sees("1 fork of retyped")
	p.keys("x")
	p.waitFor(focusOn("Kill"))
	p.keys(kb.Enter)
	p.sees("Killed")
	if got := p.box(d, s.ID); got.State != sandbox.StateKilled {
		t.Errorf("the sandbox is %s", got.State)
	}
	fork := sandboxNamed(t, d.Client, func(x sandbox.Sandbox) bool { return x.ForkedFrom == s.ID })
	need[*sandbox.Sandbox](t)(d.Client.Kill(t.Context(), fork.ID))
	p.keys("?")
	p.sees("Command palette, from a terminal too")
	p.keys(kb.Escape)
	p.waitFor(fmt.Sprintf(`!document.querySelector("dialog") && location.pathname === "/console/s/%s/history"`, s.ID))
}

// trapped fails the test if Tab leaves the dialog that is open.
func trapped(p *tab) {
	p.t.Helper()
	for range 12 {
		p.keys(kb.Tab)
		var out string
		if p.eval(`document.activeElement === document.body || document.activeElement.closest("dialog") ? "" : document.activeElement.outerHTML.slice(0, 160)`, &out); out != "" {
			p.t.Fatalf("Tab leaves the dialog, for %s", out)
		}
	}
}
