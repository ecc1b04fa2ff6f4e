package main

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// The size of the built-in computers' screens.
const screenWidth, screenHeight = 1280, 800

var (
	pageColor   = color.RGBA{0x2e, 0xc2, 0x7e, 0xff}
	markerColor = color.RGBA{0xc0, 0x1c, 0x8d, 0xff}
	doneColor   = color.RGBA{0xe5, 0xa5, 0x0a, 0xff}
)

const (
	// formPage shows in its colour whether the right text was typed.
	formPage = `<!doctype html><meta charset="utf-8"><title>Form</title><style>body{background:#2ec27e}input{font:40px sans-serif;width:90%}</style>
<input autofocus oninput="if (value === 'héllo 世界 😀') { document.title = 'Typed'; document.body.style.background = '#e5a50a'; }">`
	typed = "héllo 世界 😀"
	// cell is the width and height of a glyph on the page of glyphs.
	cell = 100
)

// glyphs are looked for on the screen. The first is not a real character: it shows the
// box for a character that no font has.
var glyphs = []struct{ what, text string }{
	{"nothing", "\u0378"}, {"Chinese", "世"}, {"Japanese", "あ"}, {"Korean", "한"}, {"Latin", "é"}, {"Greek", "Ω"}, {"Cyrillic", "Ж"},
	{"a symbol", "✓"}, {"an emoji", "😀"},
}

