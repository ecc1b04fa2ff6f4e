package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/cove-sh/cove/sandbox"
)

// Headers that describe the screenshot whose picture a response is.
const (
	screenHeader = "Cove-Screen" // WIDTHxHEIGHT of the screen
	cursorHeader = "Cove-Cursor" // X,Y of the pointer
	stableHeader = "Cove-Stable" // whether the screen stood still
)

const (
	contentPNG  = "image/png"
	contentJPEG = "image/jpeg"
)

type screenshotInput struct {
	SandboxPath
	Accept   string              `header:"Accept" hidden:"true"`
	Region   string              `query:"region" doc:"X,Y,WIDTH,HEIGHT in pixels; absent is the whole screen."`
	Width    int                 `query:"width" doc:"Scale the picture into a box of this width, never up."`
	Height   int                 `query:"height" doc:"Scale the picture into a box of this height, never up."`
	Cursor   bool                `query:"cursor" doc:"Show the pointer."`
	StableMS int64               `query:"stable_ms" doc:"Wait until the screen has not changed for so long."`
	Format   sandbox.ImageFormat `query:"format" doc:"png, which is the default, or jpeg."`
	Quality  int                 `query:"quality" doc:"Of JPEG, 1 to 100; 80 when absent."`
}

type inputInput struct {
	SandboxPath
	Body struct {
		Inputs []sandbox.Input `json:"inputs" doc:"Done in their order."`
	}
}

// ClipboardText is what a clipboard holds.
type ClipboardText struct {
	Text string `json:"text"`
}

type clipboardInput struct {
	SandboxPath
	Body ClipboardText
}

type windowInput struct {
	SandboxPath
	Body sandbox.WindowRequest
}

type openInput struct {
	SandboxPath
	Body struct {
		URL string `json:"url" doc:"http, https, file or about."`
	}
}

type viewInput struct {
	SandboxPath
	Body sandbox.ViewRequest
}

