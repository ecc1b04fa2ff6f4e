package tiered

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
)

// chunksOf cuts data into chunks.
func chunksOf(t *testing.T, s *scope, data []byte) (all [][]byte) {
	t.Helper()
	split := s.split(bytes.NewReader(data))
	for {
		buf := make([]byte, maxChunk)
		n, err := split.next(buf)
		if n > 0 {
			all = append(all, buf[:n])
		}
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func random(seed uint64, size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(data)
	return data
}

// Chunks are whole, have the promised sizes, and depend on the key.
func TestSplit(t *testing.T) {
	keys, err := newKeyring(random(1, KeySize))
	if err != nil {
		t.Fatal(err)
	}
	red, err := keys.of("red")
	if err != nil {
		t.Fatal(err)
	}
	blue, err := keys.of("blue")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 1, pageSize, minChunk - 1, minChunk, minChunk + 1, maxChunk, maxChunk + 1, 16<<20 + 5} {
		data := random(2, size)
		all := chunksOf(t, red, data)
		if got := slices.Concat(all...); !bytes.Equal(got, data) {
			t.Errorf("%d bytes became %d", size, len(got))
		}
		for i, c := range all {
			last := i == len(all)-1
			if len(c) > maxChunk || !last && (len(c) < minChunk || len(c)%pageSize != 0) {
				t.Errorf("of %d bytes, chunk %d has %d", size, i, len(c))
			}
		}
	}
	data := random(3, 16<<20)
	sizes := func(all [][]byte) (n []int) {
		for _, c := range all {
			n = append(n, len(c))
		}
		return n
	}
	if slices.Equal(sizes(chunksOf(t, red, data)), sizes(chunksOf(t, blue, data))) {
		t.Error("the sizes of chunks do not depend on the key")
	}
	if n := len(chunksOf(t, red, make([]byte, 8<<20))); n < 4 || n > 16 {
		t.Errorf("8 MiB of zeros are %d chunks", n)
	}
}

// The pages of a state that moved, because others came into use before them, are the chunks
// that they were, and so are those around pages that changed.
func TestMovedPagesAreTheSameChunks(t *testing.T) {
	keys, err := newKeyring(random(1, KeySize))
	if err != nil {
		t.Fatal(err)
	}
	s, err := keys.of("red")
	if err != nil {
		t.Fatal(err)
	}
	before := random(4, 64<<20)
	after := slices.Concat(random(5, 3*pageSize), before[:20<<20], before[21<<20:40<<20], random(6, pageSize), before[40<<20+pageSize:])
	known := map[sum]bool{}
	for _, c := range chunksOf(t, s, before) {
		known[s.sum(c)] = true
	}
	fresh := 0
	for _, c := range chunksOf(t, s, after) {
		if !known[s.sum(c)] {
			fresh += len(c)
		}
	}
	if fresh > 16<<20 {
		t.Errorf("%d MiB of 63 are stored again", fresh>>20)
	}
}
