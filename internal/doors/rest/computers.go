package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// Headers that describe the screenshot in a response.
const (
	screenHeader = "Cove-Screen" // WIDTHxHEIGHT of the screen
	cursorHeader = "Cove-Cursor" // X,Y of the pointer
	stableHeader = "Cove-Stable" // whether the screen stood still
)

const (
	contentPNG  = "image/png"
	contentJPEG = "image/jpeg"
)

func (h *handlers) registerScreenshot(a huma.API) {
	o := sends(sends(describeRoute(operation.Screenshot.Info), contentPNG), contentJPEG)
	huma.Register(a, answers[sandbox.Screenshot](a, o, contentJSON), h.screenshot)
}

func (h *handlers) screenshot(_ context.Context, in *operation.ScreenshotInput) (*huma.StreamResponse, error) {
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		r, w := humago.Unwrap(hctx)
		req, err := in.Request()
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
		if strings.Contains(r.Header.Get("Accept"), contentJSON) {
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
		_, _ = w.Write(body) // the client may be gone
	}}, nil
}
