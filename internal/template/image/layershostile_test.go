package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHostileLayers checks that a layer with invalid names is refused as a whole, and
// nothing of it is left.
func TestHostileLayers(t *testing.T) {
	p := newProvider(t, "")
	p.layers.maxBytes, p.layers.maxEntries = 1<<20, 300
	var many, manyDirs []tar.Header
	for i := range 301 {
		many = append(many, file(fmt.Sprint(i), ""))
		manyDirs = append(manyDirs, device(fmt.Sprintf("dev/%d", i)))
	}
	tests := map[string][]tar.Header{
		"parent directory":          {file("../victim", "broken")},
		"parent directory inside":   {file("a/../../victim", "broken")},
		"parent of a whiteout":      {file("../.wh.victim", "")},
		"whiteout of the parent":    {file(".wh...", "")},
		"whiteout of the directory": {file("d/.wh..", "")},
		"whiteout of nothing":       {file(".wh.", "")},
		"device as the top":         {device(".")},
		"hard link to the outside":  {hard("v", "../victim")},
		"empty link":                {link("l", "")},
		"too deep":                  {file(strings.Repeat("d/", 200)+"f", "x")},
		"name too long":             {file(strings.Repeat("n", 300), "x")},
		"too many":                  many,
		"too many that do nothing":  manyDirs,
		"too large":                 {file("big", strings.Repeat("x", 1<<20+1))},
		"too large together":        {file("a", strings.Repeat("x", 1<<19)), file("a", strings.Repeat("x", 1<<19)), file("a", "x")},
		"owner out of range":        {owned(file("f", ""), 1<<40)},
		"unknown type":              {{Typeflag: 'V', Name: "volume"}},
	}
	raw := map[string][]byte{
		"cut short":   archive(t, file("f", strings.Repeat("x", 2000)))[:1500],
		"no tar":      []byte(strings.Repeat("no archive ", 200)),
		"sparse bomb": sparseBomb(t),
	}
	for name, h := range tests {
		raw[name] = archive(t, h...)
	}
	for name, data := range raw {
		t.Run(name, func(t *testing.T) {
			for _, want := range []string{digestOf(data), ""} {
				if _, err := p.addLayer(t.Context(), want, "", opener(data)); err == nil {
					t.Error("an unneeded layer was unpacked")
				} else if tests[name] != nil && !errors.Is(err, errHostile) {
					t.Errorf("error %v is not for a hostile archive", err)
				}
			}
			if _, err := os.Stat(p.layers.layerDir(digestOf(data))); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the layer is there: %v", err)
			}
		})
	}
	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
}

// sparseBomb returns a file of a petabyte that takes a kilobyte in the archive.
func sparseBomb(t testing.TB) []byte { return sparseFile(t, 1<<50) }

// sparseFile returns an archive of a file that has a size but no data.
func sparseFile(t testing.TB, size int64) []byte {
	t.Helper()
	fragments := make([]byte, 512)
	copy(fragments, fmt.Sprintf("1\n%d\n0\n", size))
	data := archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "big", Format: tar.FormatPAX, PAXRecords: map[string]string{
		"GNX.sparse.major": "1", "GNX.sparse.minor": "0", "GNX.sparse.name": "big", "GNX.sparse.realsize": fmt.Sprint(size),
	}, Uname: string(fragments)})
	return bytes.ReplaceAll(data, []byte("GNX."), []byte("GNU."))
}

