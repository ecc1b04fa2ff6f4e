package client

import (
	"context"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// GetScreen implements [sandbox.Computers].
func (c *Client) GetScreen(ctx context.Context, name string) (*sandbox.Screen, error) {
	return get(ctx, c, operation.GetScreen, nil, name)
}

// Screenshot implements [sandbox.Computers].
func (c *Client) Screenshot(ctx context.Context, name string, req sandbox.ScreenshotRequest) (*sandbox.Screenshot, error) {
	httpReq, err := c.request(ctx, operation.Screenshot.Info, req, []string{name})
	if err != nil {
		return nil, err
	}
	httpReq.Header.Set("Accept", "application/json") // and not the bare picture
	shot := new(sandbox.Screenshot)
	if err := c.answer(httpReq, shot); err != nil {
		return nil, err
	}
	return shot, nil
}

// SendInput implements [sandbox.Computers].
func (c *Client) SendInput(ctx context.Context, name string, inputs []sandbox.Input) (*sandbox.Screen, error) {
	if inputs == nil {
		inputs = []sandbox.Input{}
	}
	return get(ctx, c, operation.SendInput, members{"inputs": inputs}, name)
}

// GetClipboard implements [sandbox.Computers].
func (c *Client) GetClipboard(ctx context.Context, name string) (string, error) {
	held, err := get(ctx, c, operation.GetClipboard, nil, name)
	if err != nil {
		return "", err
	}
	return held.Text, nil
}

// SetClipboard implements [sandbox.Computers].
func (c *Client) SetClipboard(ctx context.Context, name, text string) error {
	return do(ctx, c, operation.SetClipboard, operation.ClipboardText{Text: text}, name)
}

// ListWindows implements [sandbox.Computers].
func (c *Client) ListWindows(ctx context.Context, name string) (*sandbox.List[sandbox.Window], error) {
	return get(ctx, c, operation.ListWindows, nil, name)
}

// ControlWindow implements [sandbox.Computers].
func (c *Client) ControlWindow(ctx context.Context, name string, req sandbox.WindowRequest) (*sandbox.List[sandbox.Window], error) {
	return get(ctx, c, operation.ControlWindow, req, name)
}

// OpenURL implements [sandbox.Computers].
func (c *Client) OpenURL(ctx context.Context, name, address string) error {
	return do(ctx, c, operation.OpenURL, members{"url": address}, name)
}

// ViewComputer implements [sandbox.Computers].
func (c *Client) ViewComputer(ctx context.Context, name string, req sandbox.ViewRequest) (*sandbox.ViewLink, error) {
	return get(ctx, c, operation.ViewComputer, req, name)
}
