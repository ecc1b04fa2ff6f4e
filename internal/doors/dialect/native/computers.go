package native

import (
	"cmp"
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
	// computerTemplate is the default template of computers.
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

// shotView describes a picture, so that coordinates can be found in it.
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

// shot is a screenshot in a result.
type shot struct {
	view    *shotView
	text    string // says how to find coordinates in the picture
	picture mcp.Content
}

// takeScreenshot takes a picture that is small enough for clients and models.
func takeScreenshot(ctx context.Context, c *dialect.Call, name string, r sandbox.ScreenshotRequest) (shot, error) {
	if r.Width == 0 && r.Height == 0 {
		r.Width, r.Height = maxShotSide, maxShotSide
	}
	taken, err := c.Service.Screenshot(ctx, name, r)
	if sandbox.CodeOf(err) == sandbox.CodeTooLarge && r.Format != sandbox.ImageJPEG {
		r.Format = sandbox.ImageJPEG
		taken, err = c.Service.Screenshot(ctx, name, r)
	}
	if err != nil {
		return shot{}, err
	}
	stable := taken.Stable
	for range 3 {
		if len(taken.Data) <= maxShotBytes {
			break
		}
		if r.Format == sandbox.ImageJPEG {
			r.Width, r.Height = max(1, taken.Width/2), max(1, taken.Height/2)
		}
		r.Format, r.StableMS = sandbox.ImageJPEG, 0
		if taken, err = c.Service.Screenshot(ctx, name, r); err != nil {
			return shot{}, err
		}
	}
	if len(taken.Data) > maxShotBytes {
		return shot{}, sandbox.Errorf(sandbox.CodeTooLarge, "the picture is larger than %d bytes, however it is taken; look at a region of the screen", maxShotBytes)
	}
	region := sandbox.Region{Width: taken.Screen.Width, Height: taken.Screen.Height}
	if r.Region != nil {
		region = *r.Region
	}
	v := &shotView{
		Width: taken.Width, Height: taken.Height, ScreenW: taken.Screen.Width, ScreenH: taken.Screen.Height, X: region.X, Y: region.Y,
		CursorX: taken.Screen.CursorX, CursorY: taken.Screen.CursorY, Stable: stable, MIME: taken.MIME,
	}
	return shot{v, shotText(v, region), &mcp.ImageContent{Data: taken.Data, MIMEType: taken.MIME}}, nil
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
	in.Template = cmp.Or(in.Template, computerTemplate)
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
	s, err := takeScreenshot(ctx, c, in.Sandbox, in.ScreenshotRequest)
	if err != nil {
		return nil, err
	}
	return answer(s.text, s.view, s.picture)
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

// afterwards answers after an action, with a screenshot if that is wanted. If the
// screenshot fails, the call still succeeds: after an error the client would repeat
// the action.
func afterwards(ctx context.Context, c *dialect.Call, text, name string, wanted bool, stableMS int64) (*reply[doneView], error) {
	if !wanted {
		return answer(text, doneView{})
	}
	s, err := takeScreenshot(ctx, c, name, sandbox.ScreenshotRequest{StableMS: stableMS, Cursor: true})
	if err != nil {
		return answer(text+" The screen cannot be shown: "+sandbox.MessageOf(err)+".", doneView{})
	}
	return answer(text+" "+s.text, doneView{s.view}, s.picture)
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
