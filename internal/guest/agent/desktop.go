package agent

import (
	"cmp"
	"context"
	"sync"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/agent/desktop"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// screens are the open displays of the sandbox, nearly always one or none.
type screens struct {
	mu   sync.Mutex
	open map[string]*desktop.Desktop // guarded by mu
}

// maxScreens bounds how many displays are used at the same time.
const maxScreens = 4

// get returns a display by its name.
func (s *screens) get(display string) (*desktop.Desktop, error) {
	display = cmp.Or(display, desktop.DefaultDisplay)
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.open[display]; d != nil {
		return d, nil
	}
	d, err := desktop.New(desktop.Config{Display: display})
	if err != nil {
		return nil, desktopError(err)
	}
	if s.open == nil {
		s.open = map[string]*desktop.Desktop{}
	}
	if len(s.open) >= maxScreens {
		for name, old := range s.open {
			delete(s.open, name)
			go old.Close() // waits for calls that are connecting
			break
		}
	}
	s.open[display] = d
	return d, nil
}

func (s *screens) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, d := range s.open {
		delete(s.open, name)
		d.Close()
	}
}

// desktopCodes are the codes of the errors of package desktop.
var desktopCodes = map[sandbox.Code]connect.Code{
	sandbox.CodeInvalid:     connect.CodeInvalidArgument,
	sandbox.CodeNotFound:    connect.CodeNotFound,
	sandbox.CodeConflict:    connect.CodeFailedPrecondition,
	sandbox.CodeTooLarge:    connect.CodeResourceExhausted,
	sandbox.CodeTimeout:     connect.CodeDeadlineExceeded,
	sandbox.CodeCancelled:   connect.CodeCanceled,
	sandbox.CodeUnsupported: connect.CodeUnimplemented,
	sandbox.CodeUnavailable: connect.CodeUnavailable,
}

func desktopError(err error) error {
	code, ok := desktopCodes[sandbox.CodeOf(err)]
	if !ok {
		code = connect.CodeInternal
	}
	return fail(code, "%s", sandbox.MessageOf(err))
}

// desktopServer uses the sandbox's screens.
type desktopServer struct{ a *Agent }

// using calls f with a display and makes a response of its result.
func using[Resp any](a *Agent, display string, f func(*desktop.Desktop) (*Resp, error)) (*connect.Response[Resp], error) {
	d, err := a.screens.get(display)
	if err != nil {
		return nil, err
	}
	resp, err := f(d)
	if err != nil {
		return nil, desktopError(err)
	}
	return connect.NewResponse(resp), nil
}

// GetScreen implements [agentv1connect.DesktopHandler].
func (s *desktopServer) GetScreen(ctx context.Context, req *connect.Request[agentv1.GetScreenRequest]) (*connect.Response[agentv1.GetScreenResponse], error) {
	return using(s.a, req.Msg.GetDisplay(), func(d *desktop.Desktop) (*agentv1.GetScreenResponse, error) {
		screen, err := d.GetScreen(ctx)
		return &agentv1.GetScreenResponse{Screen: wireScreen(screen)}, err
	})
}

// Screenshot implements [agentv1connect.DesktopHandler].
func (s *desktopServer) Screenshot(ctx context.Context, req *connect.Request[agentv1.ScreenshotRequest], stream *connect.ServerStream[agentv1.ScreenshotResponse]) error {
	m := req.Msg
	d, err := s.a.screens.get(m.GetDisplay())
	if err != nil {
		return err
	}
	shot, err := d.Screenshot(ctx, &sandbox.ScreenshotRequest{
		Region: readRegion(m.GetRegion()), Width: int(m.GetWidth()), Height: int(m.GetHeight()), Cursor: m.GetCursor(),
		StableMS: m.GetStableMs(), Format: sandbox.ImageFormat(m.GetFormat()), Quality: int(m.GetQuality()),
	})
	if err != nil {
		return desktopError(err)
	}
	msg := &agentv1.ScreenshotResponse{Header: &agentv1.ScreenshotResponse_Header{
		Mime: shot.MIME, Width: int32(shot.Width), Height: int32(shot.Height), Screen: wireScreen(&shot.Screen),
		Stable: shot.Stable, TakenUnixNano: shot.TakenAt.UnixNano(), Size: int64(len(shot.Data)),
	}}
	for rest := shot.Data; ; {
		n := min(len(rest), chunkBytes)
		msg.Data = rest[:n]
		if err := stream.Send(msg); err != nil {
			return err
		}
		if rest = rest[n:]; len(rest) == 0 {
			return nil
		}
		msg = &agentv1.ScreenshotResponse{}
	}
}

