package native

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

type actionArgs struct {
	sandboxRef
	Action     string `json:"action"`
	X          *int   `json:"x,omitempty"`
	Y          *int   `json:"y,omitempty"`
	ToX        *int   `json:"to_x,omitempty"`
	ToY        *int   `json:"to_y,omitempty"`
	Text       string `json:"text,omitempty"`
	Key        string `json:"key,omitempty"`
	Direction  string `json:"direction,omitempty"`
	Amount     *int   `json:"amount,omitempty"`
	DurationMS int64  `json:"duration_ms,omitempty"`
	Screenshot bool   `json:"screenshot,omitempty"`
}

// computerActions maps the names of actions to inputs without their arguments.
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

// defaultScroll is the default number of notches of a scroll, and holdKeyMS the
// default time for which a key is held.
const (
	defaultScroll = 3
	maxScroll     = 100
	holdKeyMS     = 1000
)

func act(ctx context.Context, c *dialect.Call, in actionArgs) (*reply[doneView], error) {
	input, err := in.input()
	if err != nil {
		return nil, err
	}
	if _, err := c.Service.SendInput(ctx, in.Sandbox, []sandbox.Input{input}); err != nil {
		return nil, err
	}
	return afterwards(ctx, c, "Done: "+in.Action+".", in.Sandbox, in.Screenshot, settleMS)
}

// input returns the input for the arguments. The computer itself refuses arguments
// that do not fit each other.
func (in *actionArgs) input() (sandbox.Input, error) {
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

func actionNames() []any {
	var names []any
	for _, name := range slices.Sorted(maps.Keys(computerActions)) {
		names = append(names, name)
	}
	return names
}
