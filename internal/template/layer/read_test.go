package layer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cove-sh/cove/internal/template/layer/apply"
	"github.com/cove-sh/cove/sandbox"
)

// entry is a header with its content.
type entry struct {
	tar.Header
	content string
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		h := e.Header
		h.Size = int64(len(e.content))
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// writeAll writes a tree as a layer that shows all of the template besides.
func writeAll(t testing.TB, w io.Writer, tr tree) {
	t.Helper()
	o := overlay{tw: tar.NewWriter(w)}
	for _, p := range slices.Sorted(maps.Keys(tr)) {
		f := tr[p]
		h := &tar.Header{Name: "." + p, Mode: int64(f.mode), Typeflag: tar.TypeDir}
		if f.kind == KindFile {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(f.content))
		} else if p != "/" {
			h.Name += "/"
		}
		if err := o.tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(o.tw, f.content); err != nil && f.kind == KindFile {
			t.Fatal(err)
		}
	}
	if err := o.tw.Close(); err != nil {
		t.Fatal(err)
	}
}

func head(typeflag byte, name string) entry {
	return entry{Header: tar.Header{Typeflag: typeflag, Name: name, Mode: 0o755}}
}

var rootEntry = head(tar.TypeDir, "./")

func TestRead(t *testing.T) {
	link := head(tar.TypeLink, "./d/hard")
	link.Linkname = "./d/f"
	device := head(tar.TypeBlock, "./d/dev")
	device.Devmajor, device.Devminor = 8, 1
	opaque := head(tar.TypeDir, "./d/")
	opaque.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}
	setuid := entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: "./d/f", Mode: 0o4755, Uid: 1 << 31, Gid: 5}, content: "text"}
	stream := tarOf(t, rootEntry, opaque, setuid, link, device, head(tar.TypeChar, "./gone"), head(tar.TypeFifo, "./d/p"))
	l, err := Read(t.Context(), bytes.NewReader(stream), ReadOptions{Keep: func(p string) bool { return p == "/d/f" }})
	if err != nil {
		t.Fatal(err)
	}
	if l.entries != 7 || l.bytes != 4 {
		t.Errorf("%d entries, %d bytes", l.entries, l.bytes)
	}
	if e := l.Entry("/d"); e == nil || !e.Opaque || e.Kind != KindDirectory {
		t.Errorf("directory: %+v", e)
	}
	f := l.Entry("/d/f")
	if f == nil || f.Mode != 0o4755 || f.UID != 1<<31 || f.GID != 5 || f.Size != 4 || f != l.Entry("/d/hard") {
		t.Errorf("file: %+v, link: %+v", f, l.Entry("/d/hard"))
	}
	if e := l.Entry("/d/hard"); !e.kept || string(e.content) != "text" {
		t.Errorf("content %q, %v", e.content, e.kept)
	}
	if e := l.Entry("/d/dev"); e == nil || e.Kind != KindBlockDevice || e.Major != 8 || e.Minor != 1 {
		t.Errorf("device: %+v", e)
	}
	if e := l.Entry("/gone"); e == nil || e.Kind != KindWhiteout {
		t.Errorf("whiteout: %+v", e)
	}
	if e := l.Entry("/d/p"); e == nil || e.Kind != KindFIFO {
		t.Errorf("pipe: %+v", e)
	}
	if e := l.Entry("/d/other"); e != nil {
		t.Errorf("nothing: %+v", e)
	}
}

