package toolbox

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

func (p *plane) computerRoutes(rt *answer.Router) {
	on := func(pattern string, h answer.Handler) { rt.On(pattern, desktop(h)) }
	on("POST /computeruse/start", p.computerStart)
	on("GET /computeruse/status", p.computerStatus)
	on("GET /computeruse/process-status", p.computerStatus) // where clients ask for it
	on("GET /computeruse/mouse/position", p.mousePosition)
	on("POST /computeruse/mouse/move", decoded(p.mouseMove))
	on("POST /computeruse/mouse/click", decoded(p.mouseClick))
	on("POST /computeruse/mouse/drag", decoded(p.mouseDrag))
	on("POST /computeruse/mouse/scroll", decoded(p.mouseScroll))
	on("POST /computeruse/keyboard/type", decoded(p.typeText))
	on("POST /computeruse/keyboard/key", decoded(p.pressKey))
	on("POST /computeruse/keyboard/hotkey", decoded(p.pressHotkey))
	on("GET /computeruse/screenshot", p.screenshot)
	on("GET /computeruse/screenshot/region", p.screenshot)
	on("GET /computeruse/screenshot/compressed", p.screenshot)
	on("GET /computeruse/screenshot/region/compressed", p.screenshot)
	on("GET /computeruse/display/info", p.displayInfo)
	on("GET /computeruse/display/windows", p.displayWindows)
}

// desktop refuses requests to a sandbox that has no screen.
func desktop(h answer.Handler) answer.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if boxOf(r).Desktop == nil {
			return answer.Fail(http.StatusNotImplemented, answer.NotImplemented, "Cove does not serve computer use in this sandbox: its template has no desktop; make it of the snapshot desktop")
		}
		return h(w, r)
	}
}

// desktopStatus is the state of the desktop, which runs for as long as its sandbox.
var desktopStatus = map[string]any{"desktop": map[string]any{"running": true, "priority": 0, "autoRestart": false}}

func (p *plane) computerStart(w http.ResponseWriter, r *http.Request) error {
	if _, err := p.svc.GetScreen(r.Context(), boxOf(r).ID); err != nil {
		return err
	}
	return ok(w, map[string]any{"message": "the desktop runs", "status": desktopStatus})
}

func (p *plane) computerStatus(w http.ResponseWriter, r *http.Request) error {
	if _, err := p.svc.GetScreen(r.Context(), boxOf(r).ID); err != nil {
		return err
	}
	return ok(w, map[string]string{"status": "active"})
}

func (p *plane) mousePosition(w http.ResponseWriter, r *http.Request) error {
	s, err := p.svc.GetScreen(r.Context(), boxOf(r).ID)
	if err != nil {
		return err
	}
	return ok(w, map[string]int{"x": s.CursorX, "y": s.CursorY})
}

// input does inputs and returns where the pointer is then.
func (p *plane) input(ctx context.Context, r *http.Request, inputs ...sandbox.Input) (map[string]int, error) {
	s, err := p.svc.SendInput(ctx, boxOf(r).ID, inputs)
	if err != nil {
		return nil, err
	}
	return map[string]int{"x": s.CursorX, "y": s.CursorY}, nil
}

type point struct {
	X int `json:"x"`
	Y int `json:"y"`
}

func (p *plane) mouseMove(w http.ResponseWriter, r *http.Request, body *point) error {
	at, err := p.input(r.Context(), r, sandbox.Input{Type: sandbox.InputMove, X: &body.X, Y: &body.Y})
	if err != nil {
		return err
	}
	return ok(w, at)
}

type clickBody struct {
	point
	Button string `json:"button"`
	Double bool   `json:"double"`
}

func (p *plane) mouseClick(w http.ResponseWriter, r *http.Request, body *clickBody) error {
	in := sandbox.Input{Type: sandbox.InputClick, X: &body.X, Y: &body.Y, Button: body.Button, Count: 1}
	if body.Double {
		in.Count = 2
	}
	at, err := p.input(r.Context(), r, in)
	if err != nil {
		return err
	}
	return ok(w, at)
}

type dragBody struct {
	StartX int    `json:"startX"`
	StartY int    `json:"startY"`
	EndX   int    `json:"endX"`
	EndY   int    `json:"endY"`
	Button string `json:"button"`
}

func (p *plane) mouseDrag(w http.ResponseWriter, r *http.Request, body *dragBody) error {
	at, err := p.input(r.Context(), r, sandbox.Input{
		Type: sandbox.InputDrag, X: &body.StartX, Y: &body.StartY, Button: body.Button, Path: []sandbox.Point{{X: body.EndX, Y: body.EndY}},
	})
	if err != nil {
		return err
	}
	return ok(w, at)
}

type scrollBody struct {
	point
	Direction string `json:"direction"`
	Amount    *int   `json:"amount"`
}

