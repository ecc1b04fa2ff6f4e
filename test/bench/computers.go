package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/sandbox"
)

// hostComputer is a computer that uses this machine's own programs, for a state directory
// without the built-in one.
var hostComputer = sandbox.TemplateSpec{
	From:      sandbox.TemplateSource{Host: true},
	Desktop:   &sandbox.Desktop{Width: 1280, Height: 800},
	Resources: sandbox.Resources{VCPUs: 2, MemoryMiB: 2048},
	// Debian's launcher needs files of /etc that the sandbox does not have.
	Env: map[string]string{"COVE_BROWSER": "/usr/lib/chromium/chromium --no-first-run --disable-gpu --start-maximized"},
	Start: &sandbox.StartCommand{
		Command: "mkdir -m 1777 -p /tmp/.X11-unix; export DISPLAY=:1; (while ! test -S /tmp/.X11-unix/X1; do sleep 0.05; done; openbox --startup 'touch /tmp/ready') & " +
			"exec Xvnc :1 -geometry 1280x800 -depth 24 -localhost -SecurityTypes None -ac -noreset",
		Ready: "test -e /tmp/ready",
	},
}

// computers measures the screen of a computer that shows a page.
func (b *bench) computers(ctx context.Context) error {
	template, err := b.computerTemplate(ctx)
	if err != nil {
		return err
	}
	err = b.time(ctx, "create a computer, template "+template, "< 600 ms", b.n, func(ctx context.Context) (time.Duration, error) {
		if err := figures.Rest(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		s, err := b.d.Client.Create(ctx, sandbox.CreateRequest{Template: template})
		if err != nil {
			return 0, err
		}
		took := time.Since(began)
		_, err = b.d.Client.Kill(context.WithoutCancel(ctx), s.ID)
		return took, err
	})
	if err != nil {
		return err
	}
	s, err := b.d.Client.Create(ctx, sandbox.CreateRequest{Template: template})
	if err != nil {
		return err
	}
	defer b.d.Client.Kill(context.WithoutCancel(ctx), s.ID)
	if err := b.showPage(ctx, s.ID); err != nil {
		return err
	}
	if err := b.screenshots(ctx, s.ID); err != nil {
		return err
	}
	return b.inputs(ctx, s.ID)
}

func (b *bench) computerTemplate(ctx context.Context) (string, error) {
	list, err := b.d.Client.ListTemplates(ctx, sandbox.Page{})
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(list.Items, func(t sandbox.Template) bool {
		return t.Name == "desktop" && t.State == sandbox.TemplateReady
	}) {
		return "desktop", nil
	}
	const name = "host-computer"
	_, err = b.d.Client.BuildTemplate(ctx, sandbox.BuildTemplateRequest{Name: name, Spec: &hostComputer}, nil)
	return name, err
}

// showPage opens a long page in the browser and waits until it is shown.
func (b *bench) showPage(ctx context.Context, id string) error {
	var page strings.Builder
	page.WriteString("<title>bench</title><body contenteditable autofocus>")
	for i := range 200 {
		fmt.Fprintf(&page, "<p style='color:hsl(%d 80%% 40%%)'>Line %d: the quick brown fox jumps over the lazy dog.</p>", i*7%360, i)
	}
	if _, err := b.d.Client.WriteFile(ctx, id, sandbox.WriteFileRequest{Path: "/tmp/bench.html"}, strings.NewReader(page.String())); err != nil {
		return err
	}
	if err := b.d.Client.OpenURL(ctx, id, "file:///tmp/bench.html"); err != nil {
		return err
	}
	for end := time.Now().Add(2 * time.Minute); ; {
		list, err := b.d.Client.ListWindows(ctx, id)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(list.Items, func(w sandbox.Window) bool { return strings.HasPrefix(w.Title, "bench") }) {
			break
		}
		if time.Now().After(end) {
			return errors.New("the browser does not show the page")
		}
		time.Sleep(100 * time.Millisecond)
	}
	_, err := b.d.Client.Screenshot(ctx, id, sandbox.ScreenshotRequest{StableMS: 1000})
	return err
}

func (b *bench) screenshots(ctx context.Context, id string) error {
	if err := b.time(ctx, "screenshot, PNG 1280x800, all of it new", "< 25 ms", 3*b.n, b.newPicture(id)); err != nil {
		return err
	}
	for _, c := range []struct {
		name, target string
		req          sandbox.ScreenshotRequest
	}{
		{"PNG 1280x800, nothing changed", "< 25 ms", sandbox.ScreenshotRequest{}},
		{"PNG 1280x800 with the cursor", "", sandbox.ScreenshotRequest{Cursor: true}},
		{"JPEG 1280x800", "", sandbox.ScreenshotRequest{Format: sandbox.ImageJPEG}},
		{"PNG scaled to 640x400", "", sandbox.ScreenshotRequest{Width: 640}},
		{"PNG of 200x100 pixels", "", sandbox.ScreenshotRequest{Region: &sandbox.Region{X: 100, Y: 100, Width: 200, Height: 100}}},
	} {
		size := 0
		if err := b.time(ctx, "screenshot, "+c.name, c.target, 3*b.n, figures.Whole(func(ctx context.Context) error {
			shot, err := b.d.Client.Screenshot(ctx, id, c.req)
			if err == nil {
				size = len(shot.Data)
			}
			return err
		})); err != nil {
			return err
		}
		b.rows[len(b.rows)-1].Name += fmt.Sprintf(" (%d KiB)", size>>10)
	}
	return nil
}

// calm waits until the screen stops changing, except for the caret, which blinks every half
// second.
var calm = sandbox.ScreenshotRequest{StableMS: 300, Region: &sandbox.Region{Width: 8, Height: 8}}

// newPicture returns a function that takes a picture without cached parts: it is of a small
// region, and the page has moved since the last full picture.
func (b *bench) newPicture(id string) func(context.Context) (time.Duration, error) {
	x, y, notches := 640, 500, 3
	return func(ctx context.Context) (time.Duration, error) {
		notches = -notches
		if _, err := b.d.Client.SendInput(ctx, id, []sandbox.Input{{Type: sandbox.InputScroll, X: &x, Y: &y, DY: notches}}); err != nil {
			return 0, err
		}
		if _, err := b.d.Client.Screenshot(ctx, id, calm); err != nil {
			return 0, err
		}
		began := time.Now()
		_, err := b.d.Client.Screenshot(ctx, id, sandbox.ScreenshotRequest{})
		return time.Since(began), err
	}
}

func (b *bench) inputs(ctx context.Context, id string) error {
	x, y := 640, 500
	latin, han := strings.Repeat("The quick brown fox ", 5), ""
	for i := range 100 {
		han += string(rune(0x4e00 + 7*i))
	}
	for _, c := range []struct {
		name, target string
		calm         bool // all earlier input has been handled
		inputs       []sandbox.Input
	}{
		{"click", "< 5 ms", true, []sandbox.Input{{Type: sandbox.InputClick, X: &x, Y: &y}}},
		{"key", "< 5 ms", true, []sandbox.Input{{Type: sandbox.InputKey, Keys: []string{"Down"}}}},
		{"key combination", "< 5 ms", true, []sandbox.Input{{Type: sandbox.InputKey, Keys: []string{"ctrl+shift+Left"}}}},
		{"clicks, one right after the other", "", false, []sandbox.Input{{Type: sandbox.InputClick, X: &x, Y: &y}}},
		{"keys, one right after the other", "", false, []sandbox.Input{{Type: sandbox.InputKey, Keys: []string{"Down"}}}},
		{"type 100 characters that the keyboard has", "", false, []sandbox.Input{{Type: sandbox.InputText, Text: latin}}},
		{"type 100 characters that it has not", "", false, []sandbox.Input{{Type: sandbox.InputText, Text: han}}},
	} {
		n := 3 * b.n
		if len(c.inputs[0].Text) > 0 {
			n = b.n
		}
		if err := b.time(ctx, c.name, c.target, n, func(ctx context.Context) (time.Duration, error) {
			if c.calm {
				if _, err := b.d.Client.Screenshot(ctx, id, calm); err != nil {
					return 0, err
				}
			}
			began := time.Now()
			_, err := b.d.Client.SendInput(ctx, id, c.inputs)
			return time.Since(began), err
		}); err != nil {
			return err
		}
	}
	return b.time(ctx, "list windows", "", b.n, figures.Whole(func(ctx context.Context) error {
		_, err := b.d.Client.ListWindows(ctx, id)
		return err
	}))
}
