package dialect

import (
	"testing"
	"unicode/utf8"
)

// A text that is cut anywhere has whole characters on both sides.
func TestCharacters(t *testing.T) {
	const text = "aé世🙂z"
	for i := range len(text) + 1 {
		head, tail := text[:i], text[i:]
		head, tail = head[:len(head)-Partial(head)], tail[Continued([]byte(tail)):]
		if !utf8.ValidString(head) || !utf8.ValidString(tail) || len(text)-len(head)-len(tail) > utf8.UTFMax {
			t.Errorf("cut at %d: %q and %q", i, head, tail)
		}
	}
	for p, want := range map[string][2]int{
		"": {}, "\xff": {}, "\x80\x80\x80\x80": {}, "\x80a": {0, 1}, "a\xc3": {1, 0}, "\xf0\x9f\x99": {3, 0}, "\xe4\xb8": {2, 0}, "\x99\x82z": {0, 2}, "\x9f\x99\x82z": {0, 3}, "\x9f\x99\x82": {0, 3},
	} {
		if got := [2]int{Partial([]byte(p)), Continued(p)}; got != want {
			t.Errorf("%q: %v, want %v", p, got, want)
		}
	}
}
