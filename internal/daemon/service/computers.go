package service

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/sandbox"
)

// computer opens the caller's sandbox for a verb that needs a screen, and
// resumes a paused one.
func (s *Service) computer(c *call.Call, ref string, check func() error) (*handle, *sandbox.Desktop, error) {
	if check != nil {
		if err := check(); err != nil {
			return nil, nil, err
		}
	}
	r, err := c.Resolve(ref)
	if err != nil {
		return nil, nil, err
	}
	// A sandbox without a screen is not resumed just to say so.
	desktop := startup.DesktopOf(&r)
	if desktop == nil {
		return nil, nil, s.noScreen(c.Ctx, r.ID)
	}
	h, err := s.openFor(c, r.ID)
	return h, desktop, err
}

// noScreen returns the error for a sandbox that is not a computer; it names templates
// with a desktop.
func (s *Service) noScreen(ctx context.Context, id string) error {
	var names []string
	if all, err := s.cfg.Templates.List(ctx); err == nil {
		for i := range all {
			if all[i].Desktop != nil {
				names = append(names, all[i].Name)
			}
		}
	}
	which := "a template that has a desktop"
	if len(names) > 0 {
		which = "the template " + strings.Join(names, " or ")
	}
	return sandbox.Errorf(sandbox.CodeUnsupported, "sandbox %s has no screen; create a computer from %s", id, which)
}

// GetScreen implements [sandbox.Computers].
func (s *Service) GetScreen(ctx context.Context, ref string) (*sandbox.Screen, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Screen, error) {
		h, desktop, err := s.computer(c, ref, nil)
		if err != nil {
			return nil, err
		}
		screen, err := h.client.GetScreen(c.Ctx, desktop.Display)
		return screen, h.explain(c.Ctx, err)
	})
}

// Screenshot implements [sandbox.Computers].
func (s *Service) Screenshot(ctx context.Context, ref string, req sandbox.ScreenshotRequest) (*sandbox.Screenshot, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Screenshot, error) {
		h, desktop, err := s.computer(c, ref, func() error { return checkScreenshot(&req) })
		if err != nil {
			return nil, err
		}
		shot, err := h.client.Screenshot(c.Ctx, desktop.Display, &req)
		return shot, h.explain(c.Ctx, err)
	})
}

// SendInput implements [sandbox.Computers]. Typed text is never recorded.
func (s *Service) SendInput(ctx context.Context, ref string, inputs []sandbox.Input) (*sandbox.Screen, error) {
	return call.Do(ctx, s.gate, call.Audited(sandbox.ScopeComputersWrite, "computer.input"), func(c *call.Call) (*sandbox.Screen, error) {
		h, desktop, err := s.computer(c, ref, func() error { return checkInputs(inputs) })
		if err != nil {
			return nil, err
		}
		c.Detail = describeInputs(inputs)
		screen, err := h.client.SendInput(c.Ctx, desktop.Display, inputs)
		if err != nil {
			return nil, h.explain(c.Ctx, err)
		}
		s.announceAction(h, sandbox.ComputerAction{Action: sandbox.ActionInput, Detail: c.Detail, CursorX: &screen.CursorX, CursorY: &screen.CursorY})
		return screen, nil
	})
}

// describeInputs returns the types of the inputs, without typed text.
func describeInputs(inputs []sandbox.Input) string {
	const most = 8
	var kinds []string
	for i := range inputs[:min(most, len(inputs))] {
		kinds = append(kinds, string(inputs[i].Type))
	}
	text := strings.Join(kinds, ", ")
	if len(inputs) > most {
		text += fmt.Sprintf(" and %d more", len(inputs)-most)
	}
	return text
}

// GetClipboard implements [sandbox.Computers].
func (s *Service) GetClipboard(ctx context.Context, ref string) (string, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (string, error) {
		h, desktop, err := s.computer(c, ref, nil)
		if err != nil {
			return "", err
		}
		text, err := h.client.GetClipboard(c.Ctx, desktop.Display)
		return text, h.explain(c.Ctx, err)
	})
}

