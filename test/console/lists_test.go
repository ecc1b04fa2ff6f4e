package console

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// The values of a secret, before and after it is rotated.
const (
	firstValue  = "value-of-before-7f3a"
	secondValue = "value-of-after-91cc"
)

// secrets stores a secret, gives it to a sandbox, rotates and deletes it: its value is
// shown nowhere.
func secrets(p *tab, d *covetest.Daemon, id string) {
	p.visit("/secrets")
	p.sees("There is no secret")
	p.click("New secret")
	p.fill("Name", "token")
	p.fill("Hosts", "api.example.com, *.example.org")
	p.fill("Value", firstValue)
	p.accessible("new secret")
	p.click("Store")
	p.sees("Nobody can read it again")
	p.waitFor(row("token") + `.innerText.includes("api.example.com, *.example.org")`)
	unseen(p)

	p.visit("/s/" + id + "/settings")
	p.waitFor(`!!document.querySelector("option[value=token]")`)
	p.fill("Secret", "token")
	p.fill("Environment variable", "API_TOKEN")
	p.click("Attach")
	p.sees("Attached")
	p.waitFor(`!!document.querySelector("[aria-label='Detach API_TOKEN']")`)
	if got := d.Sh(p.t, id, "printenv API_TOKEN"); got == "" || strings.Contains(got, "value-of") {
		p.t.Errorf("a program of the sandbox sees %q", got)
	}

	p.click("Secrets")
	p.click("Rotate")
	p.fill("New value", secondValue)
	p.click("Replace the value")
	p.sees("The new value holds")
	p.waitFor(row("token") + `.cells[3].innerText === "2"`)
	unseen(p)
	p.visit("/s/" + id + "/settings")
	p.click("Detach API_TOKEN")
	p.sees("Detached")
	p.click("Secrets")
	p.click("Delete the secret token")
	p.sees("Its use ends everywhere at once")
	p.click("Delete")
	p.sees("There is no secret")
	unseen(p)
	list := need[*sandbox.List[sandbox.Secret]](p.t)(d.Client.ListSecrets(p.t.Context(), sandbox.Page{}))
	if len(list.Items) != 0 {
		p.t.Errorf("the secrets are %+v", list.Items)
	}
}

// unseen fails the test if a secret's value is in the page, in the list of recent calls, or
// in an answer of the server.
func unseen(p *tab) {
	p.t.Helper()
	p.click("Recent calls")
	p.eval(`document.querySelectorAll("dialog details").forEach((e) => { e.open = true })`, nil)
	var text string
	p.eval(`fetch("/v1/secrets").then((r) => r.text()).then((t) => t + document.documentElement.outerHTML + [...document.querySelectorAll("input")].map((e) => e.value))`, &text)
	if strings.Contains(text, firstValue) || strings.Contains(text, secondValue) {
		p.t.Error("the page has a secret's value")
	}
	p.accessible("recent calls")
	p.click("Close")
}

// keys makes a key, signs in with it, ends that session, and revokes it.
func keys(p *tab, d *covetest.Daemon, chrome context.Context) {
	p.visit("/keys")
	p.click("New key")
	p.fill("Name", "laptop")
	p.tick("secrets:write")
	p.fill("Valid for, days", "7")
	p.accessible("new key")
	p.click("Create")
	p.sees("It is shown this once")
	p.accessible("a new key")
	var key string
	p.eval(`document.querySelector("dialog .snippet pre").innerText`, &key)
	p.click("Done")
	p.waitFor(`!!` + row("laptop"))
	var page string
	p.eval(`document.documentElement.outerHTML`, &page)
	if strings.Contains(page, key) {
		p.t.Error("the key is in the page after it was shown once")
	}
	if p.eval(row("laptop")+`.innerText`, &page); strings.Contains(page, "secrets:write") || !strings.Contains(page, "files:write") {
		p.t.Errorf("the row of the key says %q", page)
	}

	other := openTab(p.t, chrome, p.url)
	other.visit("/")
	other.sees("Sign in to Cove")
	other.fill("API key", key)
	other.click("Sign in")
	other.waitFor(`!!document.querySelector("nav.side")`)
	p.visit("/keys")
	p.sees("Browsers that are signed in")
	p.accessible("keys and browsers")
	p.waitFor(`(() => { const b = [...document.querySelectorAll(".browsers tr")].find((e) => !e.innerText.includes("this one")).querySelector("button"); b.click(); return true })()`)
	p.sees("Signed out")
	p.waitFor(`document.querySelectorAll(".browsers tr").length === 1`)
	other.sees("Sign in to Cove") // by itself

	other.fill("API key", key)
	other.click("Sign in")
	other.waitFor(`!!document.querySelector("nav.side")`)
	p.waitFor(`(() => { const b = ` + row("laptop") + `?.querySelector("button"); b?.click(); return !!b })()`)
	p.sees("Whoever has it can do nothing with it any more")
	p.click("Revoke")
	p.sees("Revoked")
	p.waitFor(row("laptop") + `.innerText.includes("revoked")`)
	other.sees("Sign in to Cove")
	other.fill("API key", key)
	other.click("Sign in")
	other.waitFor(`!!document.querySelector("[role=alert]")`)
	other.accessible("a refused key")
	teams(p, d, other)
}

