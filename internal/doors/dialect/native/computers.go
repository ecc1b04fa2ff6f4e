package native

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// computerTemplate is what computers are made from unless told.
	computerTemplate = "desktop"
	// maxShotSide is the longest side of a picture in pixels: models scale
	// larger ones down, and coordinates then miss.
	maxShotSide = 1568
	// maxShotBytes is the largest picture of a result; above it, JPEG, and then
	// JPEG of half the width and height.
	maxShotBytes = 1 << 20
	// settleMS is how long the screen must stand still after an action.
	settleMS = 250
)

// shotView tells what a picture shows, so that coordinates can be found in it.
type shotView struct {
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	ScreenW int    `json:"screen_width"`
	ScreenH int    `json:"screen_height"`
	X       int    `json:"x"`
	Y       int    `json:"y"`
	CursorX int    `json:"cursor_x"`
	CursorY int    `json:"cursor_y"`
	Stable  bool   `json:"stable"`
	MIME    string `json:"mime"`
}

// shoot takes a picture that clients and models take: neither too large nor too
// long, and told how to find coordinates in it.
func shoot(ctx context.Context, c *dialect.Call, name string, r sandbox.ScreenshotRequest) (*sandbox.Screenshot, *shotView, string, error) {
	if r.Width == 0 && r.Height == 0 {
		r.Width, r.Height = maxShotSide, maxShotSide
	}
	shot, err := c.Service.Screenshot(ctx, name, r)
	if sandbox.CodeOf(err) == sandbox.CodeTooLarge && r.Format != sandbox.ImageJPEG {
		r.Format = sandbox.ImageJPEG
		shot, err = c.Service.Screenshot(ctx, name, r)
	}
	if err != nil {
		return nil, nil, "", err
	}
	stable := shot.Stable
	for range 3 {
		if len(shot.Data) <= maxShotBytes {
			break
		}
		if r.Format == sandbox.ImageJPEG {
			r.Width, r.Height = max(1, shot.Width/2), max(1, shot.Height/2)
		}
		r.Format, r.StableMS = sandbox.ImageJPEG, 0
		if shot, err = c.Service.Screenshot(ctx, name, r); err != nil {
			return nil, nil, "", err
		}
		shot.Stable = stable
	}
	if len(shot.Data) > maxShotBytes {
		return nil, nil, "", sandbox.Errorf(sandbox.CodeTooLarge, "the picture is larger than %d bytes, however it is taken; look at a region of the screen", maxShotBytes)
	}
	region := sandbox.Region{Width: shot.Screen.Width, Height: shot.Screen.Height}
	if r.Region != nil {
		region = *r.Region
	}
	v := &shotView{
		Width: shot.Width, Height: shot.Height, ScreenW: shot.Screen.Width, ScreenH: shot.Screen.Height, X: region.X, Y: region.Y,
		CursorX: shot.Screen.CursorX, CursorY: shot.Screen.CursorY, Stable: shot.Stable, MIME: shot.MIME,
	}
	return shot, v, shotText(v, region), nil
}

func shotText(v *shotView, of sandbox.Region) string {
	text := fmt.Sprintf("Screen %dx%d, pointer at %d,%d.", v.ScreenW, v.ScreenH, v.CursorX, v.CursorY)
	if of.Width != v.ScreenW || of.Height != v.ScreenH {
		text += fmt.Sprintf(" The picture shows %dx%d from %d,%d on.", of.Width, of.Height, of.X, of.Y)
	}
	if v.Width > 0 && v.Width != of.Width {
		text += fmt.Sprintf(" It is scaled: a place in it times %.3f is one of the screen.", float64(of.Width)/float64(v.Width))
	}
	if !v.Stable {
		text += " The screen still changes."
	}
	return text
}

type computerCreateArgs struct {
	Name               string                `json:"name,omitempty"`
	Template           string                `json:"template,omitempty"`
	URL                string                `json:"url,omitempty"`
	MemoryMiB          int64                 `json:"memory_mib,omitempty"`
	LifetimeSeconds    *int64                `json:"lifetime_seconds,omitempty"`
	IdleTimeoutSeconds *int64                `json:"idle_timeout_seconds,omitempty"`
	OnTimeout          sandbox.TimeoutAction `json:"on_timeout,omitempty"`
}

func createComputer(ctx context.Context, c *dialect.Call, in computerCreateArgs) (*reply[sandboxView], error) {
	if in.Template == "" {
		in.Template = computerTemplate
	}
	c.Status("creating the computer")
	r := project[sandbox.CreateRequest](&in)
	r.Resources.MemoryMiB = in.MemoryMiB
	sb, err := create(ctx, c, r)
	if err != nil {
		return nil, err
	}
	text := "Created computer " + describe(sb)
	if sb.Desktop != nil {
		text += fmt.Sprintf("\nIts screen has %dx%d pixels.", sb.Desktop.Width, sb.Desktop.Height)
	} else {
		text += "\nIts template has no desktop: it is a sandbox without a screen."
	}
	if in.URL != "" {
		if err := c.Service.OpenURL(ctx, sb.ID, in.URL); err != nil {
			text += "\nThe address was not opened: " + sandbox.MessageOf(err)
		}
	}
	return answer(text, view(sb))
}

