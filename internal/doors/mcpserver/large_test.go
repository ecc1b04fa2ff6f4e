package mcpserver

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// bigFiles is a service in which every file holds size bytes, and every
// directory packs to as many.
type bigFiles struct {
	*fake
	size int64
	fill string
}

func (b bigFiles) StatFile(_ context.Context, _, p string) (*sandbox.FileInfo, error) {
	return &sandbox.FileInfo{Path: p, Size: b.size}, nil
}

func (b bigFiles) ReadFile(_ context.Context, _ string, req sandbox.ReadFileRequest) (*sandbox.FileReader, error) {
	n := min(b.size, req.Limit)
	return &sandbox.FileReader{Info: sandbox.FileInfo{Path: req.Path, Size: b.size}, ReadCloser: io.NopCloser(b.content(n))}, nil
}

func (b bigFiles) ArchiveDir(_ context.Context, _, _ string, limit int64) (io.ReadCloser, error) {
	return io.NopCloser(b.content(min(b.size, limit+1))), nil
}

func (b bigFiles) content(n int64) io.Reader {
	return strings.NewReader(strings.Repeat(b.fill, int(n)))
}

// No answer is longer than clients accept: the tool shortens its result or, if it cannot know the
// limit, an error replaces the result, and the connection stays open. Each case is encoded and
// decoded several times under the race detector, so cases at a limit are left to "make soak"; those
// beyond the same limit stand for them.
func TestLargeResultsOverStdio(t *testing.T) {
	read := func(uri string) string {
		return `{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"` + uri + `"}}`
	}
	download := call(2, "dir_download", `{"sandbox":"s","path":"/d"}`)
	tests := []struct {
		name, line string
		size       int64
		fill, want string
	}{
		{"a directory at the limit", download, 7 << 20, "x", ""},
		{"a directory over the limit", download, 7<<20 + 1, "x", "over 7 MiB"},
		{"a file at the limit", read("cove://sandbox/s/f"), 7 << 20, "\x00", ""},
		{"a file over the limit", read("cove://sandbox/s/f"), 7<<20 + 1, "\x00", "over 7 MiB"},
		{"text that JSON makes long", read("cove://sandbox/s/f"), 2 << 20, "\x01", "the answer is over 9.9 MiB"},
	}
	for _, tt := range tests {
		if tt.want == "" && !needs.Soak() {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			p := pipeTo(t, Config{Service: bigFiles{newFake(), tt.size, tt.fill}, Toolsets: []string{"files"}})
			p.begin()
			p.send(tt.line)
			m := p.next()
			if n := len(p.out.Bytes()); n > maxLine || (tt.want == "" && n < int(tt.size)) {
				t.Errorf("the answer has %d bytes", n)
			}
			told := string(m.Result)
			if m.Error != nil {
				told = m.Error.Message
			}
			if string(m.ID) != "2" || !strings.Contains(told, tt.want) || (tt.want == "") != (m.Error == nil && !strings.Contains(told[:min(len(told), 200)], "too_large")) {
				t.Errorf("%s: %.300s", m.ID, told)
			}
			p.send(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
			if m := p.next(); string(m.ID) != "3" || m.Error != nil {
				t.Errorf("the connection does not go on: %+v", m)
			}
			p.end()
		})
	}
}

// A dialect reports a result that is too large in its own way.
func TestLargeResultOfADialect(t *testing.T) {
	p := pipeTo(t, Config{Service: bigFiles{newFake(), 5 << 20, "\x01"}, Dialect: "miosa"})
	p.begin()
	p.send(call(2, "file_read", `{"sandbox_id":"s","path":"/f"}`))
	m := p.next()
	var res struct {
		IsError bool
		Content []struct{ Text string }
	}
	if err := json.Unmarshal(m.Result, &res); err != nil || !res.IsError || !strings.Contains(res.Content[0].Text, "base64") {
		t.Errorf("%v: %.300s", err, m.Result)
	}
	p.end()
}
