package intercept

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cove-sh/cove/internal/engine"
)

// pieces returns a text in pieces.
type pieces struct {
	list []string
	err  error
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.list) == 0 {
		return 0, p.err
	}
	n := copy(b, p.list[0])
	if p.list[0] = p.list[0][n:]; p.list[0] == "" {
		p.list = p.list[1:]
	}
	return n, nil
}

func (p *pieces) Close() error { return nil }

func masksFor(values ...string) *masks {
	var bs []*binding
	for _, v := range values {
		b := &binding{Binding: secret(), value: newSecretValue([]byte(v))}
		bs = append(bs, b)
	}
	return masksOf(bs)
}

func masked(v string) string {
	s := placeholder
	for len(s) < len(v) {
		s += "*"
	}
	return s[:len(v)]
}

// maskedText returns src with values masked.
func maskedText(src io.ReadCloser, values ...string) *maskedBody {
	ms := masksFor(values...)
	return newMaskedBody(src, ms, newMasker(ms), nil)
}

// TestMaskedBodyInPieces checks that nothing of the value passes, however it is split.
func TestMaskedBodyInPieces(t *testing.T) {
	text := "before " + value + value + " between sk-live-THE sk-liv" + value + " after sk-li"
	want := strings.ReplaceAll(text, value, masked(value))
	for seed := range 2000 {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		var list []string
		for rest := text; rest != ""; {
			n := 1 + r.IntN(min(len(rest), 1+r.IntN(60)))
			list, rest = append(list, rest[:n]), rest[n:]
		}
		b := maskedText(&pieces{list, io.EOF}, value)
		var src io.Reader = b
		if seed%3 == 0 {
			src = iotest.OneByteReader(b)
		}
		out, err := io.ReadAll(src)
		if err != nil || string(out) != want {
			t.Fatalf("seed %d: %q, want %q, %v", seed, out, want, err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Read(make([]byte, 1)); err == nil {
			t.Fatal("reading goes on after Close")
		}
	}
}

// TestMaskedBodyOverlap checks that values that overlap are both covered completely.
func TestMaskedBodyOverlap(t *testing.T) {
	b := maskedText(&pieces{[]string{"<abcdefgh12", "xyzxyz>"}, io.EOF}, "abcdefgh12", "12xyzxyz")
	out, err := io.ReadAll(b)
	if err != nil || len(out) != 18 || bytes.Contains(out, []byte("abc")) || bytes.Contains(out, []byte("xyz")) {
		t.Errorf("%q, %v", out, err)
	}
}

// TestMaskedBodyKeepsErrors checks that data held back of a response that breaks off
// stays hidden.
func TestMaskedBodyKeepsErrors(t *testing.T) {
	boom := errors.New("boom")
	b := maskedText(&pieces{[]string{"abc " + value[:12]}, boom}, value)
	out, err := io.ReadAll(b)
	if !errors.Is(err, boom) || string(out) != "abc " {
		t.Errorf("%q, %v", out, err)
	}
}

func TestMasksForms(t *testing.T) {
	awkward := "a\"b\\c d&e=f+g/é"
	ms := masksFor(awkward)
	for _, form := range []string{awkward, `a\"b\\c d&e=f+g/é`, "a%22b%5Cc+d%26e%3Df%2Bg%2F%C3%A9"} {
		b := []byte("<" + form + ">")
		v := newMasker(ms)
		b, _ = v.pass(nil, b)
		if b = v.end(b); bytes.Contains(b, []byte(form)) || len(b) != len(form)+2 {
			t.Errorf("%s became %s", form, b)
		}
		h := http.Header{"Location": {"/x?k=" + form}}
		if ms.header(h); h.Get("Location") != "/x?k="+placeholder {
			t.Errorf("header %q", h)
		}
	}
	ms.release()
	ms.release()
	short := masksFor("abc")
	if b := []byte("abcabc"); len(short.list) != 0 || string(b) != "abcabc" {
		t.Error("a short value is looked for")
	}
}

func FuzzMaskedBody(f *testing.F) {
	f.Add([]byte("x"+value), []byte{3, 10, 1})
	f.Add([]byte(strings.Repeat("zzzzzzzzy", 9)+"zy"), []byte{1, 2, 40})
	f.Fuzz(func(t *testing.T, text, cuts []byte) {
		v := "zzzzzzzzzy" // starts again within itself
		b := maskedText(&cutReader{text: bytes.Clone(text), cuts: cuts}, v, value)
		out, err := io.ReadAll(b)
		if err != nil || len(out) != len(text) {
			t.Fatalf("%d bytes of %d, %v", len(out), len(text), err)
		}
		if bytes.Contains(out, []byte(v)) || bytes.Contains(out, []byte(value)) {
			t.Fatalf("%q came through as %q", text, out)
		}
		b.Close()
	})
}

type cutReader struct{ text, cuts []byte }

func (c *cutReader) Read(p []byte) (int, error) {
	if len(c.text) == 0 {
		return 0, io.EOF
	}
	n := len(c.text)
	if len(c.cuts) > 0 {
		n, c.cuts = min(n, 1+int(c.cuts[0])), c.cuts[1:]
	}
	n = copy(p, c.text[:n])
	c.text = c.text[n:]
	return n, nil
}

func (c *cutReader) Close() error { return nil }

// TestEcho checks that a host that echoes requests does not reveal the value to the
// sandbox.
func TestEcho(t *testing.T) {
	w := newHarness(t)
	w.host(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-End")
		w.Header().Set("Link", "</early>; t="+r.Header.Get("X-Api-Key"))
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("X-Echo", r.Header.Get("X-Api-Key"))
		w.Header().Set("Location", "https://elsewhere.example/?k="+r.Header.Get("X-Api-Key"))
		w.WriteHeader(http.StatusFound)
		for name, v := range r.Header {
			_, _ = io.WriteString(w, name+"="+v[0]+"\n")
			w.(http.Flusher).Flush()
		}
		w.Header().Set("X-End", r.Header.Get("X-Api-Key"))
	}), apiHost)
	for _, version := range []int{1, 2} {
		res, body := do(t, w.client(version), "GET", "https://"+apiHost+"/", "", "X-Api-Key: "+placeholder, "Authorization: "+basic("me", placeholder))
		all := body
		for _, h := range []http.Header{res.Header, res.Trailer} {
			for name, v := range h {
				all += name + ":" + strings.Join(v, " ") + "\n"
			}
		}
		if strings.Contains(all, "live-THE") || strings.Contains(all, basic("me", value)[6:]) {
			t.Errorf("HTTP/%d: the value came back:\n%s", version, all)
		}
		if res.Header.Get("X-Echo") != placeholder || res.Trailer.Get("X-End") != placeholder || res.StatusCode != 302 {
			t.Errorf("HTTP/%d: %v %v", version, res.Header, res.Trailer)
		}
		if !strings.Contains(body, "X-Api-Key="+masked(value)) {
			t.Errorf("HTTP/%d: body %q", version, body)
		}
	}
}

