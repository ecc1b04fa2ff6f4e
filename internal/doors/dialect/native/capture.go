package native

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/clip"
)

// capture keeps the beginning and the end of a stream, half of the limit each.
type capture struct {
	limit int
	total int64
	head  []byte
	tail  []byte // ends with the last half; what is before it is dropped now and then
}

func newCapture(limit int) *capture { return &capture{limit: limit} }

func (c *capture) write(p []byte) {
	c.total += int64(len(p))
	if room := c.limit/2 - len(c.head); room > 0 {
		n := min(room, len(p))
		c.head = append(c.head, p[:n]...)
		p = p[n:]
	}
	size := c.limit - c.limit/2
	c.tail = append(c.tail, p[max(0, len(p)-size):]...)
	if extra := len(c.tail) - size; extra > size { // not at each write, which would copy the tail for every byte
		c.tail = append(c.tail[:0], c.tail[extra:]...)
	}
}

// captured is a stream as text for a result.
type captured struct {
	text      string
	bytes     int64
	truncated bool
	binary    bool // some bytes were not text; see clean
}

// result returns what was kept. Where bytes are missing in the middle, no character
// is split, and note says how many bytes are missing.
func (c *capture) result(note func(omitted int64) string) captured {
	tail := c.tail[max(0, len(c.tail)-(c.limit-c.limit/2)):]
	out := captured{bytes: c.total}
	omitted := c.total - int64(len(c.head)) - int64(len(tail))
	if omitted == 0 {
		out.text, out.binary = clean(slices.Concat(c.head, tail))
		return out
	}
	head := clip.TrimEnd(c.head)
	rest := clip.TrimStart(tail)
	omitted += int64(len(c.head) - len(head) + len(tail) - len(rest))
	first, bad1 := clean(head)
	last, bad2 := clean(rest)
	out.text = first + note(omitted) + last
	out.truncated, out.binary = true, bad1 || bad2
	return out
}

// clean returns p as text: a run of bytes that are invalid UTF-8 or control characters
// becomes one U+FFFD, so that the result of binary data is not many times as long as
// the data.
func clean(p []byte) (text string, replaced bool) {
	var b strings.Builder
	b.Grow(len(p))
	bad := false
	for len(p) > 0 {
		r, n := utf8.DecodeRune(p)
		p = p[n:]
		if r == utf8.RuneError && n == 1 || invisible(r) {
			if !bad {
				b.WriteRune(utf8.RuneError)
			}
			bad, replaced = true, true
			continue
		}
		bad = false
		b.WriteRune(r)
	}
	return b.String(), replaced
}

// invisible reports whether r is a control character that does not format text: any but
// bell to carriage return, and escape.
func invisible(r rune) bool {
	return r < 0x07 || r > 0x0d && r < 0x20 && r != 0x1b || r == 0x7f
}
