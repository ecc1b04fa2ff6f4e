package computer

import (
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// TestComputer is one long day of computers: a form is filled in, in two forks
// to different ends, one of them paused meanwhile; and people watch.
func TestComputer(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		buildComputer(t, d)
		c := create(t, d)
		c.looksLikeADesktop()
		c.serve()
		c.open("http://127.0.0.1:8000/")
		button := c.await("the page", buttonColor, 160*80*9/10)
		c.await("the page", pageColor, screenWidth*screenHeight/2)
		const text = "Grüße, 世界 こんにちは 한국 😀🚀 €"
		c.do(sandbox.Input{Type: sandbox.InputText, Text: text})
		followDocs(t, d)

		forks, err := d.Client.Fork(t.Context(), c.id, sandbox.ForkRequest{Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		fork := &computer{t, d, forks.Items[0].ID}
		if forks.Items[0].Desktop == nil {
			t.Error("the fork of a computer is none")
		}
		if _, err := d.Client.Pause(t.Context(), fork.id); err != nil {
			t.Fatal(err)
		}

		c.do(sandbox.Input{Type: sandbox.InputText, Text: " parent"}, sandbox.Input{Type: sandbox.InputKey, Keys: []string{"Return"}})
		c.awaitLog("form " + text + " parent")
		c.await("the page after the form", doneColor, screenWidth*screenHeight/2)
		// The fork is resumed by being used, with the form as it was.
		fork.await("the page of the fork", pageColor, screenWidth*screenHeight/2)
		fork.do(sandbox.Input{Type: sandbox.InputText, Text: " child"}, sandbox.Input{Type: sandbox.InputClick, X: &button.X, Y: &button.Y})
		fork.awaitLog("form " + text + " child")
		fork.await("the page of the fork after the form", doneColor, screenWidth*screenHeight/2)

		peopleWatch(t, c, fork)
	})
}

// looksLikeADesktop looks at a new computer: a wallpaper, a panel, and a screen
// that stands still.
func (c *computer) looksLikeADesktop() {
	c.t.Helper()
	shot, err := c.d.Client.Screenshot(c.ctx(), c.id, sandbox.ScreenshotRequest{StableMS: 200})
	if err != nil {
		c.t.Fatal(err)
	}
	if shot.Width != screenWidth || shot.Height != screenHeight || shot.Screen.Width != screenWidth || shot.MIME != "image/png" {
		c.t.Errorf("the picture is %dx%d of %+v, %s", shot.Width, shot.Height, shot.Screen, shot.MIME)
	}
	img := c.screen()
	for _, y := range []int{20, 300, 600} {
		r, _, b, _ := img.At(700, y).RGBA()
		if b <= r || b>>8 < 0x40 {
			c.t.Errorf("the wallpaper at height %d is %v, which is not blue", y, img.At(700, y))
		}
	}
	if at := c.await("the panel", panelColor, screenWidth*36/2); at.Y < screenHeight-40 {
		c.t.Errorf("the panel is around %v", at)
	}
	job, err := c.d.Client.GetJob(c.ctx(), c.id, "job-start")
	if err != nil || job.State != sandbox.JobRunning {
		c.t.Errorf("the start command is %+v, %v", job, err)
	}
}
