package clip

import (
	"bytes"
	"strings"
)

// Stream turns a stream of bytes that arrives in pieces into text. Bytes that are not UTF-8
// become U+FFFD; a character that is split over two pieces is returned with the second.
// The zero value is ready to use.
type Stream struct {
	next    int64  // offset of the next byte
	partial []byte // at most utf8.UTFMax-1 bytes, the beginning of a character
}

// Write takes the bytes at an offset of the stream and returns the text that is complete.
func (t *Stream) Write(offset int64, p []byte) string {
	before := ""
	if offset != t.next {
		before = t.End() // the rest of the character is missing
	}
	t.next = offset + int64(len(p))
	all := append(t.partial, p...)
	whole := TrimEnd(all)
	t.partial = bytes.Clone(all[len(whole):])
	return before + ToText(whole)
}

// End returns the incomplete character at the end of the stream.
func (t *Stream) End() string {
	text := ToText(t.partial)
	t.partial = nil
	return text
}

// ToText turns bytes into text: bytes that are not UTF-8 become U+FFFD.
func ToText(p []byte) string { return strings.ToValidUTF8(string(p), "\uFFFD") }

// HeadText returns the text of the beginning of a stream that was cut at an arbitrary byte,
// without an incomplete character at the cut.
func HeadText(p []byte) string { return ToText(TrimEnd(p)) }

// TailText is [HeadText] for the end of a stream.
func TailText(p []byte) string { return ToText(TrimStart(p)) }
