package native

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/dialect"
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

func shotProps() []prop {
	return []prop{
		req("width", count("Of the picture.")), req("height", count("")), req("screen_width", count("Of the screen: what coordinates count in.")), req("screen_height", count("")),
		req("x", count("Where the picture's top left corner is on the screen.")), req("y", count("")),
		req("cursor_x", count("")), req("cursor_y", count("")), req("stable", boolean("False if the screen still changed.")), req("mime", text("")),
	}
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

// pictured is a result with a picture.
func pictured(text string, shot *sandbox.Screenshot, structured any) *mcp.CallToolResult {
	r := dialect.Text(text, structured)
	if shot != nil {
		r.Content = append(r.Content, &mcp.ImageContent{Data: shot.Data, MIMEType: shot.MIME})
	}
	return r
}

func computerArg() prop {
	return req("sandbox", bounded("Id or name of the computer, from computer_create.", 1, 128))
}

type computerCreateArgs struct {
	Name               string                `json:"name"`
	Template           string                `json:"template"`
	URL                string                `json:"url"`
	MemoryMiB          int64                 `json:"memory_mib"`
	LifetimeSeconds    *int64                `json:"lifetime_seconds"`
	IdleTimeoutSeconds *int64                `json:"idle_timeout_seconds"`
	OnTimeout          sandbox.TimeoutAction `json:"on_timeout"`
}

func computerCreate() dialect.Tool {
	return dialect.New(toolsetComputer, &mcp.Tool{
		Name:  "computer_create",
		Title: "Create a computer",
		Description: "Create a sandbox with a screen: a Linux desktop with Chromium, a terminal and a file manager. Returns its id; takes well under a second. " +
			"Then computer_screenshot to see it, computer_action to use it. sandbox_exec, file_* and the rest work on it too; sandbox_kill ends it.",
		Annotations: annotations("Create a computer", false, false, false, true),
		InputSchema: input(
			opt("name", nameSchema()),
			opt("template", with(bounded("desktop, browser (Chromium alone) or another that has a desktop.", 0, 256), computerTemplate)),
			opt("url", bounded("Address to open in its browser at once.", 0, 8<<10)),
			opt("memory_mib", integer("Memory in MiB; the template's if left out.", sandbox.MinMemoryMiB, sandbox.MaxMemoryMiB)),
			opt("lifetime_seconds", integer("Seconds until it ends, from now; 0 is never.", 0, maxLifetimeSeconds)),
			opt("idle_timeout_seconds", integer("Seconds without a call until it ends; 0 is never.", 0, maxLifetimeSeconds)),
			opt("on_timeout", onTimeoutSchema("; kill if left out")),
		),
		OutputSchema: sandboxOutput(),
	}, func(ctx context.Context, c *dialect.Call, in computerCreateArgs) (*mcp.CallToolResult, error) {
		if in.Template == "" {
			in.Template = computerTemplate
		}
		c.Status("creating the computer")
		sb, err := create(ctx, c, sandbox.CreateRequest{
			Name: in.Name, Template: in.Template, Resources: sandbox.Resources{MemoryMiB: in.MemoryMiB},
			LifetimeSeconds: in.LifetimeSeconds, IdleTimeoutSeconds: in.IdleTimeoutSeconds, OnTimeout: in.OnTimeout,
		})
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
		return dialect.Text(text, view(sb)), nil
	})
}

type computerScreenshotArgs struct {
	Sandbox string `json:"sandbox"`
	sandbox.ScreenshotRequest
}

func regionSchema(description string) *jsonschema.Schema {
	return object(description,
		req("x", integer("", 0, sandbox.MaxScreenWidth)), req("y", integer("", 0, sandbox.MaxScreenHeight)),
		req("width", integer("", 1, sandbox.MaxScreenWidth)), req("height", integer("", 1, sandbox.MaxScreenHeight)))
}

func computerScreenshot() dialect.Tool {
	return dialect.New(toolsetComputer, &mcp.Tool{
		Name:        "computer_screenshot",
		Title:       "See the screen",
		Description: "Take a picture of a computer's screen. With stable_ms it waits until nothing changes, so that no half-painted window is seen; a region is shown in full sharpness.",
		Annotations: annotations("See the screen", true, false, true, false),
		InputSchema: input(
			computerArg(),
			opt("region", regionSchema("Only this part of the screen, in pixels.")),
			opt("width", integer("Scale it down to this width.", 0, sandbox.MaxScreenWidth)),
			opt("height", integer("Scale it down to this height.", 0, sandbox.MaxScreenHeight)),
			opt("cursor", with(boolean("Show the pointer."), false)),
			opt("stable_ms", with(integer("Wait until the screen has not changed for so long, 10 s at most.", 0, sandbox.MaxStableWait.Milliseconds()), 0)),
			opt("format", with(oneOf("", string(sandbox.ImagePNG), string(sandbox.ImageJPEG)), sandbox.ImagePNG)),
			opt("quality", integer("Of JPEG.", 0, 100)),
		),
		OutputSchema: output(shotProps()...),
	}, func(ctx context.Context, c *dialect.Call, in computerScreenshotArgs) (*mcp.CallToolResult, error) {
		shot, v, text, err := shoot(ctx, c, in.Sandbox, in.ScreenshotRequest)
		if err != nil {
			return nil, err
		}
		return pictured(text, shot, v), nil
	})
}

type computerWindowsArgs struct {
	Sandbox string               `json:"sandbox"`
	Window  int64                `json:"window"`
	Action  sandbox.WindowAction `json:"action"`
	Region  *sandbox.Region      `json:"region"`
}

type windowsView struct {
	Windows []sandbox.Window `json:"windows"`
}

func computerWindows() dialect.Tool {
	return dialect.New(toolsetComputer, &mcp.Tool{
		Name:        "computer_windows",
		Title:       "List or change windows",
		Description: "List a computer's windows, the topmost first; with window and action, change one of them first.",
		Annotations: annotations("List or change windows", false, true, false, false),
		InputSchema: input(
			computerArg(),
			opt("window", integer("Id of the window to change.", 1, 1<<32-1)),
			opt("action", oneOf("What to do to it; place needs a region.", string(sandbox.WindowFocus), string(sandbox.WindowClose), string(sandbox.WindowMinimize), string(sandbox.WindowMaximize), string(sandbox.WindowPlace))),
			opt("region", regionSchema("Where to place it.")),
		),
		OutputSchema: output(req("windows", array("", object("",
			req("id", count("")), req("title", text("")), opt("class", text("The program's.")), opt("pid", count("")),
			req("region", object("", req("x", integer("", -1<<16, 1<<16)), req("y", integer("", -1<<16, 1<<16)), req("width", count("")), req("height", count("")))),
			req("focused", boolean("")), opt("hidden", boolean("It is minimised.")),
		), 0, 0))),
	}, func(ctx context.Context, c *dialect.Call, in computerWindowsArgs) (*mcp.CallToolResult, error) {
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
		return dialect.Text(windowLines(list.Items), windowsView{list.Items}), nil
	})
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

type computerClipboardArgs struct {
	Sandbox string  `json:"sandbox"`
	Text    *string `json:"text"`
}

type clipboardView struct {
	Text string `json:"text"`
	// Bytes is the length of the whole, of which Text may be a part.
	Bytes int `json:"bytes"`
}

func computerClipboard() dialect.Tool {
	return dialect.New(toolsetComputer, &mcp.Tool{
		Name:        "computer_clipboard",
		Title:       "Read or set the clipboard",
		Description: "Read a computer's clipboard; with text, set it. Then paste with computer_action key ctrl+v, which is quicker than typing long text.",
		Annotations: annotations("Read or set the clipboard", false, false, true, false),
		InputSchema: input(computerArg(), opt("text", bounded("What to put into it.", 0, sandbox.MaxClipboard))),
		OutputSchema: output(
			req("text", text("")), req("bytes", count("Of the whole clipboard; text may be cut."))),
	}, func(ctx context.Context, c *dialect.Call, in computerClipboardArgs) (*mcp.CallToolResult, error) {
		if in.Text != nil {
			if err := c.Service.SetClipboard(ctx, in.Sandbox, *in.Text); err != nil {
				return nil, err
			}
			return dialect.Text("The clipboard holds "+strconv.Itoa(len(*in.Text))+" bytes now.", clipboardView{clip.Valid(*in.Text, maxStreamBytes), len(*in.Text)}), nil
		}
		held, err := c.Service.GetClipboard(ctx, in.Sandbox)
		if err != nil {
			return nil, err
		}
		shown := clip.Valid(held, maxStreamBytes)
		return dialect.Text(shown, clipboardView{shown, len(held)}), nil
	})
}

type computerOpenArgs struct {
	Sandbox    string `json:"sandbox"`
	URL        string `json:"url"`
	Screenshot *bool  `json:"screenshot"`
}

// openSettleMS is how long the screen must stand still after a page was opened.
const openSettleMS = 1000

func computerOpen() dialect.Tool {
	return dialect.New(toolsetComputer, &mcp.Tool{
		Name:         "computer_open",
		Title:        "Open a page",
		Description:  "Open an address in a computer's browser, wait until its window shows something, and show the screen when it stands still. A first page takes a few seconds, for which the browser starts.",
		Annotations:  annotations("Open a page", false, false, false, true),
		InputSchema:  input(computerArg(), req("url", bounded("http, https, file or about.", 1, 8<<10)), opt("screenshot", with(boolean("Return a picture of the screen."), true))),
		OutputSchema: output(opt("screenshot", object("", shotProps()...))),
	}, func(ctx context.Context, c *dialect.Call, in computerOpenArgs) (*mcp.CallToolResult, error) {
		c.Status("opening " + in.URL)
		if err := c.Service.OpenURL(ctx, in.Sandbox, in.URL); err != nil {
			return nil, err
		}
		return afterwards(ctx, c, "Opened.", in.Sandbox, in.Screenshot, openSettleMS)
	})
}

type doneView struct {
	Screenshot *shotView `json:"screenshot,omitempty"`
}

// afterwards shows what the screen is like after something was done, unless
// told not to. Where it cannot be shown, the result is still that it was done:
// after an error it would be done again.
func afterwards(ctx context.Context, c *dialect.Call, text, name string, wanted *bool, stableMS int64) (*mcp.CallToolResult, error) {
	if wanted != nil && !*wanted {
		return dialect.Text(text, doneView{}), nil
	}
	shot, v, told, err := shoot(ctx, c, name, sandbox.ScreenshotRequest{StableMS: stableMS, Cursor: true})
	if err != nil {
		return dialect.Text(text+" The screen cannot be shown: "+sandbox.MessageOf(err)+".", doneView{}), nil
	}
	return pictured(text+" "+told, shot, doneView{v}), nil
}

type computerViewArgs struct {
	Sandbox string `json:"sandbox"`
	sandbox.ViewRequest
}

func computerView() dialect.Tool {
	return dialect.New(toolsetComputer, &mcp.Tool{
		Name:        "computer_view",
		Title:       "Link to the live view",
		Description: "Make a link with which a person watches a computer's screen in a browser, live; with control they can use it too, for example to log in. Give the link to the person.",
		Annotations: annotations("Link to the live view", false, false, false, true),
		InputSchema: input(
			computerArg(),
			opt("control", with(boolean("Let the visitor use pointer and keyboard."), false)),
			opt("ttl_seconds", integer(fmt.Sprintf("How long the link opens; %d if left out.", int64(sandbox.DefaultPreviewLink.Seconds())), 0, int64(sandbox.MaxPreviewLink.Seconds()))),
		),
		OutputSchema: output(req("url", text("")), req("control", boolean("")), req("expires_at", moment(""))),
	}, func(ctx context.Context, c *dialect.Call, in computerViewArgs) (*mcp.CallToolResult, error) {
		link, err := c.Service.ViewComputer(ctx, in.Sandbox, in.ViewRequest)
		if err != nil {
			return nil, err
		}
		what := "to watch"
		if link.Control {
			what = "to watch and to use"
		}
		return dialect.Text(fmt.Sprintf("Link %s the screen until %s: %s", what, stamp(link.ExpiresAt), link.URL), link), nil
	})
}
