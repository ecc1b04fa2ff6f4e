package superserve

import "unicode/utf8"

// text is p as text, with U+FFFD for each byte that is not UTF-8.
func text(p []byte) string {
	if utf8.Valid(p) {
		return string(p)
	}
	return string([]rune(string(p)))
}
