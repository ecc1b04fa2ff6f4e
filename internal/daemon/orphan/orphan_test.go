package orphan

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	must(t, err)
	return d
}

// content makes a directory to be set aside.
func content(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ckp")
	must(t, os.MkdirAll(filepath.Join(dir, "deep", "er"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "deep", "file"), []byte("precious"), 0o600))
	must(t, os.Symlink("/etc", filepath.Join(dir, "link")))
	return dir
}

func put(t *testing.T, d *Dir, it Item) Item {
	t.Helper()
	from := content(t)
	it, err := d.Put(it, func(to string) error { return os.Rename(from, to) })
	must(t, err)
	return it
}

func list(t *testing.T, d *Dir) []Item {
	t.Helper()
	all, err := d.List()
	must(t, err)
	return all
}

func TestPutAndTake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "orphans")
	d := open(t, path)
	one := put(t, d, Item{ID: "ckp-one", Kind: Checkpoint, Team: "red", SandboxID: "sbx-1", SizeBytes: 5, Why: "because", Record: json.RawMessage(`{"a":1}`)})
	two := put(t, d, Item{ID: "vol-two", Kind: Volume, Why: "because"})
	compact := cmp.Transformer("compact", func(m json.RawMessage) (v any) { _ = json.Unmarshal(m, &v); return v })
	truncated := cmpopts.EquateApproxTime(1e6) // the name has milliseconds
	d = open(t, path)
	if diff := cmp.Diff([]Item{one, two}, list(t, d), compact, truncated, cmp.AllowUnexported(Item{})); diff != "" {
		t.Fatalf("listed (-want +got):\n%s", diff)
	}
	if it, found, err := d.Find("vol-two"); err != nil || !found || it.ID != "vol-two" {
		t.Errorf("found %+v, %v, %v", it, found, err)
	}
	if _, found, err := d.Find("vol-none"); err != nil || found {
		t.Errorf("found something that is not there, %v", err)
	}
	if info, err := os.Stat(filepath.Join(path, one.dir, aboutFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the description: %v, %v", info, err)
	}
	refused := errors.New("refused")
	if err := d.Take(one, func(string) error { return refused }); !errors.Is(err, refused) || len(list(t, d)) != 2 {
		t.Errorf("after a refusal: %v, %d left", err, len(list(t, d)))
	}
	back := filepath.Join(t.TempDir(), "back")
	must(t, d.Take(one, func(from string) error { return os.Rename(from, back) }))
	if data, err := os.ReadFile(filepath.Join(back, "deep", "file")); err != nil || string(data) != "precious" {
		t.Errorf("it has %q, %v", data, err)
	}
	must(t, d.Remove(two))
	must(t, d.Remove(two))
	if left, err := os.ReadDir(path); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// TestPutFails checks that content which cannot be moved is not set aside, and that nothing
// is left.
func TestPutFails(t *testing.T) {
	d := open(t, t.TempDir())
	refused := errors.New("refused")
	if _, err := d.Put(Item{ID: "ckp-one", Kind: Checkpoint}, func(string) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	for _, id := range []string{"../x", "a/b"} {
		if _, err := d.Put(Item{ID: id, Kind: Checkpoint}, func(string) error { t.Error("moved"); return nil }); err == nil {
			t.Errorf("%q was set aside", id)
		}
	}
	if left, err := os.ReadDir(d.path); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// TestInterruptedSteps checks that the next process finishes what a killed process left half
// done.
func TestInterruptedSteps(t *testing.T) {
	path := t.TempDir()
	d := open(t, path)
	half := put(t, d, Item{ID: "ckp-half", Kind: Checkpoint})
	taken := put(t, d, Item{ID: "ckp-taken", Kind: Checkpoint})
	going := put(t, d, Item{ID: "vol-going", Kind: Volume})
	blind := put(t, d, Item{ID: "ckp-blind-1", Kind: Checkpoint})
	must(t, os.Rename(filepath.Join(path, half.dir), filepath.Join(path, draftPrefix+half.dir)))
	must(t, os.RemoveAll(filepath.Join(path, taken.dir, contentName)))
	must(t, os.Rename(filepath.Join(path, going.dir), filepath.Join(path, gonePrefix+going.dir)))
	must(t, os.WriteFile(filepath.Join(path, blind.dir, aboutFile), []byte("{"), 0o600))
	must(t, os.Mkdir(filepath.Join(path, draftPrefix+"20260101T000000.000Z-checkpoint-ckp-none"), 0o700))
	d = open(t, path)
	var ids []string
	for _, it := range list(t, d) {
		ids = append(ids, it.ID)
	}
	slices.Sort(ids) // both may be of the same millisecond
	if diff := cmp.Diff([]string{"ckp-blind-1", "ckp-half"}, ids); diff != "" {
		t.Errorf("aside are (-want +got):\n%s", diff)
	}
	if left, err := os.ReadDir(path); err != nil || len(left) != 2 {
		t.Errorf("left are %v, %v", left, err)
	}
}
