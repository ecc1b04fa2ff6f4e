package hopx

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// desktopRoutes are the routes for the screen of a sandbox whose template has a desktop.
// Generations of clients differ in methods and names; all are served.
var desktopRoutes = []route{
	{"GET", "/desktop/vnc/start", inSandbox(desktop(view), as)},
	{"POST", "/desktop/vnc/start", inSandbox(desktop(view), as)},
	{"GET", "/desktop/vnc/info", inSandbox(desktop(view), as)},
	{"GET", "/desktop/vnc/status", inSandbox(desktop(view), as)},

	{"POST", "/desktop/mouse/click", withBody(click{Button: "left", Clicks: 1}, input[click])},
	{"POST", "/desktop/mouse/move", withBody(move{}, input[move])},
	{"POST", "/desktop/mouse/drag", withBody(drag{}, input[drag])},
	{"POST", "/desktop/x11/drag_drop", withBody(drag{}, input[drag])},
	{"POST", "/desktop/mouse/scroll", withBody(scroll{}, input[scroll])},
	{"POST", "/desktop/keyboard/type", withBody(typed{}, input[typed])},
	{"POST", "/desktop/keyboard/press", withBody(keys{}, input[keys])},
	{"POST", "/desktop/keyboard/combination", withBody(keys{}, input[keys])},
	{"POST", "/desktop/x11/hotkey", withBody(keys{}, input[keys])},

	{"GET", "/desktop/clipboard/get", inSandbox(desktop(func(ctx context.Context, m *vm, _ *target) (any, error) {
		text, err := m.Service.GetClipboard(ctx, m.id)
		return object(pair{"content", text}, pair{"text", text}), err
	}), as)},
	{"POST", "/desktop/clipboard/set", withBody(clipboard{}, done(func(ctx context.Context, m *vm, in *clipboard) error {
		return m.Service.SetClipboard(ctx, m.id, in.Content+in.Text)
	}))},

	{"GET", "/desktop/screenshot", inSandbox(desktop(screenshot), as)},
	{"POST", "/desktop/screenshot", inSandbox(desktop(screenshot), as)},
	{"POST", "/desktop/screenshot/region", withBody(region{}, func(ctx context.Context, c *dialect.Call, in *region) (any, error) {
		return inside(desktop(picture))(ctx, c, in)
	})},
	{"GET", "/desktop/x11/capture_window", captureWindow},

	{"GET", "/desktop/windows/list", inSandbox(desktop(windows), as)},
	{"GET", "/desktop/windows", inSandbox(desktop(windows), as)},
	{"POST", "/desktop/windows/focus", withBody(window{}, toWindow(sandbox.WindowFocus))},
	{"POST", "/desktop/windows/close", withBody(window{}, toWindow(sandbox.WindowClose))},
	{"POST", "/desktop/windows/minimize", withBody(window{}, toWindow(sandbox.WindowMinimize))},
	{"POST", "/desktop/windows/resize", withBody(window{}, toWindow(sandbox.WindowPlace))},

	{"GET", "/desktop/display/info", inSandbox(desktop(display), as)},
	{"GET", "/desktop/display", inSandbox(desktop(display), as)},
	{"GET", "/desktop/display/resolutions", inSandbox(desktop(resolutions), as)},
	{"GET", "/desktop/display/available", inSandbox(desktop(resolutions), as)},

	lacking("GET", "/desktop/vnc/stop", "a live view is not stopped, its link expires by itself"),
	lacking("GET", "/desktop/clipboard/history", "the clipboard has no history"),
	lacking("POST", "/desktop/recording/start", "the screen is not recorded; take screenshots"),
	lacking("POST", "/desktop/recording/stop", "the screen is not recorded"),
	lacking("GET", "/desktop/recording/status", "the screen is not recorded"),
	lacking("GET", "/desktop/recording/{}/download", "the screen is not recorded"),
	lacking("POST", "/desktop/display/resolution", "the size of the screen is the template's; build one with another"),
	lacking("POST", "/desktop/x11/ocr", "text is not recognised in pictures; look at a screenshot with a model"),
	lacking("POST", "/desktop/x11/find_element", "text is not recognised in pictures; look at a screenshot with a model"),
	lacking("POST", "/desktop/x11/wait_for", "text is not recognised in pictures; look at a screenshot with a model"),
	lacking("POST", "/desktop/x11/get_bounds", "text is not recognised in pictures; look at a screenshot with a model"),
	lacking("GET", "/desktop/debug/logs", "the desktop keeps no log; read its files"),
	lacking("GET", "/desktop/debug/processes", "ask for all processes instead"),
}

// noDesktop is the code by which clients recognize that a desktop cannot do what they ask.
const noDesktop = "DESKTOP_NOT_AVAILABLE"

// lacking makes a route that always refuses, with the error that clients expect of a
// desktop without the feature.
func lacking(method, path, why string) route {
	return route{method, path, func(_ context.Context, a *apiCall) (any, error) {
		f := failed(true, a.path, sandbox.Errorf(sandbox.CodeUnsupported, "Cove does not serve %s %s: %s", method, clip.Text(a.path, maxShown), why))
		f.code = noDesktop
		return nil, f
	}}
}

