package checkpoint

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/engine"
)

func open(t *testing.T) Dir {
	t.Helper()
	d, err := Open(filepath.Join(t.TempDir(), "checkpoints"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes a checkpoint of two files.
func write(t *testing.T, d Dir, id string, durable bool) Manifest {
	t.Helper()
	w, err := d.Begin(id)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(w.Dir(), "state.img"), []byte("the state"), 0o600))
	must(t, os.WriteFile(filepath.Join(w.Dir(), "pages.img"), make([]byte, 1<<20), 0o600))
	m, err := w.Commit(Manifest{Checkpoint: engine.Checkpoint{Root: engine.Root{Digest: "root"}}, Program: "cove-1", CPU: []string{"sse", "avx"}}, durable)
	must(t, err)
	must(t, w.Discard())
	return m
}

// TestSocketIsNotListed checks that the socket through which others continue from an
// incomplete checkpoint is not one of its files.
func TestSocketIsNotListed(t *testing.T) {
	d := open(t)
	w, err := d.Begin("ckp-early")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(w.Dir(), "pages.img"), make([]byte, 10), 0o600))
	l, err := net.Listen("unix", filepath.Join(w.Dir(), "s"))
	must(t, err)
	defer l.Close()
	m, err := w.Commit(Manifest{}, false)
	must(t, err)
	if len(m.Files) != 1 || m.Files[0].Name != "pages.img" {
		t.Errorf("its files are %+v", m.Files)
	}
	if _, err := d.Manifest("ckp-early"); err != nil {
		t.Error(err)
	}
	must(t, d.Remove("ckp-early"))
}

func TestWriteAndRead(t *testing.T) {
	d := open(t)
	for id, durable := range map[string]bool{"ckp-durable": true, "ckp-not": false} {
		want := write(t, d, id, durable)
		if want.SizeBytes != 1<<20+9 || want.ID != id {
			t.Errorf("manifest is %+v", want)
		}
		got, err := d.Manifest(id)
		must(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s was read differently:\n%s", id, diff)
		}
		must(t, d.Verify(&got))
		must(t, d.Sync(id))
		if _, err := d.Begin(id); !errors.Is(err, fs.ErrExist) {
			t.Errorf("Begin of what is there: %v", err)
		}
	}
	whole, broken, err := d.List()
	if err != nil || len(whole) != 2 || len(broken) != 0 {
		t.Errorf("List: %v, %v, %v", whole, broken, err)
	}
	must(t, d.Remove("ckp-not"))
	must(t, d.Remove("ckp-not"))
	if _, err := d.Manifest("ckp-not"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a removed one: %v", err)
	}
}

// TestHalfWritten checks that checkpoints that were half written or half removed when the
// daemon was killed are never visible, and are gone when the next daemon starts.
func TestHalfWritten(t *testing.T) {
	d := open(t)
	w, err := d.Begin("ckp-half")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(w.Dir(), "state.img"), []byte("half"), 0o600))
	write(t, d, "ckp-whole", true)
	must(t, os.Rename(d.Path("ckp-whole"), filepath.Join(d.path, draftPrefix+"removed-ckp-whole")))
	whole, broken, err := d.List()
	if err != nil || len(whole)+len(broken) != 0 {
		t.Errorf("List: %v, %v, %v", whole, broken, err)
	}
	_, err = Open(d.path)
	must(t, err)
	entries, err := os.ReadDir(d.path)
	if err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if _, err := w.Commit(Manifest{}, true); err == nil {
		t.Error("a draft that is gone became a checkpoint")
	}
}

