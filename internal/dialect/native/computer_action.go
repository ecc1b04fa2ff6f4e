package native

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

type computerActionArgs struct {
	Sandbox    string `json:"sandbox"`
	Action     string `json:"action"`
	X          *int   `json:"x"`
	Y          *int   `json:"y"`
	ToX        *int   `json:"to_x"`
	ToY        *int   `json:"to_y"`
	Text       string `json:"text"`
	Key        string `json:"key"`
	Direction  string `json:"direction"`
	Amount     *int   `json:"amount"`
	DurationMS int64  `json:"duration_ms"`
	Screenshot *bool  `json:"screenshot"`
}

// computerActions are the actions by their names, as inputs without what the
// arguments say.
var computerActions = map[string]sandbox.Input{
	"click":        {Type: sandbox.InputClick},
	"double_click": {Type: sandbox.InputClick, Count: 2},
	"triple_click": {Type: sandbox.InputClick, Count: 3},
	"right_click":  {Type: sandbox.InputClick, Button: "right"},
	"middle_click": {Type: sandbox.InputClick, Button: "middle"},
	"mouse_down":   {Type: sandbox.InputPress},
	"mouse_up":     {Type: sandbox.InputRelease},
	"move":         {Type: sandbox.InputMove},
	"drag":         {Type: sandbox.InputDrag},
	"scroll":       {Type: sandbox.InputScroll},
	"type":         {Type: sandbox.InputText},
	"key":          {Type: sandbox.InputKey},
	"hold_key":     {Type: sandbox.InputKey},
	"wait":         {Type: sandbox.InputWait},
}

// defaultScroll is how many notches a scroll is that does not say, and
// holdKeyMS how long a key is held.
const (
	defaultScroll = 3
	maxScroll     = 100
	holdKeyMS     = 1000
)

func computerAction() dialect.Tool {
	side := func(description string) prop { return opt(description, integer("", 0, sandbox.MaxScreenWidth)) }
	return dialect.New(toolsetComputer, &mcp.Tool{
		Name:  "computer_action",
		Title: "Use pointer and keyboard",
		Description: "Do one thing at a computer, and show its screen when it stands still. x and y are pixels of the screen, from the top left; without them, where the pointer is. " +
			"type takes text in any script; key takes combinations such as ctrl+c, several with spaces between. A click can hold keys by key.",
		Annotations: annotations("Use pointer and keyboard", false, true, false, true),
		InputSchema: input(
			computerArg(),
			req("action", oneOf("", slices.Sorted(maps.Keys(computerActions))...)),
			side("x"), side("y"), side("to_x"), side("to_y"),
			opt("text", bounded("For type.", 0, sandbox.MaxTypedBytes)),
			opt("key", bounded("For key and hold_key, or held during a click: Return, ctrl+shift+t, F5.", 0, 1024)),
			opt("direction", oneOf("For scroll.", "up", "down", "left", "right")),
			// No default: it would be given with every action.
			opt("amount", integer(fmt.Sprintf("For scroll: notches of the wheel; %d if left out.", defaultScroll), 1, maxScroll)),
			opt("duration_ms", integer("For wait and hold_key; of a drag; for type the time between characters.", 0, sandbox.MaxInputTime.Milliseconds())),
			opt("screenshot", with(boolean("Return a picture of the screen."), true)),
		),
		OutputSchema: output(opt("screenshot", object("", shotProps()...))),
	}, func(ctx context.Context, c *dialect.Call, in computerActionArgs) (*mcp.CallToolResult, error) {
		input, err := in.input()
		if err != nil {
			return nil, err
		}
		if _, err := c.Service.SendInput(ctx, in.Sandbox, []sandbox.Input{input}); err != nil {
			return nil, err
		}
		return afterwards(ctx, c, "Done: "+in.Action+".", in.Sandbox, in.Screenshot, settleMS)
	})
}

// input returns what the arguments ask for. What makes no sense together is for
// the computer to refuse, which knows.
func (in *computerActionArgs) input() (sandbox.Input, error) {
	input := computerActions[in.Action]
	input.X, input.Y, input.Text, input.DurationMS = in.X, in.Y, in.Text, in.DurationMS
	if in.Key != "" {
		input.Keys = strings.Fields(in.Key)
	}
	if (in.ToX == nil) != (in.ToY == nil) {
		return input, invalid("computer_action: only one of to_x and to_y is given; give both")
	}
	if in.Action == "drag" && in.ToX == nil {
		return input, invalid("computer_action: a drag needs to_x and to_y, where it leads")
	}
	if in.ToX != nil {
		input.Path = []sandbox.Point{{X: *in.ToX, Y: *in.ToY}}
	}
	if in.Direction != "" || in.Amount != nil || in.Action == "scroll" {
		if in.Action != "scroll" {
			return input, invalid("computer_action: direction and amount are for scroll; leave them out")
		}
		n := defaultScroll
		if in.Amount != nil {
			n = *in.Amount
		}
		if err := scroll(&input, in.Direction, n); err != nil {
			return input, err
		}
	}
	if in.Action == "hold_key" && input.DurationMS == 0 {
		input.DurationMS = holdKeyMS
	}
	return input, nil
}

func scroll(input *sandbox.Input, direction string, n int) error {
	switch direction {
	case "", "down":
		input.DY = n
	case "up":
		input.DY = -n
	case "left":
		input.DX = -n
	case "right":
		input.DX = n
	default:
		return invalid("computer_action: the direction is up, down, left or right")
	}
	return nil
}
