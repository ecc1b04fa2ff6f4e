package remote

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
)

type discard struct{ t *testing.T }

func (d discard) WriteAt(p []byte, at int64) (int, error) {
	if at < 0 || at+int64(len(p)) > 10 {
		d.t.Errorf("%d bytes are written at %d", len(p), at)
	}
	return len(p), nil
}

// TestParts checks that no part reaches beyond its file, and that a file has an end.
func TestParts(t *testing.T) {
	part := func(at uint64, data string) []byte { return append(binary.BigEndian.AppendUint64(nil, at), data...) }
	for name, c := range map[string]struct {
		kind byte
		data []byte
	}{
		"beyond the end":       {framePart, part(8, "abc")},
		"before the beginning": {framePart, part(1<<64-1, "abc")},
		"at the other end":     {framePart, part(1<<63-1, "abc")},
		"without an offset":    {framePart, []byte("abc")},
		"bytes":                {frameData, []byte("abc")},
		"no message":           {frameMessage, []byte("{")},
		"an early end":         {framePart, part(0, "abc")},
	} {
		t.Run(name, func(t *testing.T) {
			var stream bytes.Buffer
			f := newFrames(&stream, &stream, nil)
			if err := f.write(c.kind, c.data); err != nil {
				t.Fatal(err)
			}
			err := f.parts(10, discard{t})
			if name == "an early end" {
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("got %v", err)
				}
			} else if !errors.Is(err, errFrame) {
				t.Errorf("got %v", err)
			}
		})
	}
	long := newFrames(strings.NewReader(string(framePart)+"\xff\xff\xff\xff"), io.Discard, nil)
	if err := long.parts(1<<40, discard{t}); !errors.Is(err, errFrame) {
		t.Errorf("a part that is too long: %v", err)
	}
}
