package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// patience is how long a page may take for one thing; no test waits it out unless it
// fails.
const patience = 40 * time.Second

// browser starts a Chromium that ends with the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	needs.Command(t, "chromium")
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.ExecPath("chromium"), chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(patience))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {})) // of events that are newer than the library
	t.Cleanup(cancel)
	if err := chromedp.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// tab is a browser tab with the console, in a profile of its own.
type tab struct {
	t   *testing.T
	ctx context.Context
	url string

	mu       sync.Mutex
	failures []string
}

// openTab opens a tab with its own cookies, and fails the test on an exception in its
// page.
func openTab(t *testing.T, browser context.Context, url string) *tab {
	t.Helper()
	// A new profile has no window in which to open a tab, and chromedp's own way does not
	// make one.
	whole := cdp.WithExecutor(browser, chromedp.FromContext(browser).Browser)
	profile, err := target.CreateBrowserContext().WithDisposeOnDetach(true).Do(whole)
	if err != nil {
		t.Fatal(err)
	}
	id, err := target.CreateTarget("about:blank").WithBrowserContextID(profile).WithNewWindow(true).Do(whole)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithTargetID(id))
	t.Cleanup(cancel)
	p := &tab{t: t, ctx: ctx, url: url}
	chromedp.ListenTarget(ctx, func(ev any) {
		if e, ok := ev.(*runtime.EventExceptionThrown); ok {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.failures = append(p.failures, e.ExceptionDetails.Error())
		}
	})
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, f := range p.failures {
			t.Errorf("exception in the page: %s", f)
		}
	})
	// The first run's context is that of the page's connection.
	if err := chromedp.Run(ctx, chromedp.EmulateViewport(1440, 860)); err != nil {
		t.Fatal(err)
	}
	p.listen()
	return p
}

func (p *tab) run(actions ...chromedp.Action) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		p.t.Fatalf("%v; the page says:\n%s", err, p.text())
	}
}