func TestDamage(t *testing.T) {
	edit := func(name string, change func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			data, err := os.ReadFile(filepath.Join(dir, name))
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, name), change(data), 0o600))
		}
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, name))) }
	}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	cut := func(b []byte) []byte { return b[:len(b)-1] }
	for name, tt := range map[string]struct {
		damage func(*testing.T, string)
		unseen bool // until its content is verified
	}{
		"a flipped bit":           {edit("pages.img", flip), true},
		"a flipped bit of state":  {edit("state.img", flip), true},
		"a file cut off":          {edit("state.img", cut), false},
		"a file gone":             {remove("pages.img"), false},
		"the manifest gone":       {remove(manifestFile), false},
		"the manifest cut off":    {edit(manifestFile, cut), false},
		"the manifest empty":      {edit(manifestFile, func([]byte) []byte { return nil }), false},
		"the manifest of another": {edit(manifestFile, func(b []byte) []byte { return []byte(`{"format":1,"id":"ckp-other","files":[]}`) }), false},
		"a file outside":          {edit(manifestFile, func(b []byte) []byte { return []byte(`{"format":1,"id":"ckp-one","files":[{"name":"../X","size":0}]}`) }), false},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			write(t, d, "ckp-one", true)
			must(t, os.WriteFile(filepath.Join(d.path, "X"), nil, 0o600))
			tt.damage(t, d.Path("ckp-one"))
			m, err := d.Manifest("ckp-one")
			if tt.unseen {
				must(t, err)
				err = d.Verify(&m)
			}
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%v, want ErrDamaged", err)
			}
			whole, broken, err := d.List()
			if err != nil || len(whole)+len(broken) != 1 || tt.unseen != (len(whole) == 1) {
				t.Errorf("List: %v, %v, %v", whole, broken, err)
			}
			must(t, d.Remove("ckp-one"))
		})
	}
}

func TestNewerFormat(t *testing.T) {
	d := open(t)
	write(t, d, "ckp-one", true)
	must(t, os.WriteFile(filepath.Join(d.Path("ckp-one"), manifestFile), []byte(`{"format":99,"id":"ckp-one"}`), 0o600))
	if _, err := d.Manifest("ckp-one"); err == nil || errors.Is(err, ErrDamaged) {
		t.Errorf("%v, want an error that it is not known", err)
	}
}

func TestInvalidIDs(t *testing.T) {
	d := open(t)
	for _, id := range []string{"", "..", "a/b", ".draft-x", "UPPER", "-x"} {
		if _, err := d.Begin(id); err == nil {
			t.Errorf("Begin(%q) is no error", id)
		}
		if _, err := d.Manifest(id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Manifest(%q): %v", id, err)
		}
		must(t, d.Remove(id))
	}
}

// TestConcurrentWrites writes many checkpoints at once under one id: exactly one succeeds.
func TestConcurrentWrites(t *testing.T) {
	d := open(t)
	var won atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			w, err := d.Begin("ckp-one")
			if err != nil {
				return
			}
			if _, err := w.Commit(Manifest{}, false); err == nil {
				won.Add(1)
			}
			_ = w.Discard()
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d have won", won.Load())
	}
}

func TestMissingCPU(t *testing.T) {
	m := Manifest{CPU: []string{"sse", "avx512f", "amx"}}
	if diff := cmp.Diff([]string{"avx512f", "amx"}, m.MissingCPU([]string{"avx", "sse"})); diff != "" {
		t.Error(diff)
	}
}

// TestNoSum leaves a file with checksums of its own without another.
func TestNoSum(t *testing.T) {
	d := open(t)
	w, err := d.Begin("one")
	must(t, err)
	for _, name := range []string{"pages", "other"} {
		must(t, os.WriteFile(filepath.Join(w.Dir(), name), []byte("0123456789"), 0o600))
	}
	w.NoSum("pages")
	_, err = w.Commit(Manifest{}, true)
	must(t, err)
	m, err := d.Manifest("one")
	must(t, err)
	for _, name := range []string{"pages", "other"} {
		must(t, d.Verify(&m))
		must(t, os.WriteFile(filepath.Join(d.Path("one"), name), []byte("01234-6789"), 0o600))
	}
	if err := d.Verify(&m); !errors.Is(err, ErrDamaged) {
		t.Errorf("Verify: %v, want %v", err, ErrDamaged)
	}
}

// TestSummedBeginning reads an older checkpoint whose checksum covers only the start of a
// file.
func TestSummedBeginning(t *testing.T) {
	d := open(t)
	m := write(t, d, "one", true)
	sum, err := checksum(filepath.Join(d.Path("one"), "pages.img"), 8192)
	must(t, err)
	for i := range m.Files {
		if m.Files[i].Name == "pages.img" {
			m.Files[i].CRC32C, m.Files[i].Summed = &sum, 8192
		}
	}
	change := func(at int64) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(d.Path("one"), "pages.img"), os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("x"), at)
		must(t, errors.Join(err, f.Close()))
	}
	change(8192)
	must(t, d.Verify(&m))
	change(8191)
	if err := d.Verify(&m); !errors.Is(err, ErrDamaged) {
		t.Errorf("Verify: %v, want %v", err, ErrDamaged)
	}
}
