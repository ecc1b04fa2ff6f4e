package native

import (
	"bytes"
	"encoding/json"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sh/cove/internal/lazyregexp"
)

// The forms of numbers in strings that are corrected: decimal integers that a float64
// holds exactly, the same with a fraction of zeros, and short fractions.
var (
	wholeNumber  = lazyregexp.New(`^(0|-?[1-9][0-9]{0,14})$`)
	zeroFraction = lazyregexp.New(`^(0|-?[1-9][0-9]{0,14})\.0+$`)
	shortDecimal = lazyregexp.New(`^-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?$`)
)

// correct rewrites arguments whose type is wrong but whose meaning is certain:
//
//   - an integer, a number or a boolean in a string, and 5.0 for an integer;
//   - a string for a command where the tool also takes a shell line;
//   - one string where a list of strings is wanted;
//   - a list or an object that is JSON in a string;
//   - a number or a boolean as a value of a map of strings, such as an environment.
//
// Everything else is returned unchanged, for the schema to check. args is hostile.
func correct(s *jsonschema.Schema, args json.RawMessage) json.RawMessage {
	if kind(args) != '{' {
		return args
	}
	return fix(s, args)
}

// fix corrects one value. It returns raw itself if nothing needs correction.
func fix(s *jsonschema.Schema, raw json.RawMessage) json.RawMessage {
	if s == nil || absent(raw) {
		return raw
	}
	switch kind(raw) {
	case '"':
		return fixString(s, raw)
	case '{':
		return fixObject(s, raw)
	case '[':
		var items []json.RawMessage
		if s.Type != "array" || s.Items == nil || json.Unmarshal(raw, &items) != nil {
			return raw
		}
		changed := false
		for i, item := range items {
			items[i] = fix(s.Items, item)
			changed = changed || !bytes.Equal(items[i], item)
		}
		return reencoded(items, changed, raw)
	}
	if m := zeroFraction.FindSubmatch(raw); m != nil && s.Type == "integer" {
		return m[1]
	}
	return raw
}

func fixString(s *jsonschema.Schema, raw json.RawMessage) json.RawMessage {
	var value string
	if json.Unmarshal(raw, &value) != nil {
		return raw
	}
	switch s.Type {
	case "integer":
		if wholeNumber.MatchString(value) {
			return json.RawMessage(value)
		}
	case "number":
		if shortDecimal.MatchString(value) {
			return json.RawMessage(value)
		}
	case "boolean":
		if value == "true" || value == "false" {
			return json.RawMessage(value)
		}
	case "array":
		if inner := json.RawMessage(value); kind(inner) == '[' && json.Valid(inner) {
			return fix(s, inner)
		}
		if s.Items != nil && s.Items.Type == "string" && value != "" {
			return reencoded([]json.RawMessage{raw}, true, raw)
		}
	case "object":
		if inner := json.RawMessage(value); kind(inner) == '{' && json.Valid(inner) {
			return fix(s, inner)
		}
	}
	return raw
}

func fixObject(s *jsonschema.Schema, raw json.RawMessage) json.RawMessage {
	var m map[string]json.RawMessage
	if s.Type != "object" || json.Unmarshal(raw, &m) != nil {
		return raw
	}
	changed := false
	for name, value := range m {
		property := s.Properties[name]
		switch {
		case property != nil && isShellLine(s, property, name, value):
			if absent(m["shell"]) { // else the two contradict each other
				m["shell"] = value
				delete(m, name)
				changed = true
			}
			continue
		case property != nil:
			m[name] = fix(property, value)
		case s.AdditionalProperties != nil && s.AdditionalProperties.Type == "string":
			if text := string(value); shortDecimal.MatchString(text) || text == "true" || text == "false" {
				m[name] = json.RawMessage(`"` + text + `"`)
			}
		}
		changed = changed || !bytes.Equal(m[name], value)
	}
	return reencoded(m, changed, raw)
}

// isShellLine reports whether the argument command, of a tool that also takes shell, is
// a shell line in a string. A list that is JSON in a string is not.
func isShellLine(s, property *jsonschema.Schema, name string, raw json.RawMessage) bool {
	var value string
	return name == "command" && property.Type == "array" && s.Properties["shell"] != nil &&
		kind(raw) == '"' && json.Unmarshal(raw, &value) == nil && value != "" &&
		(kind(json.RawMessage(value)) != '[' || !json.Valid([]byte(value)))
}

// reencoded returns v as JSON if it has changed, and otherwise raw.
func reencoded(v any, changed bool, raw json.RawMessage) json.RawMessage {
	if !changed {
		return raw
	}
	data, err := json.Marshal(v)
	if err != nil {
		return raw
	}
	return data
}

// kind returns the first byte of a JSON value, or 0.
func kind(raw json.RawMessage) byte {
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) > 0 {
		return trimmed[0]
	}
	return 0
}

// absent reports whether an argument is missing or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }
