package console

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// The first steps of somebody who has just installed Cove: sign in, make a sandbox with one
// click, use it, fork it, see what differs, and merge.
func TestConsole(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		chrome := browser(t)
		p := signIn(t, d, chrome)
		part := func(name string, f func()) {
			t.Run(name, func(t *testing.T) {
				p.t = t
				f()
			})
		}
		// more is what "make test" leaves out, and soaked what "make test-all" leaves out too;
		// TestMoreActions has the same actions, more briefly.
		more := func(name string, f func()) {
			if needs.More() {
				part(name, f)
			}
		}
		soaked := func(name string, f func()) {
			if needs.Soak() {
				part(name, f)
			}
		}

		part("first start", func() {
			p.sees("Sandboxes that fork")
			p.accessible("first start")
			p.picture("first")
			p.click("Show me")
			p.waitFor(`document.querySelectorAll(".steps .done").length === 4`)
			p.sees("42")
			p.sees("forks try, the parent keeps")
		})
		parent := sandboxNamed(t, d.Client, func(s sandbox.Sandbox) bool { return s.ForkedFrom == "" })
		fork := sandboxNamed(t, d.Client, func(s sandbox.Sandbox) bool { return s.ForkedFrom == parent.ID })

		part("terminal", func() { terminal(p, parent.ID) })
		soaked("two terminals", func() { secondTerminal(p, d, parent.ID) })
		soaked("terminal's size", func() { resizedTerminal(p, d, parent.ID) })
		soaked("copy from a terminal", func() { copiedFromTerminal(p) })
		soaked("link in a terminal", func() { linkInTerminal(p) })
		part("hostile terminal", func() { hostileTerminal(p) })
		soaked("flood without end", func() { floodWithoutEnd(p, d, parent.ID) })
		part("files", func() { files(p, d, parent.ID) })
		soaked("code", func() { code(p, d, parent.ID) })
		more("network", func() { networkLog(p, d, parent.ID) })
		part("compare and merge", func() { merge(p, d, parent, fork) })
		soaked("attempts", func() { attempts(p, d) })
		soaked("two browsers", func() { twoBrowsers(p.t, d, chrome, parent.ID) })
		part("approvals", func() { approvals(p, d) })
		soaked("server", func() { serverPage(p, d) })
		soaked("template", func() { buildTemplate(p, d) })
		soaked("volumes", func() { volumes(p) })
		part("hostile names", func() { hostileNames(p, d) })
		soaked("long output", func() { longOutput(p, d, parent.ID) })
		more("read-only key", func() { readOnly(signInWith(p.t, d, chrome, sandbox.ScopeSandboxesRead), d, parent.ID) })
		soaked("turns in the tree", func() { turns(p, d) })
		more("every page", func() { everyPage(p, parent.ID) })
		soaked("webhooks", func() { webhooks(p, d) })
		soaked("bad network", func() { badNetwork(p.t, d, chrome, parent.ID) })
		soaked("server restarts", func() {
			p.visit("/approvals")
			p.sees("Nothing is asked")
			p.click("Sandboxes")
			p.sees(parent.Name)
			if err := d.Stop(); err != nil {
				p.t.Fatal(err)
			}
			p.sees("Reconnecting")
			p.click("Approvals")
			p.sees("The console tries again by itself")
			if err := d.Run(p.t.Context()); err != nil {
				p.t.Fatal(err)
			}
			p.waitFor(`!document.body.innerText.includes("Reconnecting")`)
			p.waitFor(`!document.body.innerText.includes("tries again")`)
			p.click("Sandboxes")
			p.sees(parent.Name)
			writes := jobOutput(p, d, parent.ID, "restart")
			writes("before")
			p.waitFor(outputIs("before\n"))
			if err := errors.Join(d.Stop(), d.Run(p.t.Context())); err != nil {
				p.t.Fatal(err)
			}
			writes("after")
			p.waitFor(outputIs("before\nafter\n"))
			// The terminal still has the same shell, and input reaches it again.
			p.visit("/s/" + parent.ID + "/terminal")
			p.sees("Connected")
			p.waitFor(prompted)
			p.types("clear; restarted=kept; echo r-$((1+1))", true)
			p.waitFor(said("r-2"))
			if err := d.Stop(); err != nil {
				p.t.Fatal(err)
			}
			p.sees("Reconnecting to the same shell")
			if err := d.Run(p.t.Context()); err != nil {
				p.t.Fatal(err)
			}
			p.sees("Connected")
			p.types("echo $restarted-still", true)
			p.waitFor(said("kept-still"))
			var times int
			p.eval(`document.querySelector(".xterm-rows").innerText.split("r-2").length - 1`, &times)
			if times != 1 {
				p.t.Errorf("what was written before is shown %d times", times)
			}
		})
		part("sign out", func() {
			p.click("Sign out")
			p.sees("Sign in to Cove")
			var status int
			p.eval(`fetch("/v1/sandboxes", {headers: {"Cove-Console": "1"}}).then((r) => r.status)`, &status)
			if status != 401 {
				p.t.Errorf("the server answers %d after signing out", status)
			}
		})
		if needs.More() {
			t.Run("every action", everyAction)
		}
	}, "--listen", "127.0.0.1:0", "--webhooks-allow-private")
}

