package native

import (
	"encoding/json"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sh/cove/sandbox"
)

// prop is a named property of an object's schema.
type prop struct {
	name     string
	schema   *jsonschema.Schema
	required bool
}

func req(name string, s *jsonschema.Schema) prop { return prop{name, s, true} }
func opt(name string, s *jsonschema.Schema) prop { return prop{name, s, false} }

// input is the schema of a tool's arguments: closed, properties in order.
func input(props ...prop) *jsonschema.Schema { return object("", props...) }

// output is the schema of a tool's structured result: the result or an error.
func output(props ...prop) *jsonschema.Schema {
	s := object("", props...)
	required := s.Required
	s.Required = nil
	s.Properties["error"] = object("Set when the call has failed (isError); then nothing else is.",
		req("code", text("A stable code, such as not_found, invalid or quota_exceeded.")),
		req("message", text("What is wrong and what to do next.")),
		opt("retry_after_seconds", integer("Retry after this time.", 1, 86400)))
	s.PropertyOrder = append(s.PropertyOrder, "error")
	if len(required) > 0 {
		s.AnyOf = []*jsonschema.Schema{{Required: required}, {Required: []string{"error"}}}
	}
	return s
}

func object(description string, props ...prop) *jsonschema.Schema {
	s := &jsonschema.Schema{
		Type:                 "object",
		Description:          description,
		Properties:           make(map[string]*jsonschema.Schema, len(props)),
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
	for _, p := range props {
		s.Properties[p.name] = p.schema
		s.PropertyOrder = append(s.PropertyOrder, p.name)
		if p.required {
			s.Required = append(s.Required, p.name)
		}
	}
	return s
}

func text(description string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Description: description}
}

func bounded(description string, minLength, maxLength int) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "string", Description: description, MaxLength: &maxLength}
	if minLength > 0 {
		s.MinLength = &minLength
	}
	return s
}

func oneOf(description string, values ...string) *jsonschema.Schema {
	s := text(description)
	for _, v := range values {
		s.Enum = append(s.Enum, v)
	}
	return s
}

func integer(description string, low, high int64) *jsonschema.Schema {
	lo, hi := float64(low), float64(high)
	return &jsonschema.Schema{Type: "integer", Description: description, Minimum: &lo, Maximum: &hi}
}

// count is an integer of a result: not negative.
func count(description string) *jsonschema.Schema {
	zero := 0.0
	return &jsonschema.Schema{Type: "integer", Description: description, Minimum: &zero}
}

func boolean(description string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "boolean", Description: description}
}

func moment(description string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Format: "date-time", Description: description}
}

func array(description string, items *jsonschema.Schema, minItems, maxItems int) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "array", Description: description, Items: items}
	if minItems > 0 {
		s.MinItems = &minItems
	}
	if maxItems > 0 {
		s.MaxItems = &maxItems
	}
	return s
}

func pairs(description string, maxPairs, maxValue int) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Description: description, AdditionalProperties: &jsonschema.Schema{Type: "string"}}
	if maxPairs > 0 {
		s.MaxProperties = &maxPairs
		s.AdditionalProperties.MaxLength = &maxValue
	}
	return s
}

// with returns a copy of s with a default.
func with(s *jsonschema.Schema, value any) *jsonschema.Schema {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	c := *s
	c.Default = data
	return &c
}

func sandboxArg() prop {
	return req("sandbox", bounded("Id or name of the sandbox.", 1, 128))
}

func pathArg(name, description string) prop {
	return req(name, bounded(description, 1, sandbox.MaxPathBytes))
}

func pageArgs(maxLimit int64) []prop {
	return []prop{
		opt("limit", with(integer("Most entries to return.", 1, maxLimit), min(int64(sandbox.DefaultPageSize), maxLimit))),
		opt("cursor", bounded("next_cursor of the page before.", 0, 4096)),
	}
}

// concat joins lists of properties.
func concat(lists ...[]prop) []prop { return slices.Concat(lists...) }

// anyJSON is the schema of any value. It names the types one by one, since
// some clients take neither a schema without a type nor a list of types.
func anyJSON(description string) *jsonschema.Schema {
	s := &jsonschema.Schema{Description: description}
	for _, t := range []string{"array", "object", "string", "number", "boolean", "null"} {
		s.AnyOf = append(s.AnyOf, &jsonschema.Schema{Type: t})
	}
	return s
}