// SetClipboard implements [sandbox.Computers].
func (s *Service) SetClipboard(ctx context.Context, ref, text string) error {
	return call.Run(ctx, s.gate, call.Audited(sandbox.ScopeComputersWrite, "computer.clipboard"), func(c *call.Call) error {
		h, desktop, err := s.computer(c, ref, func() error { return checkClipboard(text) })
		if err != nil {
			return err
		}
		c.Detail = fmt.Sprintf("%d bytes", len(text))
		if err := h.client.SetClipboard(c.Ctx, desktop.Display, text); err != nil {
			return h.explain(c.Ctx, err)
		}
		s.announceAction(h, sandbox.ComputerAction{Action: sandbox.ActionClipboard, Detail: c.Detail})
		return nil
	})
}

// ListWindows implements [sandbox.Computers].
func (s *Service) ListWindows(ctx context.Context, ref string) (*sandbox.List[sandbox.Window], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Window], error) {
		h, desktop, err := s.computer(c, ref, nil)
		if err != nil {
			return nil, err
		}
		return windowList(c.Ctx, h)(h.client.ListWindows(c.Ctx, desktop.Display))
	})
}

// ControlWindow implements [sandbox.Computers].
func (s *Service) ControlWindow(ctx context.Context, ref string, req sandbox.WindowRequest) (*sandbox.List[sandbox.Window], error) {
	return call.Do(ctx, s.gate, call.Audited(sandbox.ScopeComputersWrite, "computer.window"), func(c *call.Call) (*sandbox.List[sandbox.Window], error) {
		h, desktop, err := s.computer(c, ref, func() error { return checkWindow(&req) })
		if err != nil {
			return nil, err
		}
		c.Detail = fmt.Sprintf("%s %d", req.Action, req.ID)
		all, err := windowList(c.Ctx, h)(h.client.ControlWindow(c.Ctx, desktop.Display, &req))
		if err == nil {
			s.announceAction(h, sandbox.ComputerAction{Action: sandbox.ActionWindow, Detail: c.Detail})
		}
		return all, err
	})
}

func windowList(ctx context.Context, h *handle) func([]sandbox.Window, error) (*sandbox.List[sandbox.Window], error) {
	return func(all []sandbox.Window, err error) (*sandbox.List[sandbox.Window], error) {
		if err != nil {
			return nil, h.explain(ctx, err)
		}
		if all == nil {
			all = []sandbox.Window{}
		}
		return &sandbox.List[sandbox.Window]{Items: all}, nil
	}
}

// OpenURL implements [sandbox.Computers].
func (s *Service) OpenURL(ctx context.Context, ref, address string) error {
	return call.Run(ctx, s.gate, call.Audited(sandbox.ScopeComputersWrite, "computer.open"), func(c *call.Call) error {
		h, desktop, err := s.computer(c, ref, func() error { return checkAddress(address) })
		if err != nil {
			return err
		}
		c.Detail = hostOfAddress(address)
		if err := h.client.OpenURL(c.Ctx, desktop.Display, address); err != nil {
			return h.explain(c.Ctx, err)
		}
		s.announceAction(h, sandbox.ComputerAction{Action: sandbox.ActionOpen, Detail: c.Detail})
		return nil
	})
}

// hostOfAddress returns the part of an address that is recorded; the rest may be
// private.
func hostOfAddress(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	if len(u.Host) > 253 {
		return u.Scheme
	}
	return strings.TrimSuffix(u.Scheme+" "+u.Host, " ")
}

// Bounds of fields in requests on a computer.
const (
	maxKeyBytes = 128
	maxAddress  = 8 << 10
)

func checkScreenshot(req *sandbox.ScreenshotRequest) error {
	if req.Region != nil {
		if err := checkRegion(req.Region); err != nil {
			return err
		}
	}
	switch req.Format {
	case "", sandbox.ImagePNG, sandbox.ImageJPEG:
	default:
		return validate.Errorf("format %s is not valid; use %q or %q", validate.Quote(string(req.Format)), sandbox.ImagePNG, sandbox.ImageJPEG)
	}
	if req.Quality != 0 && req.Format != sandbox.ImageJPEG {
		return validate.Errorf("quality works only with the format %q; leave it out", sandbox.ImageJPEG)
	}
	return checkRanges(
		bound{"width", int64(req.Width), 0, sandbox.MaxScreenWidth},
		bound{"height", int64(req.Height), 0, sandbox.MaxScreenHeight},
		bound{"stable_ms", req.StableMS, 0, sandbox.MaxStableWait.Milliseconds()},
		bound{"quality", int64(req.Quality), 0, 100},
	)
}

