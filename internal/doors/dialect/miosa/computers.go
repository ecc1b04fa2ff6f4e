package miosa

import (
	"cmp"
	"context"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// desktopTemplate is the server's template of computers.
	desktopTemplate = "desktop"
	// ubuntuDesktop is the product's usual template of computers.
	ubuntuDesktop = "ubuntu-desktop"
	// computerIdle is after how many seconds without use a computer is paused. Using it
	// resumes it.
	computerIdle = 30 * 60
)

// desktops are the product's names for a Linux desktop.
var desktops = map[string]bool{ubuntuDesktop: true, "miosa-desktop": true, desktopTemplate: true}

var computerSizes = []size{
	{"small", sandbox.Resources{VCPUs: 1, MemoryMiB: 4096, DiskMiB: 10240}},
	{"medium", sandbox.Resources{VCPUs: 2, MemoryMiB: 8192, DiskMiB: 20480}},
	{"large", sandbox.Resources{VCPUs: 4, MemoryMiB: 16384, DiskMiB: 40960}},
	{"xl", sandbox.Resources{VCPUs: 8, MemoryMiB: 32768, DiskMiB: 81920}},
}

type computerArgs struct {
	labels
	Template string `json:"template"`
	Name     string `json:"name"`
	Size     string `json:"size"`
	Tenant   string `json:"workspace_id"`
}

// computer is a sandbox with a screen, in the product's terms.
type computer struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Status    string `json:"status"`
	Template  string `json:"template"`
	Size      string `json:"size"`
	IPAddress string `json:"ip_address"`
	Width     int    `json:"width,omitempty"`
	Height    int    `json:"height,omitempty"`
	CreatedAt string `json:"created_at"`
	Note      string `json:"note,omitempty"`
}

func computerOf(s *sandbox.Sandbox) computer {
	out := computer{
		ID: s.ID, Name: cmp.Or(s.Metadata[nameTag], s.Name, s.ID), Status: status(s.State),
		Template: cmp.Or(s.Metadata[templateTag], s.Template), Size: cmp.Or(s.Metadata[computerTag], "custom"),
		IPAddress: sandboxIP, CreatedAt: dialect.Stamp(s.CreatedAt),
	}
	if s.State == sandbox.StatePaused {
		out.Status = "stopped"
	}
	if s.Desktop != nil {
		out.Width, out.Height = s.Desktop.Width, s.Desktop.Height
	}
	return out
}

func createComputer(ctx context.Context, c *call, in computerArgs) (*mcp.CallToolResult, error) {
	from, err := desktopFor(ctx, c, in.Template)
	if err != nil {
		return nil, err
	}
	c.Status("creating a computer")
	size := cmp.Or(in.Size, defaultSize)
	idle, lifetime := int64(computerIdle), int64(0)
	req := sandbox.CreateRequest{
		Template: from, Resources: named(computerSizes, size), FitResources: true, Metadata: in.tags(),
		IdleTimeoutSeconds: &idle, LifetimeSeconds: &lifetime, OnTimeout: sandbox.ActionPause,
	}
	req.Metadata[templateTag], req.Metadata[computerTag] = in.Template, size
	if in.Tenant != "" {
		req.Metadata[tenantTag] = in.Tenant
	}
	s, err := dialect.CreateNamed(ctx, c.Service, in.Name, nameTag, req)
	if err != nil {
		return nil, err
	}
	if s.Desktop == nil {
		_, _ = c.Service.Kill(context.WithoutCancel(ctx), s.ID) // the sandbox is useless without its screen
		return nil, dialect.Invalid("template %s has no desktop; choose ubuntu-desktop", quoted(in.Template))
	}
	c.session.useComputer(s.ID)
	out := computerOf(s)
	instead := ""
	if in.Template == ubuntuDesktop && from == desktopTemplate {
		instead = "template " + ubuntuDesktop + " is not built on this server, so its template " + desktopTemplate + " stands in, which is a Debian"
	}
	out.Note = notes(instead, smaller(req.Resources, s.Resources))
	return result(out)
}

// desktopFor returns the template of a computer: the one with this name, or the server's
// desktop for the product's names.
func desktopFor(ctx context.Context, c *call, asked string) (string, error) {
	t, err := c.Service.GetTemplate(ctx, asked)
	if desktops[asked] && (sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && t.State != sandbox.TemplateReady) {
		t, err = c.Service.GetTemplate(ctx, desktopTemplate)
	}
	switch {
	case err != nil && asked == "windows-11":
		return "", dialect.Invalid("template windows-11 is not available: it needs an image of Windows, which this server does not have; use ubuntu-desktop")
	case sandbox.CodeOf(err) == sandbox.CodeNotFound && desktops[asked]:
		return "", dialect.Invalid("this server has no desktop template, so no computers; ask its operator for one")
	case err != nil:
		return "", unknownTemplate(asked, err)
	case t.Desktop == nil && t.State == sandbox.TemplateReady:
		return "", dialect.Invalid("template %s has no desktop; choose ubuntu-desktop", quoted(asked))
	}
	if strings.Contains(asked, "@") {
		return asked, nil
	}
	return t.Name, nil
}