// eval decodes the result of a script, as JSON, into out.
func (p *tab) eval(script string, out any) {
	p.t.Helper()
	p.run(chromedp.Evaluate(script, out, func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
}

// text returns the text of the page, its fields and its newest requests, for messages.
func (p *tab) text() string {
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	var text string
	_ = chromedp.Run(ctx, chromedp.Evaluate(`(document.body?.innerText?.slice(0, 3000) ?? "") + "\n\nIts fields: "
		+ [...document.querySelectorAll("input, textarea, select")].map((e) => (e.ariaLabel || e.labels?.[0]?.innerText) + " = " + e.value).join(", ").slice(0, 1000)
		+ "\nWhat it asked for, and after how many milliseconds it had the answer:\n"
		+ performance.getEntriesByType("resource").slice(-20).map((e) => e.startTime.toFixed() + " to " + e.responseEnd.toFixed() + " " + e.name).join("\n")`, &text))
	return text
}

// visit goes to a page of the console.
func (p *tab) visit(path string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	// Not chromedp.Navigate: it waits for events that a busy browser may have sent before.
	if err := chromedp.Run(ctx, chromedp.Evaluate(`window.left = true; location.assign(`+quote(p.url+"/console"+path)+`)`, nil)); err != nil {
		p.t.Fatal(err)
	}
	for there := false; !there; {
		// It fails while one page gives way to the other.
		_ = chromedp.Run(ctx, chromedp.Evaluate(`!window.left && document.readyState === "complete"`, &there))
		if ctx.Err() != nil {
			p.t.Fatalf("%s does not load: %s", path, p.text())
		}
	}
}

// types types text into the element with the focus, and presses Enter if enter is set.
func (p *tab) types(text string, enter bool) {
	p.t.Helper()
	p.run(input.InsertText(text))
	if enter {
		for _, kind := range []input.KeyType{input.KeyRawDown, input.KeyUp} {
			p.run(input.DispatchKeyEvent(kind).WithKey("Enter").WithCode("Enter").WithWindowsVirtualKeyCode(13))
		}
	}
}

// waitFor waits until an expression is true, even across a load of the page. The elements
// in the expression may not exist yet.
func (p *tab) waitFor(script string) {
	p.t.Helper()
	script = "(() => { try { return " + script + " } catch { return false } })()"
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	for {
		err := chromedp.Run(ctx, chromedp.Poll(script, nil, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(patience-time.Second)))
		var broken *cdproto.Error
		switch {
		case err == nil:
			return
		case errors.As(err, &broken) && ctx.Err() == nil:
			continue // the page that was asked is gone, and the next one comes
		}
		p.t.Fatalf("%v; the page says:\n%s", err, p.text())
	}
}

// sees waits until the page shows a text.
func (p *tab) sees(text string) {
	p.t.Helper()
	p.waitFor(`document.body.innerText.includes(` + quote(text) + `)`)
}

// click clicks the first control with this text or accessible name.
func (p *tab) click(name string) {
	p.t.Helper()
	p.waitFor(clickScript(name))
}

// clickAtOnce has the page click what has such a name in the moment when it appears.
func (p *tab) clickAtOnce(name string) {
	p.t.Helper()
	p.eval(`(() => {
		const seen = new MutationObserver(() => `+clickScript(name)+` && seen.disconnect());
		seen.observe(document, {childList: true, subtree: true});
	})()`, nil)
}

// clickScript is JavaScript that clicks what has such a name, and is true if there was any.
func clickScript(name string) string {
	return fmt.Sprintf(`(() => {
		const scope = document.querySelector("dialog[open]") ?? document;
		const all = [...scope.querySelectorAll("button, a, summary, [role=menuitem], [role=tab]")];
		const named = (e) => [e.getAttribute("aria-label"), e.innerText.trim(), e.querySelector("span")?.innerText.trim()].includes(%s);
		const found = all.find((e) => named(e) && !e.disabled && e.checkVisibility());
		found?.click();
		return !!found;
	})()`, quote(name))
}

// fill puts text into the field with this label, as typing does.
func (p *tab) fill(label, text string) {
	p.t.Helper()
	p.waitFor(fmt.Sprintf(`(() => {
		const scope = document.querySelector("dialog[open]") ?? document;
		const field = [...scope.querySelectorAll("input, textarea, select")].find((e) => e.getAttribute("aria-label") === %[1]s || [...(e.labels ?? [])].some((l) => (l.querySelector("span")?.innerText ?? l.innerText).trim() === %[1]s));
		if (!field) return false;
		field.value = %[2]s;
		field.dispatchEvent(new Event("input", {bubbles: true}));
		field.dispatchEvent(new Event("change", {bubbles: true}));
		return true;
	})()`, quote(label), quote(text)))
}

func quote(s string) string {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // impossible: a string is JSON
	}
	return string(data)
}

// signIn opens the console by a link, as "cove console" does.
func signIn(t *testing.T, d *covetest.Daemon, browser context.Context) *tab {
	t.Helper()
	return signInAt(t, d, browser, d.URL)
}

// signInAt does so by another address that leads to the daemon.
func signInAt(t *testing.T, d *covetest.Daemon, browser context.Context, at string) *tab {
	t.Helper()
	out, err := d.Command(t.Context(), "console", "--no-open").Output()
	if err != nil {
		t.Fatal(err)
	}
	p := openTab(t, browser, at)
	p.run(chromedp.Navigate(strings.Replace(strings.TrimSpace(string(out)), d.URL, at, 1)))
	p.waitFor(`!!document.querySelector("nav.side")`)
	var address string
	p.eval(`location.href`, &address)
	if strings.Contains(address, "link=") {
		t.Errorf("the address still has the link: %s", address)
	}
	return p
}

// signInWith opens the console with a key of these scopes, typed in.
func signInWith(t *testing.T, d *covetest.Daemon, browser context.Context, scopes ...sandbox.Scope) *tab {
	t.Helper()
	key, err := d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "reader", Scopes: scopes})
	if err != nil {
		t.Fatal(err)
	}
	p := openTab(t, browser, d.URL)
	p.visit("/")
	p.sees("Sign in to Cove")
	p.fill("API key", key.Secret)
	p.click("Sign in")
	p.waitFor(`!!document.querySelector("nav.side")`)
	return p
}

