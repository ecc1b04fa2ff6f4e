package intercept

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"strings"
)

// alphabet is a set of bytes. Bytes outside the alphabet of the values end a
// run of bytes that could be part of a value.
type alphabet [256]bool

// The alphabets, each a subset of the next. No value has a byte outside lineBytes: a
// header could not carry it.
var (
	// tokenBytes are the bytes of bearer tokens, base64 and escapes in URLs.
	tokenBytes = newAlphabet(func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~+/=%:", c) >= 0
	})
	// wordBytes are all bytes except white space and control characters.
	wordBytes = newAlphabet(func(c byte) bool { return c > ' ' && c != 0x7f })
	// lineBytes are all bytes except control characters, but include the tab.
	lineBytes = newAlphabet(func(c byte) bool { return c >= ' ' && c != 0x7f || c == '\t' })
)

func newAlphabet(has func(byte) bool) *alphabet {
	var a alphabet
	for c := range a {
		a[c] = has(byte(c))
	}
	return &a
}

// holds reports whether all bytes of b are in the alphabet.
func (a *alphabet) holds(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return !a[c] })
}

// smallest returns the smallest alphabet that holds all values.
func smallest(values [][]byte) *alphabet {
	for _, a := range []*alphabet{tokenBytes, wordBytes} {
		if !slices.ContainsFunc(values, func(v []byte) bool { return !a.holds(v) }) {
			return a
		}
	}
	return lineBytes
}

// multiplier is the base of the rolling hashes. It is random, so that no one can choose
// text that collides with a value.
var multiplier = func() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]) | 1
}()

// pattern is a text to search for in time that does not depend on the text: a rolling
// hash takes the same steps for each byte, however much of the pattern has matched. Only
// a complete match takes longer.
type pattern struct {
	find []byte
	hash uint64 // of find
	lead uint64 // multiplier to the power of len(find)
}

func newPattern(find []byte) pattern {
	p := pattern{find: find, lead: 1}
	for _, c := range find {
		p.hash = p.hash*multiplier + uint64(c)
		p.lead *= multiplier
	}
	return p
}

// cursor is the state of a search: the hash of the last n bytes, all of which are in the
// alphabet.
type cursor struct {
	hash uint64
	n    int
}

// scan searches text[from:] and calls found with the end of each occurrence, including
// overlapping ones. text[:from] must contain at least the len(find) bytes before from, or
// all bytes since the last one outside the alphabet.
func (p *pattern) scan(at cursor, text []byte, from int, a *alphabet, found func(end int)) cursor {
	size := len(p.find)
	for i := from; i < len(text); i++ {
		c := text[i]
		if !a[c] {
			at = cursor{}
			continue
		}
		at.hash = at.hash*multiplier + uint64(c)
		if at.n < size {
			at.n++
		} else {
			at.hash -= uint64(text[i-size]) * p.lead
		}
		if at.n == size && at.hash == p.hash && bytes.Equal(text[i+1-size:i+1], p.find) {
			found(i + 1)
		}
	}
	return at
}

// masker masks values in one stream of bytes. It holds back the last bytes, which could
// belong to a value: the run of bytes in the alphabet at the end of the input, at most
// ms.reach of them. How much is held back, and for how long, therefore depends on the
// alphabet and ms.reach, and not on a value.
type masker struct {
	ms *masks
	at []cursor // by mask
	// raw and shown are the bytes held back, before and after masking.
	raw, shown []byte
	// run counts the bytes in the alphabet at the end of the input.
	run int
}

func newMasker(ms *masks) *masker { return &masker{ms: ms, at: make([]cursor, len(ms.list))} }

// pass processes in, and appends the bytes that are not held back to out. The caller must
// hold ms.mu, and ms must not be released.
func (v *masker) pass(out, in []byte) ([]byte, error) {
	from := len(v.raw)
	v.raw, v.shown = append(v.raw, in...), append(v.shown, in...)
	for i := range v.at {
		m := &v.ms.list[i]
		v.at[i] = m.scan(v.at[i], v.raw, from, v.ms.letters, func(end int) { m.cover(v.shown[end-len(m.find) : end]) })
	}
	run := 0
	for run < len(in) && v.ms.letters[in[len(in)-1-run]] {
		run++
	}
	if run == len(in) {
		run += v.run
	}
	v.run = run
	return v.release(out, min(run, v.ms.reach)), nil
}

// end appends all bytes held back to out. The next call starts a new text.
func (v *masker) end(out []byte) []byte {
	out = v.release(out, 0)
	clear(v.at)
	v.run = 0
	return out
}

// release appends the bytes held back to out, except for the last keep bytes.
func (v *masker) release(out []byte, keep int) []byte {
	n := len(v.shown) - keep
	out = append(out, v.shown[:n]...)
	for _, b := range []*[]byte{&v.raw, &v.shown} {
		copy(*b, (*b)[n:])
		clear((*b)[keep:])
		*b = (*b)[:keep]
	}
	return out
}

// wipe overwrites the bytes held back.
func (v *masker) wipe() {
	wipe(v.raw[:cap(v.raw)])
	wipe(v.shown[:cap(v.shown)])
	v.raw, v.shown = nil, nil
}
