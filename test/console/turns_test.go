package console

import (
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// turns checks what the tree shows for a sandbox that was paused, restored, and merged into
// from a fork that still exists, and restores it to a step of its history.
func turns(p *tab, d *covetest.Daemon) {
	t := p.t
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := d.Create(t, sandbox.CreateRequest{Name: "turns", History: 5})
	d.Sh(t, s.ID, "echo one > state")
	d.Sh(t, s.ID, "echo two > state")
	_, err := d.Client.Pause(t.Context(), s.ID)
	must(err)
	_, err = d.Client.Resume(t.Context(), s.ID, sandbox.ResumeRequest{})
	must(err)
	forks, err := d.Client.Fork(t.Context(), s.ID, sandbox.ForkRequest{Name: "turned"})
	must(err)
	d.Sh(t, forks.Items[0].ID, "echo won > won")
	merged, err := d.Client.Merge(t.Context(), s.ID, sandbox.MergeRequest{Winner: "turned", Kind: sandbox.MergeFiles})
	must(err)
	if !merged.Merged {
		t.Fatalf("the merge was stopped by %v", merged.Conflicts)
	}

	p.visit("/")
	p.waitFor(`(() => { const r = [...document.querySelectorAll(".tree-row")].find((e) => e.querySelector(".name").textContent === "turns"); r?.click(); return !!r })()`)
	// A line with one gap, a line from the fork's, and a mark for each step.
	p.waitFor(`document.querySelectorAll(".lane.on .bar:not(.held)").length === 2`)
	p.waitFor(`document.querySelectorAll(".lane.on .bar.held").length === 1`)
	p.waitFor(`[...document.querySelectorAll(".merge")].some((e) => e.querySelector("path") && e.querySelector("title").textContent.startsWith("files of turned merged here"))`)
	p.waitFor(`document.querySelectorAll(".lane.on .step").length === 2`)
	p.waitFor(`[...document.querySelectorAll(".lane.running")].length > 1 && document.querySelectorAll(".restore").length === 0`)

	// What has changed since a step, from the tree.
	step := `[...document.querySelectorAll(".panel li button")].find((e) => e.innerText.includes("step -1"))`
	p.waitFor(`(() => { const s = ` + step + `; s?.click(); return !!s })()`)
	p.waitFor(`!!document.querySelector(".lane .step.on")`)
	p.accessible("a step in the tree")
	p.click("Diff")
	p.sees("What leads from turns, step -1 before shell to turns")
	p.sees("/workspace/state")
	p.sees("/workspace/won")
	p.accessible("a step compared")

	// Back to it.
	p.click("Sandboxes")
	p.waitFor(`(() => { const r = [...document.querySelectorAll(".tree-row")].find((e) => e.querySelector(".name").textContent === "turns"); r?.click(); return !!r })()`)
	p.waitFor(`(() => { const s = ` + step + `; s?.click(); return !!s })()`)
	p.click("Restore")
	p.sees("It goes back to step -1")
	p.click("Restore")
	p.waitFor(`document.querySelectorAll(".restore path").length === 1`)
	p.sees("Restored")
	p.accessible("a restored sandbox in the tree")
	if got := d.Sh(t, s.ID, "cat state; ls"); got != "one\nstate\n" {
		t.Errorf("after going back to before the last command there is %q", got)
	}

	// A new sandbox from a step.
	p.waitFor(`(() => { const s = [...document.querySelectorAll(".lane .step.on")][0]; return !!s })()`)
	p.click("New from here")
	p.fill("Name", "on-from-step")
	p.click("Create")
	p.waitFor(`location.pathname.startsWith("/console/s/")`)
	made, err := d.Client.Get(t.Context(), "on-from-step")
	must(err)
	if got := d.Sh(t, made.ID, "cat state"); got != "one\n" {
		t.Errorf("what was made from the step has %q", got)
	}
	madeFromStep(p, d, s, made)
}

// madeFromStep looks at where the tree draws a sandbox that was made from a step: out of the
// line whose state it was, at that instant, and also when the step is gone.
func madeFromStep(p *tab, d *covetest.Daemon, s, made *sandbox.Sandbox) {
	t := p.t
	if made.MadeFrom == nil || made.MadeFrom.SandboxID != s.ID {
		t.Fatalf("it says to be made from %+v", made.MadeFrom)
	}
	drawn := func() {
		p.t.Helper()
		p.waitFor(`(() => {
			const rows = [...document.querySelectorAll(".tree-row")];
			const r = rows.find((e) => e.querySelector(".name").textContent === "on-from-step");
			const of = rows.find((e) => e.querySelector(".name").textContent === "turns");
			r?.click();
			return r && of && Number(r.ariaLevel) === Number(of.ariaLevel) + 1;
		})()`)
		// Its line leaves before its bar begins, by more than a bend.
		p.waitFor(`(() => {
			const branch = document.querySelector(".branch.kept.on"), born = document.querySelector(".lane.on .birth");
			if (!branch || !born) return false;
			const [out, at] = [branch.getAttribute("d").match(/^M([\d.]+)/)[1], born.getAttribute("cx")].map(Number);
			return out < at;
		})()`)
		p.sees("Made from")
		p.sees("as it was at")
	}
	p.visit("/")
	drawn()
	p.accessible("a sandbox made from a step, in the tree")
	if _, err := d.Client.DeleteSnapshot(t.Context(), made.MadeFrom.Snapshot); err != nil {
		t.Fatal(err)
	}
	p.visit("/")
	drawn()
	p.click("Open")
	p.sees("turns")
}
