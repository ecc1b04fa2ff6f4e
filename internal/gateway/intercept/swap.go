package intercept

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxSwapped bounds headers and query with values in them: a request may contain a
	// placeholder many times, and a value may be long.
	maxSwapped = 1 << 20
	// maxSwappedBody bounds a body with values in it.
	maxSwappedBody = 4 * sandbox.MaxSecretBody
)

// errTooLong is the error for a request that would be too long with values in it.
type errTooLong struct{}

func (errTooLong) Error() string {
	return "with the secret's value in place of every placeholder the request would be too long"
}

// swap puts values into the headers and the query of a request.
func swap(r *http.Request, found []finding) error {
	budget := maxSwapped
	for _, f := range found {
		if f.value == nil {
			continue
		}
		if f.at&inHeader != 0 {
			if err := f.swapHeaders(r.Header, &budget); err != nil {
				return err
			}
		}
		if f.at&inQuery != 0 {
			if err := f.swapQuery(r.URL, &budget); err != nil {
				return err
			}
		}
	}
	return nil
}

// cost is how much of a budget of bytes one occurrence of a value uses: the size class of
// its longest form, so that a refusal does not reveal the length.
func (b *binding) cost() int { return sizeClass(growth * len(b.value.bytes)) }

// spend deducts the cost of n occurrences of the value from a budget of bytes.
func (b *binding) spend(n int, budget *int) error {
	if *budget -= n * b.cost(); *budget < 0 {
		return errTooLong{}
	}
	return nil
}

func (b *binding) swapHeaders(h http.Header, budget *int) error {
	for name, values := range h {
		for i, v := range values {
			if b.inHeader(name, v) != inHeader {
				continue
			}
			n := max(strings.Count(v, b.Placeholder), 1)
			if err := b.spend(n, budget); err != nil {
				return err
			}
			if scheme, plain, ok := decodeBasic(name, v); ok && strings.Contains(plain, b.Placeholder) {
				values[i] = scheme + string(b.basicCredentials(b.value.bytes))
				continue
			}
			values[i] = strings.ReplaceAll(v, b.Placeholder, string(b.value.bytes))
		}
	}
	return nil
}

func (b *binding) swapQuery(u *url.URL, budget *int) error {
	value := url.QueryEscape(string(b.value.bytes))
	var failed error
	query := editQuery(u.RawQuery, func(raw string) string {
		if b.inParameter(raw) != inQuery {
			return raw
		}
		name, text, _ := strings.Cut(raw, "=")
		if !strings.Contains(text, b.Placeholder) {
			plain, err := url.QueryUnescape(text)
			if err != nil {
				return raw
			}
			text = url.QueryEscape(plain)
		}
		if err := b.spend(strings.Count(text, b.Placeholder), budget); err != nil {
			failed = err
			return raw
		}
		return name + "=" + strings.ReplaceAll(text, b.Placeholder, value)
	})
	if failed == nil {
		u.RawQuery = query
	}
	return failed
}

// swapBody returns a copy of a body with values in it, which the caller wipes.
func swapBody(body []byte, contentType string, found []finding) ([]byte, error) {
	out := bytes.Clone(body)
	for _, f := range found {
		if f.value == nil || f.at&inBody == 0 {
			continue
		}
		value := escapeFor(contentType, f.value.bytes)
		n := bytes.Count(out, []byte(f.Placeholder))
		if len(out)+n*f.cost() > maxSwappedBody {
			wipe(value)
			wipe(out)
			return nil, errTooLong{}
		}
		next := bytes.ReplaceAll(out, []byte(f.Placeholder), value)
		wipe(value)
		wipe(out)
		out = next
	}
	return out, nil
}

// escapeFor encodes a value for a body of a content type.
func escapeFor(contentType string, value []byte) []byte {
	kind, _, _ := mime.ParseMediaType(contentType)
	switch {
	case kind == "application/x-www-form-urlencoded":
		return []byte(url.QueryEscape(string(value)))
	case kind == "application/json", strings.HasSuffix(kind, "+json"):
		return escapeJSON(value)
	}
	return bytes.Clone(value)
}

// escapeJSON encodes a value for use between the quotes of a JSON string.
func escapeJSON(value []byte) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(string(value)); err != nil || buf.Len() < 3 {
		return bytes.Clone(value)
	}
	return buf.Bytes()[1 : buf.Len()-2] // without the quotes and the newline
}

// wipedBody is a request body that is wiped when it is closed.
type wipedBody struct {
	mu   sync.Mutex // the transport may close while it reads
	data []byte
	r    *bytes.Reader
}

func newWipedBody(data []byte) *wipedBody { return &wipedBody{data: data, r: bytes.NewReader(data)} }

func (b *wipedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.data == nil {
		return 0, io.ErrClosedPipe
	}
	return b.r.Read(p)
}

// Close wipes the body.
func (b *wipedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	wipe(b.data)
	b.data = nil
	return nil
}
