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
	// minMasked is the length of the shortest value that is masked, in bytes: shorter
	// ones occur by chance.
	minMasked = 8
	// maskChunk is how much of a response is read at a time, in bytes.
	maskChunk = 32 << 10
	// minSize is the smallest size class of values, in bytes. growth is the maximum ratio of
	// the length of an encoded value to that of the value.
	minSize = 512
	growth  = 6
)

// sizeClass returns the length rounded up to a power of two, at least minSize. It is
// used where the exact length must not be observable.
func sizeClass(n int) int {
	if n <= minSize {
		return minSize
	}
	return 1 << bits.Len(uint(n-1))
}

// mask replaces a pattern in responses.
type mask struct {
	pattern
	with string // the replacement
	// lower is the pattern in lower case, for names of headers.
	lower pattern
}

func newMask(find []byte, with string) mask {
	return mask{pattern: newPattern(find), with: with, lower: newPattern(bytes.ToLower(find))}
}

// cover overwrites an occurrence of the pattern without changing its length.
func (m *mask) cover(at []byte) {
	n := copy(at, m.with)
	for i := n; i < len(at); i++ {
		at[i] = '*'
	}
}

// masks are the masks for the response to one request.
type masks struct {
	// letters and reach determine how much is held back; see [masker]. Both are set once.
	letters *alphabet
	reach   int

	// mu is held while values are used: a response may be closed while parts of it still
	// arrive.
	mu       sync.Mutex
	list     []mask         // guarded by mu
	values   []*secretValue // guarded by mu
	released bool           // guarded by mu
}

// masksOf acquires the values of bindings. The caller releases the result. The masks
// depend only on the bindings, never on a request.
func masksOf(bs []*binding) *masks {
	ms := &masks{}
	var values [][]byte
	longest := 0
	for _, b := range bs {
		if b.value == nil || !b.value.acquire() {
			continue
		}
		ms.values = append(ms.values, b.value)
		values = append(values, b.value.bytes)
		longest = max(longest, len(b.value.bytes)+len(b.Auth.User))
		if len(b.value.bytes) >= minMasked {
			ms.add(b)
		}
	}
	ms.letters, ms.reach = smallest(values), sizeClass(growth*longest)
	return ms
}

// add adds masks for a value in all its encodings.
func (ms *masks) add(b *binding) {
	value := b.value.bytes
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

// release releases the values. Data that arrives later is not masked, and must not be
// passed on.
func (ms *masks) release() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for i := range ms.list {
		wipe(ms.list[i].find)
		wipe(ms.list[i].lower.find)
	}
	for _, v := range ms.values {
		v.release()
	}
	ms.list, ms.values, ms.released = nil, nil, true
}

// header masks secrets in the values of headers, in place, and removes headers with
// secrets in their names.
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

// inName reports whether there is a secret in the name of a header. The caller must hold
// ms.mu.
func (ms *masks) inName(name string) bool {
	found := false
	for i := range ms.list {
		ms.list[i].lower.scan(cursor{}, []byte(strings.ToLower(name)), 0, lineBytes, func(int) { found = true })
	}
	return found
}

// text returns s with every secret replaced, which may change the length. The caller must
// hold ms.mu.
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

// filter removes secrets from a stream of bytes.
type filter interface {
	// pass processes in, and appends the bytes that are not held back to out.
	pass(out, in []byte) ([]byte, error)
	// end appends the bytes that were held back to out, at the end of a complete
	// response.
	end(out []byte) []byte
	// wipe overwrites the bytes that are held back.
	wipe()
}

// maskedBody is a response's body without secrets. They are replaced by the same number
// of bytes, so the Content-Length stays correct.
type maskedBody struct {
	src io.ReadCloser
	// atEnd is called once, when src has ended.
	atEnd func()
	ms    *masks

	mu     sync.Mutex // Close may be called while Read waits for src
	filter filter     // guarded by mu
	in     []byte     // buffer for src
	out    []byte     // to be read next
	buf    []byte     // buffer of out
	err    error
}

// newMaskedBody filters src by f. The result owns ms.
func newMaskedBody(src io.ReadCloser, ms *masks, f filter, atEnd func()) *maskedBody {
	return &maskedBody{src: src, ms: ms, filter: f, atEnd: atEnd}
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

// fill reads more from src. b.out must be empty.
func (b *maskedBody) fill() {
	if b.in == nil {
		b.in = make([]byte, maskChunk)
	}
	n, err := b.src.Read(b.in)
	out, failed := b.pass(b.in[:n], errors.Is(err, io.EOF))
	b.out, b.buf = out, out
	if failed != nil {
		b.err = failed
		return
	}
	if err != nil {
		if b.err = err; b.atEnd != nil {
			b.atEnd()
			b.atEnd = nil
		}
	}
}

// pass filters in and returns the bytes that may be read. Bytes held back at the end of
// an incomplete response are dropped: they may be the start of a value.
func (b *maskedBody) pass(in []byte, whole bool) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ms.mu.Lock()
	defer b.ms.mu.Unlock()
	defer clear(in)
	if b.ms.released {
		return nil, http.ErrBodyReadAfterClose
	}
	out, err := b.filter.pass(b.buf[:0], in)
	if err == nil && whole {
		out = b.filter.end(out)
	}
	return out, err
}

// Write writes to the host, on an upgraded connection.
func (b *maskedBody) Write(p []byte) (int, error) {
	if w, ok := b.src.(io.Writer); ok {
		return w.Write(p)
	}
	return 0, http.ErrNotSupported
}

// CloseWrite closes the direction to the host of an upgraded connection.
func (b *maskedBody) CloseWrite() error {
	if w, ok := b.src.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return http.ErrNotSupported
}

// Close closes the body and releases the values.
func (b *maskedBody) Close() error {
	err := b.src.Close()
	b.ms.release()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filter.wipe()
	return err
}
