package podflare

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompare(t *testing.T) {
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	base := parse(a + "  /root/same\x00" + a + "  /root/changed\x00" + a + "  /root/gone\x00")
	other := parse(a + "  /root/same\x00" + b + "  /root/changed\x00" + b + "  /root/new\nline  \x00" + a + " */tmp/binary\x00")
	want := differences{Added: []string{"/root/new\nline  ", "/tmp/binary"}, Removed: []string{"/root/gone"}, Modified: []string{"/root/changed"}}
	if diff := cmp.Diff(want, compare(base, other)); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(strings.Repeat("a", 64) + "  /root/f\x00")
	f.Add("\x00\x00  \x00short")
	f.Fuzz(func(t *testing.T, listing string) {
		for p, digest := range parse(listing) {
			if p == "" || len(digest) != 64 || !strings.Contains(listing, p) {
				t.Errorf("%q: %q", p, digest)
			}
		}
	})
}
