// Package clip shortens UTF-8 text without cutting a character in two.
package clip

import (
	"strings"
	"unicode/utf8"
)

// Text returns s if it has at most n bytes, and otherwise the beginning of s, as [Valid]
// does, with an ellipsis.
func Text(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return Valid(s, n) + "…"
}

// Valid returns at most the first n bytes of s, without bytes that are not UTF-8.
func Valid(s string, n int) string {
	return strings.ToValidUTF8(s[:min(n, len(s))], "")
}

// Head returns at most the first n bytes of p, up to the end of a character. Bytes that
// are not UTF-8 stay.
func Head[P ~string | ~[]byte](p P, n int) P {
	if len(p) <= n {
		return p
	}
	return TrimEnd(p[:n])
}

// TrimEnd drops an incomplete character at the end of p.
func TrimEnd[P ~string | ~[]byte](p P) P { return p[:len(p)-PartialEnd(p)] }

// TrimStart drops the rest of a character at the beginning of p.
func TrimStart[P ~string | ~[]byte](p P) P { return p[PartialStart(p):] }

// PartialEnd returns how many bytes at the end of p are an incomplete character.
func PartialEnd[P ~string | ~[]byte](p P) int {
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

// PartialStart returns how many bytes at the beginning of p are the rest of a character,
// or 0 if there are more of them than a character can have.
func PartialStart[P ~string | ~[]byte](p P) int {
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
