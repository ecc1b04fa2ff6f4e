package hopx

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxRich bounds all rich outputs of a result, in bytes, and maxFlat those that have
	// fields of their own beside them.
	maxRich = 8 << 20
	maxFlat = 1 << 20
	// maxTold bounds how many left-out outputs a result names.
	maxTold = 8
	// maxSaved bounds how many image files a result returns.
	maxSaved = 8
)

const (
	typeText  = "text/plain"
	typePNG   = "image/png"
	typeHTML  = "text/html"
	typeSVG   = "image/svg+xml"
	typeMD    = "text/markdown"
	typeJSON  = "application/json"
	typeFrame = "application/vnd.dataframe+json"
)

// richTypes are the types of output that clients know, in their order.
var richTypes = []string{typePNG, typeHTML, typeSVG, typeMD, typeJSON, typeFrame}

// flat holds the first output of each type.
type flat struct {
	Result    string          `json:"result,omitempty"`
	PNG       json.RawMessage `json:"png,omitempty"`
	HTML      json.RawMessage `json:"html,omitempty"`
	SVG       json.RawMessage `json:"svg,omitempty"`
	Markdown  json.RawMessage `json:"markdown,omitempty"`
	JSON      json.RawMessage `json:"json,omitempty"`
	DataFrame json.RawMessage `json:"dataframe,omitempty"`
}

// flatOf returns the first output of each type, and what is left out for its size: the text
// result, and the others. most bounds all of them, in bytes.
func flatOf(res *sandbox.CodeResult, most int) (f flat, text, others leftOut) {
	room := most
	fields := map[string]*json.RawMessage{
		typePNG: &f.PNG, typeHTML: &f.HTML, typeSVG: &f.SVG, typeMD: &f.Markdown, typeJSON: &f.JSON, typeFrame: &f.DataFrame,
	}
	for i := range res.Outputs {
		o := &res.Outputs[i]
		var value string
		if o.Result && f.Result == "" && json.Unmarshal(o.Data[typeText], &value) == nil {
			if len(value) <= room {
				f.Result = value
				room -= len(value)
			} else {
				text.tooLarge("the result as text", len(value), most)
			}
		}
		if file := o.Files[typeText]; file != "" && o.Result {
			text.inFile("the result as text", file)
		}
		for _, mime := range richTypes {
			if v := o.Data[mime]; len(v) > 0 && *fields[mime] == nil && json.Valid(v) {
				if len(v) <= room {
					*fields[mime] = plain(v)
					room -= len(v)
				} else {
					others.tooLarge(mime, sizeOf(mime, v), most)
				}
			}
			if file := o.Files[mime]; file != "" {
				others.inFile(mime, file)
			}
		}
	}
	return f, text, others
}

// leftOut describes the outputs that are not in a result, and why.
type leftOut []string

func (l *leftOut) tooLarge(what string, size, most int) {
	*l = append(*l, fmt.Sprintf("%s (%d bytes; all outputs may have %d KiB)", what, size, most>>10))
}

func (l *leftOut) inFile(what, file string) {
	*l = append(*l, fmt.Sprintf("%s (too large, it is in the file %s)", what, file))
}

// note returns the sentence for a result's _note, "" if nothing was left out.
func (l leftOut) note(instead string) string {
	if len(l) == 0 {
		return ""
	}
	if n := len(l) - maxTold; n > 0 {
		l = append(l[:maxTold:maxTold], fmt.Sprintf("%d more", n))
	}
	return "Left out of this result: " + strings.Join(l, ", ") + ". " + instead
}

// richOutput is one output of one type.
type richOutput struct {
	Type      string                     `json:"type"`
	Format    string                     `json:"format"`
	Data      map[string]json.RawMessage `json:"data"`
	Metadata  pairs                      `json:"metadata"`
	Timestamp string                     `json:"timestamp"`
}