// TestReadOfGVisor reads gvisor.tar.gz, which gVisor wrote after these commands, as root,
// above a Debian template:
//
//	mkdir -p t/sub/ümläut; echo hi >t/a; ln t/a t/b; ln -s a t/l; mkfifo t/p
//	chown 7:8 t/p; chmod 4755 t/a; chmod 600 /etc/passwd; mv /etc/skel /etc/skel2
//	rm -rf /etc/profile.d; mkdir /etc/profile.d; echo x >/etc/profile.d/new
//
// It also had a socket, and files that were made and removed again.
func TestReadOfGVisor(t *testing.T) {
	f, err := os.Open("testdata/gvisor.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Read(t.Context(), z, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]Entry{
		"/":                                 {Kind: KindDirectory, Mode: 0o755},
		"/etc/passwd":                       {Kind: KindFile, Mode: 0o600, Size: 397},
		"/etc/skel":                         {Kind: KindWhiteout},
		"/etc/skel2":                        {Kind: KindDirectory, Mode: 0o755, Opaque: true},
		"/etc/profile.d":                    {Kind: KindDirectory, Mode: 0o755, Opaque: true},
		"/etc/profile.d/new":                {Kind: KindFile, Mode: 0o644, Size: 2},
		"/workspace":                        {Kind: KindDirectory, Mode: 0o755, UID: 1000, GID: 1000},
		"/workspace/t/a":                    {Kind: KindFile, Mode: 0o4755, Size: 3},
		"/workspace/t/l":                    {Kind: KindSymlink, Mode: 0o777, Target: "a"},
		"/workspace/t/p":                    {Kind: KindFIFO, Mode: 0o644, UID: 7, GID: 8},
		"/workspace/t/sub/\u00fcml\u00e4ut": {Kind: KindDirectory, Mode: 0o755},
		// Whiteouts are hard links to each other.
		"/workspace/.cove-rhw6zeuhrdvmaa26eusgdo2xqv.tmp": {Kind: KindWhiteout},
	} {
		got := l.Entry(p)
		if got == nil {
			t.Errorf("%s is not there", p)
			continue
		}
		ignore := cmpopts.IgnoreFields(Entry{}, "ModTime")
		if diff := cmp.Diff(want, *got, ignore, cmpopts.IgnoreUnexported(Entry{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", p, diff)
		}
	}
	if l.Entry("/workspace/t/a") != l.Entry("/workspace/t/b") {
		t.Error("a hard link became a separate file")
	}
}

// TestReadRefuses reads streams of a hostile sandbox, which must all be refused.
func TestReadRefuses(t *testing.T) {
	file := func(name, content string) entry { e := head(tar.TypeReg, name); e.content = content; return e }
	link := func(name, target string) entry { e := head(tar.TypeLink, name); e.Linkname = target; return e }
	deep := []entry{rootEntry}
	for i := range MaxDepth + 1 {
		deep = append(deep, head(tar.TypeDir, "./"+strings.Repeat("d/", i+1)))
	}
	whole := tarOf(t, rootEntry, file("./f", "text"))
	tests := []struct {
		name   string
		stream []byte
		opts   ReadOptions
		code   sandbox.Code
	}{
		{name: "nothing"},
		{name: "no tar", stream: bytes.Repeat([]byte("x"), 1024)},
		{name: "cut in an entry", stream: whole[:1030]},
		{name: "cut after an entry", stream: whole[:1536]},
		{name: "cut in the end marker", stream: whole[:1536+512]},
		{name: "climbing", stream: tarOf(t, rootEntry, file("./../f", ""))},
		{name: "climbing without a prefix", stream: tarOf(t, rootEntry, file("../f", ""))},
		{name: "absolute", stream: tarOf(t, rootEntry, file("/etc/f", ""))},
		{name: "empty part", stream: tarOf(t, rootEntry, head(tar.TypeDir, "./d/"), file("./d//f", ""))},
		{name: "dot", stream: tarOf(t, rootEntry, file("./.", ""))},
		{name: "twice", stream: tarOf(t, rootEntry, file("./f", "a"), file("./f", "b"))},
		{name: "two roots", stream: tarOf(t, rootEntry, rootEntry)},
		{name: "no root", stream: tarOf(t, file("./f", ""))},
		{name: "no directory", stream: tarOf(t, rootEntry, file("./d/f", ""))},
		{name: "below a file", stream: tarOf(t, rootEntry, file("./d", ""), file("./d/f", ""))},
		{name: "below a whiteout", stream: tarOf(t, rootEntry, head(tar.TypeChar, "./d"), file("./d/f", ""))},
		{name: "link to nothing", stream: tarOf(t, rootEntry, link("./l", "./f"))},
		{name: "link to itself", stream: tarOf(t, rootEntry, link("./l", "./l"))},
		{name: "link to a directory", stream: tarOf(t, rootEntry, head(tar.TypeDir, "./d/"), link("./l", "./d"))},
		{name: "link outwards", stream: tarOf(t, rootEntry, link("./l", "../../etc/passwd"))},
		{name: "symbolic link to nowhere", stream: tarOf(t, rootEntry, head(tar.TypeSymlink, "./l"))},
		{name: "unknown type", stream: tarOf(t, rootEntry, head('7', "./l"))},
		{name: "owner out of range", stream: tarOf(t, rootEntry, entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: "./f", Uid: 1 << 33}})},
		{name: "too deep", stream: tarOf(t, deep...), code: sandbox.CodeTooLarge},
		{name: "long name", stream: tarOf(t, rootEntry, file("./"+strings.Repeat("n", 256), "")), code: sandbox.CodeTooLarge},
		{name: "long path", stream: tarOf(t, rootEntry, file("./"+strings.Repeat("n/", 2100)+"n", "")), code: sandbox.CodeTooLarge},
		{name: "too many", stream: tarOf(t, rootEntry, file("./a", ""), file("./b", "")), opts: ReadOptions{MaxEntries: 2}, code: sandbox.CodeTooLarge},
		{name: "too large", stream: tarOf(t, rootEntry, file("./a", "123"), file("./b", "45")), opts: ReadOptions{MaxContentBytes: 4}, code: sandbox.CodeTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read(t.Context(), bytes.NewReader(tt.stream), tt.opts)
			if err == nil {
				t.Fatal("it was taken")
			}
			want := tt.code
			if want == "" {
				want = sandbox.CodeInternal
			}
			if got := sandbox.CodeOf(err); got != want {
				t.Errorf("code %s, want %s: %v", got, want, err)
			}
		})
	}
}