// desktop translates the error of a sandbox without a desktop into the product's.
func desktop[In, Out any](work func(context.Context, *vm, *In) (Out, error)) func(context.Context, *vm, *In) (Out, error) {
	return func(ctx context.Context, m *vm, in *In) (Out, error) {
		out, err := work(ctx, m, in)
		if err == nil {
			return out, nil
		}
		f, ok := m.failed("/desktop", err).(*failure)
		if ok && sandbox.CodeOf(err) == sandbox.CodeUnsupported {
			f.code = noDesktop
		}
		return out, f
	}
}

// done makes a route that works on the screen and has no result.
func done[In any, P opener[In]](work func(context.Context, *vm, *In) error) func(context.Context, *dialect.Call, *In) (any, error) {
	run := inside[In, P](desktop(effect(work)))
	return func(ctx context.Context, c *dialect.Call, in *In) (any, error) {
		_, err := run(ctx, c, in)
		return object(pair{"success", true}), err
	}
}

// inputter is implemented by arguments that describe user input.
type inputter interface {
	inputs() ([]sandbox.Input, error)
}

// input sends user input to the screen.
func input[In any, P interface {
	opener[In]
	inputter
}](ctx context.Context, c *dialect.Call, in *In) (any, error) {
	return done[In, P](func(ctx context.Context, m *vm, in *In) error {
		list, err := P(in).inputs()
		if err == nil {
			_, err = m.Service.SendInput(ctx, m.id, list)
		}
		return err
	})(ctx, c, in)
}

type click struct {
	target
	X      *int   `json:"x"`
	Y      *int   `json:"y"`
	Button string `json:"button"`
	Clicks int    `json:"clicks"`
}

func (in *click) inputs() ([]sandbox.Input, error) {
	return []sandbox.Input{{Type: sandbox.InputClick, X: in.X, Y: in.Y, Button: in.Button, Count: in.Clicks}}, nil
}

type move struct {
	target
	X int `json:"x"`
	Y int `json:"y"`
}

func (in *move) inputs() ([]sandbox.Input, error) {
	return []sandbox.Input{{Type: sandbox.InputMove, X: &in.X, Y: &in.Y}}, nil
}

type drag struct {
	target
	FromX  int    `json:"from_x"`
	FromY  int    `json:"from_y"`
	ToX    int    `json:"to_x"`
	ToY    int    `json:"to_y"`
	Button string `json:"button"`
}

func (in *drag) inputs() ([]sandbox.Input, error) {
	return []sandbox.Input{{Type: sandbox.InputDrag, X: &in.FromX, Y: &in.FromY, Button: in.Button, Path: []sandbox.Point{{X: in.ToX, Y: in.ToY}}}}, nil
}

type scroll struct {
	target
	X         *int   `json:"x"`
	Y         *int   `json:"y"`
	DeltaY    int    `json:"delta_y"`
	Amount    int    `json:"amount"`
	Direction string `json:"direction"`
}

func (in *scroll) inputs() ([]sandbox.Input, error) {
	out := sandbox.Input{Type: sandbox.InputScroll, X: in.X, Y: in.Y, DY: in.DeltaY}
	switch in.Direction {
	case "":
	case "up":
		out.DY = -in.Amount
	case "down":
		out.DY = in.Amount
	case "left":
		out.DX = -in.Amount
	case "right":
		out.DX = in.Amount
	default:
		return nil, dialect.Invalid("direction %q is not known; use up, down, left or right", clip.Text(in.Direction, maxShown))
	}
	return []sandbox.Input{out}, nil
}

type typed struct {
	target
	Text  string `json:"text"`
	Delay int64  `json:"delay_ms"`
}

func (in *typed) inputs() ([]sandbox.Input, error) {
	return []sandbox.Input{{Type: sandbox.InputText, Text: in.Text, DurationMS: in.Delay}}, nil
}

// keys are keys to be pressed together: modifiers and one key, or a list.
type keys struct {
	target
	Key       string   `json:"key"`
	Keys      []string `json:"keys"`
	Modifiers []string `json:"modifiers"`
}

func (in *keys) inputs() ([]sandbox.Input, error) {
	all := append(append([]string{}, in.Modifiers...), in.Keys...)
	if in.Key != "" {
		all = append(all, in.Key)
	}
	if len(all) == 0 {
		return nil, dialect.Invalid("no key is given; give key or keys")
	}
	return []sandbox.Input{{Type: sandbox.InputKey, Keys: []string{strings.Join(all, "+")}}}, nil
}

type clipboard struct {
	target
	Content string `json:"content"`
	Text    string `json:"text"`
}

type region struct {
	target
	sandbox.Region
}

