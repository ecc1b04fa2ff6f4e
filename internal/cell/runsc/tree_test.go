package runsc

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc/pgalloc_metadata_go_proto"
)

// describe returns what gVisor writes for the content of a file.
func describe(size int64, segments ...segment) string {
	b := binary.LittleEndian.AppendUint64(nil, uint64(size))
	for _, s := range segments {
		for _, n := range []int64{s.Start, s.End, s.At} {
			b = binary.LittleEndian.AppendUint64(b, uint64(n))
		}
	}
	return string(b)
}

type treeFile struct {
	tar.Header
	content string
}

func treeOf(t testing.TB, files ...treeFile) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		f.Size = int64(len(f.content))
		if err := w.WriteHeader(&f.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func regular(name string, size int64, segments ...segment) treeFile {
	return treeFile{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o4755, Uid: 3_000_000, Gid: 7,
		PAXRecords: map[string]string{"SCHILY.xattr.user.note": "value"}}, describe(size, segments...)}
}

// pages holds a letter for each page.
func pages(n int) []byte {
	var b []byte
	for i := range n {
		b = append(b, bytes.Repeat([]byte{byte('a' + i)}, pageSize)...)
	}
	return b
}

func TestWriteTar(t *testing.T) {
	const far = 1 << 40
	tests := []struct {
		name   string
		file   treeFile
		want   func(io.Reader) error
		size   int64
		stored int // at most
	}{
		{"empty", regular("./f", 0), holds(""), 0, 8 << 10},
		{"part of a page", regular("./f", 5, segment{0, pageSize, pageSize}), holds("bbbbb"), 5, 8 << 10},
		{"out of order", regular("./f", 2*pageSize, segment{0, pageSize, 2 * pageSize}, segment{pageSize, 2 * pageSize, 0}),
			holds(strings.Repeat("c", pageSize) + strings.Repeat("a", pageSize)), 2 * pageSize, 16 << 10},
		{"small hole", regular("./f", 2*pageSize+1, segment{0, pageSize, 0}, segment{2 * pageSize, 3 * pageSize, pageSize}),
			holds(strings.Repeat("a", pageSize) + strings.Repeat("\x00", pageSize) + "b"), 2*pageSize + 1, 24 << 10},
		{"after the last page", regular("./f", 3, segment{0, pageSize, 1 << 30}), holds("\x00\x00\x00"), 3, 8 << 10},
		{"sparse", regular("./f\xff\n"+strings.Repeat("x", 200), far+pageSize, segment{far, far + pageSize, pageSize}),
			nil, far + pageSize, 32 << 10},
		{"all hole", regular("./f", far), nil, far, 8 << 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			if err := writeTar(&out, treeOf(t, tt.file), bytes.NewReader(pages(3)), 1<<20); err != nil {
				t.Fatal(err)
			}
			if out.Len() > tt.stored {
				t.Errorf("%d bytes, want at most %d", out.Len(), tt.stored)
			}
			r := tar.NewReader(&out)
			h, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			if h.Name != tt.file.Name || h.Size != tt.size || h.Mode != 0o4755 || h.Uid != 3_000_000 || h.Gid != 7 || h.PAXRecords["SCHILY.xattr.user.note"] != "value" {
				t.Errorf("header is %+v", h)
			}
			if tt.want != nil {
				if err := tt.want(r); err != nil {
					t.Error(err)
				}
			}
			if _, err := r.Next(); !errors.Is(err, io.EOF) {
				t.Errorf("after the file: %v", err)
			}
		})
	}
}

func holds(want string) func(io.Reader) error {
	return func(r io.Reader) error {
		got, err := io.ReadAll(r)
		if err == nil && string(got) != want {
			err = fmt.Errorf("content is %q, want %q", got, want)
		}
		return err
	}
}

// TestWriteTarFragments writes a file of more pieces than a reader accepts.
func TestWriteTarFragments(t *testing.T) {
	const n, step = 100_000, 1 << 20
	var list []segment
	for i := range int64(n) {
		list = append(list, segment{i * step, i*step + pageSize, 0})
	}
	var out bytes.Buffer
	if err := writeTar(&discardAfter{&out, 4 << 20}, treeOf(t, regular("./f", n*step, list...)), bytes.NewReader(pages(1)), n*pageSize); err != nil && !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	if h, err := tar.NewReader(&out).Next(); err != nil || h.Size != n*step {
		t.Errorf("%+v, %v", h, err)
	}
}

var errEnough = errors.New("enough")

type discardAfter struct {
	io.Writer
	n int
}

func (d *discardAfter) Write(p []byte) (int, error) {
	if d.n -= len(p); d.n < 0 {
		return 0, errEnough
	}
	return d.Writer.Write(p)
}

func TestWriteTarRemovals(t *testing.T) {
	var out bytes.Buffer
	err := writeTar(&out, treeOf(t,
		treeFile{tar.Header{Typeflag: tar.TypeChar, Name: "./a"}, ""},
		treeFile{tar.Header{Typeflag: tar.TypeLink, Name: "./b", Linkname: "./a"}, ""},
	), bytes.NewReader(nil), 0)
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(&out)
	for _, name := range []string{"./a", "./b"} {
		if h, err := r.Next(); err != nil || h.Name != name || h.Typeflag != tar.TypeChar || h.Devmajor != 0 || h.Devminor != 0 {
			t.Errorf("%s is %+v, %v", name, h, err)
		}
	}
}