func newRich(mime, source string, data json.RawMessage, size int, more ...pair) richOutput {
	format := "html"
	switch {
	case mime == typePNG:
		format = "base64"
	case sandbox.JSONType(mime):
		format = "json"
	case mime != typeHTML:
		format = "text"
	}
	if source == "" {
		source = "other"
	}
	return richOutput{
		Type: mime, Format: format, Data: map[string]json.RawMessage{mime: plain(data)},
		Metadata: append(object(pair{"source", source}, pair{"size", size}), more...), Timestamp: dialect.Stamp(time.Now()),
	}
}

// escapes are characters that JSON encoders escape only for HTML.
var escapes = map[string]byte{`\u003c`: '<', `\u003e`: '>', `\u0026`: '&'}

// plain returns JSON without unnecessary escapes.
func plain(v json.RawMessage) json.RawMessage {
	if !bytes.Contains(v, []byte(`\u00`)) {
		return v
	}
	out := make(json.RawMessage, 0, len(v))
	for i := 0; i < len(v); {
		switch {
		case v[i] != '\\' || i+1 == len(v):
			out = append(out, v[i])
			i++
		case i+6 <= len(v) && escapes[string(v[i:i+6])] != 0:
			out = append(out, escapes[string(v[i:i+6])])
			i += 6
		default:
			out = append(out, v[i], v[i+1])
			i += 2
		}
	}
	return out
}

// richOf returns the outputs of code, and what was left out. An output that is too large
// for the service is in a file, which the metadata names.
func richOf(res *sandbox.CodeResult) (out []richOutput, left leftOut) {
	out = []richOutput{}
	room := maxRich
	for i := range res.Outputs {
		o := &res.Outputs[i]
		for _, mime := range richTypes {
			if v := o.Data[mime]; len(v) > 0 && json.Valid(v) {
				if len(v) <= room {
					room -= len(v)
					out = append(out, newRich(mime, o.Source, v, sizeOf(mime, v)))
				} else {
					left.tooLarge(mime, sizeOf(mime, v), maxRich)
				}
			}
			if file := o.Files[mime]; file != "" {
				out = append(out, newRich(mime, o.Source, json.RawMessage("null"), 0, pair{"filename", file}))
			}
		}
	}
	return out, left
}

// sizeOf returns the size of an output's own content, in bytes.
func sizeOf(mime string, v json.RawMessage) int {
	var text string
	if json.Unmarshal(v, &text) != nil {
		return len(v)
	}
	if mime == typePNG {
		return base64.StdEncoding.DecodedLen(len(text)) - strings.Count(text[max(0, len(text)-2):], "=")
	}
	return len(text)
}

// saves reports whether code seems to save a figure. A figure that was saved and closed
// exists only in its file.
func saves(code string) bool { return strings.Contains(code, "savefig(") }

func hasImage(outputs []richOutput) bool {
	for i := range outputs {
		if outputs[i].Type == typePNG {
			return true
		}
	}
	return false
}

// savedImages returns the PNG files that code has left in its directory. Files that cannot
// be read are left out, since the code has run.
func (m *vm) savedImages(ctx context.Context, dir string, since time.Time) []richOutput {
	list, err := m.Service.ListFiles(ctx, m.id, sandbox.ListFilesRequest{Path: dir, Depth: 1, Page: sandbox.Page{Limit: sandbox.MaxPageSize}})
	if err != nil {
		return nil
	}
	var out []richOutput
	room := int64(maxRich)
	for i := range list.Items {
		f := &list.Items[i]
		// Both clocks are the machine's, but file times may be coarser.
		recent := f.ModifiedAt.After(since.Add(-2 * time.Second))
		if f.Type != sandbox.TypeFile || !strings.EqualFold(path.Ext(f.Name), ".png") || !recent || f.Size == 0 || f.Size > room || len(out) == maxSaved {
			continue
		}
		data, err := m.read(ctx, f.Path, f.Size)
		if err != nil || int64(len(data)) > room {
			continue
		}
		room -= int64(len(data))
		encoded, err := json.Marshal(data) // as base64
		if err != nil {
			continue
		}
		out = append(out, newRich(typePNG, "matplotlib", encoded, len(data), pair{"filename", f.Path}))
	}
	return out
}