// said is true when a line of the terminal is text.
func said(text string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".xterm-rows > div")].some((r) => r.textContent.trim() === %s)`, quote(text))
}

// prompted is true when a shell shows its prompt in the terminal; earlier input may be lost.
const prompted = `[...document.querySelectorAll(".xterm-rows > div")].some((r) => r.textContent.trim().endsWith("$"))`

func terminal(p *tab, id string) {
	p.visit("/s/" + id + "/terminal")
	p.sees("Connected")
	p.waitFor(prompted)
	p.types("echo $((6*7))-term", true)
	p.waitFor(said("42-term"))
	p.picture("terminal")
	// After a reload of the page, the shell is the same.
	p.types("mine=kept; echo s-$((1+1))", true)
	p.waitFor(said("s-2"))
	p.visit("/s/" + id + "/terminal")
	p.sees("Connected")
	p.waitFor(said("42-term"))
	p.types("echo $mine-still", true)
	p.waitFor(said("kept-still"))
	p.accessible("terminal")
}

func files(p *tab, d *covetest.Daemon, id string) {
	p.visit("/s/" + id + "/files")
	p.waitFor(`(() => { const f = [...document.querySelectorAll(".file")].find((e) => e.innerText.includes("answer.py")); f?.click(); return !!f })()`)
	p.waitFor(`document.querySelector(".cm-content")?.innerText.includes("print(6 * 7)")`)
	p.run(chromedp.Focus(".files-main .cm-content"))
	p.types("# mine\n", false)
	p.sees("changed")
	p.click("Save")
	p.sees("is saved")
	if got := d.Sh(p.t, id, "cat answer.py"); !strings.Contains(got, "# mine") {
		p.t.Errorf("the file is %q", got)
	}
	p.accessible("files")
	dropFolders(p, d, id)
	p.click("Changed since…")
	p.sees("/workspace/answer.py")
	p.waitFor(`document.querySelectorAll(".cm-mergeViewEditor").length === 2`)
	p.accessible("changes")
}

// dropFolders drops a folder on the files, which is uploaded with all its contents, and one
// that is too large, of which nothing is uploaded.
func dropFolders(p *tab, d *covetest.Daemon, id string) {
	write := func(path string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			p.t.Fatal(err)
		}
	}
	dir := filepath.Join(p.t.TempDir(), "dropped")
	write(filepath.Join(dir, "deep/file.txt"))
	if err := os.MkdirAll(filepath.Join(dir, "none/at-all"), 0o755); err != nil {
		p.t.Fatal(err)
	}
	p.drop(dir)
	p.sees("1 file sent to /workspace")
	if got := d.Sh(p.t, id, "find dropped | sort"); got != "dropped\ndropped/deep\ndropped/deep/file.txt\ndropped/none\ndropped/none/at-all\n" {
		p.t.Errorf("of the folder came %q", got)
	}
	large := filepath.Join(p.t.TempDir(), "large")
	for i := range 2001 {
		write(filepath.Join(large, strconv.Itoa(i)))
	}
	p.drop(large)
	p.sees("more than 2,000 files are too many")
	if got := d.Sh(p.t, id, "ls -d large 2>&1 || true; rm -r dropped"); !strings.Contains(got, "No such file") {
		p.t.Errorf("of a folder that is too large there is %q", got)
	}
}

// attack is a page that tries to reach the console and the server, and reports by its height
// what it has found.
const attack = `<p>hello</p><script>(async () => {
  let found = "";
  try { found += parent.document.title } catch { found += "no parent" }
  try { found += (await fetch("URL/v1/sandboxes", {credentials: "include"})).status } catch { found += ", no server" }
  try { found += localStorage.length } catch { found += ", no storage" }
  document.querySelector("p").style.height = found === "no parent, no server, no storage" ? "333px" : "77px";
})()</script>`

// code runs code whose result is a page with a script: it runs in the frame, and reaches
// neither the console nor the server.
func code(p *tab, d *covetest.Daemon, id string) {
	p.visit("/s/" + id + "/code")
	p.waitFor(`!!document.querySelector(".cell .cm-content")`)
	p.run(chromedp.Focus(".cell .cm-content"))
	p.types(`page = """`+strings.ReplaceAll(attack, "URL", p.url)+`"""
