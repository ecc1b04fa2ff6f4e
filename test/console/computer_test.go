package console

import (
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// A computer is among all, its screen is watched, and taken over.
func TestComputer(t *testing.T) {
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

		// What is typed reaches the screen only in control of it.
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
		p.picture("computer")
	}, "--listen", "127.0.0.1:0")
}
