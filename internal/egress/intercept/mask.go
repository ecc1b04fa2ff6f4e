package intercept

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

const (
	// minMasked is the shortest value that is looked for in responses: shorter
	// ones are found by chance.
	minMasked = 8
	// minHeldBack is the shortest beginning of a value at the end of what has
	// come that is kept back until more comes. Shorter ones, of which chance
	// makes many, would stall conversations; they are let through, and the rest
	// of the value is masked if it follows.
	minHeldBack = 8
	maskChunk   = 32 << 10
)

// mask says what stands in a response for what.
type mask struct {
	find []byte
	with string
	// own says that find is nobody else's, and is to be wiped.
	own bool
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
	// mu is held while values are looked at: a response may be given up while
	// parts of it still come.
	mu       sync.Mutex
	list     []mask  // guarded by mu
	lent     []*held // guarded by mu
	released bool    // guarded by mu
}

// masksOf borrows the values of bindings. The caller releases the result.
func masksOf(bs []*binding, more []mask) *masks {
	ms := &masks{list: more}
	for _, b := range bs {
		if b.held == nil || !b.held.lend() {
			continue
		}
		ms.lent = append(ms.lent, b.held)
		value := b.held.value
		if len(value) < minMasked {
			continue
		}
		ms.list = append(ms.list, mask{find: value, with: b.Placeholder})
		if e := escapeJSON(value); bytes.Equal(e, value) {
			wipe(e)
		} else {
			ms.list = append(ms.list, mask{find: e, with: b.Placeholder, own: true})
		}
		if e := []byte(url.QueryEscape(string(value))); bytes.Equal(e, value) {
			wipe(e)
		} else {
			ms.list = append(ms.list, mask{find: e, with: b.Placeholder, own: true})
		}
	}
	return ms
}

// release gives the values back. What comes after is not looked at any more.
func (ms *masks) release() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for i := range ms.list {
		if ms.list[i].own {
			wipe(ms.list[i].find)
		}
	}
	for _, h := range ms.lent {
		h.giveBack()
	}
	ms.list, ms.lent, ms.released = nil, nil, true
}

// header masks the values of headers in place.
func (ms *masks) header(h http.Header) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for name, values := range h {
		for i, v := range values {
			for _, m := range ms.list {
				if strings.Contains(v, string(m.find)) {
					v = strings.ReplaceAll(v, string(m.find), m.with)
				}
			}
			values[i] = v
		}
		for _, m := range ms.list {
			if len(name) >= len(m.find) && strings.Contains(strings.ToLower(name), strings.ToLower(string(m.find))) {
				delete(h, name)
			}
		}
	}
}

// body masks in place whatever is whole in b, and returns the length of the
// longest end of b that begins something to be masked. It does nothing and
// returns false if the masks are released.
func (ms *masks) body(b []byte) (begun int, ok bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.released {
		return 0, false
	}
	for i := range ms.list {
		m := &ms.list[i]
		for rest := b; ; {
			at := bytes.Index(rest, m.find)
			if at < 0 {
				break
			}
			m.cover(rest[at : at+len(m.find)])
			rest = rest[at+len(m.find):]
		}
	}
	for i := range ms.list {
		find := ms.list[i].find
		for n := min(len(find)-1, len(b)); n > begun; n-- {
			if bytes.HasSuffix(b, find[:n]) {
				begun = n
			}
		}
	}
	return begun, true
}

// maskedBody is a response's body without values. Bytes are replaced by as
// many, so what was said about its length stays true.
type maskedBody struct {
	src io.ReadCloser
	// atEnd is called once, when src has ended.
	atEnd func()
	ms    *masks

	// buf[told:ready] is to be read next; what is before was read already and
	// is kept since it may begin a value, what is after is kept back.
	buf         []byte
	told, ready int
	err         error
}

// newMaskedBody takes over ms.
func newMaskedBody(src io.ReadCloser, ms *masks, atEnd func()) *maskedBody {
	return &maskedBody{src: src, ms: ms, atEnd: atEnd}
}

// Read implements [io.Reader].
func (b *maskedBody) Read(p []byte) (int, error) {
	for b.told == b.ready {
		if b.err != nil {
			return 0, b.err
		}
		if len(p) == 0 {
			return 0, nil
		}
		b.fill()
	}
	n := copy(p, b.buf[b.told:b.ready])
	b.told += n
	return n, nil
}

// fill reads more. Preconditions: all that is ready was read.
func (b *maskedBody) fill() {
	rest := copy(b.buf, b.buf[b.told-b.context():])
	b.told = b.context()
	b.buf = b.buf[:rest]
	if need := rest + maskChunk; cap(b.buf) < need {
		b.buf = append(make([]byte, 0, need), b.buf...)
	}
	n, err := b.src.Read(b.buf[rest : rest+maskChunk])
	b.buf = b.buf[:rest+n]

	begun, ok := b.ms.body(b.buf)
	if !ok {
		b.err, b.ready = http.ErrBodyReadAfterClose, b.told
		return
	}
	b.ready = len(b.buf)
	if err != nil {
		if b.err = err; b.atEnd != nil {
			b.atEnd()
			b.atEnd = nil
		}
	} else if begun >= minHeldBack {
		b.ready = max(b.told, len(b.buf)-begun)
	}
}

// context is how many of the bytes that were read may begin a value.
func (b *maskedBody) context() int { return min(b.told, minHeldBack-1) }

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
	return err
}