// onComputer explains the error of using a computer. A sandbox without a screen is not a
// computer.
func (c *call) onComputer(ctx context.Context, id string, err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
		if s, getErr := c.Service.Get(ctx, id); getErr == nil && s.Desktop == nil {
			return sandbox.Wrap(sandbox.CodeNotFound, err, quoted(id)+" is a sandbox without a desktop, not a computer; computer_create makes one")
		}
	}
	return c.about(ctx, id, err)
}

type oneComputer struct {
	Computer string `json:"computer_id"`
}

func screenshot(ctx context.Context, c *call, in oneComputer) (*mcp.CallToolResult, error) {
	id, err := c.computer(in.Computer)
	if err != nil {
		return nil, err
	}
	c.Status("taking a screenshot")
	shot, err := c.Service.Screenshot(ctx, id, sandbox.ScreenshotRequest{Cursor: true, Format: sandbox.ImagePNG})
	if err != nil {
		return nil, c.onComputer(ctx, id, err)
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{Data: shot.Data, MIMEType: shot.MIME}}}, nil
}

type actionArgs struct {
	Computer  string   `json:"computer_id"`
	Action    string   `json:"action"`
	X         *float64 `json:"x"`
	Y         *float64 `json:"y"`
	Button    string   `json:"button"`
	Text      string   `json:"text"`
	Delay     float64  `json:"delay"`
	Key       string   `json:"key"`
	Direction string   `json:"direction"`
	Clicks    float64  `json:"clicks"`
}

// done reports an action that was performed.
type done struct {
	Success bool `json:"success"`
}

func act(ctx context.Context, c *call, in actionArgs) (*mcp.CallToolResult, error) {
	input, err := in.input()
	if err != nil {
		return nil, err
	}
	id, err := c.computer(in.Computer)
	if err != nil {
		return nil, err
	}
	if input.X != nil {
		if err := c.onScreen(ctx, id, *input.X, *input.Y); err != nil {
			return nil, err
		}
	}
	c.Status(in.Action)
	if _, err := c.Service.SendInput(ctx, id, []sandbox.Input{input}); err != nil {
		return nil, c.onComputer(ctx, id, err)
	}
	return result(done{true})
}

// onScreen refuses a position that is not on the screen.
func (c *call) onScreen(ctx context.Context, id string, x, y int) error {
	screen, err := c.Service.GetScreen(ctx, id)
	if err != nil {
		return c.onComputer(ctx, id, err)
	}
	if x >= screen.Width || y >= screen.Height {
		return dialect.Invalid("x %d, y %d is not on the screen, which has %d x %d pixels", x, y, screen.Width, screen.Height)
	}
	return nil
}

// input returns the action in the service's terms.
func (in *actionArgs) input() (sandbox.Input, error) {
	switch in.Action {
	case "click", "double_click":
		out := sandbox.Input{Type: sandbox.InputClick, Button: in.Button, Count: 1}
		if in.Action == "double_click" {
			out.Count = 2
		}
		err := in.place(&out, true)
		return out, err
	case "type":
		switch n := len(in.Text); {
		case n == 0:
			return sandbox.Input{}, &missing{"text is required"}
		case n > sandbox.MaxTypedBytes:
			return sandbox.Input{}, sandbox.Errorf(sandbox.CodeTooLarge, "text has %d bytes and may have %d; type it in parts", n, sandbox.MaxTypedBytes)
		}
		if took := int64(in.Delay) * int64(utf8.RuneCountInString(in.Text)); took > sandbox.MaxInputTime.Milliseconds() {
			return sandbox.Input{}, dialect.Invalid("to type this text would take %d s, and may take %.0f; lower delay or type it in parts", took/1000, sandbox.MaxInputTime.Seconds())
		}
		return sandbox.Input{Type: sandbox.InputText, Text: in.Text, DurationMS: int64(in.Delay)}, nil
	case "key":
		if in.Key == "" {
			return sandbox.Input{}, &missing{"key is required"}
		}
		return sandbox.Input{Type: sandbox.InputKey, Keys: []string{in.Key}}, nil
	}
	out := sandbox.Input{Type: sandbox.InputScroll}
	n := int(in.Clicks)
	switch in.Direction {
	case "up":
		out.DY = -n
	case "down":
		out.DY = n
	case "left":
		out.DX = -n
	case "right":
		out.DX = n
	}
	err := in.place(&out, false)
	return out, err
}

// place sets the position of an action.
func (in *actionArgs) place(out *sandbox.Input, needed bool) error {
	switch {
	case in.X == nil && in.Y == nil && !needed:
		return nil
	case in.X == nil:
		return &missing{"x is required"}
	case in.Y == nil:
		return &missing{"y is required"}
	}
	out.X, out.Y = new(int(*in.X)), new(int(*in.Y))
	return nil
}

func stopComputer(ctx context.Context, c *call, in oneComputer) (*mcp.CallToolResult, error) {
	id, err := c.computer(in.Computer)
	if err != nil {
		return nil, err
	}
	s, err := c.Service.Get(ctx, id)
	if err == nil && s.Desktop == nil {
		err = sandbox.Errorf(sandbox.CodeUnsupported, "no desktop")
	}
	if err != nil {
		return nil, c.onComputer(ctx, id, err)
	}
	c.Status("stopping")
	if s, err = c.Service.Pause(ctx, s.ID); err != nil {
		return nil, c.about(ctx, id, err)
	}
	return result(changed{s.ID, "stopped"})
}