// sparseTar returns a stream with a file of a size that holds data at the end of a hole, in
// the format PAX sparse 1.0.
func sparseTar(t testing.TB, size int64, data string) []byte {
	e := head(tar.TypeReg, "./f")
	e.PAXRecords = map[string]string{"XYZ.sparse.major": "1", "XYZ.sparse.minor": "0", "XYZ.sparse.realsize": fmt.Sprint(size)}
	table := fmt.Sprintf("1\n%d\n%d\n", size-int64(len(data)), len(data))
	e.content = table + strings.Repeat("\x00", 512-len(table)) + data
	return bytes.ReplaceAll(tarOf(t, rootEntry, e), []byte("XYZ.sparse"), []byte("GNU.sparse"))
}

// TestReadSparse checks that a hole and zeros are the same content, and other content is
// not.
func TestReadSparse(t *testing.T) {
	const size = 5*apply.PageSize/2 + 7
	read := func(stream []byte) *Entry {
		t.Helper()
		l, err := Read(t.Context(), bytes.NewReader(stream), ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return l.Entry("/f")
	}
	plain := func(content string) *Entry {
		e := head(tar.TypeReg, "./f")
		e.content = content
		return read(tarOf(t, rootEntry, e))
	}
	hole := strings.Repeat("\x00", size-4)
	sparse := read(sparseTar(t, size, "data"))
	if same := plain(hole + "data"); sparse.Size != size || sparse.hash != same.hash {
		t.Errorf("a file with a hole is %+v, and with zeros %+v", sparse, same)
	}
	for what, content := range map[string]string{
		"all zeros":        hole + "\x00\x00\x00\x00",
		"other data":       hole + "date",
		"data of the hole": hole[:apply.PageSize-1] + "x" + hole[apply.PageSize:] + "data",
	} {
		if other := plain(content); other.hash == sparse.hash {
			t.Errorf("%s has the hash of %q after a hole", what, "data")
		}
	}
	// The same data in another part of the file.
	first := plain("data" + strings.Repeat("\x00", 2*apply.PageSize))
	if second := plain(strings.Repeat("\x00", apply.PageSize) + "data" + strings.Repeat("\x00", apply.PageSize)); first.hash == second.hash {
		t.Error("data at two offsets have one hash")
	}
}

// TestReadBoundsSparse refuses sparse files of a petabyte, or together larger than the
// limit: they take a few bytes of stream and days to read.
func TestReadBoundsSparse(t *testing.T) {
	for _, size := range []int64{1 << 50, MaxSparseBytes + 1} {
		if _, err := Read(t.Context(), bytes.NewReader(sparseTar(t, size, "data")), ReadOptions{}); sandbox.CodeOf(err) != sandbox.CodeTooLarge {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if _, err := Read(t.Context(), bytes.NewReader(sparseTar(t, 1001, "data")), ReadOptions{MaxSparseBytes: 1000}); sandbox.CodeOf(err) != sandbox.CodeTooLarge {
		t.Error(err)
	}
}

func BenchmarkReadSparse(b *testing.B) {
	const size = 1 << 30
	stream := sparseTar(b, size, "data")
	b.SetBytes(size)
	for b.Loop() {
		if _, err := Read(b.Context(), bytes.NewReader(stream), ReadOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestReadKeeps checks that contents are kept up to a budget, and only if they are text.
func TestReadKeeps(t *testing.T) {
	file := func(name, content string) entry { e := head(tar.TypeReg, name); e.content = content; return e }
	stream := tarOf(t, rootEntry, file("./a", "1234"), file("./bin", "\x00"), file("./c", "123456"), file("./d", "12"))
	l, err := Read(t.Context(), bytes.NewReader(stream), ReadOptions{Keep: func(string) bool { return true }, KeepBytes: 6})
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]bool{"/a": true, "/bin": false, "/c": false, "/d": true} {
		if kept := l.Entry(p).kept; kept != want {
			t.Errorf("%s kept: %v, want %v", p, kept, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	rng := newRand(7)
	for range 5 {
		low := randomTree(rng)
		f.Add(layerTar(f, rng, low, randomTree(rng)))
	}
	l := head(tar.TypeLink, "./l")
	l.Linkname = "./f"
	f.Add(tarOf(f, rootEntry, head(tar.TypeReg, "./f"), l))
	f.Fuzz(func(t *testing.T, b []byte) {
		layer, err := Read(t.Context(), bytes.NewReader(b), ReadOptions{MaxEntries: 1000, MaxContentBytes: 1 << 20, Keep: func(string) bool { return true }})
		if err != nil {
			return
		}
		low := treeLower(base)
		d := mustCompare(t, View{Lower: low}, View{Lower: low, Layer: layer}, CompareOptions{Patch: true})
		for _, ch := range d.Changes {
			if !strings.HasPrefix(ch.Path, "/") || strings.Contains(ch.Path, "/../") {
				t.Errorf("a change at %q", ch.Path)
			}
		}
		if d := mustCompare(t, View{Lower: low, Layer: layer}, View{Lower: low, Layer: layer}, CompareOptions{}); len(d.Changes) != 0 {
			t.Errorf("it differs from itself: %+v", d.Changes)
		}
	})
}
