package console

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// hostile is a name as an attacker would write one: where it is ever taken for markup, it says so.
const hostile = `<img src=x onerror="window.owned=1">"'${1}` + "\u202egnp.exe"

// Bounds of a page under a flood: how long it may stand still, and how much more memory it
// may keep, in bytes. A terminal of 5000 lines takes about 10 MB.
const (
	longestStill = 5 * time.Second
	mostGrowth   = 48 << 20
	// mostDaemonGrowth is by how much the daemon's memory may have grown in the end, in MiB.
	mostDaemonGrowth = 64
)

// underFlood runs f on the page while the page is flooded. The page must keep working meanwhile,
// and keep no more than what is visible.
func underFlood(p *tab, f func()) {
	p.t.Helper()
	before := p.heap()
	p.eval(`(() => {
		window.longest = 0;
		let last = performance.now();
		const look = () => { const now = performance.now(); longest = Math.max(longest, now - last); last = now };
		window.watch = setInterval(look, 20);
	})()`, nil)
	f()
	var still float64
	p.eval(`clearInterval(watch), longest`, &still)
	grown := p.heap() - before
	p.t.Logf("the page stood still for %.0f ms at most, and keeps %.1f MiB more", still, float64(grown)/(1<<20))
	if still > float64(longestStill.Milliseconds()) || grown > mostGrowth {
		p.t.Errorf("under a flood the page stood still for %.0f ms, and keeps %d bytes more", still, grown)
	}
}

// notOwned fails the test if a script of a sandbox has run.
func notOwned(p *tab, what string) {
	p.t.Helper()
	var owned bool
	p.eval(`window.owned === 1 || !!document.querySelector("img[src=x]")`, &owned)
	if owned {
		p.t.Errorf("%s has run", what)
	}
}

// hostileTerminal has a program write a lot to a terminal, with harmful escape sequences: the page
// keeps working, and nothing outside the terminal changes.
func hostileTerminal(p *tab) {
	clipboard(p)
	var title string
	p.eval(`navigator.clipboard.writeText("mine").then(() => document.title)`, &title)
	lines := "seq 1000"
	if needs.More() {
		lines = "seq 300000"
	}
	underFlood(p, func() {
		p.types(`printf '\033]0;<img src=x onerror=window.owned=1>\007\033[31m\033[?25l\033[2J\033]52;c;aGFybQ==\007'; `+lines+`; echo $((6*7))-after`, true)
		// Switching to another part of the sandbox, and back to the terminal, works at once.
		p.click("Metrics")
		p.waitFor(`!!document.querySelector(".uplot")`)
		p.click("Terminal")
		p.waitFor(said("42-after"))
	})
	var now, copied string
	p.eval(`document.title`, &now)
	p.eval(`navigator.clipboard.readText()`, &copied)
	if now != title || copied != "mine" {
		p.t.Errorf("the title was %q and is %q, the clipboard has %q", title, now, copied)
	}
	hostileLinks(p)
	notOwned(p, "a terminal")
}

// clipboard lets the page use the clipboard, as somebody in front of it can.
func clipboard(p *tab) {
	p.t.Helper()
	p.run(emulation.SetFocusEmulationEnabled(true), chromedp.ActionFunc(func(ctx context.Context) error {
		info, err := target.GetTargetInfo().Do(ctx)
		if err != nil {
			return err
		}
		whole := cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser)
		return cdpbrowser.GrantPermissions([]cdpbrowser.PermissionType{cdpbrowser.PermissionTypeClipboardReadWrite, cdpbrowser.PermissionTypeClipboardSanitizedWrite}).WithBrowserContextID(info.BrowserContextID).Do(whole)
	}))
}

// hostileLinks clicks links that a program has written: a script link does nothing, and a link to
// a page opens in a tab that has no access to this one.
func hostileLinks(p *tab) {
	opened := make(chan string, 1)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/fine" {
			opened <- r.Referer() + r.Header.Get("Cookie")
		}
	}))
	defer elsewhere.Close()
	there := strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1) // a host without the console's cookie
	link := func(to, text string) string { return `\033]8;;` + to + `\007` + text + `\033]8;;\007` }
	p.types("clear; printf '"+link("javascript:window.owned=1", "harm")+" "+link(there+"/fine", "fine")+`\n'`, true)
	p.waitFor(said("harm fine"))
	// Once the terminal shows whether the text under the pointer is a link, it has examined it.
	const isLink, noLink = `!!document.querySelector(".xterm-cursor-pointer")`, `!document.querySelector(".xterm-cursor-pointer")`
	p.pointAt("fine")
	p.waitFor(isLink)
	harm := p.pointAt("harm")
	p.waitFor(noLink)
	p.clickAt(harm, input.ModifierCtrl)
	fine := p.pointAt("fine")
	p.waitFor(isLink)
	p.clickAt(fine, input.ModifierCtrl)
	select {
	case told := <-opened:
		if told != "" {
			p.t.Errorf("the page that a terminal leads to is told %q", told)
		}
	case <-time.After(patience):
		p.t.Fatal("the link that is fine does not open")
	}
	p.closePage(there)
}

