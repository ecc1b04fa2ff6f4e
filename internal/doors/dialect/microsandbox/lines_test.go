package microsandbox

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cove-sh/cove/sandbox"
)

func show(l *lines) string {
	var b strings.Builder
	for _, line := range l.list() {
		fmt.Fprintf(&b, "%s:%s|", line["stream"][3:], line["text"])
	}
	return b.String()
}

func TestLines(t *testing.T) {
	l := newLines()
	for _, p := range []struct {
		stream sandbox.Stream
		data   string
	}{{"stdout", "a"}, {"stderr", "x\n"}, {"stdout", "b\r\n\n c"}, {"", "not output"}, {"stderr", "\xff"}} {
		l.add(p.stream, []byte(p.data))
	}
	l.end()
	l.text(sandbox.Stdout, "one\ntwo\n")
	if got, want := show(l), "err:x|out:ab|out:|out: c|err:\uFFFD|out:one|out:two|"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := newLines().list(); got == nil {
		t.Error("empty output is not a list")
	}
}

// TestLinesAreBounded checks that the kept output is bounded, whatever a program writes.
func TestLinesAreBounded(t *testing.T) {
	for name, data := range map[string]string{
		"one line": strings.Repeat("x", 3<<20), "empty lines": strings.Repeat("\n", 1<<20),
		"control characters": strings.Repeat("\x00", 1<<20), "lines of them": strings.Repeat("\x01\x02\n", 1<<19),
	} {
		l := newLines()
		for range 4 {
			l.add(sandbox.Stdout, []byte(data))
		}
		l.end()
		size := 0
		list := l.list()
		for _, line := range list {
			text, err := json.Marshal(line["text"])
			if err != nil {
				t.Fatal(err)
			}
			size += len(text) + lineCost
		}
		if size > maxOutput+2*len(list)+2*lineCost+200 || !strings.HasSuffix(list[len(list)-1]["text"], "write to a file and read it in parts]") {
			t.Errorf("%s: %d bytes are kept, the last is %.100q", name, size, list[len(list)-1]["text"])
		}
	}
}

func TestServiceName(t *testing.T) {
	for _, tt := range []struct{ namespace, name, want string }{
		{"default", "a", "a"}, {"research", "a_b-c", "research.a_b-c"},
		{"default", "A", ""}, {"default", "a-", ""}, {"default", "sbx-a", ""}, {"default", "snap-a", ""},
		{strings.Repeat("n", 40), strings.Repeat("a", 23), ""},
	} {
		got := serviceName(tt.namespace, tt.name)
		if tt.want == "" {
			tt.want = hashedName(tt.namespace, tt.name)
		}
		if got != tt.want || len(got) > sandbox.MaxNameLength {
			t.Errorf("%s/%s is %q, want %q", tt.namespace, tt.name, got, tt.want)
		}
	}
}

func TestBuiltName(t *testing.T) {
	for _, image := range []string{"python:3.12", "ghcr.io/org/name@sha256:" + strings.Repeat("0", 64), "…", "UPPER/Case"} {
		name := TemplateName(image)
		if len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || name != TemplateName(image) {
			t.Errorf("%s is %q", image, name)
		}
	}
	if TemplateName("a:b") == TemplateName("a-b") {
		t.Error("two images have the same name")
	}
}

// FuzzParams sends hostile parameters.
func FuzzParams(f *testing.F) {
	f.Add([]byte(`{"sandbox":"a","namespace":"b","code":"1","language":"python","timeout":1e300,"args":["x"],"config":{"memory":1.0,"cpus":2,"ports":["1:2"],"envs":["A=b"],"volumes":["/a:/b"]}}`))
	f.Add([]byte("{\"sandbox\":\"\xff\"}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var s startParams
		if err := decode(data, &s); err != nil {
			if !utf8.ValidString(err.Error()) || len(err.Error()) > 1000 {
				t.Fatalf("%q", err)
			}
			return
		}
		if s.Config != nil {
			if w, err := read(s.Config); err == nil {
				for _, p := range w.ports {
					if p.Host < 1 || p.Host > 65535 || p.Guest < 1 || p.Guest > 65535 {
						t.Fatalf("%+v", p)
					}
				}
			}
		}
		var c codeParams
		if decode(data, &c) == nil {
			if d, err := c.Timeout.seconds(); err == nil && d < 0 {
				t.Fatal(d)
			}
		}
	})
}
