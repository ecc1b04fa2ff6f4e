package console

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// jobs runs a command, sends it a signal, and kills a process.
func jobs(p *tab, d *covetest.Daemon, id string) {
	p.visit("/s/" + id + "/jobs")
	p.fill("Command", "echo out-$((6*7)); exec sleep 1001")
	p.click("Run")
	p.waitFor(outputIs("out-42\n"))
	p.accessible("a job")
	p.click("Close the output")
	p.waitFor(`!document.querySelector(".job-output")`)
	p.click("Signals")
	p.accessible("a menu")
	p.click("Send TERM")
	p.sees("TERM is sent")
	p.waitFor(row("out-$((6*7))") + `.innerText.includes("exited")`)

	job := need[*sandbox.Job](p.t)(d.Client.Exec(p.t.Context(), id, sandbox.ExecRequest{Shell: "exec sleep 1002", Background: true}, nil))
	const process = `[...document.querySelectorAll("section")].at(-1)`
	p.waitFor(process + `.innerText.includes("sleep 1002")`)
	var pid string
	p.eval(`[...`+process+`.querySelectorAll("tr")].find((e) => e.innerText.includes("sleep 1002")).cells[0].innerText`, &pid)
	p.click("Signals for process " + pid)
	p.click("Send KILL")
	p.sees("Kill process " + pid)
	p.click("Kill")
	p.sees("Killed")
	p.waitFor(`!` + process + `.innerText.includes("sleep 1002")`)
	if !covetest.Eventually(covetest.DetectionLimit, func() bool { // the process has left the list already
		job = need[*sandbox.Job](p.t)(d.Client.GetJob(p.t.Context(), id, job.ID))
		return job.State != sandbox.JobRunning
	}) {
		p.t.Errorf("the job is %+v", job)
	}
}

// terminals opens two, gives one another size, and ends it.
func terminals(p *tab, d *covetest.Daemon, id string) {
	p.visit("/s/" + id + "/terminal")
	p.sees("Connected")
	p.waitFor(prompted)
	p.types("stty size | tr ' ' x", true)
	p.waitFor(`[...document.querySelectorAll(".xterm-rows > div")].some((r) => /^\d+x\d+$/.test(r.textContent.trim()))`)
	var before string
	p.eval(`[...document.querySelectorAll(".xterm-rows > div")].map((r) => r.textContent.trim()).find((r) => /^\d+x\d+$/.test(r))`, &before)
	p.look("light", 1000, 700)
	p.types("until [ $(stty size | tr ' ' x) != "+before+" ]; do :; done; echo another-$((6*7))", true)
	p.waitFor(said("another-42"))
	p.types("exit", true)
	p.sees("The shell has ended")
	p.look("light", 1440, 860)
}

// cells runs code of several languages, interrupts it, and has a new interpreter.
func cells(p *tab, d *covetest.Daemon, id string) {
	p.visit("/s/" + id + "/code")
	p.waitFor(`!!document.querySelector(".cell .cm-content")`)
	p.fill("Language", "bash")
	runCell(p, 0, "x=kept; echo one-$((6*7))")
	p.sees("one-42")
	runCell(p, 1, "echo begun-$x; sleep 1003")
	p.sees("begun-kept")
	p.click("Interrupt")
	p.waitFor(`!document.querySelector(".cell.running")`)
	p.click("1 interpreter")
	p.waitFor(`(() => { const b = [...document.querySelectorAll("[role=menuitem]")].find((e) => e.innerText.startsWith("Restart bash/default")); b?.click(); return !!b })()`)
	p.sees("The interpreter is a new one")
	// Cells of each kind can be added, and a cell can be removed.
	p.eval(`[...document.querySelectorAll("[aria-label='Remove the cell']")][1].click()`, nil)
	p.click("Cell")
	p.waitFor(`document.querySelectorAll(".cell .cm-content").length === 3`)
	p.eval(`document.querySelectorAll(".cell .cm-content")[2].focus()`, nil)
	p.types("echo all-$x", false)
	p.click("Run all")
	p.sees("all-kept")
	if got := d.Sh(p.t, id, "pgrep -f '[s]leep 1003' || true"); got != "" {
		p.t.Errorf("what was interrupted goes on as %s", got)
	}
}

