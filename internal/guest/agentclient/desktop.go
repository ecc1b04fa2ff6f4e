package agentclient

import (
	"context"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// inputTimeout bounds one call of inputs: their waits, and typing.
	inputTimeout   = sandbox.MaxInputTime + 2*time.Minute
	maxWindowTitle = 1024
	// farAway bounds where a window can be: X has 16 bits for it.
	farAway = 1 << 16
)

// GetScreen tells the size of a display's screen and where its pointer is.
func (c *Client) GetScreen(ctx context.Context, display string) (*sandbox.Screen, error) {
	resp, err := call(ctx, callTimeout, c.desktop.GetScreen, &agentv1.GetScreenRequest{Display: display})
	if err != nil {
		return nil, err
	}
	return screen(resp.GetScreen())
}

// Screenshot takes a picture of a display.
func (c *Client) Screenshot(ctx context.Context, display string, req *sandbox.ScreenshotRequest) (*sandbox.Screenshot, error) {
	limited, cancel := context.WithTimeoutCause(ctx, callTimeout+sandbox.MaxStableWait, errSilent)
	defer cancel()
	stream, err := c.desktop.Screenshot(limited, connect.NewRequest(&agentv1.ScreenshotRequest{
		Display: display, Region: wireRegion(req.Region), Width: wireInt(req.Width), Height: wireInt(req.Height),
		Cursor: req.Cursor, StableMs: req.StableMS, Format: string(req.Format), Quality: wireInt(req.Quality),
	}))
	if err != nil {
		return nil, mapError(limited, err)
	}
	defer stream.Close() //nolint:errcheck // what it could say was said by Err
	var shot *sandbox.Screenshot
	var size int64
	for stream.Receive() {
		msg := stream.Msg()
		if shot == nil {
			size = msg.GetHeader().GetSize()
			if shot, err = picture(msg.GetHeader()); err != nil {
				return nil, err
			}
		}
		if int64(len(shot.Data)+len(msg.GetData())) > size {
			return nil, errProtocol("a picture larger than announced")
		}
		shot.Data = append(shot.Data, msg.GetData()...)
	}
	if err := stream.Err(); err != nil {
		return nil, mapError(limited, err)
	}
	if shot == nil || int64(len(shot.Data)) != size {
		return nil, errProtocol("half a picture")
	}
	return shot, nil
}

func picture(h *agentv1.ScreenshotResponse_Header) (*sandbox.Screenshot, error) {
	of, err := screen(h.GetScreen())
	if err != nil {
		return nil, err
	}
	if h.GetSize() <= 0 || h.GetSize() > sandbox.MaxPicture {
		return nil, errProtocol("a picture of " + strconv.FormatInt(h.GetSize(), 10) + " bytes")
	}
	if h.GetMime() != "image/png" && h.GetMime() != "image/jpeg" {
		return nil, errProtocol("a picture of an unknown format")
	}
	if !within(int(h.GetWidth()), 1, sandbox.MaxScreenWidth) || !within(int(h.GetHeight()), 1, sandbox.MaxScreenHeight) {
		return nil, errProtocol("a picture of an impossible size")
	}
	return &sandbox.Screenshot{
		MIME: h.GetMime(), Width: int(h.GetWidth()), Height: int(h.GetHeight()), Screen: *of,
		Stable: h.GetStable(), TakenAt: time.Unix(0, h.GetTakenUnixNano()).UTC(),
		// Grown as it comes: what was announced is not there yet.
		Data: make([]byte, 0, min(h.GetSize(), 1<<20)),
	}, nil
}

// SendInput uses the pointer and the keyboard of a display.
func (c *Client) SendInput(ctx context.Context, display string, inputs []sandbox.Input) (*sandbox.Screen, error) {
	req := &agentv1.SendInputRequest{Display: display, Inputs: make([]*agentv1.Input, len(inputs))}
	for i := range inputs {
		req.Inputs[i] = wireInput(&inputs[i])
	}
	resp, err := call(ctx, inputTimeout, c.desktop.SendInput, req)
	if err != nil {
		return nil, err
	}
	return screen(resp.GetScreen())
}

func wireInput(in *sandbox.Input) *agentv1.Input {
	w := &agentv1.Input{
		Type: string(in.Type), Button: in.Button, Count: wireInt(in.Count), Dx: wireInt(in.DX), Dy: wireInt(in.DY),
		Text: in.Text, Keys: in.Keys, DurationMs: in.DurationMS,
	}
	if in.X != nil {
		x := wireInt(*in.X)
		w.X = &x
	}
	if in.Y != nil {
		y := wireInt(*in.Y)
		w.Y = &y
	}
	for _, p := range in.Path {
		w.Path = append(w.Path, &agentv1.Point{X: wireInt(p.X), Y: wireInt(p.Y)})
	}
	return w
}

