package console

import (
	"context"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// serverPage shows what the machine lets Cove do, and what the daemon reports about
// itself.
func serverPage(p *tab, d *covetest.Daemon) {
	report, err := d.Client.CheckMachine(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	p.visit("/server")
	p.sees("sandboxes can run")
	p.waitFor(`[...document.querySelectorAll("main button")].some((e) => { const is = e.innerText.startsWith("All "); if (is) e.click(); return is; })`)
	for _, c := range report.Checks {
		p.sees(c.Name)
	}
	for _, l := range report.Limits {
		p.sees("the limit of " + l.Name)
	}
	p.waitFor(`[...document.querySelectorAll("table.data tr")].some((e) => e.innerText.startsWith("rest") && / ms$/.test(e.innerText.trim()))`)
	p.accessible("server")
}

// buildTemplate builds a template from a definition in YAML, and uses it.
func buildTemplate(p *tab, d *covetest.Daemon) {
	p.visit("/templates")
	p.click("Build a template")
	p.fill("Name", "from-yaml")
	const definition = "Definition, in YAML or JSON"
	p.fill(definition, "from: {host: true}\nrun: [\"echo built >/srv/it\"\n")
	p.click("Build")
	p.sees("The definition cannot be read")
	p.fill(definition, "from: {host: true}\nresources: {disk_mib: 32}\nfiles:\n  - {path: /srv/text, content: from a file}\nrun:\n  - echo built >/srv/it\n")
	p.click("Build")
	p.waitFor(`document.querySelector(".build-log") && document.querySelector("dialog[open]").innerText.includes("ready")`)
	p.accessible("a build's log")
	p.click("Close")
	s := d.Create(p.t, sandbox.CreateRequest{Template: "from-yaml"})
	if got := d.Sh(p.t, s.ID, "cat /srv/it /srv/text"); got != "built\nfrom a file" {
		p.t.Errorf("the template has %q", got)
	}
	if _, err := d.Client.Kill(context.WithoutCancel(p.t.Context()), s.ID); err != nil {
		p.t.Error(err)
	}
}
