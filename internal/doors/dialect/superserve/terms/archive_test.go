package terms

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// archiveOf returns a zip file of entries with these names; the content of each is its
// name.
func archiveOf(t *testing.T, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range names {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(f, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func rearchived(data []byte) (string, error) {
	var b bytes.Buffer
	err := Rearchive(&b, "/a/dir", bytes.NewReader(data), int64(len(data)))
	return b.String(), err
}

func TestRearchive(t *testing.T) {
	out, err := rearchived(archiveOf(t, "x", "y/z"))
	if err != nil {
		t.Fatal(err)
	}
	in, err := zip.NewReader(strings.NewReader(out), int64(len(out)))
	if err != nil || len(in.File) != 2 || in.File[1].Name != "dir/y/z" {
		t.Fatalf("%v, %v", in.File, err)
	}
}

// TestRearchiveHostile reads archives that a program running as the agent has made: the
// directory takes no more memory than allowed, and overlapping entries do not make the
// answer endless.
func TestRearchiveHostile(t *testing.T) {
	const end = 22 // bytes of the record at the end
	many := archiveOf(t, "x")
	binary.LittleEndian.PutUint32(many[len(many)-end+12:], maxDirectory+1)
	_, err := rearchived(many)
	if sandbox.CodeOf(err) != sandbox.CodeTooLarge {
		t.Errorf("a directory that is too large: %v", err)
	}

	var large bytes.Buffer // 65,536 files or more: the end record is ZIP64's
	w := zip.NewWriter(&large)
	for i := range 70_000 {
		if _, err := w.CreateHeader(&zip.FileHeader{Name: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := rearchived(large.Bytes()); err != nil {
		t.Errorf("70,000 files: %v", err)
	}

	overlapping := archiveOf(t, strings.Repeat("x", 200))
	at := bytes.LastIndex(overlapping, []byte("PK\x01\x02"))
	entry := overlapping[at : len(overlapping)-end]
	forged := append(bytes.Clone(overlapping[:at]), bytes.Repeat(entry, 9)...)
	last := bytes.Clone(overlapping[len(overlapping)-end:])
	binary.LittleEndian.PutUint16(last[8:], 9)
	binary.LittleEndian.PutUint16(last[10:], 9)
	binary.LittleEndian.PutUint32(last[12:], uint32(9*len(entry)))
	forged = append(forged, last...)
	binary.LittleEndian.PutUint32(forged[at+20:], uint32(len(forged))) // the size of the first
	if _, err := rearchived(forged); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("entries that are larger than the archive: %v", err)
	}

	for n := range 60 {
		data := archiveOf(t, "x")
		_, _ = rearchived(data[:len(data)-n])
		_, _ = rearchived(data[n:])
		_, _ = rearchived(append(data[:len(data)-end:len(data)-end], bytes.Repeat([]byte{0xff}, n)...))
	}
}