// teams makes a key of another team, which sees only what belongs to that team.
func teams(p *tab, d *covetest.Daemon, other *tab) {
	p.visit("/keys")
	p.click("New key")
	p.fill("Name", "lab")
	p.fill("Team", "research")
	p.tick("admin")
	p.click("Create")
	p.sees("It is shown this once")
	var key string
	p.eval(`document.querySelector("dialog .snippet pre").innerText`, &key)
	p.click("Done")
	p.waitFor(row("lab") + `.cells[2].innerText === "research"`)
	p.fill("Whose keys", "research")
	p.waitFor(`document.querySelectorAll(".scroll tbody tr").length === 1`)
	p.accessible("the keys of a team")
	p.fill("Whose keys", "default")
	p.waitFor(`!` + row("lab") + ` && !!` + row("laptop"))

	other.visit("/keys")
	other.fill("API key", key)
	other.click("Sign in")
	other.waitFor(`!!` + row("lab"))
	var text string
	if other.eval(`document.querySelector(".scroll").innerText`, &text); strings.Contains(text, "laptop") {
		p.t.Errorf("an admin of one team sees the keys of another: %s", text)
	}
	other.click("New key")
	other.sees("What it may do")
	var may bool
	if other.eval(`document.querySelector("dialog").innerText.includes("Team")`, &may); may {
		p.t.Error("an admin of one team is offered to make keys of others")
	}
	other.click("Cancel")
	other.click("Sandboxes")
	other.sees("Sandboxes that fork") // there is none
	made := need[*sandbox.List[sandbox.Key]](p.t)(d.Client.ListKeys(p.t.Context(), sandbox.Page{}))
	for _, k := range made.Items {
		if k.Name == "lab" {
			need[*sandbox.Key](p.t)(d.Client.RevokeKey(p.t.Context(), k.ID))
		}
	}
}

// audit finds audit events, including those on a later page of the list.
func audit(p *tab, d *covetest.Daemon, id string) {
	for i := range 201 {
		name := fmt.Sprintf("acts-%d", i)
		need[*sandbox.Sandbox](p.t)(d.Client.Update(p.t.Context(), id, sandbox.UpdateRequest{Name: &name}))
	}
	p.visit("/audit")
	const rows = `document.querySelectorAll("main tbody tr").length`
	p.waitFor(rows + ` === 200`)
	p.fill("Search what is listed", "key.revoke")
	p.sees("Nothing matches")
	p.click("Older")
	p.waitFor(rows + ` > 0 && [...document.querySelectorAll("main tbody tr")].every((e) => e.innerText.includes("key.revoke"))`)
	p.fill("Search what is listed", "")
	p.click("List again")
	p.waitFor(rows + ` === 200`)
}

// volumeActions makes a volume that a sandbox has, and deletes it when the sandbox is gone.
func volumeActions(p *tab, d *covetest.Daemon) {
	p.visit("/volumes")
	p.click("New volume")
	p.fill("Name", "data")
	p.fill("Size, MiB", "64")
	p.click("Create")
	p.sees("The volume is there")
	s := d.Create(p.t, sandbox.CreateRequest{Name: "mounts", Mounts: []sandbox.Mount{{Target: "/data", Volume: "data"}}})
	p.visit("/volumes")
	p.waitFor(row("data") + `.innerText.includes("mounts")`)
	p.click("Delete the volume data")
	p.click("Delete")
	p.waitFor(`!!document.querySelector(".toast.error") && !document.querySelector("dialog")`)
	need[*sandbox.Sandbox](p.t)(d.Client.Kill(p.t.Context(), s.ID))
	p.click("Delete the volume data")
	p.click("Delete")
	p.sees("Deleted")
	p.waitFor(`!` + row("64 MiB"))
}

// templateActions builds a template, cancels a build, and deletes the template.
func templateActions(p *tab, d *covetest.Daemon) {
	const definition = "Definition, in YAML or JSON"
	build := func(name, run string) {
		p.t.Helper()
		p.visit("/templates")
		p.click("Build a template")
		p.fill("Name", name)
		p.fill(definition, "from: {host: true}\nresources: {disk_mib: 32}\nrun:\n  - "+run+"\n")
		p.accessible("build a template")
		p.click("Build")
	}
	build("endless", "echo it-began; sleep 1005")
	p.sees("it-began")
	p.accessible("a build")
	p.click("Cancel the build")
	p.sees("Cancelled")
	p.waitFor(`document.querySelector("dialog .badge").innerText === "cancelled"`)
	p.click("Close")
	p.waitFor(row("endless") + `.innerText.includes("cancelled")`)

	build("tiny", "echo tiny > /srv/tiny")
	p.waitFor(`document.querySelector("dialog .badge")?.innerText === "ready"`)
	p.click("Close")
	p.click("tiny")
	p.sees("Begins with")
	p.accessible("a template")
	p.click("New sandbox")
	p.waitFor(`document.querySelector("dialog select").value === "template tiny"`)
	p.fill("Name", "of-tiny")
	p.click("Create")
	p.sees("The sandbox runs")
	d.Shows(p.t, "of-tiny", "cat /srv/tiny", "tiny")
	p.click("Templates")
	p.click("More actions on tiny")
	p.click("Build anew")
	p.waitFor(`document.querySelector("dialog .badge")?.innerText === "ready"`)
	p.click("Close")
	p.waitFor(row("tiny") + `.cells[2].innerText === "2"`)
	p.click("Log")
	p.sees("Build of tiny")
	p.click("Close")
	p.click("More actions on tiny")
	p.click("Delete…")
	p.sees("All its versions go")
	p.click("Delete")
	p.sees("Deleted")
	list := need[*sandbox.List[sandbox.Template]](p.t)(d.Client.ListTemplates(p.t.Context(), sandbox.Page{}))
	for _, t := range list.Items {
		if t.Name == "tiny" {
			p.t.Errorf("the template is there: %+v", t)
		}
	}
	need[*sandbox.Sandbox](p.t)(d.Client.Kill(p.t.Context(), "of-tiny"))
}

