package native

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// The limits of rich outputs in a result.
const (
	maxOutputText  = 16 << 10 // of one output as text
	maxOutputsText = 48 << 10 // of all
	maxOutputJSON  = 32 << 10 // of one output as JSON
	maxImages      = 8
	maxImageBytes  = 6 << 20 // of all images, in base64
)

// outputView is a rich output in a result.
type outputView struct {
	Result bool              `json:"result,omitempty"`
	Source string            `json:"source,omitempty"`
	Text   string            `json:"text,omitempty"`
	Data   json.RawMessage   `json:"data,omitempty"`
	Types  []string          `json:"types,omitempty"`
	Image  int               `json:"image,omitempty"`
	Files  map[string]string `json:"files,omitempty"`
}

// outputViews makes views of outputs within the limits of a result.
type outputViews struct {
	room      int // for text
	imageRoom int // bytes of images so far
	images    []mcp.Content
	gone      bool // the sandbox is gone, with its files
}

// imageTypes are the types of images that models see.
var imageTypes = []string{"image/png", "image/jpeg", "image/webp", "image/gif"}

// shownTypes are the types that are shown as text, the best first. HTML is last because
// it is for people.
var shownTypes = []string{"text/markdown", "text/latex", "text/plain", "image/svg+xml", "text/html"}

// objectName matches a text that only names an object.
var objectName = lazyregexp.New(`^<[\w.]+ object( at 0x[0-9a-f]+)?>$`)

// view returns the view of one output, and renders it to b.
func (o *outputViews) view(b *strings.Builder, out *sandbox.CodeOutput) outputView {
	v := outputView{Result: out.Result, Source: out.Source, Types: slices.Sorted(maps.Keys(out.Data))}
	label := "output"
	if out.Result {
		label = "result"
	}
	if out.Source != "" {
		label += " (" + cleanText(out.Source) + ")"
	}
	v.Image = o.image(out)
	v.Data = o.json(out)
	if v.Text = o.text(out, v.Image > 0); v.Text != "" {
		sep := " "
		if strings.Contains(v.Text, "\n") {
			sep = "\n"
		}
		fmt.Fprintf(b, "%s:%s%s\n", label, sep, strings.TrimRight(v.Text, "\n"))
	} else if v.Image > 0 {
		fmt.Fprintf(b, "%s: image %d\n", label, v.Image)
	} else {
		fmt.Fprintf(b, "%s: %s\n", label, strings.Join(v.Types, ", "))
	}
	if o.gone {
		return v
	}
	v.Files = out.Files
	for _, mime := range slices.Sorted(maps.Keys(out.Files)) {
		fmt.Fprintf(b, "%s is too large to show; it is in %s\n", mime, cleanText(out.Files[mime]))
	}
	return v
}

// image adds the image of an output, and returns its number, or 0.
func (o *outputViews) image(out *sandbox.CodeOutput) int {
	for _, mime := range imageTypes {
		raw, ok := out.Data[mime]
		if !ok || len(o.images) >= maxImages || o.imageRoom+len(raw) > maxImageBytes {
			continue
		}
		var text string
		if json.Unmarshal(raw, &text) != nil {
			continue
		}
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(data) == 0 {
			continue
		}
		o.imageRoom += len(raw)
		o.images = append(o.images, &mcp.ImageContent{Data: data, MIMEType: mime})
		return len(o.images)
	}
	return 0
}

// json returns an output as JSON, or nil if it has none or there is no room.
func (o *outputViews) json(out *sandbox.CodeOutput) json.RawMessage {
	raw := jsonOf(out)
	if raw == nil || len(raw) > min(maxOutputJSON, o.room) {
		return nil
	}
	o.room -= len(raw)
	return raw
}

// jsonOf returns an output as plain JSON, or in another type that is JSON, such as
// the records of a table.
func jsonOf(out *sandbox.CodeOutput) json.RawMessage {
	if raw := out.Data["application/json"]; raw != nil {
		return raw
	}
	for _, mime := range slices.Sorted(maps.Keys(out.Data)) {
		if raw := out.Data[mime]; sandbox.JSONType(mime) && json.Valid(raw) {
			return raw
		}
	}
	return nil
}

// text returns an output as text, "" beside an image that is not the result.
func (o *outputViews) text(out *sandbox.CodeOutput, shown bool) string {
	for _, mime := range shownTypes {
		raw, ok := out.Data[mime]
		if !ok || shown && !out.Result {
			continue
		}
		var text string
		if json.Unmarshal(raw, &text) != nil || mime == "text/plain" && len(out.Data) > 1 && objectName.MatchString(text) {
			continue
		}
		return o.take(cleanText(o.fit(text)))
	}
	return o.take(o.fit(string(jsonOf(out))))
}

// fit shortens a text to the room that is left, or to 64 bytes if there is less.
func (o *outputViews) fit(text string) string {
	return shortenText(text, max(64, min(maxOutputText, o.room)))
}

// take counts a text against the room, and returns it.
func (o *outputViews) take(text string) string {
	o.room = max(0, o.room-len(text))
	return text
}
