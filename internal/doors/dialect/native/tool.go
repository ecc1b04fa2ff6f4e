package native

import (
	"context"
	"fmt"
	"reflect"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// hints are a tool's annotations.
type hints uint8

const (
	readOnly    hints = 1 << iota // changes nothing
	destructive                   // may destroy what cannot be restored
	idempotent                    // has no further effect when repeated
	openWorld                     // reaches beyond Cove
)

// reply is the result of a tool.
type reply[T any] struct {
	text string // for models
	data T      // the same as structured content
	more []mcp.Content
}

// answer returns a reply, and no error.
func answer[T any](text string, data T, more ...mcp.Content) (*reply[T], error) {
	return &reply[T]{text, data, more}, nil
}

// done is answer for a call that returns nothing but an error.
func done[T any](err error, text string, data T) (*reply[T], error) {
	if err != nil {
		return nil, err
	}
	return answer(text, data)
}

// tool makes a tool of the function that does its work. Its schemas are derived from
// the types of the function's arguments and result, its descriptions are in [texts].
func tool[In, Out any](name string, h hints, run func(context.Context, *dialect.Call, In) (*reply[Out], error)) dialect.Tool {
	t := texts().tools[name]
	if t == nil {
		panic(fmt.Sprintf("tool %s: no texts", name)) // a test finds it
	}
	schema := argumentSchema(reflect.TypeFor[In](), name)
	def := mcp.Tool{
		Name:        name,
		Title:       t.title,
		Description: t.about,
		Annotations: &mcp.ToolAnnotations{
			Title:           t.title,
			ReadOnlyHint:    h&readOnly != 0,
			DestructiveHint: new(h&destructive != 0),
			IdempotentHint:  h&idempotent != 0,
			OpenWorldHint:   new(h&openWorld != 0),
		},
		InputSchema:  schema,
		OutputSchema: resultSchema(reflect.TypeFor[Out](), name),
	}
	made := dialect.New(t.toolset, &def, func(ctx context.Context, c *dialect.Call, in In) (*mcp.CallToolResult, error) {
		r, err := run(ctx, c, in)
		if err != nil {
			return nil, err
		}
		res := dialect.Text(r.text, r.data)
		res.Content = append(res.Content, r.more...)
		return res, nil
	})
	check := made.Run
	made.Run = func(ctx context.Context, c *dialect.Call) (*mcp.CallToolResult, error) {
		corrected := *c
		corrected.Args = correct(schema, c.Args)
		return check(ctx, &corrected)
	}
	def.InputSchema = brief(schema, &t.args) // for clients; arguments are checked against the full schema
	return made
}

// project makes a view of a domain value: it copies fields of the same name and kind.
func project[V, T any](from *T) V {
	var view V
	src, dst := reflect.ValueOf(from).Elem(), reflect.ValueOf(&view).Elem()
	for _, f := range reflect.VisibleFields(dst.Type()) {
		value := src.FieldByName(f.Name)
		if f.Anonymous || !value.IsValid() || value.Kind() != f.Type.Kind() || !value.CanConvert(f.Type) {
			continue
		}
		dst.FieldByIndex(f.Index).Set(value.Convert(f.Type))
	}
	return view
}
