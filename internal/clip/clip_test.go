package clip

import (
	"testing"
	"unicode/utf8"
)

// A text that is cut anywhere has whole characters on both sides.
func TestTrim(t *testing.T) {
	const text = "aé世🙂z"
	for i := range len(text) + 1 {
		head, tail := TrimEnd(text[:i]), TrimStart([]byte(text[i:]))
		if !utf8.ValidString(head) || !utf8.Valid(tail) || len(text)-len(head)-len(tail) > utf8.UTFMax {
			t.Errorf("cut at %d: %q and %q", i, head, tail)
		}
		if got := Head(text, i); got != head {
			t.Errorf("the head of %d bytes is %q, want %q", i, got, head)
		}
	}
}

func TestPartial(t *testing.T) {
	for p, want := range map[string][2]int{
		"": {}, "\xff": {}, "\x80\x80\x80\x80": {}, "\x80a": {0, 1}, "a\xc3": {1, 0}, "\xf0\x9f\x99": {3, 0}, "\xe4\xb8": {2, 0}, "\x99\x82z": {0, 2}, "\x9f\x99\x82z": {0, 3}, "\x9f\x99\x82": {0, 3},
	} {
		if got := [2]int{PartialEnd([]byte(p)), PartialStart(p)}; got != want {
			t.Errorf("%q: %v, want %v", p, got, want)
		}
	}
}

func TestText(t *testing.T) {
	for _, tt := range []struct {
		s                 string
		n                 int
		head, valid, text string
	}{
		{"", 0, "", "", ""},
		{"éé", 4, "éé", "éé", "éé"},
		{"éé", 3, "é", "é", "é…"},
		{"éé", 0, "", "", "…"},
		{"a\xffb", 3, "a\xffb", "ab", "a\xffb"}, // text that fits stays as it is
		{"a\xffbé", 4, "a\xffb", "ab", "ab…"},
	} {
		if head, valid, text := Head(tt.s, tt.n), Valid(tt.s, tt.n), Text(tt.s, tt.n); head != tt.head || valid != tt.valid || text != tt.text {
			t.Errorf("%q in %d bytes: %q, %q and %q, want %q, %q and %q", tt.s, tt.n, head, valid, text, tt.head, tt.valid, tt.text)
		}
	}
}
