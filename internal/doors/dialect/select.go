package dialect

import (
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

// Names for several toolsets: all except that of a [Dynamic] dialect's own tools, and
// those that are on by default.
const (
	AllToolsets     = "all"
	DefaultToolsets = "default"
)

// Selection is a choice of a dialect's tools. Its zero value is the default.
type Selection struct {
	// Toolsets are names of toolsets, [AllToolsets] or [DefaultToolsets]; empty
	// is the default, or none if there are Tools.
	Toolsets []string
	// Tools are names of single tools that are offered besides.
	Tools []string
	// ReadOnly leaves only the tools that change nothing.
	ReadOnly bool
	// Fixed leaves out the tools that turn on further toolsets, for clients
	// without a session in which that could be kept.
	Fixed bool
}

// ParseToolsets splits a comma-separated list of toolsets, or of tools.
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
// choices are equal: known names in the dialect's order, each once. An unknown
// one is refused with the list of the known ones.
func Normalize(d Dialect, sel Selection) (Selection, error) {
	tools, err := normalizeTools(d, sel.Tools)
	if err != nil {
		return Selection{}, err
	}
	out := Selection{Tools: tools, ReadOnly: sel.ReadOnly, Fixed: sel.Fixed}
	ts, ok := d.(Toolsetter)
	if !ok {
		if len(sel.Toolsets) > 0 && !slices.Equal(sel.Toolsets, []string{AllToolsets}) {
			return Selection{}, sandbox.Errorf(sandbox.CodeInvalid, "dialect %s has no toolsets; leave the choice out", d.Name())
		}
		if len(sel.Toolsets) > 0 {
			out.Tools = nil // all are on anyway
		}
		return out, nil
	}
	known, defaults := ts.Toolsets()
	if len(sel.Toolsets) == 0 && len(sel.Tools) == 0 {
		sel.Toolsets = defaults
	}
	chosen := make(map[string]bool)
	for _, name := range sel.Toolsets {
		switch {
		case name == AllToolsets:
			for _, k := range known {
				chosen[k] = chosen[k] || k != dynamicToolset(d)
			}
		case name == DefaultToolsets:
			for _, k := range defaults {
				chosen[k] = true
			}
		case slices.Contains(known, name):
			chosen[name] = true
		default:
			return Selection{}, sandbox.Errorf(sandbox.CodeInvalid, "unknown toolset %q; known are %s, %s and %s",
				clip.Text(name, 64), strings.Join(known, ", "), DefaultToolsets, AllToolsets)
		}
	}
	for _, k := range known {
		if chosen[k] {
			out.Toolsets = append(out.Toolsets, k)
		}
	}
	return out, nil
}

// normalizeTools checks names of single tools.
func normalizeTools(d Dialect, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	var known, out []string
	for _, t := range d.Tools() {
		known = append(known, t.Def.Name)
		if slices.Contains(names, t.Def.Name) {
			out = append(out, t.Def.Name)
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "unknown tool %q; known are %s", clip.Text(name, 64), strings.Join(known, ", "))
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
	_, grouped := d.(Toolsetter)
	var tools []Tool
	for _, t := range d.Tools() {
		on := slices.Contains(sel.Tools, t.Def.Name)
		if grouped {
			on = on || slices.ContainsFunc(sel.Toolsets, t.In)
		} else {
			on = on || len(sel.Tools) == 0
		}
		if sel.Fixed && t.Toolset != "" && t.Toolset == dynamicToolset(d) {
			continue
		}
		if on && (!sel.ReadOnly || t.ReadOnly()) {
			tools = append(tools, t)
		}
	}
	return tools, nil
}
