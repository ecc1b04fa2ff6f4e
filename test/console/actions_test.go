package console

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// Every action of every page is done in a browser, with its button or form, and another client
// checks the effect. Tests of a page itself rather than of its actions are in TestConsole. In
// "make test", TestConsole has a few of them.
func TestMoreActions(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		loseVolume(t, d)
		chrome := browser(t)
		p := signIn(t, d, chrome)
		part := func(name string, f func()) {
			t.Run(name, func(t *testing.T) {
				p.t = t
				f()
			})
		}
		var id string
		part("orphans", func() { orphans(p, d) })
		part("create", func() { id = create(p, d) })
		part("snapshots", func() { snapshotsOf(p, d, id) })
		part("fork and pause", func() { forkAndPause(p, d, id) })
		part("settings", func() { settings(p, d, id) })
		part("secrets", func() { secrets(p, d, id) })
		part("jobs", func() { jobs(p, d, id) })
		part("terminal", func() { terminals(p, d, id) })
		part("code", func() { cells(p, d, id) })
		part("files", func() { fileActions(p, d, id) })
		part("downloads", func() { downloads(p, d, id) })
		part("late parts", func() { lateParts(p, d, id) })
		part("network", func() { policyActions(p, d, id) })
		part("previews", func() { previews(p, d, id) })
		part("metrics", func() { metrics(p, d, id) })
		part("volumes", func() { volumeActions(p, d) })
		part("templates", func() { templateActions(p, d) })
		part("compare", func() { compareActions(p, d, id) })
		part("connect", func() { connectPage(p) })
		part("palette and theme", func() { palette(p, id) })
		part("keys", func() { keys(p, d, chrome) })
		part("keyboard", func() { keyboard(p, d) })
		part("audit", func() { audit(p, d, id) })
		part("kill", func() { killIt(p, d, id) })
		part("every action", func() { everyAction(p.t) })
	}, "--listen", "127.0.0.1:0")
}

// need ends the test with an error.
func need[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// box returns the current record of a sandbox.
func (p *tab) box(d *covetest.Daemon, id string) *sandbox.Sandbox {
	p.t.Helper()
	return need[*sandbox.Sandbox](p.t)(d.Client.Get(p.t.Context(), id))
}

// press clicks with the pointer: what only a person may do, such as open a tab, a script
// may not.
func (p *tab) press(name string) {
	p.t.Helper()
	var at struct{ X, Y float64 }
	find := fmt.Sprintf(`[...document.querySelectorAll("button, a")].find((e) => [e.ariaLabel, e.innerText.trim()].includes(%s) && e.checkVisibility() && !e.disabled)`, quote(name))
	p.waitFor(`!!` + find)
	p.eval(`(() => { const r = `+find+`.getBoundingClientRect(); return {X: r.x + r.width / 2, Y: r.y + r.height / 2} })()`, &at)
	for _, kind := range []input.MouseType{input.MousePressed, input.MouseReleased} {
		p.run(input.DispatchMouseEvent(kind, at.X, at.Y).WithButton(input.Left).WithClickCount(1))
	}
}

// tick ticks the box with this text beside it, or removes the tick.
func (p *tab) tick(text string) {
	p.t.Helper()
	p.waitFor(fmt.Sprintf(`(() => {
		const scope = document.querySelector("dialog[open]") ?? document;
		const l = [...scope.querySelectorAll("label.check")].find((e) => e.innerText.includes(%s));
		l?.querySelector("input").click();
		return !!l;
	})()`, quote(text)))
}

// gone waits until no page text says it any more.
func (p *tab) gone(text string) {
	p.t.Helper()
	p.waitFor(`!document.body.innerText.includes(` + quote(text) + `)`)
}

// row is the row of a table with this text in it.
func row(text string) string {
	return `[...document.querySelectorAll("main tbody tr")].find((e) => e.innerText.includes(` + quote(text) + `))`
}

// loseVolume gives the daemon a database of before a volume was made, so that the volume
// is one without a record.
func loseVolume(t *testing.T, d *covetest.Daemon) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	database := filepath.Join(d.StateDir, "cove.db")
	must(d.Stop())
	older, err := os.ReadFile(database)
	must(err)
	must(d.Run(t.Context()))
	_, err = d.Client.CreateVolume(t.Context(), sandbox.CreateVolumeRequest{Name: "lost"})
	must(err)
	s := d.Create(t, sandbox.CreateRequest{Mounts: []sandbox.Mount{{Target: "/data", Volume: "lost"}}})
	_, err = d.Exec(t.Context(), s.ID, sandbox.ExecRequest{Shell: "echo precious > /data/file", User: "root"})
	must(err)
	_, err = d.Client.Kill(t.Context(), s.ID)
	must(err)
	must(d.Stop())
	for _, name := range []string{"-wal", "-shm"} {
		_ = os.Remove(database + name) // there may be none
	}
	must(os.WriteFile(database, older, 0o600))
	must(d.Run(t.Context()))
}

