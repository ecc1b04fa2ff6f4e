package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// point is a place in the page, in pixels.
type point struct{ X, Y float64 }

// pointAt moves the pointer to a text of the terminal, which must be all of a span, or the
// beginning of a row.
func (p *tab) pointAt(text string) point {
	p.t.Helper()
	p.waitFor(textAt(text) + ` !== undefined`)
	var at point
	p.eval(textAt(text), &at)
	p.run(input.DispatchMouseEvent(input.MouseMoved, at.X, at.Y))
	return at
}

func textAt(text string) string {
	return `(() => {
		const all = [...document.querySelectorAll(".xterm-rows span, .xterm-rows > div")];
		const r = (all.find((e) => e.textContent === ` + quote(text) + `) ?? all.find((e) => e.textContent.startsWith(` + quote(text) + `)))?.getBoundingClientRect();
		return r && {X: r.x + Math.min(r.width / 2, 20), Y: r.y + r.height / 2};
	})()`
}

// clickAt clicks with modifiers, as many times as times says, or once.
func (p *tab) clickAt(at point, modifiers input.Modifier, times ...int64) {
	p.t.Helper()
	if times == nil {
		times = []int64{1}
	}
	for _, n := range times {
		for _, kind := range []input.MouseType{input.MousePressed, input.MouseReleased} {
			p.run(input.DispatchMouseEvent(kind, at.X, at.Y).WithButton(input.Left).WithClickCount(n).WithModifiers(modifiers))
		}
	}
}

// chord presses a letter with modifiers.
func (p *tab) chord(letter rune, modifiers input.Modifier) {
	p.t.Helper()
	key := string(letter)
	for _, kind := range []input.KeyType{input.KeyRawDown, input.KeyUp} {
		p.run(input.DispatchKeyEvent(kind).WithKey(key).WithCode("Key" + strings.ToUpper(key)).
			WithWindowsVirtualKeyCode(int64(strings.ToUpper(key)[0])).WithModifiers(modifiers))
	}
}

// secondTerminal opens a terminal in addition to the first: they have separate shells, each can be
// shown, and one can end without the other.
func secondTerminal(p *tab, d *covetest.Daemon, id string) {
	show := func(n int) {
		p.t.Helper()
		p.waitFor(fmt.Sprintf(`(() => { const b = document.querySelectorAll(".term-tab")[%d]?.querySelector("button"); b?.click(); return b?.getAttribute("aria-pressed") === "true" })()`, n))
		p.waitFor(prompted)
	}
	p.types("whose=first", true)
	openTerminal(p, 2)
	p.types("whose=second; echo $whose-here", true)
	p.waitFor(said("second-here"))
	show(0)
	p.types("echo $whose-there", true)
	p.waitFor(said("first-there"))
	show(1)
	p.waitFor(said("second-here"))
	p.types("echo $whose-again", true)
	p.waitFor(said("second-again"))
	p.accessible("two terminals")
	second := newestTerminal(p, d, id)
	p.click("Close terminal 2")
	p.waitFor(`document.querySelectorAll(".term-tab").length === 1`)
	if _, err := d.Client.Attach(p.t.Context(), id, second.ID, sandbox.AttachRequest{}, nil); err != nil { // to its end
		p.t.Fatal(err)
	}
	p.waitFor(prompted)
	p.types("echo $whose-still", true)
	p.waitFor(said("first-still"))
}

// openTerminal opens a terminal and waits for its shell; there are then this many terminals.
func openTerminal(p *tab, n int) {
	p.t.Helper()
	p.click("New terminal")
	p.waitFor(fmt.Sprintf(`document.querySelectorAll(".term-tab").length === %d && [...document.querySelectorAll(".term-tab")].at(-1).querySelector("button").getAttribute("aria-pressed") === "true"`, n))
	p.waitFor(prompted)
}

// newestTerminal returns the job of the terminal that was opened last.
func newestTerminal(p *tab, d *covetest.Daemon, id string) (newest sandbox.Job) {
	p.t.Helper()
	jobs, err := sandbox.All(p.t.Context(), func(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Job], error) {
		return d.Client.ListJobs(ctx, id, page)
	})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, j := range jobs {
		if j.Tag == "console-terminal" && j.State == sandbox.JobRunning {
			newest = j
		}
	}
	if newest.ID == "" {
		p.t.Fatal("there is no terminal")
	}
	return newest
}