// bound is a field of a request with its bounds.
type bound struct {
	field        string
	v, low, high int64
}

func checkRanges(all ...bound) error {
	for _, b := range all {
		if err := validate.Range(b.field, b.v, b.low, b.high); err != nil {
			return err
		}
	}
	return nil
}

func checkRegion(r *sandbox.Region) error {
	return checkRanges(
		bound{"region.x", int64(r.X), 0, sandbox.MaxScreenWidth - 1},
		bound{"region.y", int64(r.Y), 0, sandbox.MaxScreenHeight - 1},
		bound{"region.width", int64(r.Width), 1, sandbox.MaxScreenWidth},
		bound{"region.height", int64(r.Height), 1, sandbox.MaxScreenHeight},
	)
}

// checkInputs checks the bounds of inputs. The agent, which reads them, checks what
// they mean.
func checkInputs(inputs []sandbox.Input) error {
	if len(inputs) == 0 || len(inputs) > sandbox.MaxInputs {
		return validate.Errorf("a call takes 1 to %d inputs, but this one has %d; split it into several calls", sandbox.MaxInputs, len(inputs))
	}
	typed := 0
	for i := range inputs {
		in := &inputs[i]
		if len(in.Type) > maxKeyBytes || len(in.Button) > maxKeyBytes || len(in.Path) > sandbox.MaxDragPoints || len(in.Keys) > sandbox.MaxInputKeys {
			return validate.Errorf("input %d is too long; a drag has at most %d points, and a key input at most %d keys", i+1, sandbox.MaxDragPoints, sandbox.MaxInputKeys)
		}
		for _, k := range in.Keys {
			if len(k) > maxKeyBytes || validate.Text("keys", k) != nil {
				return validate.Errorf("input %d: key %s is not known; use names such as Return, ctrl+c or F5", i+1, validate.Quote(k))
			}
		}
		if err := validate.Text("text", in.Text); err != nil {
			return err
		}
		typed += len(in.Text)
	}
	if typed > sandbox.MaxTypedBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the text to type has %d bytes; type at most %d at once, or copy it to the clipboard and paste it", typed, sandbox.MaxTypedBytes)
	}
	return nil
}

func checkClipboard(text string) error {
	if len(text) > sandbox.MaxClipboard {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the text has %d bytes; the clipboard holds at most %d", len(text), sandbox.MaxClipboard)
	}
	return validate.Text("text", text)
}

func checkWindow(req *sandbox.WindowRequest) error {
	if req.ID < 1 || req.ID >= 1<<32 {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no window %d; list the windows to see their ids", req.ID)
	}
	switch req.Action {
	case sandbox.WindowPlace:
		if req.Region == nil {
			return validate.Errorf("place needs a region; set x, y, width and height")
		}
		return checkRegion(req.Region)
	case sandbox.WindowFocus, sandbox.WindowClose, sandbox.WindowMinimize, sandbox.WindowMaximize:
		if req.Region != nil {
			return validate.Errorf("%s does not take a region; leave it out, or use place", req.Action)
		}
		return nil
	}
	return validate.Errorf("action %s is not valid; use focus, close, minimize, maximize or place", validate.Quote(string(req.Action)))
}

// addressSchemes are the schemes that a browser opens without asking.
var addressSchemes = []string{"http", "https", "file", "about"}

func checkAddress(address string) error {
	if len(address) > maxAddress {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the URL has %d bytes; at most %d can be opened, so write a page to a file for more", len(address), maxAddress)
	}
	if err := validate.Text("url", address); err != nil {
		return err
	}
	u, err := url.Parse(address)
	if err != nil || !slices.Contains(addressSchemes, u.Scheme) || (u.Scheme == "http" || u.Scheme == "https") && u.Host == "" {
		return validate.Errorf("%s is not a URL that can be opened; use one such as https://example.com, with one of %s", validate.Quote(address), strings.Join(addressSchemes, ", "))
	}
	return nil
}