// orphans recovers an orphan.
func orphans(p *tab, d *covetest.Daemon) {
	p.visit("/server")
	p.sees("lost")
	p.click("Bring back")
	p.sees("It is back")
	p.sees("Nothing was found on disk")
	if list := need[*sandbox.List[sandbox.Volume]](p.t)(d.Client.ListVolumes(p.t.Context(), sandbox.Page{})); len(list.Items) != 1 || list.Items[0].Name != "lost" {
		p.t.Errorf("the volumes are %+v", list.Items)
	}
}

// create makes a sandbox with the dialog, and returns its id.
func create(p *tab, d *covetest.Daemon) string {
	p.visit("/")
	p.click("New sandbox…")
	p.waitFor(`!!document.querySelector("dialog option[value='template host']")`)
	p.fill("Name", "acts")
	p.fill("Begin with", "template host")
	p.fill("Network", "none")
	p.click("Limits and history")
	p.fill("Memory, MiB", "512")
	p.fill("vCPUs", "1")
	p.fill("Lifetime, seconds", "3600")
	p.fill("History, steps", "3")
	p.accessible("new sandbox")
	p.click("Create")
	p.waitFor(`location.pathname.startsWith("/console/s/sbx-")`)
	var id string
	p.eval(`location.pathname.split("/")[3]`, &id)
	s := p.box(d, id)
	if s.Name != "acts" || s.Template != "host" || s.Network.Preset != sandbox.NetworkNone || s.Resources.MemoryMiB != 512 || s.Resources.VCPUs != 1 || s.LifetimeSeconds != 3600 || s.History != 3 {
		p.t.Errorf("the sandbox is %+v", s)
	}
	return id
}

// snapshotsOf takes a snapshot, goes back to it, makes a sandbox of it, and deletes it.
func snapshotsOf(p *tab, d *covetest.Daemon, id string) {
	p.visit("/s/" + id + "/history")
	p.click("Snapshot")
	p.fill("Name", "ready")
	p.fill("Label", "before the work")
	p.accessible("new snapshot")
	p.click("Keep")
	p.sees("The snapshot is kept")
	p.sees("before the work")
	d.Sh(p.t, id, "echo later > later.txt")
	p.waitFor(`(() => { const b = [...document.querySelectorAll(".timeline li")].find((e) => e.innerText.includes("ready"))?.querySelector("button"); b?.click(); return !!b })()`)
	p.sees("It goes back to ready")
	p.accessible("restore")
	p.click("Restore")
	p.sees("Restored")
	if got := d.Sh(p.t, id, "ls later.txt 2>&1 || true"); !strings.Contains(got, "No such file") {
		p.t.Errorf("what was done since the snapshot is there: %s", got)
	}
	p.click("More actions on ready")
	p.click("New sandbox from here…")
	p.fill("Name", "second")
	p.click("Create")
	p.sees("The sandbox runs")
	second := sandboxNamed(p.t, d.Client, func(s sandbox.Sandbox) bool { return s.Name == "second" })
	if second.Snapshot == "" {
		p.t.Errorf("the sandbox is %+v", second)
	}
	p.visit("/s/" + second.ID + "/history")
	p.click("Keep a history")
	p.sees("A step is kept before each command")
	p.visit("/s/" + id + "/history")
	p.click("More actions on ready")
	p.click("What changed since")
	p.sees("What leads from ready to acts")
	p.visit("/s/" + id + "/history")
	p.click("More actions on ready")
	p.click("Delete…")
	p.sees("Sandboxes made from it are unharmed")
	p.click("Delete")
	p.gone("before the work")
	list := need[*sandbox.List[sandbox.Snapshot]](p.t)(d.Client.ListSnapshots(p.t.Context(), sandbox.ListSnapshotsRequest{}))
	for _, x := range list.Items {
		if x.Name == "ready" {
			p.t.Errorf("the snapshot is there: %+v", x)
		}
	}
}

