package native

import (
	"regexp"
	"slices"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect"
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
	known, defaults := d.Toolsets()
	choices := [][]string{defaults, {dialect.AllToolsets}, append([]string{dialect.AllToolsets}, known...)}
	for _, one := range known {
		choices = append(choices, []string{one}, append([]string{one}, defaults...),
			slices.DeleteFunc(slices.Clone(known), func(other string) bool { return other == one }))
		for _, other := range known {
			choices = append(choices, []string{one, other})
		}
	}
	for _, sets := range choices {
		for _, readOnly := range []bool{false, true} {
			sel := dialect.Selection{Toolsets: sets, ReadOnly: readOnly}
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
