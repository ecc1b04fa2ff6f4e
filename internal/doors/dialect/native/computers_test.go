package native_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/native"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/sandbox"
)

// screen is a service with one computer, which records what is done to it.
type screen struct {
	sandbox.Service // nil: verbs that are not needed panic

	inputs []sandbox.Input
	shots  []sandbox.ScreenshotRequest
	// size is that of a picture in bytes, by its width and format.
	size func(width int, format sandbox.ImageFormat) int
	err  error
}

func (s *screen) SendInput(_ context.Context, _ string, inputs []sandbox.Input) (*sandbox.Screen, error) {
	s.inputs = append(s.inputs, inputs...)
	return &sandbox.Screen{Width: 1280, Height: 800}, nil
}

func (s *screen) Screenshot(_ context.Context, _ string, req sandbox.ScreenshotRequest) (*sandbox.Screenshot, error) {
	s.shots = append(s.shots, req)
	if s.err != nil {
		return nil, s.err
	}
	if req.Width > 3000 && req.Format != sandbox.ImageJPEG {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "the picture is too large")
	}
	shot := &sandbox.Screenshot{MIME: "image/" + string(req.Format), Width: min(1280, req.Width), Height: min(800, req.Height), Screen: sandbox.Screen{Width: 1280, Height: 800}}
	if req.Format == "" {
		shot.MIME = "image/png"
	}
	shot.Data = make([]byte, s.size(shot.Width, req.Format))
	return shot, nil
}

func small(int, sandbox.ImageFormat) int { return 100 }

func (s *screen) call(t *testing.T, tool, args string) *mcp.CallToolResult {
	t.Helper()
	res, err := dialecttest.Direct(t, native.New(), s)(sandbox.WithCaller(t.Context(), sandbox.LocalCaller()), tool, json.RawMessage(args))
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func said(res *mcp.CallToolResult) string {
	text, ok := res.Content[0].(*mcp.TextContent)
	if !ok {
		return ""
	}
	return text.Text
}

// TestComputerActions checks what each action does.
func TestComputerActions(t *testing.T) {
	x, y := 3, 4
	for args, want := range map[string]sandbox.Input{
		`"action": "click", "x": 3, "y": 4`:                            {Type: sandbox.InputClick, X: &x, Y: &y},
		`"action": "click", "key": "ctrl shift"`:                       {Type: sandbox.InputClick, Keys: []string{"ctrl", "shift"}},
		`"action": "double_click"`:                                     {Type: sandbox.InputClick, Count: 2},
		`"action": "triple_click"`:                                     {Type: sandbox.InputClick, Count: 3},
		`"action": "right_click"`:                                      {Type: sandbox.InputClick, Button: "right"},
		`"action": "middle_click"`:                                     {Type: sandbox.InputClick, Button: "middle"},
		`"action": "mouse_down"`:                                       {Type: sandbox.InputPress},
		`"action": "mouse_up"`:                                         {Type: sandbox.InputRelease},
		`"action": "move", "x": 3, "y": 4`:                             {Type: sandbox.InputMove, X: &x, Y: &y},
		`"action": "drag", "to_x": 3, "to_y": 4`:                       {Type: sandbox.InputDrag, Path: []sandbox.Point{{X: 3, Y: 4}}},
		`"action": "scroll"`:                                           {Type: sandbox.InputScroll, DY: 3},
		`"action": "scroll", "direction": "up"`:                        {Type: sandbox.InputScroll, DY: -3},
		`"action": "scroll", "direction": "left", "amount": 5`:         {Type: sandbox.InputScroll, DX: -5},
		`"action": "type", "text": "Grüße"`:                            {Type: sandbox.InputText, Text: "Grüße"},
		`"action": "key", "key": "ctrl+a Return", "screenshot": false`: {Type: sandbox.InputKey, Keys: []string{"ctrl+a", "Return"}},
		`"action": "hold_key", "key": "a"`:                             {Type: sandbox.InputKey, Keys: []string{"a"}, DurationMS: 1000},
		`"action": "wait", "duration_ms": 20, "screenshot": true`:      {Type: sandbox.InputWait, DurationMS: 20},
	} {
		s := &screen{size: small}
		if res := s.call(t, "computer_action", `{"sandbox": "pc", `+args+`}`); res.IsError {
			t.Errorf("%s: %s", args, said(res))
			continue
		}
		if diff := cmp.Diff([]sandbox.Input{want}, s.inputs); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", args, diff)
		}
		if pictures := len(s.shots); (pictures == 0) != strings.Contains(args, "false") {
			t.Errorf("%s: %d pictures", args, pictures)
		}
	}
	for _, args := range []string{`"action": "click", "amount": 3`, `"action": "key", "direction": "up"`, `"action": "drag", "to_x": 3`, `"action": "drag", "x": 3, "y": 3`} {
		s := &screen{size: small}
		if res := s.call(t, "computer_action", `{"sandbox": "pc", `+args+`}`); !res.IsError || len(s.inputs) > 0 {
			t.Errorf("%s: %s", args, said(res))
		}
	}
}

// The actions stay done, although there is no picture of the result.
func TestActionWithoutPicture(t *testing.T) {
	s := &screen{size: small, err: sandbox.Errorf(sandbox.CodeUnavailable, "no X server runs")}
	res := s.call(t, "computer_action", `{"sandbox": "pc", "action": "click"}`)
	if res.IsError || !strings.Contains(said(res), "Done: click.") || !strings.Contains(said(res), "no X server runs") {
		t.Errorf("the result is %q, an error: %v", said(res), res.IsError)
	}
}

// A picture of a result has at most 1 MiB.
func TestLargePictures(t *testing.T) {
	for name, test := range map[string]struct {
		size  func(int, sandbox.ImageFormat) int
		fails bool
	}{
		"noise": {size: func(width int, format sandbox.ImageFormat) int {
			if format == sandbox.ImageJPEG {
				return width * width * 5 / 4
			}
			return width * width * 3
		}},
		"more than its size allows": {size: func(int, sandbox.ImageFormat) int { return 2 << 20 }, fails: true},
	} {
		s := &screen{size: test.size}
		res := s.call(t, "computer_screenshot", `{"sandbox": "pc"}`)
		if res.IsError != test.fails {
			t.Errorf("%s: %s", name, said(res))
		}
		if res := s.call(t, "computer_screenshot", `{"sandbox": "pc", "width": 4000}`); res.IsError != test.fails {
			t.Errorf("%s, and wide: %s", name, said(res))
		}
		for _, c := range res.Content {
			if img, ok := c.(*mcp.ImageContent); ok && (len(img.Data) > 1<<20 || img.MIMEType != "image/jpeg") {
				t.Errorf("%s: a picture of %d bytes, %s", name, len(img.Data), img.MIMEType)
			}
		}
	}
}
