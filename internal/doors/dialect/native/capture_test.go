package native

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cove-sh/cove/sandbox"
)

func note(n int64) string { return fmt.Sprintf("<%d>", n) }

func TestCapture(t *testing.T) {
	tests := []struct {
		name   string
		limit  int
		writes []string
		want   captured
	}{
		{"nothing", 8, nil, captured{}},
		{"all of it", 8, []string{"ab", "cdef", "gh"}, captured{text: "abcdefgh", bytes: 8}},
		{"middle left out", 8, []string{"abcd", "XXXX", "efgh"}, captured{text: "abcd<4>efgh", bytes: 12, truncated: true}},
		{"one large write", 8, []string{"abcdXXXXXXXXefgh"}, captured{text: "abcd<8>efgh", bytes: 16, truncated: true}},
		{"ring wraps", 8, []string{"abcd", "1", "2", "3", "4", "5", "6", "7"}, captured{text: "abcd<3>4567", bytes: 11, truncated: true}},
		{"cut inside characters", 8, []string{"abcé", "xxxx", "éfgh"}, captured{text: "abc<8>fgh", bytes: 14, truncated: true}},
		{"not UTF-8", 8, []string{"a\xffb"}, captured{text: "a\uFFFDb", bytes: 3, binary: true}},
		{"garbage is short", 64, []string{strings.Repeat("\x00", 60)}, captured{text: "\uFFFD", bytes: 60, binary: true}},
		{"what a terminal shows", 64, []string{"\x1b[1mbold\x1b[0m\t\a\b\r\n"}, captured{text: "\x1b[1mbold\x1b[0m\t\a\b\r\n", bytes: 17}},
		{"character across writes", 8, []string{"a\xc3", "\xa9b"}, captured{text: "aéb", bytes: 4}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCapture(tt.limit)
			for _, w := range tt.writes {
				c.write([]byte(w))
			}
			if got := c.result(note); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func FuzzCapture(f *testing.F) {
	f.Add([]byte("hello é world"), 8, 3)
	f.Add([]byte("\xff\xc3\x28 abc"), 4, 1)
	f.Fuzz(func(t *testing.T, data []byte, limit, step int) {
		// Any number is mapped to one in range.
		limit, step = 2+int(uint(limit)%63), 1+int(uint(step)%64)
		c := newCapture(limit)
		for chunk := range bytesChunks(data, step) {
			c.write(chunk)
		}
		got := c.result(func(int64) string { return "" })
		if !utf8.ValidString(got.text) {
			t.Fatalf("not UTF-8: %q", got.text)
		}
		if got.bytes != int64(len(data)) {
			t.Fatalf("counted %d of %d", got.bytes, len(data))
		}
		if len(data) <= limit && !got.binary && got.text != string(data) {
			t.Fatalf("got %q, want %q", got.text, data)
		}
		if got.truncated != (len(data) > limit) {
			t.Fatalf("truncated is %v for %d bytes, limit %d", got.truncated, len(data), limit)
		}
	})
}

func bytesChunks(data []byte, step int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(data) > 0 {
			n := min(step, len(data))
			if !yield(data[:n]) {
				return
			}
			data = data[n:]
		}
	}
}

func TestCutSlice(t *testing.T) {
	tests := []struct {
		name  string
		out   sandbox.Output
		asked int64
		want  slice
	}{
		{"all", sandbox.Output{Data: []byte("abc"), TotalBytes: 3}, 0, slice{text: "abc", next: 3, total: 3}},
		{"more follows", sandbox.Output{Data: []byte("abé")[:3], TotalBytes: 9}, 0, slice{text: "ab", next: 2, total: 9, more: true}},
		{"running", sandbox.Output{Data: []byte("abé")[:3], TotalBytes: 3, Running: true}, 0, slice{text: "ab", next: 2, total: 3, more: true}},
		{"half a character and no more", sandbox.Output{Data: []byte("abé")[:3], TotalBytes: 3}, 0, slice{text: "ab\uFFFD", next: 3, total: 3, binary: true}},
		{"gap", sandbox.Output{Offset: 10, Data: []byte("é")[1:], TotalBytes: 11}, 0, slice{text: "", offset: 11, next: 11, total: 11}},
		{"only half a character yet", sandbox.Output{Data: []byte("é")[:1], TotalBytes: 1, Running: true}, 0, slice{total: 1}},
		{"binary goes on", sandbox.Output{Data: []byte("\xc3\xc3\xc3\xc3"), TotalBytes: 9}, 0, slice{text: "\uFFFD", next: 3, total: 9, more: true, binary: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := cutSlice(&tt.out, tt.asked); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// A follower that reads from next offsets gets every byte once.
func TestCutSliceFollows(t *testing.T) {
	data := []byte(strings.Repeat("aé世\U0001F600\xff", 50))
	var got strings.Builder
	var offset int64
	for offset < int64(len(data)) {
		end := min(len(data), int(offset)+7)
		s := cutSlice(&sandbox.Output{Offset: offset, Data: data[offset:end], TotalBytes: int64(len(data))}, offset)
		if s.next <= offset {
			t.Fatalf("no progress at %d", offset)
		}
		got.WriteString(s.text)
		offset = s.next
	}
	if want := string(bytes.ReplaceAll(data, []byte("\xff"), []byte("\uFFFD"))); got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
}

func TestURI(t *testing.T) {
	for _, file := range []string{"/workspace/a.txt", "/a b/ü?x#y%41", "/", "/a//b"} {
		sb, got, zip, err := parseURI(fileURI("sbx-1", file))
		if err != nil || sb != "sbx-1" || got != file || zip {
			t.Errorf("%q: got %q %q %v %v", file, sb, got, zip, err)
		}
	}
	if sb, file, _, err := parseURI(sandboxURI("sbx-1")); err != nil || sb != "sbx-1" || file != "" {
		t.Errorf("a sandbox: %q %q %v", sb, file, err)
	}
	for _, uri := range []string{"", "cove://sandbox/", "cove://sandbox/id?format=zip", "file:///etc/passwd", "cove://other/id/x", "cove://sandbox//x", "cove://sandbox/id/x?y=1", "cove://sandbox/id/x#y", "cove://u@sandbox/id/x", "\x00"} {
		if _, _, _, err := parseURI(uri); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%q: %v", uri, err)
		}
	}
}

func FuzzURI(f *testing.F) {
	f.Add("cove://sandbox/id/path?format=zip")
	f.Fuzz(func(t *testing.T, uri string) {
		sb, file, _, err := parseURI(uri)
		if err == nil && (sb == "" || file != "" && !strings.HasPrefix(file, "/")) {
			t.Fatalf("%q: %q %q", uri, sb, file)
		}
	})
}

func TestShorten(t *testing.T) {
	if got := shorten([]string{"echo", strings.Repeat("é", 500)}); len(got) > 220 || !utf8.ValidString(got) {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}