// look sets the colours and the size of the window.
func (p *tab) look(scheme string, width, height int64) {
	p.t.Helper()
	p.run(chromedp.EmulateViewport(width, height), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}))
	p.eval(drawn, nil)
}

// drawn waits until the page is drawn as it is now. By then, ResizeObservers have been called,
// and with them Scrolled, which makes a box focusable where its content is larger than it.
const drawn = `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`

// picture takes a picture for docs/console.md, if pictures are requested.
func (p *tab) picture(name string) {
	p.t.Helper()
	if os.Getenv("COVE_CONSOLE_PICTURES") != "1" {
		return
	}
	p.waitFor(`![...document.querySelectorAll(".loading")].some((e) => e.checkVisibility())`)
	root, err := covetest.Root()
	needs.NoError(p.t, err)
	var png []byte
	p.run(chromedp.ActionFunc(func(ctx context.Context) error {
		png, err = page.CaptureScreenshot().Do(ctx)
		return err
	}))
	needs.NoError(p.t, os.WriteFile(filepath.Join(root, "docs", "console-"+name+".png"), png, 0o644))
}

// axe are the rules of axe-core.
var axe = sync.OnceValues(func() (string, error) {
	root, err := covetest.Root()
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(filepath.Join(root, "console/node_modules/axe-core/axe.min.js"))
	return string(data), err
})

// accessible fails the test for anything that axe-core finds in the current page. It skips
// terminals, whose colours programs choose.
func (p *tab) accessible(what string) {
	p.t.Helper()
	script, err := axe()
	if err != nil {
		p.t.Fatalf("%v; npm ci --prefix console installs axe-core", err)
	}
	var there bool
	if p.eval(`!!window.axe`, &there); !there {
		p.eval(script, nil)
	}
	var found []struct {
		ID     string   `json:"id"`
		Impact string   `json:"impact"`
		Nodes  []string `json:"nodes"`
	}
	// An element that is still fading in has less contrast.
	const settle = `document.getAnimations().filter((a) => a.effect.getComputedTiming().endTime < Infinity).forEach((a) => a.finish());`
	p.eval(settle+`axe.run({exclude: [".xterm-rows"]}, {resultTypes: ["violations"], iframes: false}).then((r) => r.violations.map((v) => ({id: v.id, impact: v.impact, nodes: v.nodes.map((n) => n.html.slice(0, 200) + " " + n.failureSummary)})))`, &found)
	for _, v := range found {
		p.t.Errorf("%s: %s (%s): %s", what, v.ID, v.Impact, strings.Join(v.Nodes, "\n  "))
	}
}

// fits fails the test if the page is wider than its window.
func (p *tab) fits(what string) {
	p.t.Helper()
	var wide int
	p.eval(`document.documentElement.scrollWidth - innerWidth`, &wide)
	if wide > 0 {
		p.t.Errorf("%s: the page is %d pixels wider than its window", what, wide)
	}
}

// sandboxNamed returns the living sandbox of a name.
func sandboxNamed(t *testing.T, c *client.Client, match func(sandbox.Sandbox) bool) sandbox.Sandbox {
	t.Helper()
	all, err := sandbox.All(t.Context(), func(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Sandbox], error) {
		return c.List(ctx, sandbox.ListRequest{Page: page})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if match(s) {
			return s
		}
	}
	t.Fatalf("no such sandbox among %d", len(all))
	return sandbox.Sandbox{}
}
