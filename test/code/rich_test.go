package code

import (
	"bytes"
	"encoding/json"
	"image/png"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// TestRich has an MCP client shown a plot, a table and an error that come from
// the libraries themselves, in a sandbox.
func TestRich(t *testing.T) {
	needs.File(t, "/usr/lib/python3/dist-packages/matplotlib/pyplot.py")
	needs.File(t, "/usr/lib/python3/dist-packages/pandas/__init__.py")
	needs.File(t, "/usr/lib/python3/dist-packages/plotly/__init__.py")
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := d.Create(t, kernels()).ID
		client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
		s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: d.URL + "/mcp"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		shows := func(code string) (text, structured string, images [][]byte) {
			t.Helper()
			r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_code", Arguments: map[string]any{"sandbox": id, "code": code}})
			if err != nil || r.IsError {
				t.Fatalf("%v: %+v", err, r)
			}
			for _, c := range r.Content {
				switch c := c.(type) {
				case *mcp.TextContent:
					text += c.Text
				case *mcp.ImageContent:
					if c.MIMEType != "image/png" {
						t.Errorf("an image is %s", c.MIMEType)
					}
					images = append(images, c.Data)
				}
			}
			data, err := json.Marshal(r.StructuredContent)
			if err != nil {
				t.Fatal(err)
			}
			return text, string(data), images
		}
		text, _, images := shows("import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [1, 2])\nplt.figure(figsize=(2, 1)).add_subplot().plot([3, 1])\nNone")
		if len(images) != 2 {
			t.Fatalf("%d images: %s", len(images), text)
		}
		for i, data := range images {
			img, err := png.Decode(bytes.NewReader(data))
			if err != nil {
				t.Fatalf("image %d: %v", i+1, err)
			}
			// A real drawing has more than two colours.
			colours := map[[3]uint32]bool{}
			for x := range img.Bounds().Dx() {
				for y := range img.Bounds().Dy() {
					r, g, b, _ := img.At(x, y).RGBA()
					colours[[3]uint32{r, g, b}] = true
				}
			}
			if b := img.Bounds(); b.Dx() < 100 || b.Dy() < 50 || len(colours) < 10 {
				t.Errorf("image %d is %v with %d colours", i+1, b, len(colours))
			}
		}
		text, structured, _ := shows("import pandas as pd\npd.DataFrame({'n': [1, 2], 's': ['x', 'é😀']})")
		if !strings.Contains(text, "é😀") || !strings.Contains(structured, `{"n":2,"s":"é😀"}`) || !strings.Contains(structured, "text/html") {
			t.Errorf("a table is %s\n%s", text, structured)
		}
		// Plotly's own figures, and what only says that it is one.
		for name, code := range map[string]string{
			"plotly": "import plotly.graph_objects as go\ngo.Figure(go.Bar(x=['a', 'b'], y=[1, 2], name='é'))",
			"object": "class Plot:\n  def _repr_mimebundle_(self, include=None, exclude=None):\n    return {'application/vnd.plotly.v1+json': {'data': [{'type': 'bar', 'name': 'é', 'y': [1, 2]}], 'layout': {}}, 'text/plain': 'a plot'}\nPlot()",
		} {
			text, structured, _ = shows(code)
			var got struct {
				Outputs []struct {
					Data struct {
						Data []struct{ Type, Name string }
					}
					Types []string
				}
			}
			if err := json.Unmarshal([]byte(structured), &got); err != nil || len(got.Outputs) != 1 {
				t.Errorf("%s: %d outputs, %v: %.200s", name, len(got.Outputs), err, text)
				continue
			}
			if o := got.Outputs[0]; !slices.Contains(o.Types, "application/vnd.plotly.v1+json") || len(o.Data.Data) != 1 || o.Data.Data[0].Type != "bar" || o.Data.Data[0].Name != "é" {
				t.Errorf("%s: the figure is %+v", name, o)
			}
		}
		text, structured, _ = shows("def half(x):\n  return 1 / x\nhalf(0)")
		if !strings.Contains(text, "line 2, in half") || !strings.Contains(text, "exit code 1") || !strings.Contains(structured, `"name":"ZeroDivisionError"`) {
			t.Errorf("an error is %s\n%s", text, structured)
		}
	}, "--dev")
}