// A line of the flood, and how many bytes of an endless program may be between the program and the
// screen: pieces that the page has not drawn yet, and output that was not requested yet, each with
// the write that crosses the bound.
const (
	floodLine = int64(12 + 1000 + len("\r\n"))
	mostOnWay = (128 + 128 + 128 + 64 + 64) << 10
)

// seen is true when a line of the flood is seen.
const seen = `[...document.querySelectorAll(".xterm-rows > div")].some((r) => /^\d{12}x/.test(r.textContent))`

// drawnLine returns the number of the newest visible line of the flood, or -1. The terminal draws
// with a delay of up to two frames.
const drawnLine = `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
	const rows = [...document.querySelectorAll(".xterm-rows > div")].map((r) => r.textContent.match(/^(\d{12})x/)?.[1]);
	done(Number(rows.findLast((n) => n) ?? -1));
})))`

// floodWithoutEnd has a program write long lines for ever. The program is only as fast as the
// page: the output on the way is bounded, the page can be used, and Ctrl-C ends the program.
func floodWithoutEnd(p *tab, d *covetest.Daemon, id string) {
	p.visit("/s/" + id + "/terminal")
	p.sees("Connected")
	p.waitFor(prompted)
	openTerminal(p, 2)
	shell := newestTerminal(p, d, id)
	p.types(`seq -f "%012.0f$(printf %01000d | tr 0 x)" 0 inf`, true)
	p.waitFor(seen)
	// onWay is how much the program has written that is not seen; it may be less by the time.
	onWay := func() int64 {
		p.t.Helper()
		job, err := d.Client.GetJob(p.t.Context(), id, shell.ID)
		if err != nil {
			p.t.Fatal(err)
		}
		var line int64
		p.eval(drawnLine, &line)
		return job.StdoutBytes - (line+1)*floodLine
	}
	before := d.ResidentMiB(p.t)
	var most int64
	underFlood(p, func() {
		for range 12 {
			most = max(most, onWay())
		}
		// While it is not looked at the program does not wait, and of all that it writes
		// the end is shown afterwards.
		p.click("Metrics")
		p.waitFor(`!!document.querySelector(".uplot")`)
		written := func() int64 {
			job, err := d.Client.GetJob(p.t.Context(), id, shell.ID)
			if err != nil {
				p.t.Fatal(err)
			}
			return job.StdoutBytes
		}
		for begin := written(); written() < begin+8<<20; {
		}
		p.click("Terminal")
		p.waitFor(seen)
		if !covetest.Eventually(patience, func() bool { return onWay() <= mostOnWay }) {
			p.t.Errorf("%d bytes are on the way to a page that is back", onWay())
		}
		for range 4 {
			most = max(most, onWay())
		}
		p.chord('c', input.ModifierCtrl)
		p.waitFor(prompted)
		p.types("echo $((6*7))-over", true)
		p.waitFor(said("42-over"))
	})
	grown := d.ResidentMiB(p.t) - before
	p.t.Logf("at most %d KiB were on the way, and the daemon has %d MiB more", most>>10, grown)
	if most > mostOnWay {
		p.t.Errorf("of a flood %d bytes were on the way", most)
	}
	if grown > mostDaemonGrowth {
		p.t.Errorf("after a flood the daemon has %d MiB more", grown)
	}
	p.click("Close terminal 2")
	p.waitFor(`document.querySelectorAll(".term-tab").length === 1`)
	p.waitFor(prompted)
}

