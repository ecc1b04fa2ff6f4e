package console

import (
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// hostile is a name as an attacker would write one: where it is ever taken for markup, it says so.
const hostile = `<img src=x onerror="window.owned=1">"'${1}` + "\u202egnp.exe"

// Bounds of a page under a flood: how long it may stand still, and how much more memory it
// may keep, in bytes.
const (
	longestStill = 5 * time.Second
	mostGrowth   = 48 << 20
)

// underFlood has f work with the page while it is flooded. The page goes on meanwhile, and
// keeps no more than what can be seen.
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

// svgOutput has a cell make a picture with scripts: it is shown, and they do not run, not
// even in its frame.
func svgOutput(p *tab) {
	p.eval(`(() => { window.heights = []; addEventListener("message", (e) => heights.push(e.data?.height)) })()`, nil)
	const script = `parent.postMessage({type: 'size', height: 777}, '*')`
	runCell(p, 1, `svg = """<svg xmlns="http://www.w3.org/2000/svg" width="90" height="210" onload="`+script+`"><circle cx="45" cy="45" r="40"/><script>`+script+`</script></svg>"""
type("Svg", (), {"_repr_svg_": lambda self: svg})()`)
	// What is out of sight is not drawn, and has no height.
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

// longOutput looks at a job that writes 20 MB while it is followed, and again after it has
// written 100 MB: the page goes on, has the end of it, and then reads no more than that.
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
