package agentclient

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1/agentv1connect"
	"github.com/cove-sh/cove/sandbox"
)

// painter is an agent with a screen that answers as a test wants.
type painter struct {
	agentv1connect.UnimplementedDesktopHandler
	screen  *agentv1.Screen
	shots   []*agentv1.ScreenshotResponse
	text    string
	windows []*agentv1.Window
	inputs  []*agentv1.Input
}

func (p *painter) GetScreen(context.Context, *connect.Request[agentv1.GetScreenRequest]) (*connect.Response[agentv1.GetScreenResponse], error) {
	return connect.NewResponse(&agentv1.GetScreenResponse{Screen: p.screen}), nil
}

func (p *painter) Screenshot(_ context.Context, _ *connect.Request[agentv1.ScreenshotRequest], s *connect.ServerStream[agentv1.ScreenshotResponse]) error {
	for _, m := range p.shots {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func (p *painter) SendInput(_ context.Context, req *connect.Request[agentv1.SendInputRequest]) (*connect.Response[agentv1.SendInputResponse], error) {
	p.inputs = req.Msg.GetInputs()
	return connect.NewResponse(&agentv1.SendInputResponse{Screen: p.screen}), nil
}

func (p *painter) GetClipboard(context.Context, *connect.Request[agentv1.GetClipboardRequest]) (*connect.Response[agentv1.GetClipboardResponse], error) {
	return connect.NewResponse(&agentv1.GetClipboardResponse{Text: p.text}), nil
}

func (p *painter) ListWindows(context.Context, *connect.Request[agentv1.ListWindowsRequest]) (*connect.Response[agentv1.ListWindowsResponse], error) {
	return connect.NewResponse(&agentv1.ListWindowsResponse{Windows: p.windows}), nil
}

func paint(t *testing.T, p *painter) *Client {
	mux := http.NewServeMux()
	mux.Handle(agentv1connect.NewDesktopHandler(p))
	return serve(t, mux)
}

func TestHostileScreen(t *testing.T) {
	good := &agentv1.Screen{Width: 1280, Height: 800, CursorX: 3, CursorY: 4}
	for name, s := range map[string]*agentv1.Screen{
		"none": nil, "huge": {Width: 1 << 30, Height: 1}, "negative": {Width: -1, Height: 5}, "pointer outside": {Width: 10, Height: 10, CursorX: 10},
	} {
		c := paint(t, &painter{screen: s})
		if _, err := c.GetScreen(t.Context(), ":1"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err := c.SendInput(t.Context(), ":1", nil); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%s: got %v", name, err)
		}
	}
	head := func(change func(*agentv1.ScreenshotResponse_Header)) *agentv1.ScreenshotResponse {
		h := &agentv1.ScreenshotResponse_Header{Mime: "image/png", Width: 10, Height: 10, Screen: good, Size: 6}
		change(h)
		return &agentv1.ScreenshotResponse{Header: h, Data: []byte("abc")}
	}
	same := func(*agentv1.ScreenshotResponse_Header) {}
	rest := &agentv1.ScreenshotResponse{Data: []byte("def")}
	large := []*agentv1.ScreenshotResponse{head(func(h *agentv1.ScreenshotResponse_Header) { h.Size = sandbox.MaxPicture + 3 })}
	for range 16 {
		large = append(large, &agentv1.ScreenshotResponse{Data: make([]byte, sandbox.MaxPicture/16)})
	}
	for name, shots := range map[string][]*agentv1.ScreenshotResponse{
		"a large one": large,
		"nothing":     {}, "no header": {rest}, "half": {head(same)}, "too much": {head(same), rest, rest},
		"a huge one": {head(func(h *agentv1.ScreenshotResponse_Header) { h.Size = 1 << 40 }), rest},
		"negative":   {head(func(h *agentv1.ScreenshotResponse_Header) { h.Size = -1 }), rest},
		"a page":     {head(func(h *agentv1.ScreenshotResponse_Header) { h.Mime = "text/html" }), rest},
		"a wide one": {head(func(h *agentv1.ScreenshotResponse_Header) { h.Width = 1 << 20 }), rest},
		"no screen":  {head(func(h *agentv1.ScreenshotResponse_Header) { h.Screen = nil }), rest},
	} {
		if _, err := paint(t, &painter{shots: shots}).Screenshot(t.Context(), "", &sandbox.ScreenshotRequest{}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%s: got %v", name, err)
		}
	}
	shot, err := paint(t, &painter{shots: []*agentv1.ScreenshotResponse{head(same), rest}}).Screenshot(t.Context(), "", &sandbox.ScreenshotRequest{})
	if err != nil || !bytes.Equal(shot.Data, []byte("abcdef")) || shot.Screen.CursorY != 4 {
		t.Errorf("a good picture: %+v, %v", shot, err)
	}

	c := paint(t, &painter{text: strings.Repeat("x", sandbox.MaxClipboard+1)})
	if _, err := c.GetClipboard(t.Context(), ""); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("a huge clipboard: %v", err)
	}
	c = paint(t, &painter{windows: make([]*agentv1.Window, sandbox.MaxWindows+1)})
	if _, err := c.ListWindows(t.Context(), ""); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("too many windows: %v", err)
	}
	c = paint(t, &painter{windows: []*agentv1.Window{
		{Id: 7, Title: "a\x1b[31m\n" + strings.Repeat("é", 5000), Pid: -4, Region: &agentv1.Region{X: -1 << 30, Width: 1 << 30, Height: -7}},
	}})
	list, err := c.ListWindows(t.Context(), "")
	if err != nil || len(list) != 1 || len(list[0].Title) > 2*maxWindowTitle || !utf8.ValidString(list[0].Title) || strings.ContainsAny(list[0].Title, "\x1b\n") {
		t.Errorf("a window with a bad title: %+v, %v", list, err)
	}
	if want := (sandbox.Region{X: -maxCoordinate, Width: maxCoordinate}); list[0].Region != want || list[0].PID != 0 {
		t.Errorf("a window in an impossible place: %+v", list[0])
	}
	for _, id := range []int64{0, -1, 1 << 32} {
		if _, err := c.ControlWindow(t.Context(), "", &sandbox.WindowRequest{ID: id, Action: sandbox.WindowFocus}); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("window %d: got %v", id, err)
		}
	}
}

// TestInputsTravel sends every field of an input, and numbers that are too
// large as such, not as small ones.
func TestInputsTravel(t *testing.T) {
	p := &painter{screen: &agentv1.Screen{Width: 1280, Height: 800}}
	x, y := 1<<40, -5
	_, err := paint(t, p).SendInput(t.Context(), "", []sandbox.Input{{
		Type: sandbox.InputDrag, X: &x, Y: &y, Button: "left", Count: 2, Path: []sandbox.Point{{X: 1, Y: 2}},
		DX: 3, DY: 4, Text: "日", Keys: []string{"a"}, DurationMS: 5,
	}, {Type: sandbox.InputWait}})
	if err != nil {
		t.Fatal(err)
	}
	in := p.inputs[0]
	got := []any{in.GetType(), in.GetX(), in.GetY(), in.GetButton(), in.GetCount(), in.GetPath()[0].GetX(), in.GetPath()[0].GetY(), in.GetDx(), in.GetDy(), in.GetText(), in.GetKeys(), in.GetDurationMs(), p.inputs[1].X == nil}
	want := []any{"drag", int32(1<<31 - 1), int32(-5), "left", int32(2), int32(1), int32(2), int32(3), int32(4), "日", []string{"a"}, int64(5), true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
