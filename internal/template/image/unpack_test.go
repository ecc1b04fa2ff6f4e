package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func archive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := h.Uname // a test's shorthand for a file's content
		h.Uname = ""
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func dir(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name} }
func file(name, s string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Uname: s, Mode: 0o644}
}
func link(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}
func hard(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}

// unpackTo unpacks into a new directory beside a file that nothing may touch.
func unpackTo(t testing.TB, data []byte) (string, string, error) {
	t.Helper()
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "victim"), []byte("whole"), 0o644); err != nil {
		t.Fatal(err)
	}
	top := filepath.Join(outside, "root")
	if err := os.Mkdir(top, 0o755); err != nil {
		t.Fatal(err)
	}
	tr, err := newTree(top, false)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	tr.maxBytes, tr.maxEntries = 1<<20, 200
	t.Cleanup(func() { _ = removeTree(top) })
	digest := ""
	err = unpack(tr, bytes.NewReader(data), nil, nil)
	if err == nil {
		digest, err = tr.finish()
	}
	if b, rerr := os.ReadFile(filepath.Join(outside, "victim")); rerr != nil || string(b) != "whole" {
		t.Errorf("the file outside: %q, %v", b, rerr)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 2 {
		t.Errorf("files outside: %v", entries)
	}
	return top, digest, err
}

func TestUnpack(t *testing.T) {
	when := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	data := archive(t,
		dir("./"), dir("./usr/"), dir("./usr/bin"), link("./bin", "usr/bin"), link("./etc-link", "/etc"),
		tar.Header{Typeflag: tar.TypeReg, Name: "./usr/bin/sudo", Uname: "elf", Mode: 0o4755, ModTime: when},
		hard("./usr/bin/sudoedit", "./usr/bin/sudo"),
		tar.Header{Typeflag: tar.TypeDir, Name: "./closed", Mode: 0o500}, file("./closed/inside", "x"),
		tar.Header{Typeflag: tar.TypeDir, Name: "./home/user", Mode: 0o755, Uid: 1000, Gid: 1000},
		tar.Header{Typeflag: tar.TypeChar, Name: "./dev/null", Devmajor: 1, Devminor: 3},
		file("./twice", "old"), file("./twice", "new"),
		file("./missing/parents/are/made", "y"),
	)
	top, digest, err := unpackTo(t, data)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		".": "d", "usr": "d", "usr/bin": "d", "bin": "-> usr/bin", "etc-link": "-> /etc", "usr/bin/sudo": "f", "usr/bin/sudoedit": "f",
		"closed": "d", "closed/inside": "f", "home": "d", "home/user": "d", "twice": "f",
		"missing": "d", "missing/parents": "d", "missing/parents/are": "d", "missing/parents/are/made": "f",
	}
	if d := cmp.Diff(want, listTree(t, top)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	info, err := os.Stat(filepath.Join(top, "usr/bin/sudoedit"))
	if err != nil || info.Mode() != 0o755|fs.ModeSetuid || !info.ModTime().Equal(when) {
		t.Errorf("sudo: %v %v, %v", info.Mode(), info.ModTime(), err)
	}
	if info, _ := os.Stat(filepath.Join(top, "closed")); info.Mode().Perm() != 0o500 {
		t.Errorf("closed: %v", info.Mode())
	}
	if info, _ := os.Stat(filepath.Join(top, "home/user")); info.Mode().Perm() != 0o777 {
		t.Errorf("home of the user, who cannot own it: %v", info.Mode())
	}
	if b, _ := os.ReadFile(filepath.Join(top, "twice")); string(b) != "new" {
		t.Errorf("twice = %q", b)
	}
	if _, again, err := unpackTo(t, data); err != nil || again != digest {
		t.Errorf("digest %s, then %s, %v", digest, again, err)
	}
	if _, other, err := unpackTo(t, archive(t, file("a", "b"))); err != nil || other == digest {
		t.Errorf("other content, digest %s, %v", other, err)
	}
}

func TestUnpackRefuses(t *testing.T) {
	many := []tar.Header{}
	for i := range 300 {
		many = append(many, file(strings.Repeat("x", i%200+1)+strings.Repeat("y", i/200), ""))
	}
	tests := map[string][]tar.Header{
		"parent directory":         {file("../victim", "broken")},
		"parent directory inside":  {file("a/../../victim", "broken")},
		"through a link":           {link("out", ".."), file("out/victim", "broken")},
		"through an absolute link": {link("out", "/tmp"), file("out/victim", "broken")},
		"through a link to a link": {link("a", "b"), link("b", ".."), file("a/victim", "broken")},
		"directory through a link": {link("out", ".."), dir("out/new")},
		"directory over a link":    {link("out", ".."), dir("out"), file("out/victim", "broken")},
		"link over a directory":    {dir("d"), link("d", ".."), file("d/victim", "broken")},
		"hard link to the outside": {hard("v", "../victim"), file("v", "broken")},
		"hard link through a link": {link("out", ".."), hard("v", "out/victim")},
		"hard link to a link":      {link("l", "../victim"), hard("v", "l")},
		"hard link to nothing":     {hard("v", "nothing")},
		"hard link to itself":      {hard("v", "v")},
		"device":                   {tar.Header{Typeflag: tar.TypeBlock, Name: "disk", Devmajor: 8}},
		"pipe":                     {tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"}},
		"file as a parent":         {file("f", "x"), file("f/g", "y")},
		"file as the top":          {file(".", "")},
		"empty link":               {link("l", "")},
		"too deep":                 {file(strings.Repeat("d/", 200)+"f", "x")},
		"name too long":            {file(strings.Repeat("n", 300), "x")},
		"too many":                 many,
		"too large":                {file("big", strings.Repeat("x", 1<<20+1))},
		"too large together":       {file("a", strings.Repeat("x", 1<<19)), file("b", strings.Repeat("x", 1<<19)), file("c", "x")},
		"owner out of range":       {tar.Header{Typeflag: tar.TypeReg, Name: "f", Uid: 1 << 40}},
		"cut short":                nil,
	}
	for name, headers := range tests {
		t.Run(name, func(t *testing.T) {
			data := archive(t, headers...)
			if headers == nil {
				data = archive(t, file("f", strings.Repeat("x", 2000)))[:1500]
			}
			if _, _, err := unpackTo(t, data); err == nil {
				t.Error("an unneeded layer was unpacked")
			} else if headers != nil && !errors.Is(err, errHostile) {
				t.Errorf("error %v is not for a hostile archive", err)
			}
		})
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, dir("a"), file("a/b", "c"), link("l", "a"), hard("h", "a/b")))
	f.Add(archive(f, link("out", ".."), file("out/victim", "broken")))
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeChar, Name: "dev/x"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		top, _, err := unpackTo(t, data)
		if err != nil {
			return
		}
		for name, kind := range listTree(t, top) {
			if kind != "d" && kind != "f" && !strings.HasPrefix(kind, "-> ") {
				t.Errorf("%s is %s", name, kind)
			}
		}
	})
}
