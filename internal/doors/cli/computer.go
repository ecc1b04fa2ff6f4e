package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

// computerTemplate is the default template of computers.
const computerTemplate = "desktop"

func (a *app) computerCommand() *cobra.Command {
	cmd := group("computer", "Use sandboxes that have a desktop",
		a.computerCreateCommand(),
		a.make(command{
			Use: "screen SANDBOX", Short: "Show the screen size and the pointer position",
			Example: "  cove computer screen pc",
			Do:      show(screenDetails, byName(sandbox.Service.GetScreen)),
		}),
		a.computerScreenshotCommand(), a.computerMoveCommand(), a.computerClickCommand(),
		a.computerButtonCommand(sandbox.InputPress, "Press and hold a mouse button"),
		a.computerButtonCommand(sandbox.InputRelease, "Release a mouse button"),
		a.computerDragCommand(), a.computerTypeCommand(), a.computerKeyCommand(), a.computerScrollCommand(), a.computerWindowsCommand(),
		a.make(command{
			Use: "clipboard SANDBOX [TEXT]", Short: "Print the clipboard, or copy text to it",
			Example: "  cove computer clipboard pc\n  cove computer clipboard pc 'copied'",
			Do:      action{run: clipboard},
		}),
		a.make(command{
			Use: "open SANDBOX URL", Short: "Open a URL in the computer's browser",
			Example: "  cove computer open pc https://example.com",
			Do: action{run: func(ctx context.Context, c *call) error {
				return c.client.OpenURL(ctx, c.args[0], c.args[1])
			}},
		}),
		a.computerViewCommand())
	cmd.Long = "Use sandboxes that have a desktop: take screenshots, and control the pointer, keyboard, clipboard and\n" +
		"windows. A computer is an ordinary sandbox: exec, cp, pause, fork and kill work on it."
	cmd.Example = "  cove template build desktop\n  cove computer create --name pc\n  cove computer open pc https://example.com\n" +
		"  cove computer screenshot pc -o screen.png\n  cove computer view pc --control"
	return cmd
}

var screenDetails = details(func(s *sandbox.Screen) []any {
	return []any{"size", fmt.Sprintf("%dx%d", s.Width, s.Height), "pointer", fmt.Sprintf("%d,%d", s.CursorX, s.CursorY)}
})

func (a *app) computerCreateCommand() *cobra.Command {
	var opts sandboxOptions
	return a.make(command{
		Use: "create [flags]", Short: "Create a computer and print its id",
		Long:    "Create a computer and print its id once its screen is ready. This is cove create with the template\n" + computerTemplate + ", which is built on first use.",
		Example: "  cove computer create --name pc\n  cove computer create -T browser --idle-timeout 10m --on-timeout pause",
		Flags:   opts.AddFlags,
		Do: show(only(sandboxID), func(ctx context.Context, c *call) (*sandbox.Sandbox, error) {
			if opts.req.Template == "" && opts.req.Snapshot == "" {
				opts.req.Template = computerTemplate
			}
			return opts.make(ctx, c)
		}),
	})
}

func (a *app) computerScreenshotCommand() *cobra.Command {
	var req sandbox.ScreenshotRequest
	var output, region string
	jpeg := false
	return a.make(command{
		Use: "screenshot SANDBOX", Short: "Save a screenshot",
		Example: "  cove computer screenshot pc -o screen.png --stable 500ms\n  cove computer screenshot pc --jpeg --width 640 -o - | display",
		Flags: func(f *pflag.FlagSet) {
			f.StringVarP(&output, "output", "o", "", "File to write; \"-\" is standard output (default SANDBOX.png)")
			f.StringVar(&region, "region", "", "Part of the screen, as X,Y,WIDTH,HEIGHT (default all)")
			f.IntVar(&req.Width, "width", 0, "Scale down to this width")
			f.IntVar(&req.Height, "height", 0, "Scale down to this height")
			f.BoolVar(&req.Cursor, "cursor", false, "Include the pointer")
			f.Var(millisecondsFlag(&req.StableMS), "stable", "Wait until the screen has not changed for this long")
			f.BoolVar(&jpeg, "jpeg", false, "Write JPEG instead of PNG")
			f.IntVar(&req.Quality, "quality", 0, "JPEG quality, 1 to 100 (default 80)")
		},
		Do: action{run: func(ctx context.Context, c *call) (err error) {
			if jpeg {
				req.Format = sandbox.ImageJPEG
			}
			if req.Region, err = parseRegion(region); err != nil {
				return c.misuse("%w", err)
			}
			shot, err := c.client.Screenshot(ctx, c.args[0], req)
			if err != nil {
				return err
			}
			if req.StableMS > 0 && !shot.Stable {
				c.say("the screen is still changing; this is its current state")
			}
			return c.saveScreenshot(shot, output)
		}},
	})
}

