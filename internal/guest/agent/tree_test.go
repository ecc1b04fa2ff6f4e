package agent

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

func TestMakeDir(t *testing.T) {
	s := start(t)
	s.mustPut(t, "file", "")
	mk := func(path string, mode uint32, parents bool) error {
		_, err := s.MakeDir(t.Context(), connect.NewRequest(&agentv1.MakeDirRequest{Path: path, Mode: mode, Parents: parents}))
		return err
	}
	if err := mk("d", 0o1777, false); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(s.dir + "/d"); err != nil || fi.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("d: %v, %v", fi.Mode(), err)
	}
	wantCode(t, mk("d", 0, false), connect.CodeAlreadyExists, "")
	wantCode(t, mk("x/y", 0, false), connect.CodeNotFound, "")
	wantCode(t, mk("file", 0, true), connect.CodeAlreadyExists, "")
	wantCode(t, mk("file/x", 0, true), connect.CodeInvalidArgument, "")
	for range 2 {
		if err := mk("x/y/z", 0, true); err != nil {
			t.Error(err)
		}
	}
	if err := mk("/", 0, true); err != nil {
		t.Error(err)
	}
	only := func(path string) error {
		_, err := s.MakeDir(t.Context(), connect.NewRequest(&agentv1.MakeDirRequest{Path: path, Parents: true, Exclusive: true, Owner: strconv.Itoa(os.Getuid())}))
		return err
	}
	if err := only("new/dir"); err != nil {
		t.Error(err)
	}
	wantCode(t, only("new/dir"), connect.CodeAlreadyExists, "")
}

