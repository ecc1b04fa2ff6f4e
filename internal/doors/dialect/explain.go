package dialect

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sh/cove/internal/clip"
)

// explain returns, in words, what is wrong with v, a decoded JSON value called name, or
// "". It knows the keywords that tools commonly use; a validator checks the rest. Its
// texts are bounded, whatever v contains.
func explain(s *jsonschema.Schema, v any, name string) string {
	if len(s.AnyOf) == 2 && s.AnyOf[1].Type == "null" { // which is taken as not given
		return explain(s.AnyOf[0], v, name)
	}
	if problem := explainType(s, v, name); problem != "" {
		return problem
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
		return fmt.Sprintf("%s must be one of %s", called(name), choices(s.Enum))
	}
	switch v := v.(type) {
	case map[string]any:
		return explainObject(s, v, name)
	case []any:
		return explainArray(s, v, name)
	case string:
		return explainString(s, v, name)
	case float64:
		return explainNumber(s, v, name)
	}
	return ""
}

func explainType(s *jsonschema.Schema, v any, name string) string {
	if s.Type == "" {
		return ""
	}
	ok := true
	switch s.Type {
	case "object":
		_, ok = v.(map[string]any)
	case "array":
		_, ok = v.([]any)
	case "string":
		_, ok = v.(string)
	case "boolean":
		_, ok = v.(bool)
	case "number":
		_, ok = v.(float64)
	case "integer":
		var f float64
		f, ok = v.(float64)
		ok = ok && f == math.Trunc(f)
	}
	if ok {
		return ""
	}
	article := "a"
	if strings.ContainsRune("aio", rune(s.Type[0])) {
		article = "an"
	}
	return fmt.Sprintf("%s must be %s %s", called(name), article, s.Type)
}

func explainObject(s *jsonschema.Schema, m map[string]any, name string) string {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		child, known := s.Properties[key]
		if !known {
			child = s.AdditionalProperties
		}
		switch {
		case child == nil:
			continue
		case child.Not != nil && !known: // "additionalProperties": false
			return unknownArgument(s, key, name)
		}
		if problem := explain(child, m[key], join(name, key)); problem != "" {
			return problem
		}
	}
	for _, key := range s.Required {
		if _, ok := m[key]; !ok {
			return fmt.Sprintf("%s is missing", called(join(name, key)))
		}
	}
	if s.MaxProperties != nil && len(m) > *s.MaxProperties {
		return fmt.Sprintf("%s may have at most %d entries", called(name), *s.MaxProperties)
	}
	return ""
}

func unknownArgument(s *jsonschema.Schema, key, name string) string {
	known := s.PropertyOrder
	if len(known) == 0 {
		known = slices.Sorted(maps.Keys(s.Properties))
	}
	return fmt.Sprintf("unknown argument %s; known are %s", called(join(name, key)), strings.Join(known, ", "))
}

func explainArray(s *jsonschema.Schema, a []any, name string) string {
	if s.MinItems != nil && len(a) < *s.MinItems {
		if *s.MinItems == 1 {
			return called(name) + " must not be empty"
		}
		return fmt.Sprintf("%s must have at least %d entries", called(name), *s.MinItems)
	}
	if s.MaxItems != nil && len(a) > *s.MaxItems {
		return fmt.Sprintf("%s may have at most %d entries", called(name), *s.MaxItems)
	}
	if s.Items != nil {
		for i, v := range a {
			if problem := explain(s.Items, v, name+"["+strconv.Itoa(i)+"]"); problem != "" {
				return problem
			}
		}
	}
	return ""
}

func explainString(s *jsonschema.Schema, v, name string) string {
	if s.MinLength != nil && utf8.RuneCountInString(v) < *s.MinLength {
		if *s.MinLength == 1 {
			return called(name) + " must not be empty"
		}
		return fmt.Sprintf("%s must have at least %d characters", called(name), *s.MinLength)
	}
	if s.MaxLength != nil && utf8.RuneCountInString(v) > *s.MaxLength {
		return fmt.Sprintf("%s may have at most %d characters", called(name), *s.MaxLength)
	}
	return ""
}

func explainNumber(s *jsonschema.Schema, v float64, name string) string {
	if s.Minimum != nil && v < *s.Minimum {
		return fmt.Sprintf("%s must be at least %s", called(name), number(*s.Minimum))
	}
	if s.ExclusiveMinimum != nil && v <= *s.ExclusiveMinimum {
		return fmt.Sprintf("%s must be more than %s", called(name), number(*s.ExclusiveMinimum))
	}
	if s.Maximum != nil && v > *s.Maximum {
		return fmt.Sprintf("%s must be at most %s", called(name), number(*s.Maximum))
	}
	return ""
}

func called(name string) string {
	if name == "" {
		return "the arguments"
	}
	return strconv.Quote(clip.Text(name, 64))
}

func join(name, key string) string {
	if name == "" {
		return key
	}
	return name + "." + key
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func choices(values []any) string {
	var out []string
	for _, v := range values {
		out = append(out, fmt.Sprint(v))
	}
	return strings.Join(out, ", ")
}