// svgOutput has a cell make a picture with scripts: the picture is shown, and the scripts do not
// run, not even in its frame.
func svgOutput(p *tab) {
	p.eval(`(() => { window.heights = []; addEventListener("message", (e) => heights.push(e.data?.height)) })()`, nil)
	const script = `parent.postMessage({type: 'size', height: 777}, '*')`
	runCell(p, 1, `svg = """<svg xmlns="http://www.w3.org/2000/svg" width="90" height="210" onload="`+script+`"><circle cx="45" cy="45" r="40"/><script>`+script+`</script></svg>"""
type("Svg", (), {"_repr_svg_": lambda self: svg})()`)
	// Elements out of sight are not rendered, and have no height.
	p.waitFor(`(() => { const f = document.querySelectorAll(".cell")[1].querySelector("iframe.rich-frame"); f?.scrollIntoView(); return !!f })()`)
	p.waitFor(`heights.some((h) => h >= 210 && h < 260)`)
	var heights []float64
	p.eval(`heights`, &heights)
	for _, h := range heights {
		if h == 777 {
			p.t.Errorf("a script in a picture has run: the frame said its heights are %v", heights)
		}
	}
}

// hostileNames names things as an attacker would, and has a job write so.
func hostileNames(p *tab, d *covetest.Daemon) {
	s := d.Create(p.t, sandbox.CreateRequest{Name: "hostile", Metadata: map[string]string{"note": hostile}})
	if _, err := d.Client.CreateSnapshot(p.t.Context(), s.ID, sandbox.CreateSnapshotRequest{Label: hostile, Kind: sandbox.SnapshotFiles}); err != nil {
		p.t.Fatal(err)
	}
	d.Sh(p.t, s.ID, `touch '<img src=x onerror="window.owned=1">.png' "$(printf 'a\342\200\256gnp.exe')"; printf '\033]0;<img src=x onerror=window.owned=1>\007\033[2J%s' '<script>window.owned=1</script>' > out; head -c 3000000 /dev/urandom | base64 > flood`)
	job, err := d.Client.Exec(p.t.Context(), s.ID, sandbox.ExecRequest{Shell: "cat out flood flood flood", Background: true}, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	p.visit("/")
	p.waitFor(`(() => { const r = [...document.querySelectorAll(".tree-row")].find((e) => e.innerText.includes("hostile")); r?.click(); return !!r })()`)
	p.sees(`<img src=x onerror="window.owned=1">`)
	p.visit("/s/" + s.ID + "/files")
	p.sees(`<img src=x`)
	p.sees(`a\u202egnp.exe`)
	p.visit("/s/" + s.ID + "/history")
	p.sees(`<img src=x`)
	p.visit("/s/" + s.ID + "/jobs")
	p.click("cat out flood flood flood")
	p.sees("bytes before this are not shown")
	var length int
	p.eval(`document.querySelector(".job-output pre").textContent.length`, &length)
	if length > 250_000 {
		p.t.Errorf("of job %s, %d characters are in the page", job.ID, length)
	}
	p.visit("/s/" + s.ID + "/settings")
	p.waitFor(`[...document.querySelectorAll("input")].some((e) => e.value.includes("<img src=x"))`)
	notOwned(p, "a name")
}

// longOutput follows a job that writes 20 MB, and opens it again after it has written 100 MB: the
// page keeps working, shows the end of the output, and reads no more than that.
func longOutput(p *tab, d *covetest.Daemon, id string) {
	const flood = "read go </tmp/long; yes 0123456789abcdef | head -c "
	const shell = flood + "20000000; echo so-far; " + flood + "80000000; echo the-end"
	d.Sh(p.t, id, "mkfifo /tmp/long")
	begun, err := d.Client.Exec(p.t.Context(), id, sandbox.ExecRequest{Shell: shell, Background: true}, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	ends := func(text string) string {
		return `document.querySelector(".job-output pre")?.textContent.endsWith(` + quote(text+"\n") + `)`
	}
	p.visit("/s/" + id + "/jobs")
	p.click(shell)
	p.sees("It has written nothing yet")
	underFlood(p, func() {
		d.Sh(p.t, id, "echo >/tmp/long")
		p.waitFor(ends("so-far"))
	})
	p.click("Metrics")
	d.Sh(p.t, id, "echo >/tmp/long")
	none := func(sandbox.JobEvent) error { return nil }
	if _, err := d.Client.Attach(p.t.Context(), id, begun.ID, sandbox.AttachRequest{StdoutOffset: 20_000_007}, none); err != nil {
		p.t.Fatal(err)
	}
	p.visit("/s/" + id + "/jobs")
	p.click(shell)
	p.waitFor(ends("the-end"))
	const requests = `performance.getEntriesByType("resource").filter((e) => e.name.includes("/attach"))`
	p.waitFor(requests + ".length > 0")
	var read []float64
	p.eval(requests+".map((e) => e.encodedBodySize)", &read)
	if len(read) != 1 || read[0] == 0 || read[0] > 4<<20 {
		p.t.Errorf("to show the end of 100 MB, %v bytes are read", read)
	}
}
