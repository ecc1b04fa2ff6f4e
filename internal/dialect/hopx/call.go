package hopx

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
)

// runner makes a tool of its definition. Target is the argument that names a
// sandbox in its generation.
type runner func(def *mcp.Tool, target string) dialect.Tool

// tool makes the runner of what a tool does. Arguments are taken as the product
// takes them: those of the schema and the extra ones, the rest is dropped, and
// what is JSON in a string, or a number in one, is read.
func tool[In any](run func(ctx context.Context, c *dialect.Call, in In) (any, error), extra ...string) runner {
	return func(def *mcp.Tool, target string) dialect.Tool {
		lenient := newLenient(def, target, extra)
		t := dialect.New("", def, func(ctx context.Context, c *dialect.Call, in In) (*mcp.CallToolResult, error) {
			v, err := run(ctx, c, in)
			if err != nil {
				return nil, &runError{tool: def.Name, err: err}
			}
			return answer(v), nil
		})
		checked := t.Run
		t.Run = func(ctx context.Context, c *dialect.Call) (*mcp.CallToolResult, error) {
			call := *c
			call.Args = lenient.arguments(c.Args)
			res, err := checked(ctx, &call)
			if err != nil && !isRunError(err) {
				return nil, &argumentError{tool: def.Name, err: err}
			}
			return res, err
		}
		return t
	}
}

// runError is an error of a tool's work, argumentError one of its arguments.
type (
	runError struct {
		tool string
		err  error
	}
	argumentError struct {
		tool string
		err  error
	}
)

func (e *runError) Error() string      { return e.err.Error() }
func (e *runError) Unwrap() error      { return e.err }
func (e *argumentError) Error() string { return e.err.Error() }
func (e *argumentError) Unwrap() error { return e.err }

func isRunError(err error) bool {
	_, ok := errors.AsType[*runError](err)
	return ok
}

// answer is a result as the product gives it: one block of text with the object
// as JSON.
func answer(v any) *mcp.CallToolResult {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("encode a result: %v", err)) // of our own types
	}
	return dialect.Text(strings.TrimSuffix(b.String(), "\n"), nil)
}

// lenient brings a tool's arguments to the form of its schema.
type lenient struct {
	types map[string]string // JSON types by name
	// also are names under which clients of the other generation name the
	// sandbox.
	target, also string
	extra        map[string]bool
}

func newLenient(def *mcp.Tool, target string, extra []string) *lenient {
	var s jsonschema.Schema
	if err := json.Unmarshal(def.InputSchema.(json.RawMessage), &s); err != nil {
		panic(fmt.Sprintf("tool %s: %v", def.Name, err))
	}
	l := &lenient{types: make(map[string]string), extra: make(map[string]bool)}
	for name, p := range s.Properties {
		l.types[name] = p.Type
		if len(p.AnyOf) > 0 {
			l.types[name] = p.AnyOf[0].Type
		}
	}
	for _, name := range extra {
		l.extra[name] = true
	}
	if l.types[target] != "" {
		l.target, l.also = target, "sandbox_id"
		if target == l.also {
			l.also = "vm_url"
		}
	}
	return l
}

// nullFields is the argument in which null is not the same as nothing.
const nullFields = "fields"

// arguments returns the arguments that the tool knows. What is no object is
// left for the check of the arguments.
func (l *lenient) arguments(raw json.RawMessage) json.RawMessage {
	var args map[string]json.RawMessage
	if json.Unmarshal(raw, &args) != nil || args == nil {
		return raw
	}
	out := make(map[string]json.RawMessage, len(args))
	for name, v := range args {
		switch {
		case l.types[name] != "":
			out[name] = coerced(v, l.types[name])
		case l.extra[name] && len(v) > 0 && v[0] == '"':
			out[name] = v
		}
	}
	if l.target != "" && !given(out[l.target]) {
		if v, ok := args[l.also]; ok {
			out[l.target] = v
		}
	}
	if string(out["mode"]) == `"`+modeBackground+`"` && !given(out["timeout"]) {
		out["timeout"] = json.RawMessage(strconv.Itoa(backgroundTimeout))
	}
	if string(out[nullFields]) == "null" {
		out[nullFields] = json.RawMessage(`"` + allFields + `"`)
	}
	data, err := json.Marshal(out)
	if err != nil {
		return raw
	}
	return data
}

// given reports whether an argument is there: null is the default of many.
func given(raw json.RawMessage) bool { return raw != nil && string(raw) != "null" }

// coerced reads what a client has written as text although its type is another.
func coerced(raw json.RawMessage, want string) json.RawMessage {
	text, isText := "", false
	if want != "string" && len(raw) > 0 && raw[0] == '"' {
		if json.Unmarshal(raw, &text) != nil {
			return raw
		}
		text, isText = strings.TrimSpace(text), true
		if text == "null" {
			return json.RawMessage("null")
		}
	}
	switch {
	case want == "integer":
		s := text
		if !isText {
			s = string(raw)
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 && plainNumber(s) {
			return json.RawMessage(strconv.FormatInt(int64(f), 10))
		}
	case want == "boolean" && isText:
		switch strings.ToLower(text) {
		case "true", "1", "yes", "on", "t", "y":
			return json.RawMessage("true")
		case "false", "0", "no", "off", "f", "n":
			return json.RawMessage("false")
		}
	case want == "boolean" && (string(raw) == "0" || string(raw) == "1"):
		return json.RawMessage(strconv.FormatBool(raw[0] == '1'))
	case want == "object" && isText:
		if v := json.RawMessage(text); json.Valid(v) {
			return v
		}
	}
	return raw
}

// plainNumber tells a decimal number from what else Go reads as one.
func plainNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789+-.eE") == "" }
