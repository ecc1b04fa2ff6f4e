package dialecttest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// Arguments shows what the tools of a dialect take, in a form in which tests
// write down what a product's documentation says: a line for each tool in order,
// with its arguments by name, such as
//
//	exec: command string!, env map, timeout integer >0 <=600 =60
//
// "!" is a required one, "=" a default, "[a b]" are the values that there are,
// "|null" may be null, "x[]" is a list and "map" an object with values of text.
// Lengths of texts and lists are left out.
func Arguments(t testing.TB, d dialect.Dialect) string {
	t.Helper()
	var b strings.Builder
	for _, tool := range d.Tools() {
		data, err := json.Marshal(tool.Def.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		var s jsonschema.Schema
		if err := json.Unmarshal(data, &s); err != nil {
			t.Fatalf("%s: %v", tool.Def.Name, err)
		}
		var args []string
		for name, p := range s.Properties {
			required := ""
			if slices.Contains(s.Required, name) {
				required = "!"
			}
			args = append(args, name+" "+kindOf(p)+required+boundsOf(p))
		}
		slices.Sort(args)
		b.WriteString(strings.TrimSpace(tool.Def.Name+": "+strings.Join(args, ", ")) + "\n")
	}
	return b.String()
}

func kindOf(s *jsonschema.Schema) string {
	switch {
	case len(s.AnyOf) == 2 && s.AnyOf[1].Type == "null":
		return kindOf(s.AnyOf[0]) + "|null" + boundsOf(s.AnyOf[0])
	case s.Type == "array" && s.Items != nil:
		return kindOf(s.Items) + "[]"
	case s.Type == "object" && s.AdditionalProperties != nil && s.AdditionalProperties.Type == "string":
		return "map"
	}
	return s.Type
}

func boundsOf(s *jsonschema.Schema) string {
	var b strings.Builder
	for _, bound := range []struct {
		sign  string
		value *float64
	}{{">", s.ExclusiveMinimum}, {">=", s.Minimum}, {"<=", s.Maximum}} {
		if bound.value != nil {
			fmt.Fprintf(&b, " %s%.15g", bound.sign, *bound.value)
		}
	}
	if s.Enum != nil {
		fmt.Fprintf(&b, " %v", s.Enum)
	}
	if s.Default != nil {
		fmt.Fprintf(&b, " =%s", s.Default)
	}
	return b.String()
}
