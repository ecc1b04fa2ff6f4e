package console

import (
	"fmt"
	"strings"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// merge takes a fork's files into its parent where both have changed some: of one path
// the fork's version, and of another the parent's.
func merge(p *tab, d *covetest.Daemon, parent, fork sandbox.Sandbox) {
	d.Sh(p.t, fork.ID, "echo more >> answer.py; echo theirs > both.txt; echo theirs > mine.txt; echo only > only.txt")
	d.Sh(p.t, parent.ID, "echo ours > both.txt; echo ours > mine.txt")
	p.visit("/compare?a=" + parent.ID + "&b=" + fork.ID)
	p.waitFor(`document.querySelectorAll(".cm-mergeViewEditor").length === 2`)
	p.sees("both.txt")
	p.accessible("compare")
	p.picture("compare")
	p.click("Merge…")
	p.waitFor(`(() => { const r = document.querySelectorAll("dialog input[type=radio]")[1]; r?.click(); return !!r })()`)
	p.click("Merge")
	p.sees("Nothing was merged yet")
	p.sees("3 of 3 to choose")
	var ready bool
	p.eval(`!document.querySelector("dialog footer button[type=submit]").disabled`, &ready)
	if ready {
		p.t.Error("it can be merged before anything is chosen")
	}
	if got := d.Sh(p.t, parent.ID, "cat both.txt mine.txt; ls only.txt 2>&1 || true"); strings.Contains(got, "theirs") || !strings.Contains(got, "No such file") {
		p.t.Errorf("what was not merged yet is %q", got)
	}

	// Both versions are shown side by side.
	conflict := func(path string) string {
		return fmt.Sprintf(`[...document.querySelectorAll(".conflict")].find((e) => e.innerText.includes(%s))`, quote(path))
	}
	p.waitFor(`(() => { const c = ` + conflict("both.txt") + `; c?.querySelector(".as-link").click(); return !!c })()`)
	p.waitFor(`[...document.querySelectorAll(".versions .cm-content")].map((e) => e.innerText.trim()).join() === "ours,theirs"`)
	p.accessible("conflicts")
	p.click("All of " + fork.Name)
	p.sees("Every path is chosen")
	choose := func(path string, side int) {
		p.t.Helper()
		p.waitFor(fmt.Sprintf(`(() => { const b = %s?.querySelectorAll(".seg button")[%d]; b?.click(); return b?.ariaPressed === "true" })()`, conflict(path), side))
	}
	choose("mine.txt", 0)
	p.picture("merge")
	p.look("dark", 390, 844)
	p.accessible("conflicts on a telephone, dark")
	p.fits("conflicts")
	p.look("light", 1440, 860)
	p.click("Merge")
	p.sees("is merged into")
	if got := d.Sh(p.t, parent.ID, "cat both.txt mine.txt only.txt; tail -n 1 answer.py"); got != "theirs\nours\nonly\nmore\n" {
		p.t.Errorf("the parent has %q after the merge", got)
	}
}
