package miosa_test

import (
	"bytes"
	"encoding/json"
	"image"
	"image/png"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
)

// testComputer follows the product's example: it views a desktop and uses it. The template
// has the product's name, and consists of this machine's programs.
func testComputer(t *testing.T, w *harness) {
	s := w.open(t)
	dialecttest.BuildScreen(t, w.Daemon, "ubuntu-desktop")
	converse(t, w, "testdata/computer")

	dialecttest.Ask(t, s, "computer_create", `{}`)
	before := shot(t, s)
	if b := before.Bounds(); b.Dx() != 1280 || b.Dy() != 800 {
		t.Errorf("the screenshot has %v", b)
	}
	dialecttest.Ask(t, s, "computer_action", `{"action":"click","x":200,"y":200}`) // the terminal has the keyboard then
	dialecttest.Ask(t, s, "computer_action", `{"action":"type","text":"hello"}`)
	if !covetest.Eventually(patience, func() bool { return differ(before, shot(t, s)) }) {
		t.Error("what was typed is not on the screen")
	}
	dialecttest.KillAll(t, w.Daemon)
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

// differ reports whether two pictures differ.
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