func TestWriteTarRefuses(t *testing.T) {
	for name, f := range map[string]treeFile{
		"too much":     regular("./f", 1<<21, segment{0, 1 << 21, 0}),
		"twice":        regular("./f", 2*pageSize, segment{0, pageSize, 0}, segment{0, pageSize, 0}),
		"backwards":    regular("./f", 2*pageSize, segment{pageSize, 0, 0}),
		"negative":     regular("./f", -1),
		"before pages": regular("./f", pageSize, segment{0, pageSize, -1}),
		"half":         {tar.Header{Typeflag: tar.TypeReg, Name: "./f"}, "1234567890"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := writeTar(io.Discard, treeOf(t, f), bytes.NewReader(nil), 1<<20); !errors.Is(err, errTree) {
				t.Errorf("%v, want %v", err, errTree)
			}
		})
	}
	whole := treeOf(t, regular("./f", 5, segment{0, pageSize, 0})).Bytes()
	if err := writeTar(io.Discard, bytes.NewReader(whole[:len(whole)-1600]), bytes.NewReader(nil), 1<<20); err == nil {
		t.Error("half a tree is no error")
	}
}

func TestKeptPages(t *testing.T) {
	data := pages(3)
	table := tableOf(t, [3]uint64{pageSize, 2 * pageSize, 1}, [3]uint64{2 * pageSize, 3 * pageSize, 0}, [3]uint64{5 * pageSize, 6 * pageSize, 1})
	ranges, total, err := parseTable(table, pageSize)
	if err != nil || total != 2*pageSize {
		t.Fatalf("%v, %d, %v", ranges, total, err)
	}
	k := &keptPages{ranges: ranges, data: bytes.NewReader(data)}
	whole := append(append(append(make([]byte, pageSize), data[pageSize:2*pageSize]...), make([]byte, 3*pageSize)...), data[2*pageSize:]...)
	whole = append(whole, make([]byte, 2*pageSize)...)
	for _, at := range []int{0, 1, pageSize - 1, pageSize, pageSize + 1, 2 * pageSize, 4*pageSize + 7, 5 * pageSize, 6*pageSize - 1, 7 * pageSize} {
		for _, n := range []int{0, 1, 2, pageSize, pageSize + 1} {
			got := make([]byte, n)
			if m, err := k.ReadAt(got, int64(at)); err != nil || m != n || !bytes.Equal(got, whole[at:at+n]) {
				t.Fatalf("%d bytes at %d: %d, %v", n, at, m, err)
			}
		}
	}
	k.data = bytes.NewReader(data[:2*pageSize])
	if _, err := k.ReadAt(make([]byte, pageSize), 5*pageSize); err == nil {
		t.Error("missing pages are no error")
	}
}

// tableOf returns a table of ranges, each given as its start, its end, and whether it is
// kept.
func tableOf(t testing.TB, ranges ...[3]uint64) []byte {
	m := &pgalloc_metadata_go_proto.MemoryFileMetadataProto{Version: 1}
	for _, r := range ranges {
		m.MemAcct = append(m.MemAcct, &pgalloc_metadata_go_proto.MemAcctRangeProto{Start: r[0], End: r[1], KnownCommitted: r[2] == 1})
	}
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(data))), data...)
}

func TestParseTableRefuses(t *testing.T) {
	good := tableOf(t, [3]uint64{0, pageSize, 1})
	for name, table := range map[string][]byte{
		"nothing": nil,
		"cut":     good[:len(good)-1],
		"more":    append(bytes.Clone(good), 0),
		"order":   tableOf(t, [3]uint64{pageSize, 2 * pageSize, 1}, [3]uint64{0, pageSize, 1}),
		"overlap": tableOf(t, [3]uint64{0, 2 * pageSize, 1}, [3]uint64{pageSize, 3 * pageSize, 1}),
		"uneven":  tableOf(t, [3]uint64{0, 100, 1}),
		"huge":    tableOf(t, [3]uint64{0, 1 << 63, 1}),
	} {
		if _, _, err := parseTable(table, 0); !errors.Is(err, errTree) {
			t.Errorf("%s: %v, want %v", name, err, errTree)
		}
	}
}

// FuzzWriteTar looks for trees that panic or are read endlessly.
func FuzzWriteTar(f *testing.F) {
	f.Add(treeOf(f, regular("./f", 5, segment{0, pageSize, pageSize}), treeFile{tar.Header{Typeflag: tar.TypeChar, Name: "./a"}, ""}).Bytes(), tableOf(f, [3]uint64{0, pageSize, 1}))
	f.Add(treeOf(f, regular("./f", 1<<30, segment{1 << 29, 1<<29 + pageSize, 0})).Bytes(), tableOf(f))
	f.Fuzz(func(t *testing.T, tree, table []byte) {
		ranges, _, err := parseTable(table, 0)
		if err != nil {
			return
		}
		// A tree of entries with names only is as long as the output; a file adds what fits the
		// limit, and holes smaller than minHole.
		limit := int64(1 << 20)
		out := &counter{}
		err = writeTar(out, bytes.NewReader(tree), &keptPages{ranges: ranges, data: bytes.NewReader(pages(2))}, limit)
		if bound := limit + int64(len(tree)+1024)*(minHole/8); out.n > bound {
			t.Errorf("%d bytes of %d: %v", out.n, len(tree), err)
		}
	})
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) { c.n += int64(len(p)); return len(p), nil }