// picture takes a picture of a region.
func picture(ctx context.Context, m *vm, in *region) (any, error) {
	shot, err := m.Service.Screenshot(ctx, m.id, sandbox.ScreenshotRequest{Region: &in.Region})
	if err != nil {
		return nil, err
	}
	return &Answer{Status: http.StatusOK, Type: typePNG, Data: shot.Data}, nil
}

func screenshot(ctx context.Context, m *vm, _ *target) (any, error) {
	shot, err := m.Service.Screenshot(ctx, m.id, sandbox.ScreenshotRequest{})
	if err != nil {
		return nil, err
	}
	return object(
		pair{"image", base64.StdEncoding.EncodeToString(shot.Data)}, pair{"format", "png"}, pair{"width", shot.Width}, pair{"height", shot.Height},
		pair{"size", len(shot.Data)}, pair{"timestamp", dialect.Stamp(shot.TakenAt)}), nil
}

// captureWindow takes a picture of a window, or of the focused one. The answer is the
// picture itself, not JSON.
func captureWindow(ctx context.Context, a *apiCall) (any, error) {
	in := &window{target: target{SandboxID: a.sandbox}, ID: json.RawMessage(strconv.Quote(a.query.Get("window_id")))}
	return inside(desktop(func(ctx context.Context, m *vm, in *window) (any, error) {
		found, err := m.window(ctx, func(w *sandbox.Window) bool {
			id, err := in.id()
			return err == nil && id == w.ID || a.query.Get("window_id") == "" && w.Focused
		})
		if err != nil {
			return nil, err
		}
		shot, err := m.Service.Screenshot(ctx, m.id, sandbox.ScreenshotRequest{Region: &found.Region})
		if err != nil {
			return nil, err
		}
		return &Answer{Status: http.StatusOK, Type: typePNG, Data: shot.Data, asIs: true}, nil
	}))(ctx, a.Call, in)
}

// window finds a window.
func (m *vm) window(ctx context.Context, wanted func(*sandbox.Window) bool) (*sandbox.Window, error) {
	list, err := m.Service.ListWindows(ctx, m.id)
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if wanted(&list.Items[i]) {
			return &list.Items[i], nil
		}
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no such window; GET /desktop/windows/list shows those there are")
}

func windows(ctx context.Context, m *vm, _ *target) (any, error) {
	list, err := m.Service.ListWindows(ctx, m.id)
	if err != nil {
		return nil, err
	}
	out := []pairs{}
	for _, w := range list.Items {
		out = append(out, object(
			pair{"id", strconv.FormatInt(w.ID, 10)}, pair{"title", w.Title}, pair{"x", w.Region.X}, pair{"y", w.Region.Y}, pair{"width", w.Region.Width}, pair{"height", w.Region.Height},
			pair{"focused", w.Focused}, pair{"is_active", w.Focused}, pair{"is_minimized", w.Hidden}, pair{"pid", w.PID}))
	}
	return object(pair{"windows", out}), nil
}

// window names a window, and may have a size.
type window struct {
	target
	ID     json.RawMessage `json:"window_id"` // a string or a number
	Width  int             `json:"width"`
	Height int             `json:"height"`
}

func (in *window) id() (int64, error) {
	id, err := strconv.ParseInt(textOf(in.ID), 10, 64)
	if err != nil {
		return 0, dialect.Invalid("window_id is not the id of a window; GET /desktop/windows/list shows them")
	}
	return id, nil
}

// toWindow makes a function that changes one window.
func toWindow(action sandbox.WindowAction) func(context.Context, *dialect.Call, *window) (any, error) {
	return done(func(ctx context.Context, m *vm, in *window) error {
		id, err := in.id()
		if err != nil {
			return err
		}
		req := sandbox.WindowRequest{ID: id, Action: action}
		if action == sandbox.WindowPlace { // it keeps its position
			w, err := m.window(ctx, func(w *sandbox.Window) bool { return w.ID == id })
			if err != nil {
				return err
			}
			req.Region = &sandbox.Region{X: w.Region.X, Y: w.Region.Y, Width: in.Width, Height: in.Height}
		}
		_, err = m.Service.ControlWindow(ctx, m.id, req)
		return err
	})
}

func display(ctx context.Context, m *vm, _ *target) (any, error) {
	s, err := m.Service.GetScreen(ctx, m.id)
	if err != nil {
		return nil, err
	}
	return object(pair{"width", s.Width}, pair{"height", s.Height}, pair{"depth", 24}), nil
}

func resolutions(ctx context.Context, m *vm, _ *target) (any, error) {
	s, err := m.Service.GetScreen(ctx, m.id)
	if err != nil {
		return nil, err
	}
	return object(pair{"resolutions", [][2]int{{s.Width, s.Height}}}), nil
}

// view makes a link to the live view, which a browser opens.
func view(ctx context.Context, m *vm, _ *target) (any, error) {
	link, err := m.Service.ViewComputer(ctx, m.id, sandbox.ViewRequest{Control: true})
	if err != nil {
		return nil, err
	}
	return object(pair{"running", true}, pair{"url", link.URL}, pair{"expires_at", dialect.Stamp(link.ExpiresAt)}), nil
}