type screenshotArgs struct {
	sandboxRef
	sandbox.ScreenshotRequest
}

func seeScreen(ctx context.Context, c *dialect.Call, in screenshotArgs) (*reply[*shotView], error) {
	shot, v, text, err := shoot(ctx, c, in.Sandbox, in.ScreenshotRequest)
	if err != nil {
		return nil, err
	}
	return answer(text, v, picture(shot))
}

func picture(shot *sandbox.Screenshot) mcp.Content {
	return &mcp.ImageContent{Data: shot.Data, MIMEType: shot.MIME}
}

type windowsArgs struct {
	sandboxRef
	Window int64                `json:"window,omitempty"`
	Action sandbox.WindowAction `json:"action,omitempty"`
	Region *sandbox.Region      `json:"region,omitempty"`
}

type windowsView struct {
	Windows []sandbox.Window `json:"windows"`
}

func changeWindows(ctx context.Context, c *dialect.Call, in windowsArgs) (*reply[windowsView], error) {
	var list *sandbox.List[sandbox.Window]
	var err error
	switch {
	case in.Window == 0 && in.Action == "" && in.Region == nil:
		list, err = c.Service.ListWindows(ctx, in.Sandbox)
	case in.Window == 0 || in.Action == "":
		return nil, invalid("computer_windows: to change a window give both window and action; without either, all are listed")
	default:
		list, err = c.Service.ControlWindow(ctx, in.Sandbox, sandbox.WindowRequest{ID: in.Window, Action: in.Action, Region: in.Region})
	}
	if err != nil {
		return nil, err
	}
	return answer(windowLines(list.Items), windowsView{list.Items})
}

func windowLines(windows []sandbox.Window) string {
	if len(windows) == 0 {
		return "No windows."
	}
	var b strings.Builder
	for _, w := range windows {
		fmt.Fprintf(&b, "%d %q %dx%d at %d,%d", w.ID, cleanText(w.Title), w.Region.Width, w.Region.Height, w.Region.X, w.Region.Y)
		switch {
		case w.Focused:
			b.WriteString(", focused")
		case w.Hidden:
			b.WriteString(", minimised")
		}
		b.WriteByte('\n')
	}
	return strings.TrimRight(b.String(), "\n")
}

type clipboardArgs struct {
	sandboxRef
	Text *string `json:"text,omitempty"`
}

type clipboardView struct {
	Text string `json:"text"`
	// Bytes is the length of the whole, of which Text may be a part.
	Bytes int `json:"bytes"`
}

func useClipboard(ctx context.Context, c *dialect.Call, in clipboardArgs) (*reply[clipboardView], error) {
	if in.Text != nil {
		if err := c.Service.SetClipboard(ctx, in.Sandbox, *in.Text); err != nil {
			return nil, err
		}
		return answer("The clipboard holds "+strconv.Itoa(len(*in.Text))+" bytes now.", clipboardView{clip.Valid(*in.Text, maxStreamBytes), len(*in.Text)})
	}
	held, err := c.Service.GetClipboard(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	shown := clip.Valid(held, maxStreamBytes)
	return answer(shown, clipboardView{shown, len(held)})
}

type openArgs struct {
	sandboxRef
	URL        string `json:"url"`
	Screenshot bool   `json:"screenshot,omitempty"`
}

// openSettleMS is how long the screen must stand still after a page was opened.
const openSettleMS = 1000

func openPage(ctx context.Context, c *dialect.Call, in openArgs) (*reply[doneView], error) {
	c.Status("opening " + in.URL)
	if err := c.Service.OpenURL(ctx, in.Sandbox, in.URL); err != nil {
		return nil, err
	}
	return afterwards(ctx, c, "Opened.", in.Sandbox, in.Screenshot, openSettleMS)
}

type doneView struct {
	Screenshot *shotView `json:"screenshot,omitempty"`
}

// afterwards shows what the screen is like after something was done, if that is
// wanted. Where it cannot be shown, the result is still that it was done: after an
// error it would be done again.
func afterwards(ctx context.Context, c *dialect.Call, text, name string, wanted bool, stableMS int64) (*reply[doneView], error) {
	if !wanted {
		return answer(text, doneView{})
	}
	shot, v, told, err := shoot(ctx, c, name, sandbox.ScreenshotRequest{StableMS: stableMS, Cursor: true})
	if err != nil {
		return answer(text+" The screen cannot be shown: "+sandbox.MessageOf(err)+".", doneView{})
	}
	return answer(text+" "+told, doneView{v}, picture(shot))
}

type viewArgs struct {
	sandboxRef
	sandbox.ViewRequest
}

func linkView(ctx context.Context, c *dialect.Call, in viewArgs) (*reply[*sandbox.ViewLink], error) {
	link, err := c.Service.ViewComputer(ctx, in.Sandbox, in.ViewRequest)
	if err != nil {
		return nil, err
	}
	what := "to watch"
	if link.Control {
		what = "to watch and to use"
	}
	return answer(fmt.Sprintf("Link %s the screen until %s: %s", what, stamp(link.ExpiresAt), link.URL), link)
}
