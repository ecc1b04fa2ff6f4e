package service

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// windowsTemplate is what others call a computer with Windows. There is none:
// gVisor runs Linux programs, and Microsoft's system would need a virtual
// machine and a licence of the user's.
const windowsTemplate = "windows-11"

var errWindows = sandbox.Errorf(sandbox.CodeUnsupported, "Windows is not supported: it needs a machine with KVM and an image that you supply and license, and no such engine is built; use the template desktop, a Linux desktop (docs/computers.md says more)")

// computer enters a verb on a sandbox that has a screen, and resumes a paused
// one.
func (s *Service) computer(ctx context.Context, scope sandbox.Scope, action, ref string, check func() error) (*visit, *handle, *sandbox.Desktop, error) {
	v, err := s.enter(ctx, scope, action)
	if err != nil {
		return v, nil, nil, err
	}
	if check != nil {
		if err := check(); err != nil {
			return v, nil, nil, err
		}
	}
	r, err := v.resolve(ref)
	if err != nil {
		return v, nil, nil, err
	}
	// One that has no screen is not woken to be told so.
	desktop := desktopOf(&r)
	if desktop == nil {
		return v, nil, nil, s.noScreen(ctx, r.ID)
	}
	h, err := v.open(r.ID)
	return v, h, desktop, err
}

// noScreen says of a sandbox that it is no computer, and which templates are.
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
func (s *Service) GetScreen(ctx context.Context, ref string) (_ *sandbox.Screen, err error) {
	v, h, desktop, err := s.computer(ctx, sandbox.ScopeSandboxesRead, "", ref, nil)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	screen, err := h.client.GetScreen(v.ctx, desktop.Display)
	return screen, h.explain(v.ctx, err)
}

// Screenshot implements [sandbox.Computers].
func (s *Service) Screenshot(ctx context.Context, ref string, req sandbox.ScreenshotRequest) (_ *sandbox.Screenshot, err error) {
	v, h, desktop, err := s.computer(ctx, sandbox.ScopeSandboxesRead, "", ref, func() error { return checkScreenshot(&req) })
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	shot, err := h.client.Screenshot(v.ctx, desktop.Display, &req)
	return shot, h.explain(v.ctx, err)
}

// SendInput implements [sandbox.Computers]. What is typed is in no record.
func (s *Service) SendInput(ctx context.Context, ref string, inputs []sandbox.Input) (_ *sandbox.Screen, err error) {
	v, h, desktop, err := s.computer(ctx, sandbox.ScopeComputersWrite, "computer.input", ref, func() error { return checkInputs(inputs) })
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	v.detail = describeInputs(inputs)
	screen, err := h.client.SendInput(v.ctx, desktop.Display, inputs)
	return screen, h.explain(v.ctx, err)
}

// describeInputs says what was done, but not what was typed.
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
func (s *Service) GetClipboard(ctx context.Context, ref string) (_ string, err error) {
	v, h, desktop, err := s.computer(ctx, sandbox.ScopeSandboxesRead, "", ref, nil)
	defer v.leave(&err)
	if err != nil {
		return "", err
	}
	text, err := h.client.GetClipboard(v.ctx, desktop.Display)
	return text, h.explain(v.ctx, err)
}

// SetClipboard implements [sandbox.Computers].
func (s *Service) SetClipboard(ctx context.Context, ref, text string) (err error) {
	v, h, desktop, err := s.computer(ctx, sandbox.ScopeComputersWrite, "computer.clipboard", ref, func() error { return checkClipboard(text) })
	defer v.leave(&err)
	if err != nil {
		return err
	}
	v.detail = fmt.Sprintf("%d bytes", len(text))
	return h.explain(v.ctx, h.client.SetClipboard(v.ctx, desktop.Display, text))
}

// ListWindows implements [sandbox.Computers].
func (s *Service) ListWindows(ctx context.Context, ref string) (_ *sandbox.List[sandbox.Window], err error) {
	v, h, desktop, err := s.computer(ctx, sandbox.ScopeSandboxesRead, "", ref, nil)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	return windowList(v.ctx, h)(h.client.ListWindows(v.ctx, desktop.Display))
}