// forkAndPause forks a sandbox, pauses it and resumes it, also in the list next to the
// tree.
func forkAndPause(p *tab, d *covetest.Daemon, id string) {
	p.visit("/s/" + id + "/history")
	p.click("Fork")
	p.fill("How many", "2")
	p.fill("Name", "idea")
	p.accessible("fork")
	p.click("Fork")
	p.sees("2 forks of acts")
	fork := sandboxNamed(p.t, d.Client, func(s sandbox.Sandbox) bool { return s.Name == "idea-1" })
	if fork.ForkedFrom != id {
		p.t.Errorf("the fork is %+v", fork)
	}
	p.click("Pause")
	p.sees("Paused")
	p.click("Files")
	p.sees("The sandbox is paused")
	if s := p.box(d, id); s.State != sandbox.StatePaused {
		p.t.Errorf("the sandbox is %s", s.State)
	}
	p.accessible("a paused sandbox")
	p.click("Resume")
	p.sees("Resumed")
	p.sees("Nothing is here")
	if s := p.box(d, id); s.State != sandbox.StateRunning {
		p.t.Errorf("the sandbox is %s", s.State)
	}

	p.visit("/")
	p.waitFor(`(() => { const r = [...document.querySelectorAll(".tree-row")].find((e) => e.querySelector(".name").textContent === "idea-0"); r?.click(); return !!r })()`)
	p.accessible("a sandbox beside the tree")
	inPanel := func(name string) {
		p.t.Helper()
		p.waitFor(`(() => { const b = [...document.querySelectorAll(".panel button")].find((e) => [e.ariaLabel, e.innerText.trim()].includes(` + quote(name) + `)); b?.click(); return !!b })()`)
	}
	inPanel("Pause")
	p.waitFor(`document.querySelector(".panel .badge").innerText === "paused"`)
	inPanel("Resume")
	p.waitFor(`document.querySelector(".panel .badge").innerText === "running"`)
	inPanel("acts")
	p.waitFor(`document.querySelector(".panel h2").innerText === "acts"`)
	inPanel("Fork")
	p.fill("Name", "third")
	p.click("Fork")
	p.sees("1 fork of acts")
	inPanel("Snapshot")
	p.fill("What is kept", "files")
	p.click("Keep")
	p.sees("The snapshot is kept")
	inPanel("Close")
	p.waitFor(`!document.querySelector(".panel")`)
	for _, name := range []string{"third", "idea-0"} {
		p.waitFor(`(() => { const r = [...document.querySelectorAll(".tree-row")].find((e) => e.querySelector(".name").textContent === ` + quote(name) + `); r?.click(); return document.querySelector(".panel h2")?.innerText === ` + quote(name) + ` })()`)
		inPanel("More actions")
		p.click("Kill…")
		p.sees("Its processes end, and its files are removed")
		p.click("Kill")
		p.waitFor(`document.querySelector(".panel .badge").innerText === "killed"`)
	}
}

// settings changes a sandbox's name, limits, lifetime and metadata.
func settings(p *tab, d *covetest.Daemon, id string) {
	p.visit("/s/" + id + "/settings")
	// Save is disabled while it works, too: nothing is left to discard only after it.
	const saved = `![...document.querySelectorAll("main form button")].some((e) => e.innerText === "Discard")`
	p.fill("Name", "never")
	p.click("Discard")
	p.waitFor(saved + ` && [...document.querySelectorAll("main input")][0].value === "acts"`)
	p.fill("Name", "renamed")
	p.fill("At the end of its time", "pause")
	p.fill("Lifetime, seconds", "7200")
	p.fill("Idle timeout, seconds", "1800")
	p.fill("Memory, MiB", "640")
	p.fill("Processes and threads", "200")
	p.click("Pair")
	p.fill("Key 1", "purpose")
	p.fill("Value 1", "demo")
	p.accessible("changed settings")
	p.click("Save")
	p.sees("The settings hold now")
	p.waitFor(saved)
	s := p.box(d, id)
	if s.Name != "renamed" || s.OnTimeout != sandbox.ActionPause || s.LifetimeSeconds != 7200 || s.IdleTimeoutSeconds != 1800 || s.Resources.MemoryMiB != 640 || s.Resources.MaxPIDs != 200 || s.Metadata["purpose"] != "demo" {
		p.t.Errorf("the sandbox is %+v", s)
	}
	// Lists show the sandbox, and an error of the server is shown.
	p.visit("/")
	p.fill("Search sandboxes", "purpose:demo")
	p.waitFor(`[...document.querySelectorAll(".tree-row .name")].map((e) => e.textContent).join() === "renamed"`)
	p.visit("/s/" + id + "/settings")
	p.fill("Name", "No Name!")
	p.click("Save")
	p.waitFor(`[...document.querySelectorAll(".toast.error")].some((e) => e.innerText.includes("name"))`)
	p.click("Discard")
	p.fill("Name", "acts")
	p.click("Remove purpose")
	p.click("Save")
	p.waitFor(saved)
	if s := p.box(d, id); s.Name != "acts" || len(s.Metadata) != 0 {
		p.t.Errorf("the sandbox is %+v", s)
	}
}

// killIt ends a sandbox on its page.
func killIt(p *tab, d *covetest.Daemon, id string) {
	p.visit("/s/" + id + "/settings")
	p.click("Kill…")
	p.click("Kill")
	p.sees("Killed")
	p.click("Files")
	p.sees("The sandbox has ended")
	p.accessible("an ended sandbox")
	if s := p.box(d, id); s.State != sandbox.StateKilled {
		p.t.Errorf("the sandbox is %s", s.State)
	}
}
