package oci

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cove-sh/cove/sandbox"
)

// TestBomb checks that reading a layer with an absurd compression ratio stops early.
func TestBomb(t *testing.T) {
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	mib := enc.EncodeAll(make([]byte, 1<<20), nil)
	sent := bytes.NewBuffer(bytes.Repeat(mib, 600)) // frames one after another are one stream
	l := Layer{Size: int64(sent.Len()), digest: hashOf(sent.Bytes()), open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(sent), nil }}
	r, err := l.Open(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	n, err := io.Copy(io.Discard, r)
	if sandbox.CodeOf(err) != sandbox.CodeInvalid || n > freeBytes+4<<20 {
		t.Errorf("read %d bytes, %v", n, err)
	}
	for name, data := range map[string][]byte{"bzip2": []byte("BZh91AY"), "xz": {0xfd, '7', 'z', 'X', 'Z'}, "half a header": {0x1f, 0x8b, 8}} {
		l := Layer{Size: -1, open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
		if _, err := readLayer(t.Context(), &l); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}