// drop drops a file or a folder of this machine on the page.
func (p *tab) drop(path string) {
	p.t.Helper()
	data := &input.DragData{Items: []*input.DragDataItem{}, Files: []string{path}, DragOperationsMask: 1}
	for _, kind := range []input.DispatchDragEventType{input.DragEnter, input.DragOver, input.Drop} {
		p.run(input.DispatchDragEvent(kind, 900, 500, data))
	}
}

// dot is a picture of 3 × 2 pixels, as PNG.
const dot = "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAEklEQVR4nGP4z8AARAwQCkIBAB7uBPz8Zf3KAAAAAElFTkSuQmCC"

// choose clicks a file in the list.
func (p *tab) choose(name string) {
	p.t.Helper()
	p.waitFor(`(() => { const f = [...document.querySelectorAll(".file")].find((e) => e.querySelector("bdi").textContent === ` + quote(name) + `); f?.click(); return !!f })()`)
}

// fileActions makes, sends, renames and deletes files, and looks at a picture.
func fileActions(p *tab, d *covetest.Daemon, id string) {
	dir := p.t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			p.t.Fatal(err)
		}
		return path
	}
	p.visit("/s/" + id + "/files")
	p.sees("Nothing is here")
	p.drop(write("dropped.txt", "dropped"))
	p.sees("1 file sent to /workspace")
	p.run(chromedp.SetUploadFiles(`input[type=file]`, []string{write("picked.txt", "picked")}, chromedp.ByQuery))
	p.choose("picked.txt")
	p.waitFor(`document.querySelector(".cm-content")?.innerText.includes("picked")`)
	p.click("More actions on this file")
	p.click("Rename…")
	p.fill("Path", "/workspace/renamed.txt")
	p.click("Rename")
	p.choose("renamed.txt")
	p.click("More actions on this file")
	p.click("Delete…")
	p.sees("The file is gone then")
	p.click("Delete")
	p.sees("Deleted")
	p.click("More actions on files")
	p.click("New folder…")
	p.fill("Path", "/workspace/made")
	p.click("New folder")
	p.choose("made")
	p.sees("A directory. It can be downloaded as a ZIP file.")
	p.click("More actions on files")
	p.click("New file…")
	p.fill("Path", "/workspace/made/new.txt")
	p.click("New file")
	p.choose("new.txt")
	p.waitFor(`document.querySelector(".file-head bdi").innerText.endsWith("new.txt") && !!document.querySelector(".files-main .cm-content")`)
	if got := d.Sh(p.t, id, "find . -type f | sort; cat dropped.txt"); got != "./dropped.txt\n./made/new.txt\ndropped" {
		p.t.Errorf("the files are %q", got)
	}

	picture, err := base64.StdEncoding.DecodeString(dot)
	if err != nil {
		p.t.Fatal(err)
	}
	p.drop(write("dot.png", string(picture)))
	p.choose("dot.png")
	p.waitFor(`document.querySelector(".picture img")?.naturalWidth === 3`)
	p.accessible("a picture")
	p.fill("Directory", "/workspace/made")
	p.eval(`document.querySelector("[aria-label=Directory]").form.requestSubmit()`, nil)
	p.waitFor(`[...document.querySelectorAll(".file")].map((e) => e.innerText.trim()).join() === "dot.png,new.txt"`)
	p.click("More actions on files")
	p.click("Up one directory")
	p.waitFor(`document.querySelector("[aria-label=Directory]").value === "/workspace"`)
}