// ControlWindow implements [sandbox.Computers].
func (s *Service) ControlWindow(ctx context.Context, ref string, req sandbox.WindowRequest) (_ *sandbox.List[sandbox.Window], err error) {
	v, h, desktop, err := s.computer(ctx, sandbox.ScopeComputersWrite, "computer.window", ref, func() error { return checkWindow(&req) })
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	v.detail = fmt.Sprintf("%s %d", req.Action, req.ID)
	return windowList(v.ctx, h)(h.client.ControlWindow(v.ctx, desktop.Display, &req))
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
func (s *Service) OpenURL(ctx context.Context, ref, address string) (err error) {
	v, h, desktop, err := s.computer(ctx, sandbox.ScopeComputersWrite, "computer.open", ref, func() error { return checkAddress(address) })
	defer v.leave(&err)
	if err != nil {
		return err
	}
	v.detail = hostOfAddress(address)
	return h.explain(v.ctx, h.client.OpenURL(v.ctx, desktop.Display, address))
}

// hostOfAddress is what of an address is recorded: the rest may be private.
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

// Bounds of what a request on a computer may ask for.
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
		return invalid("format %s is not known; use %q or %q", quote(string(req.Format)), sandbox.ImagePNG, sandbox.ImageJPEG)
	}
	if req.Quality != 0 && req.Format != sandbox.ImageJPEG {
		return invalid("quality is for the format %q only; leave it out", sandbox.ImageJPEG)
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
		if err := checkRange(b.field, b.v, b.low, b.high); err != nil {
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

// checkInputs bounds inputs. What each of them means, and whether it makes
// sense, is for the agent to say, who reads them.
func checkInputs(inputs []sandbox.Input) error {
	if len(inputs) == 0 || len(inputs) > sandbox.MaxInputs {
		return invalid("a call takes 1 to %d inputs and this one has %d; send more in further calls", sandbox.MaxInputs, len(inputs))
	}
	typed := 0
	for i := range inputs {
		in := &inputs[i]
		if len(in.Type) > maxKeyBytes || len(in.Button) > maxKeyBytes || len(in.Path) > sandbox.MaxDragPoints || len(in.Keys) > sandbox.MaxInputKeys {
			return invalid("input %d is too long; a drag has at most %d points, and an input %d keys", i+1, sandbox.MaxDragPoints, sandbox.MaxInputKeys)
		}
		for _, k := range in.Keys {
			if len(k) > maxKeyBytes || checkText("keys", k) != nil {
				return invalid("input %d: key %s is not one; use names such as Return, ctrl+c or F5", i+1, quote(k))
			}
		}
		if err := checkText("text", in.Text); err != nil {
			return err
		}
		typed += len(in.Text)
	}
	if typed > sandbox.MaxTypedBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the text to type has %d bytes; type at most %d at once, or put it into the clipboard and paste it", typed, sandbox.MaxTypedBytes)
	}
	return nil
}

func checkClipboard(text string) error {
	if len(text) > sandbox.MaxClipboard {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the text has %d bytes; the clipboard takes at most %d", len(text), sandbox.MaxClipboard)
	}
	return checkText("text", text)
}

func checkWindow(req *sandbox.WindowRequest) error {
	if req.ID < 1 || req.ID >= 1<<32 {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no window %d; list the windows for their ids", req.ID)
	}
	switch req.Action {
	case sandbox.WindowPlace:
		if req.Region == nil {
			return invalid("place needs a region; give x, y, width and height")
		}
		return checkRegion(req.Region)
	case sandbox.WindowFocus, sandbox.WindowClose, sandbox.WindowMinimize, sandbox.WindowMaximize:
		if req.Region != nil {
			return invalid("%s takes no region; leave it out, or use place", req.Action)
		}
		return nil
	}
	return invalid("action %s is not known; use focus, close, minimize, maximize or place", quote(string(req.Action)))
}

// addressSchemes are those of what a browser shows without asking anybody.
var addressSchemes = []string{"http", "https", "file", "about"}

func checkAddress(address string) error {
	if len(address) > maxAddress {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the address has %d bytes; at most %d can be opened, write a page to a file for more", len(address), maxAddress)
	}
	if err := checkText("url", address); err != nil {
		return err
	}
	u, err := url.Parse(address)
	if err != nil || !slices.Contains(addressSchemes, u.Scheme) || (u.Scheme == "http" || u.Scheme == "https") && u.Host == "" {
		return invalid("%s is not an address to open; give one such as https://example.com, with one of %s", quote(address), strings.Join(addressSchemes, ", "))
	}
	return nil
}