func (c *call) saveScreenshot(shot *sandbox.Screenshot, file string) error {
	if file == "-" {
		return c.print(string(shot.Data))
	}
	if file == "" {
		file = c.args[0] + "." + strings.TrimPrefix(strings.Replace(shot.MIME, "jpeg", "jpg", 1), "image/")
	}
	if err := os.WriteFile(file, shot.Data, 0o644); err != nil {
		return fmt.Errorf("write the screenshot: %w", err)
	}
	c.say("wrote %s: %dx%d", file, shot.Width, shot.Height)
	return nil
}

// parseRegion reads the flag --region; nothing is nil.
func parseRegion(text string) (*sandbox.Region, error) {
	if text == "" {
		return nil, nil
	}
	n, err := numbers(text, 4)
	if err != nil {
		return nil, fmt.Errorf("--region: %w", err)
	}
	return &sandbox.Region{X: n[0], Y: n[1], Width: n[2], Height: n[3]}, nil
}

// numbers parses a list such as "10,20".
func numbers(text string, count int) ([]int, error) {
	parts := strings.Split(text, ",")
	if len(parts) != count {
		return nil, fmt.Errorf("%q is not %d comma-separated numbers", text, count)
	}
	n := make([]int, count)
	for i, p := range parts {
		var err error
		if n[i], err = strconv.Atoi(strings.TrimSpace(p)); err != nil {
			return nil, fmt.Errorf("%q is not a number", p)
		}
	}
	return n, nil
}

// input makes an action that sends an input to a computer; fill
// takes the arguments after the computer's name.
func input(in *sandbox.Input, fill func(args []string) error) action {
	return action{run: func(ctx context.Context, c *call) error {
		if err := fill(c.args[1:]); err != nil {
			return c.misuse("%s: %w", c.cmd.Name(), err)
		}
		_, err := c.client.SendInput(ctx, c.args[0], []sandbox.Input{*in})
		return err
	}}
}

// position sets the pointer's position from two arguments, if there are any.
func position(in *sandbox.Input, args []string) error {
	if len(args) == 0 {
		return nil
	}
	n, err := numbers(strings.Join(args, ","), 2)
	if err == nil {
		in.X, in.Y = &n[0], &n[1]
	}
	return err
}

// atPosition makes an action that sends an input at the position of two arguments.
func atPosition(in *sandbox.Input) action {
	return input(in, func(args []string) error { return position(in, args) })
}

func (a *app) computerMoveCommand() *cobra.Command {
	return a.make(command{
		Use: "move SANDBOX X Y", Short: "Move the pointer",
		Example: "  cove computer move pc 640 400",
		Do:      atPosition(&sandbox.Input{Type: sandbox.InputMove}),
	})
}

func (a *app) computerClickCommand() *cobra.Command {
	in := sandbox.Input{Type: sandbox.InputClick}
	return a.make(command{
		Use: "click SANDBOX [X Y]", Short: "Click at a position, or at the pointer",
		Example: "  cove computer click pc 640 400\n  cove computer click pc 640 400 --count 2\n  cove computer click pc 10 10 --button right",
		Flags: func(f *pflag.FlagSet) {
			f.StringVarP(&in.Button, "button", "b", "", "Button: left, middle, right, back or forward (default left)")
			f.IntVarP(&in.Count, "count", "n", 0, "Number of clicks; 2 is a double click (default 1)")
			f.StringSliceVar(&in.Keys, "keys", nil, "Keys to hold, such as ctrl")
			f.Var(millisecondsFlag(&in.DurationMS), "hold", "How long to hold the button down each time")
		},
		Do: atPosition(&in),
	})
}

