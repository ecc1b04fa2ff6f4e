package fleet

import (
	"testing"

	"github.com/cove-sh/cove/internal/engine"
)

// TestContinuesFrom checks what a node is believed to need: the checkpoints from which its
// instances continue, as the server has recorded them.
func TestContinuesFrom(t *testing.T) {
	root := engine.Root{Digest: "d"}
	for name, tt := range map[string]struct {
		has  entry
		id   string
		want bool
	}{
		"its own":           {entry{Root: root, From: "ckp-one"}, "ckp-one", true},
		"another":           {entry{Root: root, From: "ckp-one"}, "ckp-two", false},
		"of a fresh one":    {entry{Root: root}, "ckp-one", false},
		"of one given up":   {entry{Root: root, From: "ckp-one", GivenUp: true}, "ckp-one", false},
		"of one not made":   {entry{}, "ckp-one", true},
		"a path in its own": {entry{}, "../ckp-one", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite("a")
			s.instances["sbx-one"] = &tt.has
			if got := s.continuesFrom(tt.id); got != tt.want {
				t.Errorf("it continues from %q: %v", tt.id, got)
			}
		})
	}
}
