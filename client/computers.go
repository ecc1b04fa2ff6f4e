package client

import (
	"context"
	"fmt"
	"net/http"

	"github.com/cove-sh/cove/sandbox"
)

// GetScreen implements [sandbox.Computers].
func (c *Client) GetScreen(ctx context.Context, name string) (*sandbox.Screen, error) {
	return get[sandbox.Screen](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/computer/screen", name), nil)
}

// Screenshot implements [sandbox.Computers].
func (c *Client) Screenshot(ctx context.Context, name string, req sandbox.ScreenshotRequest) (*sandbox.Screenshot, error) {
	e := c.path("/v1/sandboxes/%/computer/screenshot", name).with("width", number(int64(req.Width))).with("height", number(int64(req.Height))).
		with("cursor", flag(req.Cursor)).with("stable_ms", number(req.StableMS)).with("format", string(req.Format)).with("quality", number(int64(req.Quality)))
	if r := req.Region; r != nil {
		e = e.with("region", fmt.Sprintf("%d,%d,%d,%d", r.X, r.Y, r.Width, r.Height))
	}
	httpReq, err := c.request(ctx, http.MethodGet, e, nil)
	if err != nil {
		return nil, err
	}
	httpReq.Header.Set("Accept", "application/json") // and not the bare picture
	resp, err := c.send(httpReq)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	shot := new(sandbox.Screenshot)
	if err := c.decode(ctx, resp, shot); err != nil {
		return nil, err
	}
	return shot, nil
}

// SendInput implements [sandbox.Computers].
func (c *Client) SendInput(ctx context.Context, name string, inputs []sandbox.Input) (*sandbox.Screen, error) {
	if inputs == nil {
		inputs = []sandbox.Input{}
	}
	body := struct {
		Inputs []sandbox.Input `json:"inputs"`
	}{inputs}
	return get[sandbox.Screen](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/computer/input", name), body)
}

// clipboard is what a clipboard holds.
type clipboard struct {
	Text string `json:"text"`
}

// GetClipboard implements [sandbox.Computers].
func (c *Client) GetClipboard(ctx context.Context, name string) (string, error) {
	held, err := get[clipboard](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/computer/clipboard", name), nil)
	if err != nil {
		return "", err
	}
	return held.Text, nil
}

// SetClipboard implements [sandbox.Computers].
func (c *Client) SetClipboard(ctx context.Context, name, text string) error {
	return c.call(ctx, http.MethodPut, c.path("/v1/sandboxes/%/computer/clipboard", name), clipboard{text}, nil)
}

// ListWindows implements [sandbox.Computers].
func (c *Client) ListWindows(ctx context.Context, name string) (*sandbox.List[sandbox.Window], error) {
	return get[sandbox.List[sandbox.Window]](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/computer/windows", name), nil)
}

// ControlWindow implements [sandbox.Computers].
func (c *Client) ControlWindow(ctx context.Context, name string, req sandbox.WindowRequest) (*sandbox.List[sandbox.Window], error) {
	return get[sandbox.List[sandbox.Window]](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/computer/windows", name), req)
}

// OpenURL implements [sandbox.Computers].
func (c *Client) OpenURL(ctx context.Context, name, address string) error {
	body := struct {
		URL string `json:"url"`
	}{address}
	return c.call(ctx, http.MethodPost, c.path("/v1/sandboxes/%/computer/open", name), body, nil)
}

// ViewComputer implements [sandbox.Computers].
func (c *Client) ViewComputer(ctx context.Context, name string, req sandbox.ViewRequest) (*sandbox.ViewLink, error) {
	return get[sandbox.ViewLink](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/computer/view", name), req)
}
