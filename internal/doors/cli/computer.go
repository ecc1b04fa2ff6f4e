package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// computerTemplate is what computers are made from unless told.
const computerTemplate = "desktop"

func (a *app) computerCommand() *cobra.Command {
	cmd := group("computer", "Use sandboxes that have a screen",
		a.computerCreateCommand(), a.computerScreenCommand(), a.computerScreenshotCommand(), a.computerMoveCommand(), a.computerClickCommand(),
		a.computerButtonCommand(sandbox.InputPress, "Hold a button down, at a place or where the pointer is, until it is released"),
		a.computerButtonCommand(sandbox.InputRelease, "Let go of a button, at a place or where the pointer is"),
		a.computerDragCommand(), a.computerTypeCommand(), a.computerKeyCommand(), a.computerScrollCommand(), a.computerWindowsCommand(), a.computerClipboardCommand(), a.computerOpenCommand(),
		a.computerViewCommand())
	cmd.Long = "Use sandboxes that have a screen: see it, and use pointer, keyboard, clipboard and windows.\n" +
		"Computers are sandboxes like others: exec, cp, pause, fork and kill work on them."
	cmd.Example = "  cove template build desktop\n  cove computer create --name pc\n  cove computer open pc https://example.com\n" +
		"  cove computer screenshot pc -o screen.png\n  cove computer view pc --control"
	return cmd
}

// onComputer runs f with a client of the service.
func (a *app) onComputer(f func(c *client.Client) error) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	return f(c)
}