// policyActions changes the network policy of a sandbox.
func policyActions(p *tab, d *covetest.Daemon, id string) {
	policy := func() *sandbox.NetworkPolicy {
		p.t.Helper()
		return need[*sandbox.NetworkPolicy](p.t)(d.Client.GetNetwork(p.t.Context(), id))
	}
	p.visit("/s/" + id + "/network")
	p.sees("Live")
	d.Sh(p.t, id, "getent hosts refused.example; getent hosts other.example || true")
	p.sees("other.example")
	p.click("allowed")
	p.sees("Nothing matches")
	p.click("blocked")
	p.fill("Search the log", "refused")
	p.waitFor(`!document.querySelector(".net-rows").innerText.includes("other.example")`)
	p.click("Allow this name")
	p.sees("refused.example may be reached")
	if got := policy(); len(got.Rules) != 1 || got.Rules[0].To != "refused.example" || got.Rules[0].Action != sandbox.NetworkAllow {
		p.t.Errorf("the policy is %+v", got)
	}
	p.fill("Action", "deny")
	p.fill("What the rule is for", "bad.example")
	p.click("Add the rule")
	p.sees("The rule holds now")
	p.click("Remove the rule for refused.example")
	p.sees("The rule is gone")
	p.fill("Preset: what holds where no rule decides", "packages")
	p.sees("The policy holds now")
	if got := policy(); got.Preset != sandbox.NetworkPackages || len(got.Rules) != 1 || got.Rules[0].To != "bad.example" || got.Rules[0].Action != sandbox.NetworkDeny {
		p.t.Errorf("the policy is %+v", got)
	}
	p.click("Edit as JSON")
	p.accessible("a policy as JSON")
	p.fill("Policy as JSON", "{")
	p.click("Set")
	p.sees("That is no JSON")
	// A form that the server refuses stays open, to be corrected.
	p.fill("Policy as JSON", `{"preset": "nothing"}`)
	p.click("Set")
	p.waitFor(`[...document.querySelectorAll(".toast.error")].some((e) => e.innerText.includes("preset"))`)
	p.fill("Policy as JSON", `{"preset": "none", "allow_out": ["fine.example"]}`)
	p.click("Set")
	p.click("Remove fine.example")
	p.waitFor(`!document.querySelector("[aria-label='Remove fine.example']")`)
	if got := policy(); got.Preset != sandbox.NetworkNone || len(got.Rules)+len(got.AllowOut) != 0 {
		p.t.Errorf("the policy is %+v", got)
	}
}

// previews makes previews of a port, opens a link, and ends them.
func previews(p *tab, d *covetest.Daemon, id string) {
	d.Sh(p.t, id, "mkdir -p site && echo 'the page inside' > site/index.html")
	need[*sandbox.Job](p.t)(d.Client.Exec(p.t.Context(), id, sandbox.ExecRequest{Shell: "cd site && exec python3 -m http.server 8080", Background: true}, nil))
	d.Sh(p.t, id, "until (: < /dev/tcp/127.0.0.1/8080) 2>/dev/null; do sleep 0.1; done")
	clipboard(p)
	p.visit("/s/" + id + "/previews")
	p.sees("No port is shown outside")
	p.click("New preview")
	p.fill("Port", "8080")
	p.accessible("new preview")
	p.click("Create")
	p.sees("The preview is made")
	p.accessible("a preview's key")
	p.click("Done")
	p.sees("private")
	p.press("Open")
	opened(p, "localhost", "the page inside")
	p.press("Link")
	p.sees("The link is copied")
	var link string
	p.eval(`navigator.clipboard.readText()`, &link)
	if got, status := visits(p, link); status != http.StatusOK || !strings.Contains(got, "the page inside") {
		p.t.Errorf("the link %s leads to %d %s", link, status, got)
	}
	p.click("End the preview of port 8080")
	p.sees("Its key and its links end at once")
	p.click("End")
	p.sees("No port is shown outside")
	if got, status := visits(p, link); status == http.StatusOK || strings.Contains(got, "the page inside") {
		p.t.Errorf("after its end the link leads to %d %s", status, got)
	}

	p.click("New preview")
	p.fill("Port", "8080")
	p.tick("Open to everybody")
	p.tick("Resume the sandbox")
	p.click("Create")
	p.sees("public")
	p.sees("wakes")
	list := need[*sandbox.List[sandbox.Preview]](p.t)(d.Client.ListPreviews(p.t.Context(), id, sandbox.Page{}))
	if len(list.Items) != 1 || list.Items[0].Access != sandbox.PreviewPublic || !list.Items[0].Wake {
		p.t.Fatalf("the previews are %+v", list.Items)
	}
	if got, _ := visits(p, list.Items[0].URL); !strings.Contains(got, "the page inside") {
		p.t.Errorf("the public preview says %s", got)
	}
	p.accessible("previews")
}

