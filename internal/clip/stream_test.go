package clip

import (
	"strings"
	"testing"
)

// TestStream cuts a stream at every two places.
func TestStream(t *testing.T) {
	const all = "aé€😀\xffb\xe2\x82c\xf0\x9f😀\xf0\x9f"
	want := strings.ToValidUTF8(all, "\uFFFD")
	for i := range len(all) + 1 {
		for j := i; j <= len(all); j++ {
			var s Stream
			got := s.Write(0, []byte(all[:i])) + s.Write(int64(i), []byte(all[i:j])) + s.Write(int64(j), []byte(all[j:]))
			if len(s.partial) > 3 {
				t.Errorf("cut at %d and %d it keeps %q", i, j, s.partial)
			}
			if got += s.End(); got != want || s.End() != "" {
				t.Errorf("cut at %d and %d it is %q, want %q", i, j, got, want)
			}
		}
	}
	// What is missing in the middle makes no character of its two ends.
	var s Stream
	if got := s.Write(0, []byte("a\xe2\x82")) + s.Write(7, []byte("\xacb")); got != "a\uFFFD\uFFFDb" {
		t.Errorf("with a gap it is %q", got)
	}
	for _, c := range [][3]string{
		{"", "", ""}, {"é€", "é€", "é€"}, {"é\xe2\x82", "é", "é\uFFFD"}, {"\x82\xacé", "\uFFFDé", "é"}, {"\x82", "\uFFFD", ""},
	} {
		if first, last := HeadText([]byte(c[0])), TailText([]byte(c[0])); first != c[1] || last != c[2] {
			t.Errorf("%q is %q as a beginning and %q as an end, want %q and %q", c[0], first, last, c[1], c[2])
		}
	}
}
