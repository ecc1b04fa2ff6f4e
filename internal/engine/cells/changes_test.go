package cells

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestChangesEnd(t *testing.T) {
	zeros := make([]byte, endBytes)
	long := bytes.Repeat([]byte("x"), 3*endBytes)
	for name, tt := range map[string]struct {
		stream []byte
		want   error
	}{
		"whole":            {append(bytes.Clone(long), zeros...), nil},
		"more zeros":       {append(bytes.Clone(long), make([]byte, 5*endBytes)...), nil},
		"cut off":          {append(bytes.Clone(long), zeros[1:]...), io.ErrUnexpectedEOF},
		"bytes after zero": {append(append(bytes.Clone(long), zeros...), 'x'), io.ErrUnexpectedEOF},
		"empty":            {nil, io.ErrUnexpectedEOF},
	} {
		for _, reader := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader} {
			c := &changes{ReadCloser: io.NopCloser(reader(bytes.NewReader(tt.stream))), release: func() {}}
			if got, err := io.ReadAll(c); !errors.Is(err, tt.want) || !bytes.Equal(got, tt.stream) {
				t.Errorf("%s: %d bytes and %v, want %d and %v", name, len(got), err, len(tt.stream), tt.want)
			}
		}
	}
}