// resizedTerminal changes the size of the window: programs get the size of the visible terminal.
func resizedTerminal(p *tab, d *covetest.Daemon, id string) {
	p.types(`until [ -e /tmp/sized ]; do echo size-$(stty size | tr ' ' x)-; sleep 0.2; done`, true)
	// The page shows the last output of the program, and the columns fit next to each other.
	const rows, told = `document.querySelectorAll(".xterm-rows > div").length`, `document.querySelector(".xterm-rows").innerText.match(/size-\d+x\d+-/g)?.at(-1).split("-")[1]`
	var before, after string
	p.waitFor(told + `.startsWith(` + rows + ` + "x")`)
	p.eval(told, &before)
	p.look("light", 1000, 600)
	p.waitFor(told + `.startsWith(` + rows + ` + "x") && ` + told + ` !== ` + quote(before))
	p.eval(told, &after)
	var r0, c0, r1, c1 int
	for text, to := range map[string][]any{before: {&r0, &c0}, after: {&r1, &c1}} {
		if _, err := fmt.Sscanf(text, "%dx%d", to...); err != nil {
			p.t.Fatal(err)
		}
	}
	if r1 >= r0 || c1 >= c0 {
		p.t.Errorf("in a smaller window a program has %s, and had %s", after, before)
	}
	p.look("light", 1440, 860)
	p.waitFor(told + ` === ` + quote(before))
	d.Sh(p.t, id, "touch /tmp/sized")
	p.waitFor(prompted)
}

// copiedFromTerminal selects a word and copies it.
func copiedFromTerminal(p *tab) {
	clipboard(p)
	p.types("clear; echo copy-$((6*7))-me and no more", true)
	p.waitFor(said("copy-42-me and no more"))
	p.clickAt(p.pointAt("copy-42-me"), 0, 1, 2)
	p.waitFor(`!!document.querySelector(".xterm-selection > div")`)
	p.chord('C', input.ModifierCtrl|input.ModifierShift)
	p.waitFor(`(navigator.clipboard.readText().then((text) => { window.copied = text }), window.copied === "copy-42-me")`)
	// The terminal has the focus still, and Ctrl-C without Shift is the program's.
	p.types("clear; echo in-$((1+1)); cat", true)
	p.waitFor(said("in-2"))
	p.types("there and back", true)
	p.waitFor(`[...document.querySelectorAll(".xterm-rows > div")].filter((r) => r.textContent.trim() === "there and back").length === 2`)
	p.chord('c', input.ModifierCtrl)
	p.waitFor(prompted)
}

// linkInTerminal opens an address that a program has written: with Ctrl, and not without.
func linkInTerminal(p *tab) {
	opened := make(chan string, 2)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/favicon.ico" {
			opened <- r.URL.Path + r.Referer() + r.Header.Get("Cookie")
		}
	}))
	defer elsewhere.Close()
	there := strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1) // a host without the console's cookie
	p.types("clear; echo; echo "+there+"/first; echo "+there+"/second", true)
	p.waitFor(said(there + "/second"))
	const link = `!!document.querySelector(".xterm-cursor-pointer")`
	for _, click := range []struct {
		path string
		with input.Modifier
	}{{"/first", 0}, {"/second", input.ModifierCtrl}} {
		at := p.pointAt(there + click.path)
		p.waitFor(link)
		p.clickAt(at, click.with)
		p.run(input.DispatchMouseEvent(input.MouseMoved, at.X+400, at.Y+200))
		p.waitFor("!" + link)
	}
	select {
	case told := <-opened:
		if told != "/second" {
			p.t.Errorf("%q is asked for", told)
		}
	case <-time.After(patience):
		p.t.Fatal("the address does not open")
	}
	p.closePage(there)
}

// closePage closes the tab of a page that was opened from this one.
func (p *tab) closePage(prefix string) {
	p.t.Helper()
	p.run(chromedp.ActionFunc(func(ctx context.Context) error {
		all, err := chromedp.Targets(ctx)
		if err != nil {
			return err
		}
		whole := cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser)
		for _, page := range all {
			if strings.HasPrefix(page.URL, prefix) {
				return target.CloseTarget(page.TargetID).Do(whole)
			}
		}
		return fmt.Errorf("of %d pages none is that of the link", len(all))
	}))
}