func (p *plane) mouseScroll(w http.ResponseWriter, r *http.Request, body *scrollBody) error {
	in := sandbox.Input{Type: sandbox.InputScroll, X: &body.X, Y: &body.Y, DY: 1}
	if body.Amount != nil {
		in.DY = *body.Amount
	}
	switch body.Direction {
	case "down":
	case "up":
		in.DY = -in.DY
	default:
		return answer.Invalid("direction %.20q is not up or down", body.Direction)
	}
	if _, err := p.input(r.Context(), r, in); err != nil {
		return err
	}
	return ok(w, map[string]bool{"success": true})
}

type typeBody struct {
	Text  string `json:"text"`
	Delay int64  `json:"delay"` // milliseconds
}

func (p *plane) typeText(w http.ResponseWriter, r *http.Request, body *typeBody) error {
	return p.keys(w, r, sandbox.Input{Type: sandbox.InputText, Text: body.Text, DurationMS: body.Delay})
}

func (p *plane) keys(w http.ResponseWriter, r *http.Request, in sandbox.Input) error {
	if _, err := p.input(r.Context(), r, in); err != nil {
		return err
	}
	return ok(w, map[string]any{})
}

type keyBody struct {
	Key       string   `json:"key"`
	Modifiers []string `json:"modifiers"`
}

func (p *plane) pressKey(w http.ResponseWriter, r *http.Request, body *keyBody) error {
	return p.keys(w, r, sandbox.Input{Type: sandbox.InputKey, Keys: []string{strings.Join(append(body.Modifiers, body.Key), "+")}})
}

type hotkeyBody struct {
	Keys string `json:"keys"`
}

func (p *plane) pressHotkey(w http.ResponseWriter, r *http.Request, body *hotkeyBody) error {
	return p.keys(w, r, sandbox.Input{Type: sandbox.InputKey, Keys: []string{body.Keys}})
}

// readScreenshot reads what picture a client wants of a screen.
func readScreenshot(route string, query url.Values, screen *sandbox.Desktop) (*sandbox.ScreenshotRequest, error) {
	req := &sandbox.ScreenshotRequest{Cursor: query.Get("showCursor") == "true"}
	whole := sandbox.Region{Width: screen.Width, Height: screen.Height}
	number := func(name string) (int, error) {
		n, err := strconv.Atoi(query.Get(name))
		if err != nil {
			return 0, answer.Invalid("%s is %.20q; give a number", name, query.Get(name))
		}
		return n, nil
	}
	if strings.Contains(route, "/region") {
		for name, to := range map[string]*int{"x": &whole.X, "y": &whole.Y, "width": &whole.Width, "height": &whole.Height} {
			var err error
			if *to, err = number(name); err != nil {
				return nil, err
			}
		}
		req.Region = &whole
	}
	if !strings.HasSuffix(route, "/compressed") {
		return req, nil
	}
	req.Format = sandbox.ImageFormat(query.Get("format"))
	if query.Has("quality") {
		var err error
		if req.Quality, err = number("quality"); err != nil {
			return nil, err
		}
		if req.Format != sandbox.ImageJPEG {
			req.Quality = 0 // PNG has none
		}
	}
	if text := query.Get("scale"); text != "" {
		scale, err := strconv.ParseFloat(text, 64)
		if err != nil || !(scale >= 0.1 && scale <= 1) {
			return nil, answer.Invalid("scale is %.20q; give 0.1 to 1", text)
		}
		req.Width = max(1, int(math.Round(float64(whole.Width)*scale)))
	}
	return req, nil
}

func (p *plane) screenshot(w http.ResponseWriter, r *http.Request) error {
	req, err := readScreenshot(r.URL.Path, r.URL.Query(), boxOf(r).Desktop)
	if err != nil {
		return err
	}
	shot, err := p.svc.Screenshot(r.Context(), boxOf(r).ID, *req)
	if err != nil {
		return err
	}
	return ok(w, map[string]any{
		"screenshot": shot.Data, "sizeBytes": len(shot.Data), "cursorPosition": point{shot.Screen.CursorX, shot.Screen.CursorY},
	})
}

func (p *plane) displayInfo(w http.ResponseWriter, r *http.Request) error {
	s, err := p.svc.GetScreen(r.Context(), boxOf(r).ID)
	if err != nil {
		return err
	}
	return ok(w, map[string]any{"displays": []any{
		map[string]any{"id": 0, "x": 0, "y": 0, "width": s.Width, "height": s.Height, "isActive": true},
	}})
}

func (p *plane) displayWindows(w http.ResponseWriter, r *http.Request) error {
	list, err := p.svc.ListWindows(r.Context(), boxOf(r).ID)
	if err != nil {
		return err
	}
	all := make([]map[string]any, len(list.Items))
	for i, win := range list.Items {
		all[i] = map[string]any{
			"id": win.ID, "title": win.Title, "x": win.Region.X, "y": win.Region.Y, "width": win.Region.Width, "height": win.Region.Height, "isActive": win.Focused,
		}
	}
	return ok(w, map[string]any{"windows": all})
}