// wireInt bounds a number that the agent refuses if it is that large, rather
// than make a small one of it.
func wireInt(n int) int32 { return int32(min(max(n, -1<<31), 1<<31-1)) }

func wireRegion(r *sandbox.Region) *agentv1.Region {
	if r == nil {
		return nil
	}
	return &agentv1.Region{X: wireInt(r.X), Y: wireInt(r.Y), Width: wireInt(r.Width), Height: wireInt(r.Height)}
}

// GetClipboard returns what a display's clipboard holds as text.
func (c *Client) GetClipboard(ctx context.Context, display string) (string, error) {
	resp, err := call(ctx, callTimeout, c.desktop.GetClipboard, &agentv1.GetClipboardRequest{Display: display})
	if err != nil {
		return "", err
	}
	if len(resp.GetText()) > sandbox.MaxClipboard {
		return "", errProtocol("a clipboard larger than allowed")
	}
	return strings.ToValidUTF8(resp.GetText(), "\uFFFD"), nil
}

// SetClipboard puts text into a display's clipboard.
func (c *Client) SetClipboard(ctx context.Context, display, text string) error {
	_, err := call(ctx, callTimeout, c.desktop.SetClipboard, &agentv1.SetClipboardRequest{Display: display, Text: text})
	return err
}

// ListWindows returns a display's top-level windows, the topmost first.
func (c *Client) ListWindows(ctx context.Context, display string) ([]sandbox.Window, error) {
	resp, err := call(ctx, callTimeout, c.desktop.ListWindows, &agentv1.ListWindowsRequest{Display: display})
	if err != nil {
		return nil, err
	}
	return windows(resp.GetWindows())
}

// ControlWindow changes a window and returns all of them.
func (c *Client) ControlWindow(ctx context.Context, display string, req *sandbox.WindowRequest) ([]sandbox.Window, error) {
	if req.ID <= 0 || req.ID >= 1<<32 {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no window %d; list the windows for their ids", req.ID)
	}
	resp, err := call(ctx, callTimeout, c.desktop.ControlWindow, &agentv1.ControlWindowRequest{
		Display: display, Id: uint32(req.ID), Action: string(req.Action), Region: wireRegion(req.Region),
	})
	if err != nil {
		return nil, err
	}
	return windows(resp.GetWindows())
}

// browserTimeout bounds the opening of an address: the agent itself gives up
// sooner when a browser shows no window.
const browserTimeout = 2 * callTimeout

// OpenURL opens an address in the browser on a display, and returns when there is
// a window for it.
func (c *Client) OpenURL(ctx context.Context, display, url string) error {
	_, err := call(ctx, browserTimeout, c.desktop.OpenURL, &agentv1.OpenURLRequest{Display: display, Url: url})
	return err
}

func screen(w *agentv1.Screen) (*sandbox.Screen, error) {
	s := &sandbox.Screen{
		Width: int(w.GetWidth()), Height: int(w.GetHeight()), CursorX: int(w.GetCursorX()), CursorY: int(w.GetCursorY()),
	}
	if !within(s.Width, 1, farAway) || !within(s.Height, 1, farAway) ||
		!within(s.CursorX, 0, s.Width-1) || !within(s.CursorY, 0, s.Height-1) {
		return nil, errProtocol("a screen of an impossible size")
	}
	return s, nil
}

func windows(list []*agentv1.Window) ([]sandbox.Window, error) {
	if len(list) > sandbox.MaxWindows {
		return nil, errProtocol("too many windows")
	}
	all := make([]sandbox.Window, 0, len(list))
	for _, w := range list {
		r := w.GetRegion()
		all = append(all, sandbox.Window{
			ID: int64(w.GetId()), Title: title(w.GetTitle()), Class: title(w.GetClass()), PID: int(max(0, w.GetPid())),
			Region: sandbox.Region{
				X: int(min(max(r.GetX(), -farAway), farAway)), Y: int(min(max(r.GetY(), -farAway), farAway)),
				Width: int(min(max(r.GetWidth(), 0), farAway)), Height: int(min(max(r.GetHeight(), 0), farAway)),
			},
			Focused: w.GetFocused(), Hidden: w.GetHidden(),
		})
	}
	return all, nil
}

func title(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	return clean(s, maxWindowTitle)
}

func within(n, low, high int) bool { return n >= low && n <= high }