func (h *handlers) registerComputers(a huma.API) {
	const base = "/v1/sandboxes/{sandbox}/computer"
	huma.Register(a, op(http.MethodGet, base+"/screen", "get-screen", "computers", "Tell the size of the screen and where the pointer is"),
		func(ctx context.Context, in *SandboxPath) (*Reply[sandbox.Screen], error) {
			v, err := h.svc.GetScreen(ctx, in.Sandbox)
			return reply(ctx, h, v, err)
		})
	shot := op(http.MethodGet, base+"/screenshot", "screenshot", "computers", "Take a picture of the screen")
	shot.Description = "The answer is the picture, with the headers `" + screenHeader + "`, `" + cursorHeader + "` and `" + stableHeader +
		"`; with `Accept: application/json` it is JSON that has it in base64."
	huma.Register(a, answers[sandbox.Screenshot](a, sends(sends(shot, contentPNG), contentJPEG), contentJSON), h.screenshot)
	input := op(http.MethodPost, base+"/input", "send-input", "computers", "Use the pointer and the keyboard")
	input.Description = "Inputs are done in their order, up to the first that fails; buttons and keys that are held then are let go of."
	huma.Register(a, input, func(ctx context.Context, in *inputInput) (*Reply[sandbox.Screen], error) {
		v, err := h.svc.SendInput(ctx, in.Sandbox, in.Body.Inputs)
		return reply(ctx, h, v, err)
	})
	huma.Register(a, op(http.MethodGet, base+"/clipboard", "get-clipboard", "computers", "Read the clipboard as text"),
		func(ctx context.Context, in *SandboxPath) (*Reply[ClipboardText], error) {
			text, err := h.svc.GetClipboard(ctx, in.Sandbox)
			return reply(ctx, h, &ClipboardText{text}, err)
		})
	set := op(http.MethodPut, base+"/clipboard", "set-clipboard", "computers", "Put text into the clipboard")
	set.MaxBodyBytes = 8*sandbox.MaxClipboard + 1<<10 // as JSON may escape it
	huma.Register(a, set, func(ctx context.Context, in *clipboardInput) (*struct{}, error) {
		return done(ctx, h, h.svc.SetClipboard(ctx, in.Sandbox, in.Body.Text))
	})
	const windows = "The answer has the windows of one instant, at most %d."
	huma.Register(a, says(op(http.MethodGet, base+"/windows", "list-windows", "computers", "List windows, the topmost first"), windows, sandbox.MaxWindows),
		func(ctx context.Context, in *SandboxPath) (*Reply[sandbox.List[sandbox.Window]], error) {
			v, err := h.svc.ListWindows(ctx, in.Sandbox)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, says(op(http.MethodPost, base+"/windows", "control-window", "computers", "Focus, close or place a window, and list all"), windows, sandbox.MaxWindows),
		func(ctx context.Context, in *windowInput) (*Reply[sandbox.List[sandbox.Window]], error) {
			v, err := h.svc.ControlWindow(ctx, in.Sandbox, in.Body)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodPost, base+"/open", "open-url", "computers", "Open an address in the computer's browser"),
		func(ctx context.Context, in *openInput) (*struct{}, error) {
			return done(ctx, h, h.svc.OpenURL(ctx, in.Sandbox, in.Body.URL))
		})
	huma.Register(a, op(http.MethodPost, base+"/view", "view-computer", "computers", "Sign a link to the live view"),
		func(ctx context.Context, in *viewInput) (*Reply[sandbox.ViewLink], error) {
			v, err := h.svc.ViewComputer(ctx, in.Sandbox, in.Body)
			return reply(ctx, h, v, err)
		})
}

// request returns what the query asks for.
func (in *screenshotInput) request() (sandbox.ScreenshotRequest, error) {
	req := sandbox.ScreenshotRequest{
		Width: in.Width, Height: in.Height, Cursor: in.Cursor, StableMS: in.StableMS, Format: in.Format, Quality: in.Quality,
	}
	if in.Region == "" {
		return req, nil
	}
	var n [4]int
	parts := strings.Split(in.Region, ",")
	if len(parts) != len(n) {
		return req, sandbox.Errorf(sandbox.CodeInvalid, "region %.40q is not one; write X,Y,WIDTH,HEIGHT", in.Region)
	}
	for i, part := range parts {
		v, err := strconv.ParseInt(part, 10, 32)
		if err != nil {
			return req, sandbox.Errorf(sandbox.CodeInvalid, "region %.40q is not one; write X,Y,WIDTH,HEIGHT", in.Region)
		}
		n[i] = int(v)
	}
	req.Region = &sandbox.Region{X: n[0], Y: n[1], Width: n[2], Height: n[3]}
	return req, nil
}

func (h *handlers) screenshot(_ context.Context, in *screenshotInput) (*huma.StreamResponse, error) {
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		r, w := humago.Unwrap(hctx)
		req, err := in.request()
		var shot *sandbox.Screenshot
		if err == nil {
			shot, err = h.svc.Screenshot(r.Context(), in.Sandbox, req)
		}
		if err != nil {
			h.fail(r.Context(), err).write(w)
			return
		}
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Add("Vary", "Accept")
		body := shot.Data
		if strings.Contains(in.Accept, contentJSON) {
			header.Set("Content-Type", contentJSON)
			if body, err = json.Marshal(shot); err != nil {
				h.fail(r.Context(), err).write(w)
				return
			}
		} else {
			header.Set("Content-Type", shot.MIME)
			header.Set("X-Content-Type-Options", "nosniff")
			header.Set(screenHeader, fmt.Sprintf("%dx%d", shot.Screen.Width, shot.Screen.Height))
			header.Set(cursorHeader, fmt.Sprintf("%d,%d", shot.Screen.CursorX, shot.Screen.CursorY))
			header.Set(stableHeader, strconv.FormatBool(shot.Stable))
		}
		header.Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(body) // who went away is told nothing
	}}, nil
}
