package dialect

import (
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// AllToolsets selects every toolset.
const AllToolsets = "all"

// Selection is a choice of a dialect's tools. Its zero value is the default.
type Selection struct {
	// Toolsets are names of toolsets, or [AllToolsets]; empty is the default.
	Toolsets []string
	// ReadOnly leaves only the tools that change nothing.
	ReadOnly bool
}

// ParseToolsets splits a comma-separated list of toolsets.
func ParseToolsets(list string) []string {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Normalize checks a selection and brings it to one form, so that equal
// choices are equal: known toolsets in the dialect's order. An unknown toolset
// is refused with the list of the known ones.
func Normalize(d Dialect, sel Selection) (Selection, error) {
	ts, ok := d.(Toolsetter)
	if !ok {
		if len(sel.Toolsets) > 0 && !slices.Equal(sel.Toolsets, []string{AllToolsets}) {
			return Selection{}, sandbox.Errorf(sandbox.CodeInvalid, "dialect %s has no toolsets; leave the choice out", d.Name())
		}
		return Selection{ReadOnly: sel.ReadOnly}, nil
	}
	known, defaults := ts.Toolsets()
	if len(sel.Toolsets) == 0 {
		sel.Toolsets = defaults
	}
	chosen := make(map[string]bool)
	for _, name := range sel.Toolsets {
		switch {
		case name == AllToolsets:
			for _, k := range known {
				chosen[k] = true
			}
		case slices.Contains(known, name):
			chosen[name] = true
		default:
			return Selection{}, sandbox.Errorf(sandbox.CodeInvalid, "unknown toolset %q; known are %s and %s",
				clip(name, 64), strings.Join(known, ", "), AllToolsets)
		}
	}
	out := Selection{ReadOnly: sel.ReadOnly}
	for _, k := range known {
		if chosen[k] {
			out.Toolsets = append(out.Toolsets, k)
		}
	}
	return out, nil
}

// Select returns the chosen tools of a dialect in its order.
func Select(d Dialect, sel Selection) ([]Tool, error) {
	sel, err := Normalize(d, sel)
	if err != nil {
		return nil, err
	}
	var tools []Tool
	for _, t := range d.Tools() {
		if t.Toolset != "" && !slices.Contains(sel.Toolsets, t.Toolset) {
			continue
		}
		if sel.ReadOnly && !t.ReadOnly() {
			continue
		}
		tools = append(tools, t)
	}
	return tools, nil
}

// clip shortens s to at most n bytes of whole characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
