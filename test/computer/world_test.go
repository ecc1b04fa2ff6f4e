// Package computer tests sandboxes with a screen from outside: Chromium on a page
// served in the sandbox, as an agent uses it and as a person watches it.
package computer

import (
	"bytes"
	"context"
	_ "embed"
	"image"
	"image/color"
	"image/png"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

//go:embed testdata/server.py
var pageServer string

// patience is for a browser that starts on a busy machine.
const patience = 2 * time.Minute

// The colours of the page, of its button, and of the page after the form was
// sent; and of the panel of the desktop.
var (
	pageColor   = color.RGBA{0x2e, 0xc2, 0x7e, 0xff}
	buttonColor = color.RGBA{0xc0, 0x1c, 0x8d, 0xff}
	doneColor   = color.RGBA{0xe5, 0xa5, 0x0a, 0xff}
	panelColor  = color.RGBA{0x0f, 0x1a, 0x2b, 0xff}
)

// The size of the screen, which is not that of the built-in computers.
const screenWidth, screenHeight = 1024, 768

// buildComputer makes the template pc of the machine's own programs, which takes
// no download: a desktop in the size of the tests.
func buildComputer(t *testing.T, d *covetest.Daemon) {
	t.Helper()
	needs.Command(t, "Xvnc", "openbox", "tint2", "hsetroot", "chromium", "python3")
	template, err := d.Client.BuildTemplate(t.Context(), sandbox.BuildTemplateRequest{Name: "pc", Spec: &sandbox.TemplateSpec{
		From: sandbox.TemplateSource{Host: true}, Desktop: &sandbox.Desktop{Width: screenWidth, Height: screenHeight},
		Resources: sandbox.Resources{MemoryMiB: 2048, MaxPIDs: 2048},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if template.Desktop == nil || template.Start == nil {
		t.Fatalf("the template is %+v", template)
	}
}

// computer is a computer that a test uses.
type computer struct {
	t  *testing.T
	d  *covetest.Daemon
	id string
}

func create(t *testing.T, d *covetest.Daemon) *computer {
	t.Helper()
	sbx, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Template: "pc"})
	if err != nil {
		t.Fatal(err)
	}
	if sbx.Desktop == nil || sbx.Desktop.Width != screenWidth {
		t.Fatalf("the computer has the desktop %+v", sbx.Desktop)
	}
	return &computer{t, d, sbx.ID}
}

func (c *computer) ctx() context.Context { return c.t.Context() }

// serve starts the server of the page.
func (c *computer) serve() {
	c.t.Helper()
	if _, err := c.d.Client.WriteFile(c.ctx(), c.id, sandbox.WriteFileRequest{Path: "/workspace/server.py"}, strings.NewReader(pageServer)); err != nil {
		c.t.Fatal(err)
	}
	_, err := c.d.Client.Exec(c.ctx(), c.id, sandbox.ExecRequest{Command: []string{"python3", "/workspace/server.py"}, Background: true, TimeoutMS: sandbox.MaxExecTimeout.Milliseconds()}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if !covetest.Eventually(patience, func() bool {
		conn, err := c.d.Client.DialPort(c.ctx(), c.id, 8000)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}) {
		c.t.Fatal("the server of the page does not listen")
	}
}

func (c *computer) open(address string) {
	c.t.Helper()
	if err := c.d.Client.OpenURL(c.ctx(), c.id, address); err != nil {
		c.t.Fatal(err)
	}
}

func (c *computer) do(inputs ...sandbox.Input) {
	c.t.Helper()
	if _, err := c.d.Client.SendInput(c.ctx(), c.id, inputs); err != nil {
		c.t.Fatal(err)
	}
}

// screen takes a picture.
func (c *computer) screen() image.Image {
	c.t.Helper()
	shot, err := c.d.Client.Screenshot(c.ctx(), c.id, sandbox.ScreenshotRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(shot.Data))
	if err != nil {
		c.t.Fatal(err)
	}
	return img
}

// area returns the middle of the area with a colour, and how many pixels have the
// colour.
func area(img image.Image, want color.RGBA) (middle image.Point, size int) {
	var x, y int
	for py := img.Bounds().Min.Y; py < img.Bounds().Max.Y; py++ {
		for px := img.Bounds().Min.X; px < img.Bounds().Max.X; px++ {
			r, g, b, _ := img.At(px, py).RGBA()
			if uint8(r>>8) == want.R && uint8(g>>8) == want.G && uint8(b>>8) == want.B {
				x, y, size = x+px, y+py, size+1
			}
		}
	}
	if size == 0 {
		return image.Point{}, 0
	}
	return image.Pt(x/size, y/size), size
}

// await waits until a good part of the screen has a colour, and returns the
// middle of that.
func (c *computer) await(what string, want color.RGBA, least int) image.Point {
	c.t.Helper()
	var at image.Point
	if !covetest.Eventually(patience, func() bool {
		var size int
		at, size = area(c.screen(), want)
		return size >= least
	}) {
		c.t.Fatalf("%s is not to be seen; windows: %s", what, c.windows())
	}
	return at
}

func (c *computer) windows() string {
	list, err := c.d.Client.ListWindows(c.ctx(), c.id)
	if err != nil {
		return err.Error()
	}
	var titles []string
	for _, w := range list.Items {
		titles = append(titles, w.Title)
	}
	return strings.Join(titles, ", ")
}

// log returns what the page has sent.
func (c *computer) log() string {
	c.t.Helper()
	var out strings.Builder
	_, err := c.d.Client.Exec(c.ctx(), c.id, sandbox.ExecRequest{Command: []string{"cat", "/workspace/log"}}, func(e sandbox.JobEvent) error {
		out.Write(e.Data)
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return out.String()
}

// awaitLog waits until the page has sent a line.
func (c *computer) awaitLog(line string) {
	c.t.Helper()
	if !covetest.Eventually(patience, func() bool { return strings.Contains(c.log(), line+"\n") }) {
		c.t.Fatalf("the page did not send %q; it sent:\n%s", line, c.log())
	}
}