// opened waits until a tab that the page has opened shows a text, and closes it.
func opened(p *tab, host, text string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	for ctx.Err() == nil {
		all, err := chromedp.Targets(ctx)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, x := range all {
			if !strings.Contains(x.URL, host) {
				continue
			}
			other, closeTab := chromedp.NewContext(ctx, chromedp.WithTargetID(x.TargetID))
			defer closeTab()
			var shown, opener bool
			// Its page may come again meanwhile, which ends what is asked of the one before.
			for !shown {
				err := chromedp.Run(other, chromedp.Evaluate(`!!document.body?.innerText.includes(`+quote(text)+`)`, &shown), chromedp.Evaluate(`!!window.opener`, &opener))
				if err != nil && ctx.Err() != nil {
					p.t.Fatalf("the tab at %s: %v", x.URL, err)
				}
				if shown = shown && err == nil; !shown {
					<-time.After(50 * time.Millisecond)
				}
			}
			if opener {
				p.t.Fatalf("the tab at %s knows the page that opened it", x.URL)
			}
			return
		}
	}
	p.t.Fatalf("no tab of %s opens; the page says:\n%s", host, p.text())
}

// visits opens an address of a preview without a browser: names below localhost are this
// machine.
func visits(p *tab, url string) (text string, status int) {
	p.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		p.t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
	}}
	defer transport.CloseIdleConnections()
	c := http.Client{Transport: transport, Jar: jar, Timeout: patience}
	resp, err := c.Get(url)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(body), resp.StatusCode
}

// metrics watches a sandbox begin to work: the charts show it by themselves.
func metrics(p *tab, d *covetest.Daemon, id string) {
	p.visit("/s/" + id + "/metrics")
	p.waitFor(`document.querySelectorAll(".plot canvas").length === 5`)
	const drawn = `(() => {
		const c = [...document.querySelectorAll(".card")].find((e) => e.querySelector("h2").innerText === "Processes").querySelector("canvas");
		const data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
		let sum = 0;
		for (let i = 0; i < data.length; i++) sum = (sum * 31 + data[i]) | 0;
		return sum;
	})()`
	const now = `Number([...document.querySelectorAll(".card")].find((e) => e.querySelector("h2").innerText === "Processes").querySelector("header .muted").innerText)`
	var before int64
	var count int
	p.eval(now, &count)
	p.eval(drawn, &before)
	d.Sh(p.t, id, "for i in 1 2 3 4 5 6 7 8 9; do sleep 1004 & done")
	p.waitFor(fmt.Sprintf(`%s >= %d`, now, count+5))
	p.waitFor(fmt.Sprintf(`%s !== %d`, drawn, before))
	for _, window := range []string{"1 h", "5 min"} {
		p.click(window)
		p.waitFor(`document.querySelector(".seg [aria-pressed=true]").innerText === ` + quote(window) + ` && document.querySelectorAll(".plot canvas").length === 5`)
	}
	d.Sh(p.t, id, "pkill -f 'sleep 1004'")
	p.waitFor(now + ` < ` + fmt.Sprint(count+5))
}