// computerButtonCommand presses a button, or releases it.
func (a *app) computerButtonCommand(kind sandbox.InputType, short string) *cobra.Command {
	in := sandbox.Input{Type: kind}
	return a.make(command{
		Use: string(kind) + " SANDBOX [X Y]", Short: short,
		Example: fmt.Sprintf("  cove computer %s pc 100 100", kind),
		Flags: func(f *pflag.FlagSet) {
			f.StringVarP(&in.Button, "button", "b", "", "Button: left, middle, right, back or forward (default left)")
		},
		Do: atPosition(&in),
	})
}

func (a *app) computerDragCommand() *cobra.Command {
	in := sandbox.Input{Type: sandbox.InputDrag}
	return a.make(command{
		Use: "drag SANDBOX X Y X2 Y2 [X3 Y3...]", Short: "Drag from one position to others in turn",
		Example: "  cove computer drag pc 100 100 300 200\n  cove computer drag pc 100 100 300 100 300 300 --duration 1s --keys shift",
		Args:    argsBetween(5, 1+2*(1+sandbox.MaxDragPoints)),
		Flags: func(f *pflag.FlagSet) {
			f.StringVarP(&in.Button, "button", "b", "", "Button: left, middle or right (default left)")
			f.StringSliceVar(&in.Keys, "keys", nil, "Keys to hold, such as shift")
			f.Var(millisecondsFlag(&in.DurationMS), "duration", "Duration of the drag (default 150ms)")
		},
		Do: input(&in, func(args []string) error {
			if len(args)%2 != 0 {
				return errors.New("the last position has an X but no Y")
			}
			for xy := range slices.Chunk(args[2:], 2) {
				n, err := numbers(strings.Join(xy, ","), 2)
				if err != nil {
					return err
				}
				in.Path = append(in.Path, sandbox.Point{X: n[0], Y: n[1]})
			}
			return position(&in, args[:2])
		}),
	})
}

func (a *app) computerTypeCommand() *cobra.Command {
	in := sandbox.Input{Type: sandbox.InputText}
	return a.make(command{
		Use: "type SANDBOX TEXT", Short: "Type text in any script",
		Example: "  cove computer type pc 'Grüße, 世界 😀'",
		Flags: func(f *pflag.FlagSet) {
			f.Var(millisecondsFlag(&in.DurationMS), "delay", "Time between characters")
		},
		Do: input(&in, func(args []string) error {
			in.Text = args[0]
			return nil
		}),
	})
}

func (a *app) computerKeyCommand() *cobra.Command {
	in := sandbox.Input{Type: sandbox.InputKey}
	down, up := false, false
	cmd := a.make(command{
		Use: "key SANDBOX KEYS...", Short: "Press keys or key combinations, one after another",
		Example: "  cove computer key pc Return\n  cove computer key pc ctrl+a BackSpace\n  cove computer key pc shift --down",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&down, "down", false, "Hold the keys down until they are released with --up")
			f.BoolVar(&up, "up", false, "Release the keys")
			f.Var(millisecondsFlag(&in.DurationMS), "hold", "How long to hold each down")
		},
		Do: input(&in, func(args []string) error {
			in.Keys = args
			switch {
			case down:
				in.Type = sandbox.InputKeyDown
			case up:
				in.Type = sandbox.InputKeyUp
			}
			return nil
		}),
	})
	cmd.MarkFlagsMutuallyExclusive("down", "up", "hold")
	return cmd
}

func (a *app) computerScrollCommand() *cobra.Command {
	in := sandbox.Input{Type: sandbox.InputScroll}
	var at string
	var up, left, right bool
	cmd := a.make(command{
		Use: "scroll SANDBOX NOTCHES", Short: "Turn the mouse wheel, down by default",
		Example: "  cove computer scroll pc 5\n  cove computer scroll pc 3 --up --at 640,400",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&at, "at", "", "Pointer position as X,Y (default where it is)")
			f.BoolVar(&up, "up", false, "Scroll up")
			f.BoolVar(&left, "left", false, "Scroll left")
			f.BoolVar(&right, "right", false, "Scroll right")
		},
		Do: input(&in, func(args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil {
				return fmt.Errorf("%q is not a number of notches", args[0])
			}
			switch {
			case up:
				in.DY = -n
			case left:
				in.DX = -n
			case right:
				in.DX = n
			default:
				in.DY = n
			}
			if at == "" {
				return nil
			}
			if err := position(&in, []string{at}); err != nil {
				return fmt.Errorf("--at: %w", err)
			}
			return nil
		}),
	})
	cmd.MarkFlagsMutuallyExclusive("up", "left", "right")
	return cmd
}

