package native

import (
	"regexp"
	"testing"

	"github.com/cove-sh/cove/internal/dialect"
)

// Whatever toolsets are on, the instructions name only tools that are offered,
// and clients that cut them at 2,048 characters show them whole.
func TestInstructionsFollowTools(t *testing.T) {
	d := New()
	word := regexp.MustCompile(`\b[a-z]+(_[a-z]+)+\b`)
	tool := make(map[string]bool)
	for _, each := range d.Tools() {
		tool[each.Def.Name] = true
	}
	known, _ := d.Toolsets()
	for bits := 1; bits < 1<<len(known); bits++ {
		for _, readOnly := range []bool{false, true} {
			sel := dialect.Selection{ReadOnly: readOnly}
			for i, set := range known {
				if bits&(1<<i) != 0 {
					sel.Toolsets = append(sel.Toolsets, set)
				}
			}
			tools, err := dialect.Select(d, sel)
			if err != nil {
				t.Fatal(err)
			}
			offered := make(map[string]bool)
			for _, each := range tools {
				offered[each.Def.Name] = true
			}
			text := d.Instructions(tools)
			if len(text) >= 2000 {
				t.Errorf("%v: %d characters", sel, len(text))
			}
			for _, name := range word.FindAllString(text, -1) {
				if tool[name] && !offered[name] {
					t.Errorf("%v: the instructions name %s, which is not offered", sel, name)
				}
			}
		}
	}
}
