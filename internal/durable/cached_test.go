package durable_test

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"testing"

	"github.com/cove-sh/cove/internal/durable"
)

// remote is files that count how often they are read. A change fails after it was made if
// lost is set, and a read if away is.
type remote struct {
	durable.Files
	reads      int
	lost, away error
}

func (r *remote) ReadAll(dir string) (map[string][]byte, error) {
	r.reads++
	if r.away != nil {
		return nil, r.away
	}
	return r.Files.ReadAll(dir)
}

func (r *remote) Write(name string, data []byte) error {
	return errors.Join(r.Files.Write(name, data), r.lost)
}

func (r *remote) Remove(name string) error { return errors.Join(r.Files.Remove(name), r.lost) }

func TestCached(t *testing.T) {
	below := &remote{Files: durable.Dir(t.TempDir())}
	must(t, below.Files.Write("a/x", []byte("1")))
	c, err := durable.Cached(below)
	must(t, err)
	has := func(want string) {
		t.Helper()
		data, err := c.Read("a/x")
		if string(data) != want || (want == "") != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a/x is %q, %v; want %q", data, err, want)
		}
		clear(data) // it is the reader's
	}
	has("1")
	has("1")
	must(t, c.Write("a/x", []byte("2")))
	must(t, c.Write("a/b/y", []byte("y")))
	must(t, c.Write("ab/z", []byte("z")))
	has("2")
	if found, err := c.ReadAll("a"); err != nil || !slices.Equal(slices.Sorted(maps.Keys(found)), []string{"a/b/y", "a/x"}) {
		t.Errorf("below a: %v, %v", found, err)
	}
	must(t, c.RemoveAll("a/b"))
	must(t, c.Remove("ab/z"))
	must(t, c.Sync("a"))
	if found, err := c.ReadAll(""); err != nil || !slices.Equal(slices.Sorted(maps.Keys(found)), []string{"a/x"}) {
		t.Errorf("all: %v, %v", found, err)
	}
	if below.reads != 1 {
		t.Errorf("read %d times", below.reads)
	}

	// Whether a change that fails was made is found out before the next read.
	down := errors.New("it is down")
	below.lost = down
	if err := c.Write("a/x", []byte("3")); !errors.Is(err, down) {
		t.Errorf("write: %v", err)
	}
	below.away = down
	if _, err := c.Read("a/x"); !errors.Is(err, down) {
		t.Errorf("read what is in doubt: %v", err)
	}
	below.away = nil
	has("3")
	if err := c.Remove("a/x"); !errors.Is(err, down) {
		t.Errorf("remove: %v", err)
	}
	has("")
	below.lost = nil
	if err := c.Remove("a/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove what is not there: %v", err)
	}
}
