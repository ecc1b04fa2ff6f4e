package dialect

import "unicode/utf8"

// Partial returns how many bytes at the end of p begin a character that is not
// there in full.
func Partial[P ~string | ~[]byte](p P) int {
	for i := 1; i <= min(utf8.UTFMax-1, len(p)); i++ {
		if tail := p[len(p)-i:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRuneInString(string(tail)) {
				return 0
			}
			return i
		}
	}
	return 0
}

// Continued returns how many bytes at the beginning of p are the end of a
// character; 0 if there are more than a character can have.
func Continued[P ~string | ~[]byte](p P) int {
	for i := range min(utf8.UTFMax, len(p)) {
		if utf8.RuneStart(p[i]) {
			return i
		}
	}
	if len(p) < utf8.UTFMax {
		return len(p)
	}
	return 0
}