// TestRotateWhileStreaming checks that a response in progress when a secret is rotated
// keeps the old value hidden, and that the old value is wiped afterwards.
func TestRotateWhileStreaming(t *testing.T) {
	w := newHarness(t)
	next, keys := make(chan string), make(chan string, 10)
	w.host(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		keys <- r.Header.Get("X-Api-Key")
		rw.Header().Set("Content-Type", "text/event-stream")
		for say := range next {
			_, _ = io.WriteString(rw, say)
			rw.(http.Flusher).Flush()
		}
	}), apiHost)
	r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+apiHost+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", placeholder)
	go func() { next <- "data: hello\n\n" }()
	c := w.client(2)
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	buf := make([]byte, 13)
	if _, err := io.ReadFull(res.Body, buf); err != nil || string(buf) != "data: hello\n\n" {
		t.Fatalf("%q, %v", buf, err)
	}
	old := w.x.bindings.Load().list[0].value
	rotated := "sk-live-THE-NEXT-VALUE-9876543210"
	w.set(secret(), rotated)
	go func() { next <- "data: " + value + "\n\n"; close(next) }()
	rest, err := io.ReadAll(res.Body)
	if want := "data: " + masked(value) + "\n\n"; err != nil || string(rest) != want {
		t.Errorf("the rest is %q, want %q, %v", rest, want, err)
	}
	do(t, c, "GET", "https://"+apiHost+"/", "", "X-Api-Key: "+placeholder)
	if first, second := <-keys, <-keys; first != value || second != rotated {
		t.Errorf("the host got %q and %q", first, second)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		old.mu.Lock()
		gone := old.bytes == nil
		old.mu.Unlock()
		if gone {
			return
		}
	}
	t.Error("the old value was not wiped")
}

func TestValuesAreWiped(t *testing.T) {
	w := newHarness(t)
	h := w.x.bindings.Load().list[0].value
	buf := h.bytes
	w.set(secret(), "another-value-entirely")
	if !bytes.Equal(buf, make([]byte, len(buf))) {
		t.Errorf("after a rotation memory has %q", buf)
	}
	// A failing Set changes nothing and leaves nothing behind.
	now := w.x.bindings.Load()
	boom := errors.New("boom")
	err := w.x.Set(&engine.Network{}, func(func(string, []byte) error) error { return boom })
	if !errors.Is(err, boom) || w.x.bindings.Load() != now {
		t.Errorf("%v", err)
	}
	buf = now.list[0].value.bytes
	if err := w.x.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(buf, make([]byte, len(buf))) {
		t.Errorf("after Close memory has %q", buf)
	}
}