func TestDelete(t *testing.T) {
	s := start(t)
	s.mustPut(t, "d/sub/f", "x")
	s.mustPut(t, "keep/f", "x")
	if err := os.Symlink("../../keep", s.dir+"/d/sub/link"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("keep", s.dir+"/link"); err != nil {
		t.Fatal(err)
	}
	rm := func(path string, recursive bool) error {
		_, err := s.Delete(t.Context(), connect.NewRequest(&agentv1.DeleteRequest{Path: path, Recursive: recursive}))
		return err
	}
	wantCode(t, rm("/", true), connect.CodeInvalidArgument, "root")
	wantCode(t, rm("../../../../../../../..", true), connect.CodeInvalidArgument, "root")
	wantCode(t, rm("none", true), connect.CodeNotFound, "none")
	wantCode(t, rm("d", false), connect.CodeFailedPrecondition, "recursively")
	for _, p := range []string{"d", "link"} {
		if err := rm(p, true); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(filepath.Join(s.dir, p)); !os.IsNotExist(err) {
			t.Errorf("%s is still there", p)
		}
	}
	if _, err := os.Stat(s.dir + "/keep/f"); err != nil {
		t.Error("a link was followed:", err)
	}
}

// TestSymlinkRace swaps a directory with a link to another while files are written to
// and deleted from it. Nothing behind the link may be deleted, and no temporary file
// may be left on either side.
func TestSymlinkRace(t *testing.T) {
	s := start(t)
	outside := t.TempDir()
	for i := range 50 {
		if err := os.MkdirAll(fmt.Sprintf("%s/d%d/e", outside, i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		link, real := s.dir+"/link", s.dir+"/tree/sub"
		_ = os.Symlink(outside, link)
		for ctx.Err() == nil {
			_ = os.MkdirAll(real+"/x/y", 0o755)
			_ = unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, real, unix.RENAME_EXCHANGE)
			_ = os.MkdirAll(s.dir+"/tree", 0o755)
			if fi, err := os.Lstat(link); err == nil && fi.IsDir() {
				_ = os.RemoveAll(link)
			}
			_ = os.Symlink(outside, link)
		}
	}()
	for i := range 300 {
		if i%2 == 0 {
			_, _ = s.put(t, &agentv1.WriteRequest_Header{Path: "tree/sub/f", MakeParents: true}, []byte("x"))
		} else {
			_, _ = s.Delete(t.Context(), connect.NewRequest(&agentv1.DeleteRequest{Path: "tree", Recursive: true}))
		}
	}
	cancel()
	<-swapped
	for i := range 50 {
		if _, err := os.Stat(fmt.Sprintf("%s/d%d/e", outside, i)); err != nil {
			t.Fatalf("deleting went through a link: %v", err)
		}
	}
	noLeftovers(t, outside)
	_ = filepath.WalkDir(s.dir, func(p string, _ os.DirEntry, err error) error {
		if err == nil && isTemp(filepath.Base(p)) {
			t.Errorf("temporary file %s is left", p)
		}
		return nil
	})
}

func TestMove(t *testing.T) {
	s := start(t)
	other, err := os.MkdirTemp("/dev/shm", "cove-agent-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(other) })
	mv := func(from, to string, overwrite bool) error {
		_, err := s.Move(t.Context(), connect.NewRequest(&agentv1.MoveRequest{From: from, To: to, Overwrite: overwrite}))
		return err
	}
	s.mustPut(t, "a", "A")
	s.mustPut(t, "b", "B")
	s.mustPut(t, "d/x", "X")
	wantCode(t, mv("a", "b", false), connect.CodeAlreadyExists, "")
	wantCode(t, mv("none", "c", false), connect.CodeNotFound, "none")
	wantCode(t, mv("a", "no/such", false), connect.CodeNotFound, "directory")
	wantCode(t, mv("d", "d/e", false), connect.CodeInvalidArgument, "into itself")
	wantCode(t, mv("a", "/", true), connect.CodeInvalidArgument, "root")
	wantCode(t, mv("a", "d", true), connect.CodeInvalidArgument, "")
	if err := mv("a", "b", true); err != nil {
		t.Error(err)
	}
	if got, _ := os.ReadFile(s.dir + "/b"); string(got) != "A" {
		t.Errorf("b holds %q", got)
	}
	// To another file system and back, with all that a tree can hold.
	when := time.Unix(1e9, 0)
	_ = os.Chmod(s.dir+"/d/x", 0o751)
	_ = os.Chtimes(s.dir+"/d/x", when, when)
	_ = os.Symlink("/nowhere", s.dir+"/d/link")
	_ = os.MkdirAll(s.dir+"/d/deep/er", 0o700)
	for _, step := range [][2]string{{"d", other + "/d"}, {other + "/d", "d2"}} {
		if err := mv(step[0], step[1], false); err != nil {
			t.Fatal(err)
		}
	}
	fi, err := os.Stat(s.dir + "/d2/x")
	if err != nil || fi.Mode() != 0o751 || !fi.ModTime().Equal(when) {
		t.Errorf("moved file: %v, %v", fi, err)
	}
	if l, err := os.Readlink(s.dir + "/d2/link"); l != "/nowhere" {
		t.Errorf("moved link: %q, %v", l, err)
	}
	if left, _ := os.ReadDir(other); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	// A tree that cannot be copied stays where it was.
	if err := unix.Mkfifo(s.dir+"/d2/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	wantCode(t, mv("d2", other+"/d", false), connect.CodeInvalidArgument, "fifo")
	if left, _ := os.ReadDir(other); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat(s.dir + "/d2/x"); err != nil {
		t.Error(err)
	}
}

func TestList(t *testing.T) {
	s := start(t)
	for _, f := range []string{"b/1", "b/2/x", "b/2/y", "b/3", "a", "c", "b.txt", "b/2/deep/z"} {
		s.mustPut(t, f, "x")
	}
	_ = os.Symlink("b", s.dir+"/link")
	_ = os.WriteFile(s.dir+"/bad\xff", nil, 0o644)
	all := []string{
		"a", "b", "b/1", "b/2", "b/2/deep", "b/2/x", "b/2/y", "b/3", "b.txt", "bad\uFFFD", "c", "link",
	}
	list := func(req *agentv1.ListRequest) (names []string, more bool) {
		res, err := s.List(t.Context(), connect.NewRequest(req))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range res.Msg.GetEntries() {
			names = append(names, strings.TrimPrefix(e.GetPath(), s.dir+"/"))
		}
		return names, res.Msg.GetMore()
	}
	got, more := list(&agentv1.ListRequest{Path: ".", Depth: 3})
	if diff := cmp.Diff(all, got); diff != "" || more {
		t.Errorf("whole (-want +got), more=%v:\n%s", more, diff)
	}
	got, _ = list(&agentv1.ListRequest{Path: "."})
	if diff := cmp.Diff([]string{"a", "b", "b.txt", "bad\uFFFD", "c", "link"}, got); diff != "" {
		t.Errorf("depth 1 (-want +got):\n%s", diff)
	}
	for limit := range int32(len(all) + 2) {
		if limit == 0 {
			continue
		}
		var got []string
		after := ""
		for {
			page, more := list(&agentv1.ListRequest{Path: ".", Depth: 3, Limit: limit, After: after})
			got = append(got, page...)
			if len(page) > int(limit) || more && len(page) == 0 {
				t.Fatalf("a page of %d entries with limit %d", len(page), limit)
			}
			if !more {
				break
			}
			after = filepath.Join(s.dir, page[len(page)-1])
		}
		if diff := cmp.Diff(all, got); diff != "" {
			t.Errorf("pages of %d (-want +got):\n%s", limit, diff)
		}
	}
	// After an entry that is gone, the listing continues with the next.
	got, _ = list(&agentv1.ListRequest{Path: ".", Depth: 3, After: s.dir + "/b/2/m/n"})
	if diff := cmp.Diff(all[5:], got); diff != "" {
		t.Errorf("after a gone entry (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		req  *agentv1.ListRequest
		code connect.Code
	}{
		{&agentv1.ListRequest{Path: "a"}, connect.CodeInvalidArgument},
		{&agentv1.ListRequest{Path: "none"}, connect.CodeNotFound},
		{&agentv1.ListRequest{Path: ".", Depth: -1}, connect.CodeInvalidArgument},
		{&agentv1.ListRequest{Path: ".", Depth: 33}, connect.CodeInvalidArgument},
		{&agentv1.ListRequest{Path: ".", Limit: -1}, connect.CodeInvalidArgument},
		{&agentv1.ListRequest{Path: ".", After: "/elsewhere"}, connect.CodeInvalidArgument},
	} {
		_, err := s.List(t.Context(), connect.NewRequest(tt.req))
		if connect.CodeOf(err) != tt.code {
			t.Errorf("%v: got %v, want %v", tt.req, err, tt.code)
		}
	}
}

func TestSmallestNames(t *testing.T) {
	dir := t.TempDir()
	var all []string
	for i := range 3000 {
		name := fmt.Sprintf("%x", i*7919%3000)
		all = append(all, name)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(all)
	i, _ := slices.BinarySearch(all, "7")
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	names, err := smallestNames(d, "7", 10)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range names {
		got = append(got, n.raw)
	}
	if diff := cmp.Diff(all[i:i+10], got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestArchive(t *testing.T) {
	s := start(t)
	s.mustPut(t, "d/a.txt", strings.Repeat("hello ", 100_000))
	s.mustPut(t, "d/sub/run.sh", "#!/bin/sh\n")
	s.mustPut(t, "secret", "no")
	_ = os.Chmod(s.dir+"/d/sub/run.sh", 0o755)
	_ = os.Mkdir(s.dir+"/d/empty", 0o755)
	when := time.Unix(1_500_000_000, 0)
	_ = os.Chtimes(s.dir+"/d/a.txt", when, when)
	_ = os.Symlink("../secret", s.dir+"/d/link")
	_ = unix.Mkfifo(s.dir+"/d/fifo", 0o600)
	archive := func(path string, limit int64) ([]byte, int64, error) {
		stream, err := s.Archive(t.Context(), connect.NewRequest(&agentv1.ArchiveRequest{Path: path, MaxBytes: limit}))
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		var data []byte
		skipped := int64(-1)
		for stream.Receive() {
			data = append(data, stream.Msg().GetData()...)
			if stream.Msg().GetEnd() {
				skipped = stream.Msg().GetSkipped()
			}
		}
		return data, skipped, stream.Err()
	}
	data, skipped, err := archive("d", 1<<20)
	if err != nil || skipped != 1 {
		t.Fatalf("skipped %d, %v", skipped, err)
	}
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[f.Name] = fmt.Sprint(f.Mode(), " ", len(content))
		if f.Name == "a.txt" && !f.Modified.Equal(when) {
			t.Errorf("modified: %v", f.Modified)
		}
	}
	want := map[string]string{
		"a.txt": "-rw-r--r-- 600000", "empty/": "drwxr-xr-x 0", "link": "Lrwxrwxrwx 9", "sub/": "drwxr-xr-x 0", "sub/run.sh": "-rwxr-xr-x 10",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	_, _, err = archive("d", 100)
	wantCode(t, err, connect.CodeResourceExhausted, "larger than 100 bytes")
	_, _, err = archive("secret", 0)
	wantCode(t, err, connect.CodeInvalidArgument, "not a directory")
	_, _, err = archive("none", 0)
	wantCode(t, err, connect.CodeNotFound, "none")
}

func TestWatch(t *testing.T) {
	s := start(t)
	s.mustPut(t, "old/f", "x")
	watch := func(path string, recursive bool) func(kind agentv1.WatchEvent_Kind, path string) {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := s.Watch(ctx, connect.NewRequest(&agentv1.WatchRequest{Path: path, Recursive: recursive}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cancel(); _ = stream.Close() })
		return func(kind agentv1.WatchEvent_Kind, path string) {
			t.Helper()
			for stream.Receive() {
				if ev := stream.Msg(); ev.GetKind() == kind && strings.TrimPrefix(ev.GetPath(), s.dir+"/") == path {
					return
				}
			}
			t.Fatalf("no %v of %q: %v", kind, path, stream.Err())
		}
	}
	if err := os.Symlink("old", s.dir+"/link"); err != nil {
		t.Fatal(err)
	}
	s.mustPut(t, "old/sub/f", "x")
	linked := watch("link", true)
	linked(agentv1.WatchEvent_KIND_READY, "")
	if err := os.WriteFile(s.dir+"/old/sub/f", []byte("y"), 0o644); err != nil {
		t.Fatal(err)
	}
	linked(agentv1.WatchEvent_KIND_MODIFIED, "link/sub/f")

	all := watch(".", true)
	all(agentv1.WatchEvent_KIND_READY, "")
	one := watch("old/f", false)
	one(agentv1.WatchEvent_KIND_READY, "")

	s.mustPut(t, "new/deep/er/f", "x") // directories made one after another
	all(agentv1.WatchEvent_KIND_CREATED, "new")
	all(agentv1.WatchEvent_KIND_CREATED, "new/deep")
	all(agentv1.WatchEvent_KIND_CREATED, "new/deep/er")
	all(agentv1.WatchEvent_KIND_CREATED, "new/deep/er/f")
	if err := os.WriteFile(s.dir+"/new/deep/er/f", []byte("y"), 0o644); err != nil {
		t.Fatal(err)
	}
	all(agentv1.WatchEvent_KIND_MODIFIED, "new/deep/er/f")
	// A file that the agent writes is reported as modified, although it is renamed into
	// place.
	s.mustPut(t, "new/other", "x")
	all(agentv1.WatchEvent_KIND_CREATED, "new/other")
	all(agentv1.WatchEvent_KIND_MODIFIED, "new/other")
	s.mustPut(t, "old/f", "replaced")
	one(agentv1.WatchEvent_KIND_MODIFIED, "old/f")
	if err := os.Chmod(s.dir+"/old/f", 0o600); err != nil {
		t.Fatal(err)
	}
	one(agentv1.WatchEvent_KIND_ATTRIBUTES, "old/f")
	if err := os.Rename(s.dir+"/old/f", s.dir+"/old/g"); err != nil {
		t.Fatal(err)
	}
	all(agentv1.WatchEvent_KIND_RENAMED, "old/f")
	all(agentv1.WatchEvent_KIND_CREATED, "old/g")
	if err := os.Remove(s.dir + "/old/g"); err != nil {
		t.Fatal(err)
	}
	all(agentv1.WatchEvent_KIND_DELETED, "old/g")

	stream, err := s.Watch(t.Context(), connect.NewRequest(&agentv1.WatchRequest{Path: "none"}))
	if err == nil {
		defer stream.Close()
		stream.Receive()
		err = stream.Err()
	}
	wantCode(t, err, connect.CodeNotFound, "none")
}
