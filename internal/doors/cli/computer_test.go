package cli

import (
	"context"
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// screened is a service that records what is done with a computer.
type screened struct{ kept }

func (s *screened) GetScreen(context.Context, string) (*sandbox.Screen, error) {
	return &sandbox.Screen{Width: 1280, Height: 800, CursorX: 3, CursorY: 4}, nil
}

func (s *screened) SendInput(_ context.Context, name string, inputs []sandbox.Input) (*sandbox.Screen, error) {
	s.hear("SendInput", name, inputs)
	return &sandbox.Screen{}, nil
}

func (s *screened) ListWindows(_ context.Context, name string) (*sandbox.List[sandbox.Window], error) {
	s.hear("ListWindows", name)
	return &sandbox.List[sandbox.Window]{}, nil
}

func (s *screened) ControlWindow(_ context.Context, name string, req sandbox.WindowRequest) (*sandbox.List[sandbox.Window], error) {
	s.hear("ControlWindow", name, req)
	return &sandbox.List[sandbox.Window]{}, nil
}

func TestComputerCommandsPassEverythingOn(t *testing.T) {
	for line, heard := range map[string]string{
		"move a 10 20":                          `SendInput "a" [{"type":"move","x":10,"y":20}]`,
		"click a 1 2 --count 2 --keys ctrl,alt": `SendInput "a" [{"type":"click","x":1,"y":2,"count":2,"keys":["ctrl","alt"]}]`,
		"click a --hold 1s":                     `SendInput "a" [{"type":"click","duration_ms":1000}]`,
		"press a":                               `SendInput "a" [{"type":"press"}]`,
		"press a 1 2 -b middle":                 `SendInput "a" [{"type":"press","x":1,"y":2,"button":"middle"}]`,
		"release a 3 4":                         `SendInput "a" [{"type":"release","x":3,"y":4}]`,
		"key a ctrl+c Return":                   `SendInput "a" [{"type":"key","keys":["ctrl+c","Return"]}]`,
		"key a Left --hold 2s":                  `SendInput "a" [{"type":"key","keys":["Left"],"duration_ms":2000}]`,
		"key a shift --down":                    `SendInput "a" [{"type":"key_down","keys":["shift"]}]`,
		"key a shift --up":                      `SendInput "a" [{"type":"key_up","keys":["shift"]}]`,
		"drag a 1 2 3 4":                        `SendInput "a" [{"type":"drag","x":1,"y":2,"path":[{"x":3,"y":4}]}]`,
		"drag a 1 2 3 4 5 6 -b right --duration 2s --keys shift": `SendInput "a" [{"type":"drag","x":1,"y":2,"button":"right",` +
			`"path":[{"x":3,"y":4},{"x":5,"y":6}],"keys":["shift"],"duration_ms":2000}]`,
		"scroll a 3 --up --at 5,6":                `SendInput "a" [{"type":"scroll","x":5,"y":6,"dy":-3}]`,
		"windows a":                               `ListWindows "a"`,
		"windows a close 7":                       `ControlWindow "a" {"id":7,"action":"close"}`,
		"windows a place 7 --region 0,10,640,480": `ControlWindow "a" {"id":7,"action":"place","region":{"x":0,"y":10,"width":640,"height":480}}`,
	} {
		s := &screened{}
		got := lineWith(t, s, "", strings.Fields("computer "+line)...)
		if got.Code != 0 || len(s.heard) != 1 || s.heard[0] != heard {
			t.Errorf("%s: code %d, %s\ngot  %s\nwant %s", line, got.Code, got.Errors, s.heard, heard)
		}
	}
	got := lineWith(t, &screened{}, "", "computer", "screen", "a")
	if got.Code != 0 || !strings.Contains(got.Out, "1280x800") || !strings.Contains(got.Out, "3,4") {
		t.Errorf("screen: %+v", got)
	}
	if got := lineWith(t, &screened{}, "", "computer", "screen", "--json", "a"); got.Code != 0 || !strings.Contains(got.Out, `"cursor_x": 3`) {
		t.Errorf("screen --json: %+v", got)
	}
}

func TestComputerCommandsRefuse(t *testing.T) {
	for line, says := range map[string]string{
		"move a 10":                             "missing argument",
		"move a x 10":                           `"x" is not a number`,
		"press a 10":                            `not 2 comma-separated numbers`,
		"key a x --down --up":                   "none of the others",
		"key a x --up --hold 1s":                "none of the others",
		"drag a 1 2":                            "missing argument",
		"drag a 1 2 3 4 5":                      "no Y",
		"drag a 1 2 3 x":                        `"x" is not a number`,
		"windows a place 7":                     "use --region with place",
		"windows a close 7 --region 0,0,1,1":    "use --region with place",
		"windows a --region 0,0,1,1":            "use --region with place",
		"windows a place 7 --region 0,0,1":      "4 comma-separated numbers",
		"windows a place x --region 0,0,640,48": "not a window id",
	} {
		s := &screened{}
		if got := lineWith(t, s, "", strings.Fields("computer "+line)...); got.Code == 0 || !strings.Contains(got.Errors, says) || len(s.heard) > 0 {
			t.Errorf("%s: code %d, %q, heard %s; want %q", line, got.Code, got.Errors, s.heard, says)
		}
	}
}