// TestHostileCompositions checks attacks that only show when layers are combined.
func TestHostileCompositions(t *testing.T) {
	p := newProvider(t, "")
	loop := []tar.Header{link("a", "b"), link("b", "a")}
	for i := range 60 {
		loop = append(loop, link(fmt.Sprintf("l%d", i), fmt.Sprintf("l%d", i+1)))
	}
	bomb := []tar.Header{dir("x")}
	for range 50 { // each link doubles the way
		bomb = append(bomb, link(fmt.Sprintf("e%d", len(bomb)), fmt.Sprintf("e%d/e%[1]d", len(bomb)-1)))
	}
	deep := []tar.Header{dir(strings.Repeat("d/", 100) + "d")}
	tests := map[string][][]tar.Header{
		"hard link to nothing":       {{hard("v", "nothing")}},
		"hard link to itself":        {{hard("v", "v")}},
		"hard link to a directory":   {{dir("d"), hard("v", "d")}},
		"hard link to what was gone": {{file("f", "1")}, {gone(".", "f"), hard("v", "f")}},
		"file as a parent":           {{file("f", "x"), file("f/g", "y")}},
		"file as a parent below":     {{file("f", "x")}, {file("f/g", "y")}},
		"file as the top":            {{file(".", "")}},
		"link as the top":            {{link(".", "/")}},
		"links in a circle":          {loop, {file("a/x", "1")}},
		"links too long":             {loop, {file("l0/x", "1")}},
		"links that double":          {bomb, {file("e50/x", "1")}},
		"deeper than any layer":      {deep, {link("l", strings.Repeat("d/", 100)+"d"), file("l/"+strings.Repeat("e/", 60)+"f", "1")}},
	}
	for name, all := range tests {
		t.Run(name, func(t *testing.T) {
			var layers [][]byte
			for _, h := range all {
				layers = append(layers, archive(t, h...))
			}
			if top, _, err := composed(t, p, base{}, addLayers(t, p, layers...)...); !errors.Is(err, errHostile) {
				t.Errorf("got %v, want an error for a hostile archive; made %v", err, contents(t, top))
			}
		})
	}
	t.Run("bytes of all layers", func(t *testing.T) {
		b := newBudget(5, 10)
		d := addLayers(t, p, archive(t, file("f", "123")), archive(t, file("f", "1234")))
		top := newNode()
		if err := p.layers.merge(t.Context(), top, d[0], b); err != nil {
			t.Fatal(err)
		}
		if err := p.layers.merge(t.Context(), top, d[1], b); !errors.Is(err, errHostile) {
			t.Errorf("got %v", err)
		}
	})
	// Attacks that only cost memory and time: long paths behind links, and links that are
	// followed again and again.
	long := strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 250)+"/", 15), "/")
	paths := []tar.Header{dir(long), link("l", long), dir("l/" + long), link("m", "l/"+long), file("m/x", "1")}
	if _, _, err := composed(t, p, base{}, addLayers(t, p, archive(t, paths...))...); !errors.Is(err, errHostile) {
		t.Errorf("a path of 7500 bytes: %v", err)
	}
	winding := []tar.Header{dir("a"), link("l", strings.Repeat("a/../", 800)+"a")}
	for i := range 30 {
		winding = append(winding, file(fmt.Sprintf("l/%d", i), ""))
	}
	few := newBudget(1<<20, 1000)
	few.steps = 10_000
	if err := p.layers.merge(t.Context(), newNode(), addLayers(t, p, archive(t, winding...))[0], few); !errors.Is(err, errHostile) {
		t.Errorf("winding links: %v", err)
	}
	few = newBudget(1<<20, 1000)
	few.names = 100
	if err := p.layers.merge(t.Context(), newNode(), addLayers(t, p, archive(t, file(strings.Repeat("n", 101), "")))[0], few); !errors.Is(err, errHostile) {
		t.Errorf("long names: %v", err)
	}
	if _, _, err := composed(t, p, base{}, "sha256-"+strings.Repeat("0", 64)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unknown layer: %v", err)
	}
	if _, _, err := composed(t, p, base{}, "../rootfs"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a layer that is a path: %v", err)
	}
}

func FuzzLayer(f *testing.F) {
	f.Add(archive(f, dir("a"), file("a/b", "c"), link("l", "a"), hard("h", "a/b")), archive(f, gone("a", "b"), opaque("a")))
	f.Add(archive(f, link("out", "..")), archive(f, file("out/victim", "broken")))
	f.Add(archive(f, link("a", "/b"), link("b", "a/../c")), archive(f, file("a/x", ""), device("b")))
	f.Add(sparseBomb(f), []byte{})
	p := newProvider(f, "")
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		p.layers.maxBytes, p.layers.maxEntries = 1<<20, 300
		var digests []string
		for _, data := range [][]byte{lower, upper} {
			info, err := p.addLayer(t.Context(), "", "", opener(data))
			if err != nil {
				return
			}
			digests = append(digests, info.Digest)
		}
		top, _, err := composed(t, p, base{}, digests...)
		if err != nil {
			return
		}
		for name, kind := range listTree(t, top) {
			if kind != "d" && kind != "f" && !strings.HasPrefix(kind, "-> ") {
				t.Errorf("%s is %s", name, kind)
			}
		}
		if entries, _ := os.ReadDir(filepath.Dir(top)); len(entries) != 1 {
			t.Errorf("files outside: %v", entries)
		}
	})
}
