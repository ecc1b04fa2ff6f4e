package console

import (
	"fmt"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// attempts compares forks side by side: the output of a command in the running ones, and what
// each has cost, also one that has ended, as far as that was measured.
func attempts(p *tab, d *covetest.Daemon) {
	t := p.t
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	root := d.Create(t, sandbox.CreateRequest{Name: "attempts"})
	forks, err := d.Client.Fork(t.Context(), root.ID, sandbox.ForkRequest{Name: "attempt", Count: 3})
	must(err)
	runs, pauses, ends := forks.Items[0], forks.Items[1], forks.Items[2]
	_, err = d.Client.Pause(t.Context(), pauses.ID)
	must(err)
	d.Sh(t, ends.ID, "head -c 3000000 /dev/zero > /workspace/zeros")
	measured := func(id string) bool {
		t.Helper()
		list, err := d.Client.StatsSeries(t.Context(), id, sandbox.StatsSeriesRequest{})
		must(err)
		return len(list.Items) > 0
	}
	p.visit("/compare?tab=siblings&a=" + root.ID)
	card := func(name string) string {
		return fmt.Sprintf(`[...document.querySelectorAll(".siblings .card")].find((e) => e.querySelector(".name").textContent === %s)`, quote(name))
	}
	says := func(name, pattern string) {
		t.Helper()
		p.waitFor(fmt.Sprintf(`new RegExp(%s).test(%s?.innerText.replace(/\s+/g, " "))`, quote(pattern), card(name)))
	}
	exactly := `CPU [\d.]+ (ms|s) Memory [\d.]+ MiB, peak [\d.]+ MiB Disk [\d.]+ (B|KiB|MiB) Network ↓ [\d.]+ (B|KiB) ↑ [\d.]+ (B|KiB)`
	says(root.Name, exactly)
	says(runs.Name, exactly)
	says(pauses.Name, map[bool]string{true: "CPU about [\\d.]+ (ms|s) Memory peak", false: "Cost: not measured"}[measured(pauses.ID)])
	says(pauses.Name, "It is paused, and runs no command from here")
	p.accessible("forks side by side")

	// A command runs in the running forks, and its exit code is shown next to what each has
	// cost.
	p.fill("Command for all", `case $COVE_FORK_INDEX in 0) echo first; exit 7;; *) echo other; esac`)
	p.click("Run in 3")
	says(runs.Name, "exit 7 .*first")
	says(root.Name, "exit 0 .*other")

	// Ended forks are shown on request.
	if !covetest.Eventually(patience, func() bool { return measured(ends.ID) }) {
		t.Fatal("the fork was never measured")
	}
	_, err = d.Client.Kill(t.Context(), ends.ID)
	must(err)
	p.waitFor(`!` + card(ends.Name))
	p.click("Ended too")
	says(ends.Name, `CPU about [\d.]+ (ms|s) Memory peak [\d.]+ MiB Disk [23]\.\d MiB`)
	p.accessible("ended forks side by side")
	p.picture("attempts")

	// In a try, too.
	p.visit("/compare?tab=try&a=" + root.ID)
	p.fill("Commands to try in forks of attempts, one a line", "exit 3")
	p.fill("Forks", "1")
	p.waitFor(`(() => { const b = document.querySelector(".try-form button[type=submit]"); b?.click(); return b && !b.disabled })()`)
	p.sees("exit 3")
	p.waitFor(`new RegExp(` + quote(exactly) + `).test(document.querySelector(".siblings .card")?.innerText.replace(/\s+/g, " "))`)
	p.accessible("a try with its cost")
}