func (a *app) computerWindowsCommand() *cobra.Command {
	var region string
	return a.make(command{
		Use: "windows SANDBOX [focus|close|minimize|maximize|place WINDOW]", Short: "List windows, or change one",
		Example: "  cove computer windows pc\n  cove computer windows pc close 10485762\n  cove computer windows pc place 10485762 --region 0,0,640,400",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&region, "region", "", "Part of the screen for place, as X,Y,WIDTH,HEIGHT")
		},
		Do: list(windowTable, func(ctx context.Context, c *call) ([]sandbox.Window, error) {
			if len(c.args) == 1 && region == "" {
				return itemsOf(c.client.ListWindows(ctx, c.args[0]))
			}
			req, err := windowRequest(c, region)
			if err != nil {
				return nil, c.misuse("%w", err)
			}
			return itemsOf(c.client.ControlWindow(ctx, c.args[0], req))
		}),
	})
}

// windowRequest returns the request of a command line about a window.
func windowRequest(c *call, region string) (req sandbox.WindowRequest, err error) {
	if len(c.args) == 2 {
		return req, fmt.Errorf("windows: missing window id; usage: %s", c.cmd.UseLine())
	}
	req.Action = sandbox.WindowAction(c.arg(1))
	if (region != "") != (req.Action == sandbox.WindowPlace) {
		return req, errors.New("windows: use --region with place, and place with --region")
	}
	if req.ID, err = strconv.ParseInt(c.arg(2), 10, 64); err != nil {
		return req, fmt.Errorf("windows: %q is not a window id; list the windows to see their ids", c.arg(2))
	}
	req.Region, err = parseRegion(region)
	return req, err
}

var windowTable = table([]string{"WINDOW", "STATE", "PLACE", "CLASS", "TITLE"}, func(w *sandbox.Window) []any {
	state := ""
	switch {
	case w.Focused:
		state = "focused"
	case w.Hidden:
		state = "hidden"
	}
	return []any{w.ID, state, fmt.Sprintf("%dx%d+%d+%d", w.Region.Width, w.Region.Height, w.Region.X, w.Region.Y), w.Class, w.Title}
})

func clipboard(ctx context.Context, c *call) error {
	if len(c.args) == 2 {
		return c.client.SetClipboard(ctx, c.args[0], c.args[1])
	}
	text, err := c.client.GetClipboard(ctx, c.args[0])
	if err != nil {
		return err
	}
	return c.print(c.foreign(text) + "\n")
}

func (a *app) computerViewCommand() *cobra.Command {
	var req sandbox.ViewRequest
	open := false
	return a.make(command{
		Use: "view SANDBOX", Short: "Print a link to the live view of the screen",
		Long: "Print a link to a page that shows the screen live. Anyone who has the link can open it until it\n" +
			"expires. Visitors can only watch, unless you give them control. Watching does not keep a computer awake.",
		Example: "  cove computer view pc\n  cove computer view pc --control --expires 10m --open",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&req.Control, "control", false, "Let visitors use the pointer and keyboard")
			f.Var(secondsFlag(&req.TTLSeconds), "expires", "How long the link opens the view (default "+sandbox.DefaultPreviewLink.String()+")")
			f.BoolVar(&open, "open", false, "Open the link in this machine's browser too")
		},
		Do: show(func(c *call, link *sandbox.ViewLink) error {
			if open {
				// The browser's output is dropped, since it would mix with this
				// program's. If the browser cannot show the link, the user still has
				// it.
				if err := exec.Command("xdg-open", link.URL).Start(); err != nil {
					c.say("cannot start a browser; open the link yourself")
				}
			}
			c.warnUnreachable(link.URL)
			return c.print(clean(link.URL) + "\n")
		}, func(ctx context.Context, c *call) (*sandbox.ViewLink, error) {
			return c.client.ViewComputer(ctx, c.args[0], req)
		}),
	})
}
