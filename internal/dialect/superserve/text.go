package superserve

import "unicode/utf8"

// text is p as text, with U+FFFD for each byte that is not UTF-8.
func text(p []byte) string {
	if utf8.Valid(p) {
		return string(p)
	}
	return string([]rune(string(p)))
}

// partialLen returns how many bytes at the end of p begin a character that is
// not there in full.
func partialLen(p []byte) int {
	for i := 1; i <= min(utf8.UTFMax-1, len(p)); i++ {
		if tail := p[len(p)-i:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return i
		}
	}
	return 0
}

// startOf returns where the first whole character of s begins.
func startOf(s string) int {
	for i := range min(utf8.UTFMax-1, len(s)) {
		if utf8.RuneStart(s[i]) {
			return i
		}
	}
	return 0
}