type("Page", (), {"_repr_html_": lambda self: page})()`, false)
	p.click("Run")
	// The script reports by the frame's height what it found.
	p.waitFor(`parseInt(document.querySelector("iframe.rich-frame")?.style.height) > 300`)
	var frame string
	p.eval(`document.querySelector("iframe.rich-frame").getAttribute("sandbox")`, &frame)
	if frame != "allow-scripts" {
		p.t.Errorf("the frame may %q", frame)
	}
	p.accessible("code")
	svgOutput(p)
	// A cell continues while another part of the sandbox is shown.
	runCell(p, 2, `import os, time; [time.sleep(0.05) for _ in iter(lambda: os.path.exists("/tmp/go"), True)]; print("went " + "on")`)
	p.waitFor(`!!document.querySelector(".cell.running")`)
	p.click("Metrics")
	p.waitFor(`!document.querySelector(".notebook")`)
	d.Sh(p.t, id, "touch /tmp/go")
	p.click("Code")
	p.sees("went on")
	p.waitFor(`!document.querySelector(".cell.running")`)
}

// runCell puts code into the last cell of a notebook, which is number n from 0, and runs it.
func runCell(p *tab, n int, code string) {
	p.t.Helper()
	p.waitFor(fmt.Sprintf(`document.querySelectorAll(".cell .cm-content").length === %d`, n+1))
	p.eval(fmt.Sprintf(`document.querySelectorAll(".cell .cm-content")[%d].focus()`, n), nil)
	p.types(code, false)
	p.eval(fmt.Sprintf(`document.querySelectorAll(".cell")[%d].querySelector("[aria-label=Run]").click()`, n), nil)
}

func networkLog(p *tab, d *covetest.Daemon, id string) {
	if _, err := d.Client.SetNetwork(p.t.Context(), id, sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}); err != nil {
		p.t.Fatal(err)
	}
	p.visit("/s/" + id + "/network")
	p.sees("Live")
	d.Sh(p.t, id, "getent hosts refused.example || true")
	p.sees("refused.example")
	p.accessible("network")
	p.picture("network")
	p.click("Allow this name")
	p.sees("may be reached")
	policy, err := d.Client.GetNetwork(p.t.Context(), id)
	if err != nil {
		p.t.Fatal(err)
	}
	if len(policy.Rules) != 1 || policy.Rules[0].To != "refused.example" {
		p.t.Errorf("the policy is %+v", policy)
	}
}

// volumes makes a volume from an empty list, and deletes it.
func volumes(p *tab) {
	p.visit("/volumes")
	p.sees("There is no volume")
	p.click("New volume")
	p.fill("Name", "data")
	p.accessible("new volume")
	p.click("Create")
	p.waitFor(`!document.querySelector("dialog") && document.querySelector("main tbody tr")?.innerText.includes("data")`)
	p.click("Delete the volume data")
	p.sees("Its files are gone then")
	p.click("Delete")
	p.sees("There is no volume")
}

func readOnly(p *tab, d *covetest.Daemon, id string) {
	p.visit("/")
	p.waitFor(`!!document.querySelector(".tree-row")`)
	var off []string
	p.eval(`[...document.querySelectorAll(".bar .btn.primary")].filter((b) => b.disabled).map((b) => b.title)`, &off)
	if len(off) != 1 || !strings.Contains(off[0], "sandboxes:write") {
		p.t.Errorf("New sandbox is not refused with the reason: %q", off)
	}
	p.visit("/s/" + id + "/settings")
	p.waitFor(`!!document.querySelector(".content .card")`)
	var on []string
	p.eval(`[...document.querySelectorAll(".page .btn")].filter((b) => !b.disabled && /Fork|Save|Kill|Attach|Snapshot|Pause/.test(b.innerText + b.ariaLabel)).map((b) => b.innerText || b.ariaLabel)`, &on)
	if len(on) > 0 {
		p.t.Errorf("a key that may only read is offered %q", on)
	}
	var status int
	p.eval(`fetch("/v1/sandboxes/`+id+`", {method: "DELETE", headers: {"Cove-Console": "1"}}).then((r) => r.status)`, &status)
	if status != 403 {
		p.t.Errorf("the server answers %d", status)
	}
	if _, err := d.Client.Get(p.t.Context(), id); err != nil {
		p.t.Error(err)
	}
}

// everyPage looks at each page in light, in dark, and on a telephone.
func everyPage(p *tab, id string) {
	pages, parts := pagesOf(p.t)
	for _, part := range parts {
		if part != "screen" { // which TestMoreComputer has
			pages = append(pages, "/s/"+id+"/"+part)
		}
	}
	for _, path := range pages {
		p.look("light", 1440, 860)
		p.visit(path)
		p.waitFor(`!!document.querySelector("main .bar") && !document.querySelector("main .loading")`)
		p.accessible(path + ", light")
		p.look("dark", 1440, 860)
		p.accessible(path + ", dark")
		p.look("dark", 390, 844)
		p.accessible(path + ", dark, on a telephone")
		p.look("light", 390, 844)
		p.accessible(path + ", light, on a telephone")
		p.fits(path)
	}
	p.look("dark", 1280, 720)
	p.visit("/")
	p.waitFor(`document.querySelectorAll(".tree-row").length > 1`)
	p.picture("tree-dark")
	p.look("light", 1280, 720)
	p.picture("tree")
	p.look("light", 1440, 860)
}

// The first page is small: what only some pages need is loaded there.
func TestFirstPageIsSmall(t *testing.T) {
	root, err := covetest.Root()
	if err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(root + "/internal/doors/console/dist/index.html")
	if err != nil {
		t.Fatalf("%v; make build builds the console", err)
	}
	total := 0
	for _, part := range strings.Split(string(index), `"`) {
		if name, ok := strings.CutPrefix(part, "/console/assets/"); ok {
			data, err := os.ReadFile(root + "/internal/doors/console/dist/assets/" + name)
			if err != nil {
				t.Fatal(err)
			}
			total += compressed(t, data)
		}
	}
	if total == 0 || total > 250_000 {
		t.Errorf("the first page is %d bytes compressed", total)
	}
}
