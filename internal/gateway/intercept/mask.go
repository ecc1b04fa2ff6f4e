package intercept

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"math/bits"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
)

const (
	// minMasked is the shortest value that is looked for in responses, in
	// bytes: shorter ones are found by chance.
	minMasked = 8
	// maskChunk is how much of a response is read at a time, in bytes.
	maskChunk = 32 << 10
	// minSize is the smallest size class of values, in bytes, and growth how
	// much longer a form of a value can be than the value itself.
	minSize = 512
	growth  = 6
)

// sizeClass returns the power of two, 512 at least, that stands for a length
// where the length itself should not be seen.
func sizeClass(n int) int {
	if n <= minSize {
		return minSize
	}
	return 1 << bits.Len(uint(n-1))
}

// mask says what stands in a response for what.
type mask struct {
	pattern
	with string
	// lower finds the same in lower case, as names of headers are compared.
	lower pattern
}

func newMask(find []byte, with string) mask {
	return mask{pattern: newPattern(find), with: with, lower: newPattern(bytes.ToLower(find))}
}

// cover writes the mask over what was found, as long as that is.
func (m *mask) cover(at []byte) {
	n := copy(at, m.with)
	for i := n; i < len(at); i++ {
		at[i] = '*'
	}
}

// masks are what is looked for in the response of one request.
type masks struct {
	// letters and reach say what is held back; see [veil]. Both are set once.
	letters *alphabet
	reach   int

	// mu is held while values are looked at: a response may be given up while
	// parts of it still come.
	mu       sync.Mutex
	list     []mask  // guarded by mu
	lent     []*held // guarded by mu
	released bool    // guarded by mu
}

// masksOf borrows the values of bindings. The caller releases the result. What
// is looked for follows from the bindings alone, never from a request.
func masksOf(bs []*binding) *masks {
	ms := &masks{}
	var values [][]byte
	longest := 0
	for _, b := range bs {
		if b.held == nil || !b.held.lend() {
			continue
		}
		ms.lent = append(ms.lent, b.held)
		values = append(values, b.held.value)
		longest = max(longest, len(b.held.value)+len(b.Auth.User))
		if len(b.held.value) >= minMasked {
			ms.add(b)
		}
	}
	ms.letters, ms.reach = smallest(values), sizeClass(growth*longest)
	return ms
}

// add looks for a value in all its forms.
func (ms *masks) add(b *binding) {
	value := b.held.value
	ms.list = append(ms.list, newMask(bytes.Clone(value), b.Placeholder))
	for _, form := range [][]byte{escapeJSON(value), []byte(url.QueryEscape(string(value)))} {
		if bytes.Equal(form, value) {
			wipe(form)
			continue
		}
		ms.list = append(ms.list, newMask(form, b.Placeholder))
	}
	if b.hasBasic() {
		form := bytes.TrimRight(b.basicCredentials(value), "=")
		with := base64.RawStdEncoding.EncodeToString([]byte(b.Auth.User + ":" + b.Placeholder))
		ms.list = append(ms.list, newMask(form, with))
	}
}

// release gives the values back. What comes after is not looked at any more.
func (ms *masks) release() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for i := range ms.list {
		wipe(ms.list[i].find)
		wipe(ms.list[i].lower.find)
	}
	for _, h := range ms.lent {
		h.giveBack()
	}
	ms.list, ms.lent, ms.released = nil, nil, true
}

// header masks the values of headers in place, and removes headers with a value
// in their names.
func (ms *masks) header(h http.Header) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for name, values := range h {
		for i, v := range values {
			values[i] = ms.text(v)
		}
		if ms.inName(name) {
			delete(h, name)
		}
	}
}

// inName tells whether the name of a header has a value in it. Preconditions:
// ms.mu is held.
func (ms *masks) inName(name string) bool {
	found := false
	for i := range ms.list {
		ms.list[i].lower.scan(cursor{}, []byte(strings.ToLower(name)), 0, lineBytes, func(int) { found = true })
	}
	return found
}