// SendInput implements [agentv1connect.DesktopHandler].
func (s *desktopServer) SendInput(ctx context.Context, req *connect.Request[agentv1.SendInputRequest]) (*connect.Response[agentv1.SendInputResponse], error) {
	if len(req.Msg.GetInputs()) > sandbox.MaxInputs {
		return nil, invalid("a call takes at most %d inputs; send more in further calls", sandbox.MaxInputs)
	}
	inputs := make([]sandbox.Input, len(req.Msg.GetInputs()))
	for i, in := range req.Msg.GetInputs() {
		inputs[i] = readInput(in)
	}
	return using(s.a, req.Msg.GetDisplay(), func(d *desktop.Desktop) (*agentv1.SendInputResponse, error) {
		screen, err := d.SendInput(ctx, inputs)
		return &agentv1.SendInputResponse{Screen: wireScreen(screen)}, err
	})
}

func readInput(w *agentv1.Input) sandbox.Input {
	in := sandbox.Input{
		Type: sandbox.InputType(w.GetType()), Button: w.GetButton(), Count: int(w.GetCount()), DX: int(w.GetDx()), DY: int(w.GetDy()),
		Text: w.GetText(), Keys: w.GetKeys(), DurationMS: w.GetDurationMs(),
	}
	if w != nil && w.X != nil {
		in.X = new(int(w.GetX()))
	}
	if w != nil && w.Y != nil {
		in.Y = new(int(w.GetY()))
	}
	for _, p := range w.GetPath() {
		in.Path = append(in.Path, sandbox.Point{X: int(p.GetX()), Y: int(p.GetY())})
	}
	return in
}

// GetClipboard implements [agentv1connect.DesktopHandler].
func (s *desktopServer) GetClipboard(ctx context.Context, req *connect.Request[agentv1.GetClipboardRequest]) (*connect.Response[agentv1.GetClipboardResponse], error) {
	return using(s.a, req.Msg.GetDisplay(), func(d *desktop.Desktop) (*agentv1.GetClipboardResponse, error) {
		text, err := d.GetClipboard(ctx)
		return &agentv1.GetClipboardResponse{Text: text}, err
	})
}

// SetClipboard implements [agentv1connect.DesktopHandler].
func (s *desktopServer) SetClipboard(ctx context.Context, req *connect.Request[agentv1.SetClipboardRequest]) (*connect.Response[agentv1.SetClipboardResponse], error) {
	return using(s.a, req.Msg.GetDisplay(), func(d *desktop.Desktop) (*agentv1.SetClipboardResponse, error) {
		return &agentv1.SetClipboardResponse{}, d.SetClipboard(ctx, req.Msg.GetText())
	})
}

// ListWindows implements [agentv1connect.DesktopHandler].
func (s *desktopServer) ListWindows(ctx context.Context, req *connect.Request[agentv1.ListWindowsRequest]) (*connect.Response[agentv1.ListWindowsResponse], error) {
	return using(s.a, req.Msg.GetDisplay(), func(d *desktop.Desktop) (*agentv1.ListWindowsResponse, error) {
		list, err := d.ListWindows(ctx)
		return &agentv1.ListWindowsResponse{Windows: wireWindows(list)}, err
	})
}

// ControlWindow implements [agentv1connect.DesktopHandler].
func (s *desktopServer) ControlWindow(ctx context.Context, req *connect.Request[agentv1.ControlWindowRequest]) (*connect.Response[agentv1.ControlWindowResponse], error) {
	m := req.Msg
	return using(s.a, m.GetDisplay(), func(d *desktop.Desktop) (*agentv1.ControlWindowResponse, error) {
		list, err := d.ControlWindow(ctx, &sandbox.WindowRequest{
			ID: int64(m.GetId()), Action: sandbox.WindowAction(m.GetAction()), Region: readRegion(m.GetRegion()),
		})
		return &agentv1.ControlWindowResponse{Windows: wireWindows(list)}, err
	})
}

func wireScreen(s *sandbox.Screen) *agentv1.Screen {
	if s == nil {
		return nil
	}
	return &agentv1.Screen{Width: int32(s.Width), Height: int32(s.Height), CursorX: int32(s.CursorX), CursorY: int32(s.CursorY)}
}

func wireWindows(list []sandbox.Window) []*agentv1.Window {
	all := make([]*agentv1.Window, len(list))
	for i := range list {
		w := &list[i]
		all[i] = &agentv1.Window{
			Id: uint32(w.ID), Title: w.Title, Class: w.Class, Pid: int32(w.PID), Focused: w.Focused, Hidden: w.Hidden,
			Region: &agentv1.Region{X: int32(w.Region.X), Y: int32(w.Region.Y), Width: int32(w.Region.Width), Height: int32(w.Region.Height)},
		}
	}
	return all
}

func readRegion(r *agentv1.Region) *sandbox.Region {
	if r == nil {
		return nil
	}
	return &sandbox.Region{X: int(r.GetX()), Y: int(r.GetY()), Width: int(r.GetWidth()), Height: int(r.GetHeight())}
}
