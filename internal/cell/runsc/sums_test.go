package runsc

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

func TestSums(t *testing.T) {
	const pages = 3*sumBlock/pageSize + 5
	content := make([]byte, pages*pageSize)
	rand.NewChaCha8([32]byte{1}).Read(content)
	for name, tt := range map[string]struct {
		summed int // pages
		change func(content, sums []byte) ([]byte, []byte)
		want   error
	}{
		"whole":                {pages, func(c, s []byte) ([]byte, []byte) { return c, s }, nil},
		"none":                 {0, func(c, s []byte) ([]byte, []byte) { return c, s }, nil},
		"the first bit":        {pages, func(c, s []byte) ([]byte, []byte) { c[0] ^= 1; return c, s }, ErrPages},
		"a bit in the middle":  {pages, func(c, s []byte) ([]byte, []byte) { c[len(c)/2] ^= 0x80; return c, s }, ErrPages},
		"the last bit":         {pages, func(c, s []byte) ([]byte, []byte) { c[len(c)-1] ^= 1; return c, s }, ErrPages},
		"the last summed":      {7, func(c, s []byte) ([]byte, []byte) { c[7*pageSize-1] ^= 1; return c, s }, ErrPages},
		"beyond what has sums": {7, func(c, s []byte) ([]byte, []byte) { c[7*pageSize] ^= 1; return c, s }, nil},
		"exchanged pages": {pages, func(c, s []byte) ([]byte, []byte) {
			return bytes.Join([][]byte{c[pageSize : 2*pageSize], c[:pageSize], c[2*pageSize:]}, nil), s
		}, ErrPages},
		"a sum":         {pages, func(c, s []byte) ([]byte, []byte) { s[len(s)-1] ^= 1; return c, s }, ErrPages},
		"half a sum":    {pages, func(c, s []byte) ([]byte, []byte) { return c, s[:len(s)-1] }, ErrPages},
		"pages cut off": {pages, func(c, s []byte) ([]byte, []byte) { return c[:len(c)-1], s }, errors.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name string, data []byte) {
				t.Helper()
				if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(PagesFile, content)
			if err := SumPages(dir, int64(tt.summed)*pageSize); err != nil {
				t.Fatal(err)
			}
			sums, err := os.ReadFile(filepath.Join(dir, SumsFile))
			if err != nil || len(sums) != tt.summed*sumSize {
				t.Fatalf("%d bytes of checksums, %v", len(sums), err)
			}
			c, s := tt.change(bytes.Clone(content), sums)
			write(PagesFile, c)
			write(SumsFile, s)
			err = CheckPages(dir)
			if tt.want == errors.ErrUnsupported { // any error
				if err == nil {
					t.Error("no error")
				}
			} else if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
	if err := CheckPages(t.TempDir()); err != nil {
		t.Errorf("without checksums: %v", err)
	}
	if err := SumPages(t.TempDir(), 0); err == nil {
		t.Error("without pages there is no error")
	}
}

// FuzzSums checks that existing pages are checked whatever the checksums are, and nothing
// beyond them is read.
func FuzzSums(f *testing.F) {
	f.Add([]byte{}, 0, int64(0))
	f.Add([]byte{1, 2, 3, 4}, 1, int64(0))
	f.Add([]byte{1, 2, 3, 4, 5}, 2, int64(pageSize))
	f.Add(make([]byte, 64), 3, int64(1<<62))
	f.Fuzz(func(t *testing.T, sums []byte, pages int, at int64) {
		if pages < 0 || pages > 16 || at < 0 {
			return
		}
		if len(sums)%sumSize == 0 { // readSums refuses others
			_ = pageSums(sums).check(make([]byte, pages*pageSize), at)
		}
		dir := t.TempDir()
		for name, data := range map[string][]byte{SumsFile: sums, PagesFile: make([]byte, pages*pageSize)} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := CheckPages(dir); err == nil && len(sums) > pages*sumSize {
			t.Errorf("%d bytes of sums are good for %d pages", len(sums), pages)
		}
	})
}
