package apply

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// entry is a header with its content.
type entry struct {
	tar.Header
	content string
}

func head(typeflag byte, name string) entry {
	return entry{Header: tar.Header{
		Typeflag: typeflag, Name: name, Mode: 0o755, Uid: os.Getuid(), Gid: os.Getgid(), ModTime: time.Unix(1e9, 0), Format: tar.FormatPAX,
	}}
}

func file(name, content string) entry { e := head(tar.TypeReg, name); e.content = content; return e }

func link(typeflag byte, name, target string) entry {
	e := head(typeflag, name)
	e.Linkname = target
	return e
}

func remove(name string) entry {
	e := head(tar.TypeReg, name)
	e.PAXRecords = map[string]string{RecordRemove: "1"}
	return e
}

func commit() entry {
	e := head(tar.TypeDir, "./")
	e.PAXRecords = map[string]string{RecordCommit: "1"}
	return e
}

func stream(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		e.Size = int64(len(e.content))
		if err := tw.WriteHeader(&e.Header); err != nil {
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

// sample makes a root directory to apply streams to.
func sample(t testing.TB) *os.File {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"etc", "usr", "usr/lib", "outside"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"etc/hosts": "hosts", "etc/motd": "motd", "usr/lib/a": "a", "usr/lib/b": "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("outside", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// list describes all files in a directory.
func list(t testing.TB, root *os.File) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root.Name(), func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(name, root.Name())
		fmt.Fprintf(&b, "%s %s", rel, info.Mode())
		switch {
		case info.Mode().IsRegular():
			if info.Size() > 1<<20 { // a file with holes may be of any size
				fmt.Fprintf(&b, " %d bytes", info.Size())
				break
			}
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d %q", info.Sys().(*syscall.Stat_t).Nlink, content)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", target)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestApply(t *testing.T) {
	root := sample(t)
	setuid := file("./usr/new/tool", "tool")
	setuid.Mode = 0o4755
	etc := head(tar.TypeDir, "./etc/")
	etc.Mode = 0o700
	err := Apply(t.Context(), root, bytes.NewReader(stream(t,
		remove("./usr/lib"), remove("./etc/motd"), remove("./never"),
		etc, head(tar.TypeDir, "./usr/new/"),
		file("./etc/hosts", "changed"), setuid, link(tar.TypeLink, "./usr/new/hard", "./usr/new/tool"),
		link(tar.TypeSymlink, "./link", "/etc"), head(tar.TypeFifo, "./usr/lib"), commit(),
	)))
	if err != nil {
		t.Fatal(err)
	}
	want := ` drwx------
/etc drwx------
/etc/hosts -rwxr-xr-x 1 "changed"
/link Lrwxrwxrwx "/etc"
/outside drwxr-xr-x
/usr drwxr-xr-x
/usr/lib prwxr-xr-x
/usr/new drwxr-xr-x
/usr/new/hard urwxr-xr-x 2 "tool"
/usr/new/tool urwxr-xr-x 2 "tool"
`
	if diff := cmp.Diff(want, list(t, root)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, name := range []string{"etc", "etc/hosts", "usr/new", "usr/lib"} {
		info, err := os.Lstat(filepath.Join(root.Name(), name))
		if err != nil || !info.ModTime().Equal(time.Unix(1e9, 0)) {
			t.Errorf("%s is of %v, %v", name, info.ModTime(), err)
		}
	}
}

// sparse is a file with holes. The content has pages, each after its offset.
func sparse(name, size, content string) entry {
	e := head(TypeSparse, name)
	e.PAXRecords, e.content = map[string]string{RecordSize: size}, content
	return e
}

func page(at uint64, content string) string {
	return string(binary.LittleEndian.AppendUint64(nil, at)) + content
}

func TestApplySparse(t *testing.T) {
	root := sample(t)
	full, hole := strings.Repeat("x", PageSize), strings.Repeat("\x00", PageSize)
	contents := map[string]string{"first": full + hole, "last": hole + hole + "end", "together": full + full + hole + full + "x", "hole": hole + "\x00", "empty": ""}
	err := Apply(t.Context(), root, bytes.NewReader(stream(t,
		sparse("./first", "8192", page(0, full)), sparse("./last", "8195", page(8192, "end")),
		sparse("./together", "16385", page(0, full)+page(4096, full)+page(12288, full)+page(16384, "x")),
		sparse("./hole", "4097", ""), sparse("./empty", "0", ""), sparse("./large", "1099511627776", page(1<<39, full)),
		link(tar.TypeLink, "./hard", "./first"), commit(),
	)))
	if err != nil {
		t.Fatal(err)
	}
	contents["hard"] = contents["first"]
	for name, want := range contents {
		if got := must(os.ReadFile(filepath.Join(root.Name(), name))); string(got) != want {
			t.Errorf("%s has %d bytes: %q", name, len(got), got)
		}
	}
	info := must(os.Stat(filepath.Join(root.Name(), "large")))
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || info.Size() != 1<<40 || st.Blocks*512 > 1<<20 {
		t.Errorf("a file of a page in a TiB: %+v", info.Sys())
	}
}

func TestApplyRefusesSparse(t *testing.T) {
	full := strings.Repeat("x", PageSize)
	for name, e := range map[string]entry{
		"no size":              sparse("./f", "", ""),
		"negative size":        sparse("./f", "-1", ""),
		"page twice":           sparse("./f", "9000", page(4096, full)+page(4096, full)),
		"pages out of order":   sparse("./f", "9000", page(4096, full)+page(0, full)),
		"page between pages":   sparse("./f", "9000", page(1, full)),
		"page at the end":      sparse("./f", "4096", page(4096, "")),
		"page beyond the end":  sparse("./f", "4096", page(8192, full)),
		"page at no offset":    sparse("./f", "4096", page(1<<63, full)),
		"part of an offset":    sparse("./f", "4096", "1234567"),
		"page that is cut":     sparse("./f", "4096", page(0, full[1:])),
		"offset without page":  sparse("./f", "4096", page(0, "")),
		"more than the page":   sparse("./f", "3", page(0, "four")),
		"size with other text": sparse("./f", "1 MiB", ""),
	} {
		t.Run(name, func(t *testing.T) {
			root := sample(t)
			before := list(t, root)
			if err := Apply(t.Context(), root, bytes.NewReader(stream(t, e, commit()))); !errors.Is(err, ErrStream) {
				t.Errorf("got %v", err)
			}
			if diff := cmp.Diff(before, list(t, root)); diff != "" {
				t.Errorf("it changed:\n%s", diff)
			}
		})
	}
}

// TestApplyIsAllOrNothing applies streams that fail at their end, after steps that have to
// be undone, and checks that they leave nothing behind.
func TestApplyIsAllOrNothing(t *testing.T) {
	etc := head(tar.TypeDir, "./etc/")
	etc.Mode = 0o700
	good := []entry{
		remove("./usr/lib/a"), remove("./usr/lib"), etc, head(tar.TypeDir, "./usr/lib/"), head(tar.TypeDir, "./new/"),
		file("./usr/lib/x", "x"), file("./new/f", "f"), file("./etc/hosts", "changed"), link(tar.TypeSymlink, "./etc/motd", "x"),
	}
	root := link(tar.TypeSymlink, ".", "x")
	tests := []struct {
		name string
		last []entry
		cut  int
		// malformed is set if the stream is at fault.
		malformed bool
	}{
		{name: "through a symbolic link", last: []entry{file("./link/f", "f"), commit()}},
		{name: "removing through a symbolic link", last: []entry{remove("./link/f"), commit()}},
		{name: "through a symbolic link of the stream", last: []entry{link(tar.TypeSymlink, "./s", "etc"), file("./s/f", "f"), commit()}},
		{name: "no directory", last: []entry{file("./nothing/f", "f"), commit()}},
		{name: "below a file", last: []entry{file("./etc/hosts/f", "f"), commit()}},
		{name: "over a directory", last: []entry{file("./outside", "f"), commit()}},
		{name: "hard link to the outside", malformed: true, last: []entry{link(tar.TypeLink, "./l", "./etc/hostname"), commit()}},
		{name: "climbing", malformed: true, last: []entry{file("./../f", "f"), commit()}},
		{name: "climbing link", malformed: true, last: []entry{link(tar.TypeLink, "./l", "./../f"), commit()}},
		{name: "absolute", malformed: true, last: []entry{file("/f", "f"), commit()}},
		{name: "into the staging directory", malformed: true, last: []entry{file("./.cove-merge-x", "f"), commit()}},
		{name: "the root", malformed: true, last: []entry{root, commit()}},
		{name: "removing the root", malformed: true, last: []entry{remove("."), commit()}},
		{name: "unknown type", malformed: true, last: []entry{head('7', "./x"), commit()}},
		{name: "no commit", malformed: true},
		{name: "after the commit", malformed: true, last: []entry{commit(), file("./f", "f")}},
		{name: "cut", malformed: true, last: []entry{file("./f", strings.Repeat("f", 4096)), commit()}, cut: 5000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := sample(t)
			before := list(t, r)
			b := stream(t, append(good[:len(good):len(good)], tt.last...)...)
			if err := Apply(t.Context(), r, bytes.NewReader(b[:len(b)-tt.cut])); err == nil || errors.Is(err, ErrStream) != tt.malformed {
				t.Errorf("got %v, malformed %v", err, tt.malformed)
			}
			if diff := cmp.Diff(before, list(t, r)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
	r := sample(t)
	if err := Apply(t.Context(), r, bytes.NewReader(stream(t, append(good, commit())...))); err != nil {
		t.Errorf("without the last entry: %v", err)
	}
}

// TestRecover checks that a crash at or in the middle of any step is undone.
func TestRecover(t *testing.T) {
	etc := head(tar.TypeDir, "./etc/")
	etc.Mode = 0o700
	b := stream(t,
		remove("./usr/lib"), etc, head(tar.TypeDir, "./new/"), file("./new/\xff", "f"), file("./etc/hosts", "changed"),
		link(tar.TypeSymlink, "./etc/motd", "x"), file("./usr/lib", "x"), commit(),
	)
	const steps = 7
	for n := range steps + 1 {
		for _, half := range []bool{false, true} {
			root := sample(t)
			before := list(t, root)
			s, err := newStage(int(root.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.read(t.Context(), bytes.NewReader(b)); err != nil {
				t.Fatal(err)
			}
			log := json.NewEncoder(s.journal)
			for i := range n {
				if err := s.do(&s.steps[i], log); err != nil {
					t.Fatal(err)
				}
			}
			if half && n < steps {
				st := &s.steps[n]
				dir, name, err := parent(s.root, st.Name)
				if err != nil {
					t.Fatal(err)
				}
				if err := log.Encode(st); err != nil {
					t.Fatal(err)
				}
				if now, err := lstat(dir, name); err != nil || now != nil && !isDir(now) && s.putAside(st, dir, name) != nil {
					t.Fatal(err)
				}
				syscall.Close(dir)
			}
			// The program is gone.
			s.journal.Close()
			for _, fd := range []int{s.fd, s.newFD, s.oldFD} {
				syscall.Close(fd)
			}
			if err := Recover(root); err != nil {
				t.Fatalf("after %d steps: %v", n, err)
			}
			if diff := cmp.Diff(before, list(t, root)); diff != "" {
				t.Errorf("after %d steps, half another: %v (-before +after):\n%s", n, half, diff)
			}
		}
	}
}

// TestOpenDirFollowsNothing checks that a symbolic link is never opened as a directory,
// which gVisor handles in its own way.
func TestOpenDirFollowsNothing(t *testing.T) {
	root := sample(t)
	for name, open := range map[string]func(int, string) (int, error){"OpenDir": OpenDir, "pathDir": pathDir} {
		if fd, err := open(int(root.Fd()), "link"); err == nil {
			syscall.Close(fd)
			t.Errorf("%s followed a symbolic link", name)
		}
		fd, err := open(int(root.Fd()), "etc")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		syscall.Close(fd)
	}
}

// TestRecoverLeavesOthers checks that a directory which only has the name of a staging
// directory is kept.
func TestRecoverLeavesOthers(t *testing.T) {
	root := sample(t)
	if err := os.WriteFile(filepath.Join(root.Name(), StagingPrefix+"file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root.Name(), StagingPrefix+"open"), 0o755); err != nil {
		t.Fatal(err)
	}
	before := list(t, root)
	if err := Recover(root); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, list(t, root)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// FuzzApply checks that Apply stays within its directory and does all or nothing, whatever
// the stream.
func FuzzApply(f *testing.F) {
	etc := head(tar.TypeDir, "./etc/")
	f.Add(stream(f, remove("./usr/lib"), etc, file("./etc/hosts", "x"), commit()))
	f.Add(stream(f, head(tar.TypeDir, "./new/"), file("./new/a", "x"), link(tar.TypeLink, "./new/b", "./new/a"), commit()))
	f.Add(stream(f, link(tar.TypeSymlink, "./s", "../.."), file("./s/f", "x"), commit()))
	f.Add(stream(f, file("./link/f", "x"), commit()))
	f.Add(stream(f, sparse("./f", "9000", page(4096, strings.Repeat("x", PageSize))+page(8192, strings.Repeat("y", 808))), commit()))
	f.Fuzz(func(t *testing.T, b []byte) {
		root := sample(t)
		before := list(t, root)
		err := Apply(t.Context(), root, bytes.NewReader(b))
		after := list(t, root)
		if err != nil && before != after {
			t.Errorf("it failed, and changed:\n%s", cmp.Diff(before, after))
		}
		if strings.Contains(after, "/"+StagingPrefix) {
			t.Errorf("the staging directory is left:\n%s", after)
		}
		if dir := filepath.Dir(root.Name()); len(must(os.ReadDir(dir))) != 1 {
			t.Error("something was made outside the root")
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestRemoveAll checks that nothing is removed through a link that replaces a directory.
func TestRemoveAll(t *testing.T) {
	root := sample(t)
	for _, name := range []string{"usr", "link", "etc/motd", "nothing"} {
		if err := RemoveAll(int(root.Fd()), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(root.Name(), "outside", "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// A link in the directory is removed, not its target.
	if err := os.Symlink("../outside", filepath.Join(root.Name(), "etc", "link")); err != nil {
		t.Fatal(err)
	}
	if err := RemoveAll(int(root.Fd()), "etc"); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(" drwx------\n/outside drwxr-xr-x\n/outside/f -rw------- 1 \"\"\n", list(t, root)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
