package agentclient

import (
	"context"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// inputTimeout bounds one call of SendInput, with its waits and typing.
	inputTimeout   = sandbox.MaxInputTime + 2*time.Minute
	maxWindowTitle = 1024
	// maxCoordinate bounds positions of windows: X has 16 bits for them.
	maxCoordinate = 1 << 16
)

// GetScreen returns the size of a display's screen and the position of its pointer.
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
	defer func() { _ = stream.Close() }() // Err has reported its error
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
		return nil, errProtocol("an incomplete picture")
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
		// Grows as data arrives: the agent may announce more than it sends.
		Data: make([]byte, 0, min(h.GetSize(), 1<<20)),
	}, nil
}

// SendInput sends inputs of pointer and keyboard to a display.
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
		w.X = new(wireInt(*in.X))
	}
	if in.Y != nil {
		w.Y = new(wireInt(*in.Y))
	}
	for _, p := range in.Path {
		w.Path = append(w.Path, &agentv1.Point{X: wireInt(p.X), Y: wireInt(p.Y)})
	}
	return w
}

// wireInt bounds a number. The agent refuses numbers that large; truncated, they could
// become valid ones.
func wireInt(n int) int32 { return int32(min(max(n, -1<<31), 1<<31-1)) }

func wireRegion(r *sandbox.Region) *agentv1.Region {
	if r == nil {
		return nil
	}
	return &agentv1.Region{X: wireInt(r.X), Y: wireInt(r.Y), Width: wireInt(r.Width), Height: wireInt(r.Height)}
}

// GetClipboard returns the text in a display's clipboard.
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
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no window %d; list the windows to see their ids", req.ID)
	}
	resp, err := call(ctx, callTimeout, c.desktop.ControlWindow, &agentv1.ControlWindowRequest{
		Display: display, Id: uint32(req.ID), Action: string(req.Action), Region: wireRegion(req.Region),
	})
	if err != nil {
		return nil, err
	}
	return windows(resp.GetWindows())
}

// browserTimeout bounds OpenURL: the agent itself gives up sooner if a browser shows no
// window.
const browserTimeout = 2 * callTimeout

// OpenURL opens an address in the browser on a display, and returns when the browser
// shows a window.
func (c *Client) OpenURL(ctx context.Context, display, url string) error {
	_, err := call(ctx, browserTimeout, c.desktop.OpenURL, &agentv1.OpenURLRequest{Display: display, Url: url})
	return err
}

func screen(w *agentv1.Screen) (*sandbox.Screen, error) {
	s := &sandbox.Screen{
		Width: int(w.GetWidth()), Height: int(w.GetHeight()), CursorX: int(w.GetCursorX()), CursorY: int(w.GetCursorY()),
	}
	if !within(s.Width, 1, maxCoordinate) || !within(s.Height, 1, maxCoordinate) ||
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
				X: int(min(max(r.GetX(), -maxCoordinate), maxCoordinate)), Y: int(min(max(r.GetY(), -maxCoordinate), maxCoordinate)),
				Width: int(min(max(r.GetWidth(), 0), maxCoordinate)), Height: int(min(max(r.GetHeight(), 0), maxCoordinate)),
			},
			Focused: w.GetFocused(), Hidden: w.GetHidden(),
		})
	}
	return all, nil
}

func title(s string) string { return clean(strings.ToValidUTF8(s, "\uFFFD"), maxWindowTitle) }

func within(n, low, high int) bool { return n >= low && n <= high }
