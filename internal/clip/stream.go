package clip

import (
	"strings"
)

// Stream makes text of a stream that comes in pieces. What is not UTF-8
// becomes U+FFFD; a character that a piece has the beginning of comes with the
// next one. The zero value is ready to use.
type Stream struct {
	next    int64  // offset of what comes next
	partial []byte // at most utf8.UTFMax-1 bytes, the beginning of a character
}

// Write takes the bytes of the stream at an offset and returns what can be told.
func (t *Stream) Write(offset int64, p []byte) string {
	before := ""
	if offset != t.next {
		before = t.End() // the rest of it is missing
	}
	t.next = offset + int64(len(p))
	all := append(t.partial, p...)
	whole := TrimEnd(all)
	t.partial = append([]byte(nil), all[len(whole):]...)
	return before + ToText(whole)
}

// End returns what is left at the end of the stream.
func (t *Stream) End() string {
	text := ToText(t.partial)
	t.partial = nil
	return text
}

// ToText makes text of bytes: what is not UTF-8 becomes U+FFFD.
func ToText(p []byte) string { return strings.ToValidUTF8(string(p), "\uFFFD") }

// HeadText is the text of the beginning of a stream that is cut at any byte: the
// part of a character at the cut is left out.
func HeadText(p []byte) string { return ToText(TrimEnd(p)) }

// TailText is [HeadText] for the end of a stream.
func TailText(p []byte) string { return ToText(TrimStart(p)) }