// text returns s with whole masks in place of values, so its length may
// change. Preconditions: ms.mu is held.
func (ms *masks) text(s string) string {
	type span struct {
		start, end int
		with       string
	}
	var spans []span
	for i := range ms.list {
		m := &ms.list[i]
		m.scan(cursor{}, []byte(s), 0, lineBytes, func(end int) { spans = append(spans, span{end - len(m.find), end, m.with}) })
	}
	if spans == nil {
		return s
	}
	slices.SortStableFunc(spans, func(a, b span) int { return a.start - b.start })
	var out strings.Builder
	done := 0
	for _, f := range spans {
		if f.start >= done {
			out.WriteString(s[done:f.start])
			out.WriteString(f.with)
		}
		done = max(done, f.end)
	}
	return out.String() + s[done:]
}

// strainer takes a response as it comes and passes it on without values.
type strainer interface {
	// pass takes in, and appends to out what may go on.
	pass(out, in []byte) ([]byte, error)
	// end appends to out what was held back, at the end of a whole response.
	end(out []byte) []byte
	// wipe forgets what is held back.
	wipe()
}

// maskedBody is a response's body without values. Bytes are replaced by as
// many, so what was said about its length stays true.
type maskedBody struct {
	src io.ReadCloser
	// atEnd is called once, when src has ended.
	atEnd func()
	ms    *masks

	mu       sync.Mutex // Close may come while Read waits for src
	strainer strainer   // guarded by mu
	in       []byte     // is read into
	out      []byte     // is to be read next
	buf      []byte     // what out is part of
	err      error
}

// newMaskedBody takes over ms. s passes on what is in src.
func newMaskedBody(src io.ReadCloser, ms *masks, s strainer, atEnd func()) *maskedBody {
	return &maskedBody{src: src, ms: ms, strainer: s, atEnd: atEnd}
}

func (b *maskedBody) Read(p []byte) (int, error) {
	for len(b.out) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		if len(p) == 0 {
			return 0, nil
		}
		b.fill()
	}
	n := copy(p, b.out)
	b.out = b.out[n:]
	return n, nil
}

// fill reads more. Preconditions: all of b.out was read.
func (b *maskedBody) fill() {
	if b.in == nil {
		b.in = make([]byte, maskChunk)
	}
	n, err := b.src.Read(b.in)
	out, strained := b.strain(b.in[:n], errors.Is(err, io.EOF))
	b.out, b.buf = out, out
	if strained != nil {
		b.err = strained
		return
	}
	if err != nil {
		if b.err = err; b.atEnd != nil {
			b.atEnd()
			b.atEnd = nil
		}
	}
}

// strain returns what may be read after in has come. What is held back of a
// response that breaks off is not shown: it may be the beginning of a value.
func (b *maskedBody) strain(in []byte, whole bool) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ms.mu.Lock()
	defer b.ms.mu.Unlock()
	defer clear(in)
	if b.ms.released {
		return nil, http.ErrBodyReadAfterClose
	}
	out, err := b.strainer.pass(b.buf[:0], in)
	if err == nil && whole {
		out = b.strainer.end(out)
	}
	return out, err
}

// Write implements [io.Writer] for a connection that was upgraded.
func (b *maskedBody) Write(p []byte) (int, error) {
	if w, ok := b.src.(io.Writer); ok {
		return w.Write(p)
	}
	return 0, http.ErrNotSupported
}

// CloseWrite ends the direction to the host of a connection that was upgraded.
func (b *maskedBody) CloseWrite() error {
	if w, ok := b.src.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return http.ErrNotSupported
}

// Close ends the body and gives the values back.
func (b *maskedBody) Close() error {
	err := b.src.Close()
	b.ms.release()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.strainer.wipe()
	return err
}
