package service

import (
	"strings"

	"github.com/cove-sh/cove/internal/clip"
)

// textStream makes text of a stream that comes in pieces. What is not UTF-8
// becomes U+FFFD; a character that a piece has the beginning of comes with the
// next one. The zero value is ready to use.
type textStream struct {
	next    int64  // offset of what comes next
	partial []byte // at most utf8.UTFMax-1 bytes, the beginning of a character
}

// write takes the bytes of the stream at an offset and returns what can be told.
func (t *textStream) write(offset int64, p []byte) string {
	before := ""
	if offset != t.next {
		before = t.end() // the rest of it is missing
	}
	t.next = offset + int64(len(p))
	all := append(t.partial, p...)
	whole := clip.TrimEnd(all)
	t.partial = append([]byte(nil), all[len(whole):]...)
	return before + validText(whole)
}

// end returns what is left at the end of the stream.
func (t *textStream) end() string {
	text := validText(t.partial)
	t.partial = nil
	return text
}

func validText(p []byte) string { return strings.ToValidUTF8(string(p), "\uFFFD") }

// firstText and lastText are a stream's text from its beginning and up to its
// end, cut at any byte: the part of a character at the cut is left out.
func firstText(p []byte) string { return validText(clip.TrimEnd(p)) }

func lastText(p []byte) string { return validText(clip.TrimStart(p)) }
