package miosa_test

import (
	"bytes"
	"encoding/json"
	"image"
	"image/png"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/needs"
	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/covetest"
)

// screenCommand runs a screen on which a terminal writes down what is typed,
// and edits nothing.
const screenCommand = `mkdir -m 1777 -p /tmp/.X11-unix
Xvfb :1 -screen 0 1280x800x24 -nolisten tcp &
until [ -e /tmp/.X11-unix/X1 ]; do sleep 0.1; done
DISPLAY=:1 exec xterm -u8 -geometry 100x30+0+0 -e sh -c 'stty -icanon; cat > /tmp/typed'`

// The product's example: a desktop is seen, and used. The template has the
// product's name here, and is made of this machine's programs.
func testComputer(t *testing.T, w *world) {
	needs.Command(t, "Xvfb", "xterm")
	s := w.open(t)
	_, err := w.Client.BuildTemplate(t.Context(), sandbox.BuildTemplateRequest{Name: "ubuntu-desktop", Spec: &sandbox.TemplateSpec{
		From: sandbox.TemplateSource{Host: true}, Desktop: &sandbox.Desktop{Width: 1280, Height: 800, Display: ":1"},
		Start: &sandbox.StartCommand{Command: screenCommand, Ready: "test -e /tmp/typed"},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	converse(t, w, "testdata/computer")

	call(t, s, "computer_create", `{}`)
	before := shot(t, s)
	if b := before.Bounds(); b.Dx() != 1280 || b.Dy() != 800 {
		t.Errorf("the screenshot has %v", b)
	}
	call(t, s, "computer_action", `{"action":"click","x":200,"y":200}`) // the terminal has the keyboard then
	call(t, s, "computer_action", `{"action":"type","text":"hello"}`)
	if !covetest.Eventually(patience, func() bool { return differ(before, shot(t, s)) }) {
		t.Error("what was typed is not on the screen")
	}
	killAll(t, w.Daemon)
}

// shot takes a screenshot of the active computer.
func shot(t *testing.T, s *mcp.ClientSession) image.Image {
	t.Helper()
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "computer_screenshot", Arguments: json.RawMessage(`{}`)})
	if err != nil || res.IsError || len(res.Content) != 1 {
		t.Fatalf("%v, %+v", err, res)
	}
	content, ok := res.Content[0].(*mcp.ImageContent)
	if !ok || content.MIMEType != "image/png" {
		t.Fatalf("the screenshot is %T", res.Content[0])
	}
	img, err := png.Decode(bytes.NewReader(content.Data))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// differ reports whether two pictures do.
func differ(a, b image.Image) bool {
	for y := range a.Bounds().Dy() {
		for x := range a.Bounds().Dx() {
			if a.At(x, y) != b.At(x, y) {
				return true
			}
		}
	}
	return false
}