func (a *app) computerCreateCommand() *cobra.Command {
	var opts createOptions
	cmd := &cobra.Command{
		Use: "create [flags]", Short: "Create a computer and print its id",
		Long:    "Create a computer and print its id when its screen is there. It is cove create with the template\n" + computerTemplate + ", which is built when it is first asked for.",
		Example: "  cove computer create --name pc\n  cove computer create -T browser --idle-timeout 10m --on-timeout pause",
		Args:    argsBetween(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Template == "" && opts.Snapshot == "" {
				opts.Template = computerTemplate
			}
			return a.runCreate(cmd.Context(), opts)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

type screenshotOptions struct {
	Output  string
	Region  string
	Width   int
	Height  int
	Cursor  bool
	Stable  time.Duration
	JPEG    bool
	Quality int
}

func (o *screenshotOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVarP(&o.Output, "output", "o", "", "file to write; \"-\" is standard output (default SANDBOX.png)")
	f.StringVar(&o.Region, "region", "", "X,Y,WIDTH,HEIGHT of the screen (default all)")
	f.IntVar(&o.Width, "width", 0, "scale it down to this width")
	f.IntVar(&o.Height, "height", 0, "scale it down to this height")
	f.BoolVar(&o.Cursor, "cursor", false, "show the pointer")
	f.DurationVar(&o.Stable, "stable", 0, "wait until the screen has not changed for so long")
	f.BoolVar(&o.JPEG, "jpeg", false, "write JPEG in place of PNG")
	f.IntVar(&o.Quality, "quality", 0, "of JPEG, 1 to 100 (default 80)")
}

func (o *screenshotOptions) request() (sandbox.ScreenshotRequest, error) {
	req := sandbox.ScreenshotRequest{Width: o.Width, Height: o.Height, Cursor: o.Cursor, StableMS: o.Stable.Milliseconds(), Quality: o.Quality}
	if o.JPEG {
		req.Format = sandbox.ImageJPEG
	}
	if o.Region != "" {
		var err error
		if req.Region, err = parseRegion(o.Region); err != nil {
			return req, err
		}
	}
	return req, nil
}

// parseRegion reads the flag --region.
func parseRegion(text string) (*sandbox.Region, error) {
	n, err := numbers(text, 4)
	if err != nil {
		return nil, fmt.Errorf("--region: %w", err)
	}
	return &sandbox.Region{X: n[0], Y: n[1], Width: n[2], Height: n[3]}, nil
}

// numbers takes a list such as "10,20" apart.
func numbers(text string, count int) ([]int, error) {
	parts := strings.Split(text, ",")
	if len(parts) != count {
		return nil, fmt.Errorf("%q is not %d numbers with commas between", text, count)
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

func (a *app) computerScreenshotCommand() *cobra.Command {
	var opts screenshotOptions
	cmd := &cobra.Command{
		Use: "screenshot SANDBOX", Short: "Write a picture of the screen to a file",
		Example: "  cove computer screenshot pc -o screen.png --stable 500ms\n  cove computer screenshot pc --jpeg --width 640 -o - | display",
		Args:    argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := opts.request()
			if err != nil {
				return usageError(cmd, err)
			}
			return a.runScreenshot(cmd.Context(), opts, req, args[0])
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runScreenshot(ctx context.Context, opts screenshotOptions, req sandbox.ScreenshotRequest, name string) error {
	return a.onComputer(func(c *client.Client) error {
		shot, err := c.Screenshot(ctx, name, req)
		if err != nil {
			return err
		}
		if req.StableMS > 0 && !shot.Stable {
			a.say("the screen still changes; this is how it is now")
		}
		if opts.Output == "-" {
			return a.print(string(shot.Data))
		}
		file := opts.Output
		if file == "" {
			file = name + "." + strings.TrimPrefix(strings.Replace(shot.MIME, "jpeg", "jpg", 1), "image/")
		}
		if err := os.WriteFile(file, shot.Data, 0o644); err != nil {
			return fmt.Errorf("write the picture: %w", err)
		}
		a.say("wrote %s: %dx%d", file, shot.Width, shot.Height)
		return nil
	})
}

// input sends inputs to a computer.
func (a *app) input(ctx context.Context, name string, inputs ...sandbox.Input) error {
	return a.onComputer(func(c *client.Client) error {
		_, err := c.SendInput(ctx, name, inputs)
		return err
	})
}

// place takes the numbers of two arguments.
func place(cmd *cobra.Command, args []string) (x, y *int, err error) {
	if len(args) == 0 {
		return nil, nil, nil
	}
	n, err := numbers(strings.Join(args, ","), 2)
	if err != nil {
		return nil, nil, usageError(cmd, fmt.Errorf("%s: %w", cmd.Name(), err))
	}
	return &n[0], &n[1], nil
}

func (a *app) computerScreenCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "screen SANDBOX", Short: "Print the size of the screen and where the pointer is",
		Example: "  cove computer screen pc",
		Args:    argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onComputer(func(c *client.Client) error {
				screen, err := c.GetScreen(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if opts.JSON {
					return a.printJSON(screen)
				}
				return a.fields("size", fmt.Sprintf("%dx%d", screen.Width, screen.Height), "pointer", fmt.Sprintf("%d,%d", screen.CursorX, screen.CursorY))
			})
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) computerMoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "move SANDBOX X Y", Short: "Move the pointer to a place",
		Example: "  cove computer move pc 640 400",
		Args:    argsBetween(3, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			x, y, err := place(cmd, args[1:])
			if err != nil {
				return err
			}
			return a.input(cmd.Context(), args[0], sandbox.Input{Type: sandbox.InputMove, X: x, Y: y})
		},
	}
}

func (a *app) computerClickCommand() *cobra.Command {
	var button string
	var count int
	var keys []string
	var hold time.Duration
	cmd := &cobra.Command{
		Use: "click SANDBOX [X Y]", Short: "Click at a place, or where the pointer is",
		Example: "  cove computer click pc 640 400\n  cove computer click pc 640 400 --count 2\n  cove computer click pc 10 10 --button right",
		Args:    argsBetween(1, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			x, y, err := place(cmd, args[1:])
			if err != nil {
				return err
			}
			return a.input(cmd.Context(), args[0], sandbox.Input{Type: sandbox.InputClick, X: x, Y: y, Button: button, Count: count, Keys: keys, DurationMS: hold.Milliseconds()})
		},
	}
	cmd.Flags().StringVarP(&button, "button", "b", "", "left, middle, right, back or forward (default left)")
	cmd.Flags().IntVarP(&count, "count", "n", 0, "how often; 2 is a double click (default 1)")
	cmd.Flags().StringSliceVar(&keys, "keys", nil, "keys to hold, such as ctrl")
	cmd.Flags().DurationVar(&hold, "hold", 0, "how long the button is down each time")
	return cmd
}

// computerButtonCommand holds a button, or lets go of it.
func (a *app) computerButtonCommand(input sandbox.InputType, short string) *cobra.Command {
	var button string
	cmd := &cobra.Command{
		Use: string(input) + " SANDBOX [X Y]", Short: short,
		Example: fmt.Sprintf("  cove computer %s pc 100 100", input),
		Args:    argsBetween(1, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			x, y, err := place(cmd, args[1:])
			if err != nil {
				return err
			}
			return a.input(cmd.Context(), args[0], sandbox.Input{Type: input, X: x, Y: y, Button: button})
		},
	}
	cmd.Flags().StringVarP(&button, "button", "b", "", "left, middle, right, back or forward (default left)")
	return cmd
}

func (a *app) computerDragCommand() *cobra.Command {
	var button string
	var keys []string
	var duration time.Duration
	cmd := &cobra.Command{
		Use: "drag SANDBOX X Y X2 Y2 [X3 Y3...]", Short: "Drag from one place to others, one after another",
		Example: "  cove computer drag pc 100 100 300 200\n  cove computer drag pc 100 100 300 100 300 300 --duration 1s --keys shift",
		Args:    argsBetween(5, 1+2*(1+sandbox.MaxDragPoints)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args)%2 == 0 {
				return usageError(cmd, errors.New("drag: the last place has no Y"))
			}
			in := sandbox.Input{Type: sandbox.InputDrag, Button: button, Keys: keys, DurationMS: duration.Milliseconds()}
			for i := 1; i < len(args); i += 2 {
				x, y, err := place(cmd, args[i:i+2])
				if err != nil {
					return err
				}
				if i == 1 {
					in.X, in.Y = x, y
					continue
				}
				in.Path = append(in.Path, sandbox.Point{X: *x, Y: *y})
			}
			return a.input(cmd.Context(), args[0], in)
		},
	}
	cmd.Flags().StringVarP(&button, "button", "b", "", "left, middle or right (default left)")
	cmd.Flags().StringSliceVar(&keys, "keys", nil, "keys to hold, such as shift")
	cmd.Flags().DurationVar(&duration, "duration", 0, "how long it takes (default 150ms)")
	return cmd
}

func (a *app) computerTypeCommand() *cobra.Command {
	var delay time.Duration
	cmd := &cobra.Command{
		Use: "type SANDBOX TEXT", Short: "Type text, in any script",
		Example: "  cove computer type pc 'Grüße, 世界 😀'",
		Args:    argsBetween(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.input(cmd.Context(), args[0], sandbox.Input{Type: sandbox.InputText, Text: args[1], DurationMS: delay.Milliseconds()})
		},
	}
	cmd.Flags().DurationVar(&delay, "delay", 0, "time between characters")
	return cmd
}

func (a *app) computerKeyCommand() *cobra.Command {
	var down, up bool
	var hold time.Duration
	cmd := &cobra.Command{
		Use: "key SANDBOX KEYS...", Short: "Press keys or combinations, one after another",
		Example: "  cove computer key pc Return\n  cove computer key pc ctrl+a BackSpace\n  cove computer key pc shift --down",
		Args:    argsBetween(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := sandbox.Input{Type: sandbox.InputKey, Keys: args[1:], DurationMS: hold.Milliseconds()}
			switch {
			case down:
				in.Type = sandbox.InputKeyDown
			case up:
				in.Type = sandbox.InputKeyUp
			}
			return a.input(cmd.Context(), args[0], in)
		},
	}
	cmd.Flags().BoolVar(&down, "down", false, "hold them down until they are let go with --up")
	cmd.Flags().BoolVar(&up, "up", false, "let go of them")
	cmd.Flags().DurationVar(&hold, "hold", 0, "how long each is down")
	cmd.MarkFlagsMutuallyExclusive("down", "up", "hold")
	return cmd
}

func (a *app) computerScrollCommand() *cobra.Command {
	var at string
	var up, left, right bool
	cmd := &cobra.Command{
		Use: "scroll SANDBOX NOTCHES", Short: "Turn the wheel, down unless told otherwise",
		Example: "  cove computer scroll pc 5\n  cove computer scroll pc 3 --up --at 640,400",
		Args:    argsBetween(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return usageError(cmd, fmt.Errorf("scroll: %q is not a number of notches", args[1]))
			}
			in := sandbox.Input{Type: sandbox.InputScroll, DY: n}
			switch {
			case up:
				in.DY = -n
			case left:
				in.DX, in.DY = -n, 0
			case right:
				in.DX, in.DY = n, 0
			}
			if at != "" {
				xy, err := numbers(at, 2)
				if err != nil {
					return usageError(cmd, fmt.Errorf("--at: %w", err))
				}
				in.X, in.Y = &xy[0], &xy[1]
			}
			return a.input(cmd.Context(), args[0], in)
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "X,Y of the pointer (default where it is)")
	cmd.Flags().BoolVar(&up, "up", false, "up")
	cmd.Flags().BoolVar(&left, "left", false, "left")
	cmd.Flags().BoolVar(&right, "right", false, "right")
	cmd.MarkFlagsMutuallyExclusive("up", "left", "right")
	return cmd
}

func (a *app) computerWindowsCommand() *cobra.Command {
	var opts jsonOption
	var region string
	cmd := &cobra.Command{
		Use: "windows SANDBOX [focus|close|minimize|maximize|place WINDOW]", Short: "List windows, or change one",
		Example: "  cove computer windows pc\n  cove computer windows pc close 10485762\n  cove computer windows pc place 10485762 --region 0,0,640,400",
		Args:    argsBetween(1, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := sandbox.WindowRequest{}
			if len(args) > 1 {
				if len(args) < 3 {
					return usageError(cmd, fmt.Errorf("windows: which window? use: %s", cmd.UseLine()))
				}
				id, err := strconv.ParseInt(args[2], 10, 64)
				if err != nil {
					return usageError(cmd, fmt.Errorf("windows: %q is not the id of a window", args[2]))
				}
				req.Action, req.ID = sandbox.WindowAction(args[1]), id
			}
			if (region != "") != (req.Action == sandbox.WindowPlace) {
				return usageError(cmd, errors.New("windows: place and --region go together"))
			}
			if region != "" {
				var err error
				if req.Region, err = parseRegion(region); err != nil {
					return usageError(cmd, err)
				}
			}
			return a.runWindows(cmd.Context(), opts, args[0], req)
		},
	}
	cmd.Flags().StringVar(&region, "region", "", "X,Y,WIDTH,HEIGHT of the screen, with place")
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runWindows(ctx context.Context, opts jsonOption, name string, req sandbox.WindowRequest) error {
	return a.onComputer(func(c *client.Client) error {
		var list *sandbox.List[sandbox.Window]
		var err error
		if req.Action != "" {
			list, err = c.ControlWindow(ctx, name, req)
		} else {
			list, err = c.ListWindows(ctx, name)
		}
		if err != nil {
			return err
		}
		if opts.JSON {
			return a.printJSON(itemList[sandbox.Window]{list.Items})
		}
		rows := make([][]string, 0, len(list.Items))
		for _, w := range list.Items {
			state := ""
			switch {
			case w.Focused:
				state = "focused"
			case w.Hidden:
				state = "hidden"
			}
			rows = append(rows, []string{
				strconv.FormatInt(w.ID, 10), state, fmt.Sprintf("%dx%d+%d+%d", w.Region.Width, w.Region.Height, w.Region.X, w.Region.Y), w.Class, w.Title,
			})
		}
		return a.printTable([]string{"WINDOW", "STATE", "PLACE", "CLASS", "TITLE"}, rows)
	})
}

func (a *app) computerClipboardCommand() *cobra.Command {
	return &cobra.Command{
		Use: "clipboard SANDBOX [TEXT]", Short: "Print the clipboard, or put text into it",
		Example: "  cove computer clipboard pc\n  cove computer clipboard pc 'copied'",
		Args:    argsBetween(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onComputer(func(c *client.Client) error {
				if len(args) == 2 {
					return c.SetClipboard(cmd.Context(), args[0], args[1])
				}
				text, err := c.GetClipboard(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if isTerminal(a.Stdout) {
					text = clean(text)
				}
				return a.print(text + "\n")
			})
		},
	}
}

func (a *app) computerOpenCommand() *cobra.Command {
	return &cobra.Command{
		Use: "open SANDBOX URL", Short: "Open an address in the computer's browser",
		Example: "  cove computer open pc https://example.com",
		Args:    argsBetween(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onComputer(func(c *client.Client) error { return c.OpenURL(cmd.Context(), args[0], args[1]) })
		},
	}
}

type viewOptions struct {
	jsonOption
	Control bool
	Expires seconds
	Open    bool
}

func (o *viewOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.BoolVar(&o.Control, "control", false, "let the visitor use pointer and keyboard, and not only watch")
	f.Var(&o.Expires, "expires", "how long the link opens the view (default "+sandbox.DefaultPreviewLink.String()+")")
	f.BoolVar(&o.Open, "open", false, "open it in this machine's browser too")
}

func (a *app) computerViewCommand() *cobra.Command {
	var opts viewOptions
	cmd := &cobra.Command{
		Use: "view SANDBOX", Short: "Print a link to the live view of the screen",
		Long: "Print a link to a page that shows the screen as it changes, for whoever has the link, until it\n" +
			"expires. Visitors only watch, unless they are given control. Watching keeps no computer awake.",
		Example: "  cove computer view pc\n  cove computer view pc --control --expires 10m --open",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runView(cmd.Context(), opts, args[0]) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runView(ctx context.Context, opts viewOptions, name string) error {
	return a.onComputer(func(c *client.Client) error {
		req := sandbox.ViewRequest{Control: opts.Control}
		if opts.Expires.value != nil {
			req.TTLSeconds = *opts.Expires.value
		}
		link, err := c.ViewComputer(ctx, name, req)
		if err != nil {
			return err
		}
		if opts.JSON {
			return a.printJSON(link)
		}
		a.warnUnreachable(link.URL)
		if opts.Open {
			// Its own output would mix with ours; what it cannot do, the link can.
			if err := exec.Command("xdg-open", link.URL).Start(); err != nil {
				a.say("no browser could be started; open the link yourself")
			}
		}
		return a.print(clean(link.URL) + "\n")
	})
}