// compareActions runs a command in a sandbox and its fork, and tries commands in forks.
func compareActions(p *tab, d *covetest.Daemon, id string) {
	fork := sandboxNamed(p.t, d.Client, func(s sandbox.Sandbox) bool { return s.Name == "idea-1" })
	d.Sh(p.t, fork.ID, "echo idea > idea.txt")
	p.visit("/compare?a=" + id + "&b=" + fork.ID)
	p.sees("idea.txt")
	p.click("Swap the two")
	p.sees("What leads from idea-1 to acts")
	p.click("Side by side")
	p.fill("Command for all", "echo $((6*7))-$(ls | grep -c idea.txt)")
	p.waitFor(`(() => { const b = document.querySelector(".run-line button[type=submit]"); b?.click(); return b?.innerText === "Run in 2" })()`)
	p.sees("42-1")
	p.sees("42-0")
	p.click("What each changed")
	p.waitFor(`[...document.querySelectorAll(".siblings .card")].some((e) => e.innerText.includes("/workspace/idea.txt"))`)
	p.accessible("side by side")

	p.visit("/compare?tab=try&a=" + fork.ID)
	p.fill("Commands to try in forks of idea-1, one a line", "echo first-$((6*7)) > result; cat result\nfalse")
	p.fill("Merge back", "first_success")
	p.fill("Of the others, keep", "none")
	p.eval(`document.querySelector(".try-form button[type=submit]").click()`, nil)
	p.sees("first-42")
	p.sees("merged")
	p.sees("exit 1")
	p.accessible("attempts")
	if got := d.Sh(p.t, fork.ID, "cat result"); got != "first-42\n" {
		p.t.Errorf("what was merged is %q", got)
	}
}

// connectPage shows each client's lines, with the key that is typed in.
func connectPage(p *tab) {
	p.visit("/connect")
	for _, client := range []struct{ name, says string }{
		{"Claude Code", "claude mcp add cove"}, {"Cursor", `"mcpServers"`}, {"VS Code", `"servers"`},
		{"Codex", "[mcp_servers.cove]"}, {"Claude Desktop", `"mcpServers"`}, {"Windsurf", `"serverUrl"`},
	} {
		p.click(client.name)
		p.waitFor(`document.querySelector("[role=tabpanel]").ariaLabel === ` + quote(client.name) + ` && document.querySelector("[role=tabpanel]").innerText.includes(` + quote(client.says) + `)`)
	}
	p.fill("API key", "cove_typed")
	p.sees("Bearer cove_typed")
	p.click("Make a key")
	p.sees("Browsers that are signed in")
}

// palette goes to pages and changes colours by the command palette, and by the buttons
// beside the navigation.
func palette(p *tab, id string) {
	p.visit("/s/" + id + "/history")
	find := func(text string) {
		p.t.Helper()
		p.click("Command palette")
		p.fill("Search sandboxes and commands", text)
		p.waitFor(`(() => { const o = document.querySelector("dialog.palette [role=option]"); const is = o?.innerText.includes(` + quote(text) + `); if (is) o.click(); return is })()`)
	}
	find("acts: files")
	p.waitFor(`location.pathname.endsWith("/files")`)
	find("Go to Volumes")
	p.waitFor(`location.pathname === "/console/volumes"`)
	find("Use dark colours")
	p.waitFor(`document.documentElement.dataset.theme === "dark"`)
	p.click("Use light colours")
	p.waitFor(`document.documentElement.dataset.theme === "light"`)
	find("Use the system's colours")
	find("acts")
	p.waitFor(`location.pathname.startsWith("/console/s/")`)
	p.click("Pause")
	p.sees("Paused")
	p.click("Resume")
	p.sees("Resumed")
	// A recent call can be copied in each form.
	p.click("Recent calls")
	var text string
	p.eval(`document.querySelector("dialog[open]").innerText`, &text)
	if !strings.Contains(text, "curl") {
		p.t.Errorf("recent calls say %q", text)
	}
	p.click("Close")
}