func glyphsPage() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<!doctype html><meta charset="utf-8"><title>Glyphs</title><style>body{margin:0;background:#fff}div{position:absolute;top:0;width:%[1]dpx;height:%[1]dpx;
font:60px/%[1]dpx sans-serif;text-align:center;overflow:hidden}</style><div style="left:0;background:#c01c8d"></div>`, cell)
	for i, g := range glyphs {
		fmt.Fprintf(&b, `<div style="left:%dpx">%s</div>`, (i+1)*cell, g.text)
	}
	return b.String()
}

func useDesktop(u *user) {
	u.screens()
	u.shells([3]string{"quiet logs", `! cat /tmp/.cove-desktop/x.log /tmp/.cove-desktop/openbox.log | grep -iE 'error|fail|cannot|denied'`, ""})
	u.note("the panel's terminal", u.launch(1, "XTerm"))
	u.note("a command typed in it", u.typeInTerminal())
	u.note("the panel's files", u.launch(2, "Pcmanfm"))
	u.snap("desktop-windows")
	u.note("the windows close", u.closeAll())
	u.note("the panel's browser", u.launch(0, "Chromium"))
	u.pages()
	u.snap("desktop-browser")
	u.shells(
		[3]string{"xdg-open", "xdg-mime query default text/html; xdg-settings get default-web-browser", "chromium"},
		[3]string{"Chromium's own sandbox", "! cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -x -- '--no[-]sandbox'", ""},
	)
}

func useBrowser(u *user) {
	u.screens()
	u.note("Chromium fills the screen from the start", u.await(func() error {
		w, err := u.window("Chromium")
		if err == nil && (w.Region != sandbox.Region{Width: screenWidth, Height: screenHeight} || !w.Focused) {
			err = fmt.Errorf("its window is %+v", w)
		}
		return err
	}))
	u.snap("browser-start")
	u.pages()
	u.snap("browser-page")
	u.note("headless, by the DevTools protocol", u.devtools())
	u.shells([3]string{"Chromium's own sandbox", "! cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -x -- '--no[-]sandbox'", ""})
}

// screens checks what both kinds of computers have.
func (u *user) screens() {
	u.shells(commonChecks...)
	img, err := u.screen()
	if err == nil && (img.Bounds() != image.Rect(0, 0, screenWidth, screenHeight) || colours(img, img.Bounds()) < 20) {
		err = fmt.Errorf("a picture of %v with %d colours", img.Bounds(), colours(img, img.Bounds()))
	}
	u.note("a screen", err)
	u.snap(u.template + "-first")
}

// pages has pages opened in the browser, and types in one.
func (u *user) pages() {
	for path, content := range map[string]string{"/tmp/form.html": formPage, "/tmp/glyphs.html": glyphsPage()} {
		if err := u.put(path, content); err != nil {
			u.note("write a page", err)
			return
		}
	}
	u.note("a page shows", u.open("file:///tmp/form.html", pageColor))
	_, err := u.d.Client.SendInput(u.ctx, u.id, []sandbox.Input{{Type: sandbox.InputText, Text: typed}})
	if err == nil {
		err = u.shows(doneColor)
	}
	u.note("typing "+typed, err)
	if u.note("a page of glyphs shows", u.open("file:///tmp/glyphs.html", markerColor)) {
		u.note("glyphs are painted", u.await(u.painted))
	}
	w, err := u.window("Chromium")
	if err == nil && (w.Region.Width < screenWidth*9/10 || w.Region.Height < screenHeight*8/10) {
		err = fmt.Errorf("its window is only %+v", w.Region)
	}
	u.note("Chromium's window is large", err)
}

// painted checks that all glyphs are on the screen, and that none is the box for
// missing characters.
func (u *user) painted() error {
	img, err := u.screen()
	if err != nil {
		return err
	}
	marker := area(img, markerColor)
	if marker.Dx() < cell*9/10 {
		return fmt.Errorf("the marker of the page is %v", marker)
	}
	var seen []*image.RGBA
	for i, g := range glyphs {
		r := image.Rect(0, 0, cell, cell).Add(marker.Min).Add(image.Pt((i+1)*cell, 0))
		if !r.In(img.Bounds()) {
			return fmt.Errorf("the page does not fit on the screen: %v", r)
		}
		part := image.NewRGBA(image.Rect(0, 0, cell, cell))
		draw.Draw(part, part.Bounds(), img, r.Min, draw.Src)
		if n := colours(part, part.Bounds()); n < 3 {
			return fmt.Errorf("%s (%s) is not painted", g.what, g.text)
		}
		for j, other := range seen {
			if bytes.Equal(other.Pix, part.Pix) {
				return fmt.Errorf("%s (%s) looks as %s (%s)", g.what, g.text, glyphs[j].what, glyphs[j].text)
			}
		}
		if g.what == "an emoji" && !colourful(part) {
			return fmt.Errorf("%s is grey", g.text)
		}
		seen = append(seen, part)
	}
	return nil
}

// launch clicks on a place of the panel and waits for a window of a class.
func (u *user) launch(place int, class string) error {
	x, y := 22+32*place, screenHeight-18
	if _, err := u.d.Client.SendInput(u.ctx, u.id, []sandbox.Input{{Type: sandbox.InputClick, X: &x, Y: &y}}); err != nil {
		return err
	}
	return u.await(func() error {
		w, err := u.window(class)
		if err == nil && !w.Focused {
			err = errors.New("it has no focus")
		}
		return err
	})
}

// typeInTerminal types a command, whose result is a file.
func (u *user) typeInTerminal() error {
	if _, err := u.d.Client.SendInput(u.ctx, u.id, []sandbox.Input{
		{Type: sandbox.InputText, Text: "clear; echo 'héllo 世界 😀' > said; echo $((6*7)) >> said; cat said; ls -l /"}, {Type: sandbox.InputKey, Keys: []string{"Return"}},
	}); err != nil {
		return err
	}
	return u.await(func() error {
		out, err := u.sh("cat said")
		if err == nil && out != typed+"\n42\n" {
			err = fmt.Errorf("it wrote %q", out)
		}
		return err
	})
}

// closeAll closes all windows but the panel.
func (u *user) closeAll() error {
	return u.await(func() error {
		list, err := u.d.Client.ListWindows(u.ctx, u.id)
		if err != nil {
			return err
		}
		open := slices.DeleteFunc(list.Items, func(w sandbox.Window) bool { return w.Class == "Tint2" })
		if len(open) == 0 {
			return nil
		}
		for _, w := range open {
			if _, err := u.d.Client.ControlWindow(u.ctx, u.id, sandbox.WindowRequest{ID: w.ID, Action: sandbox.WindowClose}); err != nil {
				return err
			}
		}
		return fmt.Errorf("there are %d windows", len(open))
	})
}

// window returns the window of a class.
func (u *user) window(class string) (*sandbox.Window, error) {
	list, err := u.d.Client.ListWindows(u.ctx, u.id)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list.Items, func(w sandbox.Window) bool { return strings.EqualFold(w.Class, class) })
	if i < 0 {
		return nil, fmt.Errorf("there is no window of %s among %+v", class, list.Items)
	}
	return &list.Items[i], nil
}

// open opens an address and waits until a good part of the screen has a colour.
func (u *user) open(address string, want color.RGBA) error {
	if err := u.d.Client.OpenURL(u.ctx, u.id, address); err != nil {
		return err
	}
	return u.shows(want)
}

func (u *user) shows(want color.RGBA) error {
	return u.await(func() error {
		img, err := u.screen()
		if err == nil && area(img, want).Dx() < cell*9/10 {
			err = errors.New("the page is not to be seen")
		}
		return err
	})
}

// await waits until something holds, and returns why it does not.
func (u *user) await(holds func() error) (err error) {
	covetest.Eventually(patience, func() bool {
		err = holds()
		return err == nil || u.ctx.Err() != nil
	})
	if err != nil {
		u.snap("failed-" + u.template)
	}
	return err
}

// screen takes a picture.
func (u *user) screen() (image.Image, error) {
	shot, err := u.d.Client.Screenshot(u.ctx, u.id, sandbox.ScreenshotRequest{})
	if err != nil {
		return nil, err
	}
	return png.Decode(bytes.NewReader(shot.Data))
}

// snap keeps a picture for people, when it stands still.
func (u *user) snap(name string) {
	if u.pictures == "" {
		return
	}
	shot, err := u.d.Client.Screenshot(u.ctx, u.id, sandbox.ScreenshotRequest{StableMS: 1000})
	if err == nil {
		err = os.WriteFile(filepath.Join(u.pictures, name+".png"), shot.Data, 0o644)
	}
	if err != nil {
		u.note("keep a picture", err)
	}
}

// area returns the smallest rectangle around all pixels of a colour.
func area(img image.Image, want color.RGBA) image.Rectangle {
	var r image.Rectangle
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
			if color.RGBAModel.Convert(img.At(x, y)) == want {
				r = r.Union(image.Rect(x, y, x+1, y+1))
			}
		}
	}
	return r
}

// colours counts those of a part of a picture.
func colours(img image.Image, part image.Rectangle) int {
	all := map[color.Color]bool{}
	for y := part.Min.Y; y < part.Max.Y; y++ {
		for x := part.Min.X; x < part.Max.X; x++ {
			all[color.RGBAModel.Convert(img.At(x, y))] = true
		}
	}
	return len(all)
}

// colourful reports whether a good part of a picture is in colours.
func colourful(img *image.RGBA) bool {
	n := 0
	for i := 0; i < len(img.Pix); i += 4 {
		if r, b := int(img.Pix[i]), int(img.Pix[i+2]); r-b > 60 || b-r > 60 {
			n++
		}
	}
	return n > len(img.Pix)/4/20
}
