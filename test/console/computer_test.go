package console

import (
	"math"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// A computer is among all, its screen is watched, and taken over. In "make test", TestComputer
// of test/computer stands for it.
func TestMoreComputer(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		needs.Command(t, "Xvnc", "openbox", "tint2", "hsetroot", "xterm")
		_, err := d.Client.BuildTemplate(t.Context(), sandbox.BuildTemplateRequest{Name: "pc", Spec: &sandbox.TemplateSpec{
			From: sandbox.TemplateSource{Host: true}, Desktop: &sandbox.Desktop{Width: 1024, Height: 768},
		}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p := signIn(t, d, browser(t))
		p.visit("/computers")
		p.sees("No computer runs")
		box, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Template: "pc", Name: "screen"})
		if err != nil {
			t.Fatal(err)
		}
		p.waitFor(`document.querySelector(".thumb img")?.naturalWidth > 0`)
		p.accessible("computers")
		p.click("Open the screen of screen")
		p.sees("Watching")
		p.waitFor(`document.querySelector("canvas.vnc")?.width === 1024`)
		p.accessible("screen")

		// Typed text reaches the screen only with control.
		job, err := d.Client.Exec(t.Context(), box.ID, sandbox.ExecRequest{
			Shell: `DISPLAY=:1 exec xterm -geometry 100x30+0+0 -e sh -c 'stty -icanon; cat > /tmp/typed'`, Background: true,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		there := func() bool {
			return d.Sh(t, box.ID, "cat /tmp/typed 2>/dev/null || true; [ ! -e /tmp/typed ] || echo .") != ""
		}
		if !covetest.Eventually(patience, there) {
			t.Fatalf("the terminal of job %s does not open", job.ID)
		}
		p.run(chromedp.MouseClickXY(500, 400), chromedp.KeyEvent("watched"))
		p.click("Take over")
		p.sees("You have control")
		typed := func() bool {
			p.run(chromedp.MouseClickXY(500, 400), chromedp.KeyEvent("k"))
			return d.Sh(t, box.ID, "tr -d k < /tmp/typed; tr -dc k < /tmp/typed") != ""
		}
		if !covetest.Eventually(patience, typed) {
			t.Error("what is typed does not arrive")
		}
		if got := d.Sh(t, box.ID, "tr -d k < /tmp/typed"); got != "" {
			t.Errorf("%q was typed by somebody who only watched", got)
		}
		p.click("Only watch")
		p.press("Live view in a tab")
		opened(p, "localhost", "")
		film(p, d, box.ID)
		t.Run("every action", everyAction)
	}, "--listen", "127.0.0.1:0")
}

// film controls a computer by calls, and checks the film strip of them: a picture after
// each, up to a bound, and nothing of typed text.
func film(p *tab, d *covetest.Daemon, id string) {
	t := p.t
	p.sees("What calls do here is shown as a film")
	input := func(in ...sandbox.Input) {
		t.Helper()
		if _, err := d.Client.SendInput(t.Context(), id, in); err != nil {
			t.Fatal(err)
		}
	}
	x, y := 300, 200
	const typed = "high tide at 04:12"
	input(sandbox.Input{Type: sandbox.InputClick, X: &x, Y: &y}, sandbox.Input{Type: sandbox.InputText, Text: typed})
	const pictures = `document.querySelectorAll(".film li img").length`
	p.waitFor(pictures + ` === 1 && document.querySelector(".film img").naturalWidth === 480`)
	p.sees("click, type")
	var at struct{ X, Y, Width, Height float64 }
	p.eval(`(() => { const f = document.querySelector(".film .frame").getBoundingClientRect(), m = document.querySelector(".film .pointed").getBoundingClientRect();
		return {X: m.x + m.width / 2 - f.x, Y: m.y + m.height / 2 - f.y, Width: f.width, Height: f.height} })()`, &at)
	if math.Abs(at.X/at.Width-300.0/1024) > 0.03 || math.Abs(at.Y/at.Height-200.0/768) > 0.03 {
		t.Errorf("the place of the click is marked at %+v", at)
	}
	x, y = 700, 480
	input(sandbox.Input{Type: sandbox.InputKey, Keys: []string{"Return"}}, sandbox.Input{Type: sandbox.InputMove, X: &x, Y: &y})
	p.waitFor(pictures + ` === 2`)
	input(sandbox.Input{Type: sandbox.InputText, Text: "low tide at 10:31"})
	p.waitFor(pictures + ` === 3`)
	if err := d.Client.SetClipboard(t.Context(), id, "10:31"); err != nil {
		t.Fatal(err)
	}
	p.waitFor(pictures + ` === 4`)
	p.accessible("film")
	p.look("dark", 1280, 720)
	p.accessible("film, dark")
	p.look("light", 390, 844)
	p.fits("film")
	p.look("light", 1440, 860)
	p.picture("computer")
	p.run(chromedp.Click(".film .frame", chromedp.ByQuery))
	p.sees("After click, type")
	p.click("Close")

	// A page that is opened later shows earlier actions without pictures. Typed text is
	// nowhere.
	p.visit("/s/" + id + "/screen")
	p.sees("click, type")
	p.waitFor(`document.querySelectorAll(".film li").length >= 1 && ` + pictures + ` === 0`)
	var told []sandbox.Event
	err := d.Client.FollowEvents(t.Context(), sandbox.FollowEventsRequest{Sandbox: id, Kinds: []sandbox.EventKind{sandbox.EventComputer}, After: sandbox.EventsOldest, Once: true}, func(e sandbox.Event) error {
		if e.Kind == sandbox.EventComputer {
			told = append(told, e)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(told) != 4 || told[0].Computer.Detail != "click, type" || *told[0].Computer.CursorX != 300 || *told[0].Computer.CursorY != 200 || told[3].Computer.Action != sandbox.ActionClipboard {
		t.Errorf("%d actions are told, the first %+v", len(told), told)
	}
	for range 60 {
		input(sandbox.Input{Type: sandbox.InputMove, X: &x, Y: &y})
	}
	p.waitFor(pictures + ` > 0`)
	var frames int
	var text string
	p.eval(`document.querySelectorAll(".film li").length`, &frames)
	p.eval(`document.body.innerHTML`, &text)
	if frames > 24 || strings.Contains(text, typed) {
		t.Errorf("the film has %d frames; what was typed is in it: %v", frames, strings.Contains(text, typed))
	}
}
