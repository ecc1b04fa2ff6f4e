package envd

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	pb "github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/filesystempb"
	"github.com/cove-sh/cove/sandbox"
)

func (w *world) stat(t *testing.T, p string) (*pb.EntryInfo, error) {
	t.Helper()
	resp, err := w.fs.Stat(t.Context(), connect.NewRequest(&pb.StatRequest{Path: p}))
	if err != nil {
		return nil, err
	}
	return resp.Msg.GetEntry(), nil
}

func (w *world) mkdir(t *testing.T, p string) error {
	t.Helper()
	_, err := w.fs.MakeDir(t.Context(), connect.NewRequest(&pb.MakeDirRequest{Path: p}))
	return err
}

func TestEntries(t *testing.T) {
	w := newWorld(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/file", []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"link": "file", "dirlink": "sub", "nowhere": "none"} {
		if err := os.Symlink(target, dir+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]struct {
		kind        pb.FileType
		mode        uint32
		permissions string
		target      string
	}{
		"file":    {pb.FileType_FILE_TYPE_FILE, 0o640, "-rw-r-----", ""},
		"sub":     {pb.FileType_FILE_TYPE_DIRECTORY, 0o755, "drwxr-xr-x", ""},
		"link":    {pb.FileType_FILE_TYPE_FILE, 0o640, "Lrwxrwxrwx", dir + "/file"},
		"dirlink": {pb.FileType_FILE_TYPE_DIRECTORY, 0o755, "Lrwxrwxrwx", dir + "/sub"},
		"nowhere": {pb.FileType_FILE_TYPE_UNSPECIFIED, 0o777, "Lrwxrwxrwx", dir + "/nowhere"},
	} {
		e, err := w.stat(t, dir+"/./"+name)
		if err != nil {
			t.Fatal(err)
		}
		if e.GetName() != name || e.GetPath() != dir+"/"+name || e.GetType() != want.kind || e.GetMode() != want.mode || e.GetPermissions() != want.permissions ||
			e.GetSymlinkTarget() != want.target || e.GetOwner() == "" || e.GetGroup() == "" || e.GetModifiedTime().AsTime().IsZero() {
			t.Errorf("%s: %v", name, e)
		}
	}
	if e, err := w.stat(t, "/"); err != nil || e.GetName() != "/" || e.GetType() != pb.FileType_FILE_TYPE_DIRECTORY {
		t.Error(e, err)
	}
	_, err = w.stat(t, dir+"/none")
	wantCode(t, err, connect.CodeNotFound)
}

func TestDirectories(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	if err := w.mkdir(t, dir+"/a/b/c"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, w.mkdir(t, dir+"/a/b/c"), connect.CodeAlreadyExists)
	wantCode(t, w.mkdir(t, "/"), connect.CodeAlreadyExists)
	if err := os.WriteFile(dir+"/a/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantCode(t, w.mkdir(t, dir+"/a/file"), connect.CodeInvalidArgument)
	list := func(p string, depth uint32) (string, error) {
		resp, err := w.fs.ListDir(t.Context(), connect.NewRequest(&pb.ListDirRequest{Path: p, Depth: depth}))
		if err != nil {
			return "", err
		}
		var names []string
		for _, e := range resp.Msg.GetEntries() {
			names = append(names, strings.TrimPrefix(e.GetPath(), dir+"/"))
		}
		return strings.Join(names, " "), nil
	}
	for depth, want := range map[uint32]string{0: "a", 1: "a", 2: "a a/b a/file", 9: "a a/b a/b/c a/file"} {
		if got, err := list(dir, depth); got != want || err != nil {
			t.Errorf("depth %d: %q, %v", depth, got, err)
		}
	}
	_, err := list(dir+"/none", 1)
	wantCode(t, err, connect.CodeNotFound)
	_, err = list(dir+"/a/file", 1)
	wantCode(t, err, connect.CodeInvalidArgument)
	_, err = list(dir, sandbox.MaxListDepth+1)
	wantCode(t, err, connect.CodeInvalidArgument)

	move := func(from, to string) error {
		_, err := w.fs.Move(t.Context(), connect.NewRequest(&pb.MoveRequest{Source: from, Destination: to}))
		return err
	}
	if err := move(dir+"/a/file", dir+"/new/place/file"); err != nil {
		t.Error(err)
	}
	wantCode(t, move(dir+"/none", dir+"/other/none"), connect.CodeNotFound)
	if _, err := os.Stat(dir + "/other"); err == nil {
		t.Error("a move of nothing made a directory")
	}
	remove := func(p string) error {
		_, err := w.fs.Remove(t.Context(), connect.NewRequest(&pb.RemoveRequest{Path: p}))
		return err
	}
	for range 2 {
		if err := remove(dir + "/a"); err != nil {
			t.Error(err)
		}
	}
	wantCode(t, remove(""), connect.CodeInvalidArgument)
	wantCode(t, remove("/"), connect.CodeInvalidArgument)
}

// Attack: paths that lead elsewhere than they seem to, and invalid paths.
func TestPaths(t *testing.T) {
	for p, want := range map[string]string{
		"/a/../../etc": "/etc", "//x//y/": "/x/y", "x": "/home/user/x", "../../x": "/x", "~": "/home/user", "~/../a": "/home/a", "": "/srv", ".": "/home/user", "a~": "/home/user/a~",
	} {
		at := &account{p: &plane{}, box: &sandbox.Sandbox{WorkDir: "/srv/"}, home: "/home/user"}
		if got, err := at.resolve(t.Context(), p); got != want || err != nil {
			t.Errorf("%q is %q, %v", p, got, err)
		}
	}
	at := &account{p: &plane{}, box: &sandbox.Sandbox{}, home: "/home/user"}
	for _, p := range []string{"~root", "~root/x", "a\x00b", strings.Repeat("x", sandbox.MaxPathBytes+1)} {
		_, err := at.resolve(t.Context(), p)
		wantCode(t, err, connect.CodeInvalidArgument)
	}
}

func TestFindHome(t *testing.T) {
	passwd := "root:x:0:0:root:/root:/bin/sh\n# user:x:1:1::/no:\nuser:x:1000:1000::/home/user/../user:/bin/bash\r\nodd:x:7:7::relative:/bin/sh\nshort:x:1\n:x:9:9::/none:\n"
	for _, c := range []struct {
		user     string
		byNumber bool
		home     string
		found    bool
	}{
		{"root", false, "/root", true}, {"user", false, "/home/user", true}, {"1000", false, "", false}, {"1000", true, "/home/user", true},
		{"odd", false, "/", true}, {"short", false, "", false}, {"", true, "", false}, {"# user", false, "/no", true},
	} {
		if home, found := findHome([]byte(passwd), c.user, c.byNumber); home != c.home || found != c.found {
			t.Errorf("%q: %q, %v", c.user, home, found)
		}
	}
}

func FuzzFindHome(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/sh\n"), "root")
	f.Add([]byte(":::::/\x00:\nroot::::::"), "root")
	f.Fuzz(func(t *testing.T, passwd []byte, user string) {
		home, found := findHome(passwd, user, true)
		if found != filepath.IsAbs(home) || filepath.Clean(home) != home && found || strings.ContainsRune(home, 0) {
			t.Errorf("%q, %v", home, found)
		}
	})
}

func TestWatchDir(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/deep", 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	s, err := w.fs.WatchDir(ctx, connect.NewRequest(&pb.WatchDirRequest{Path: dir, Recursive: true, IncludeEntry: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !s.Receive() || s.Msg().GetStart() == nil {
		t.Fatal(s.Msg(), s.Err())
	}
	await := func(kind pb.EventType, name string) *pb.FilesystemEvent {
		t.Helper()
		for s.Receive() {
			if e := s.Msg().GetFilesystem(); e.GetType() == kind && e.GetName() == name {
				return e
			}
		}
		t.Fatalf("no %v of %s: %v", kind, name, s.Err())
		return nil
	}
	write := func(name string) {
		t.Helper()
		if _, err := w.WriteFile(w.ctx, w.box.ID, sandbox.WriteFileRequest{Path: dir + "/" + name}, strings.NewReader("content")); err != nil {
			t.Fatal(err)
		}
	}
	write("deep/new")
	if e := await(pb.EventType_EVENT_TYPE_CREATE, "deep/new"); e.GetEntry().GetPath() != dir+"/deep/new" {
		t.Errorf("%v", e)
	}
	await(pb.EventType_EVENT_TYPE_WRITE, "deep/new")
	write("deep/new")
	await(pb.EventType_EVENT_TYPE_WRITE, "deep/new")
	if err := os.Rename(dir+"/deep/new", dir+"/deep/old"); err != nil {
		t.Fatal(err)
	}
	if e := await(pb.EventType_EVENT_TYPE_RENAME, "deep/new"); e.Entry != nil {
		t.Errorf("%v", e)
	}
	await(pb.EventType_EVENT_TYPE_CREATE, "deep/old")
	if err := os.Remove(dir + "/deep/old"); err != nil {
		t.Fatal(err)
	}
	await(pb.EventType_EVENT_TYPE_REMOVE, "deep/old")
	// When the directory is gone the stream ends in order.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for s.Receive() {
	}
	if s.Err() != nil {
		t.Error(s.Err())
	}
}

func (w *world) createWatcher(t *testing.T, dir string) (string, error) {
	t.Helper()
	resp, err := w.fs.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: dir}))
	if err != nil {
		return "", err
	}
	return resp.Msg.GetWatcherId(), nil
}

func TestWatcher(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	id, err := w.createWatcher(t, dir)
	if err != nil || !strings.HasPrefix(id, "w") || len(id) != 21 {
		t.Fatal(id, err)
	}
	get := func(id string) ([]*pb.FilesystemEvent, error) {
		resp, err := w.fs.GetWatcherEvents(t.Context(), connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: id}))
		if err != nil {
			return nil, err
		}
		return resp.Msg.GetEvents(), nil
	}
	if err := os.Mkdir(dir+"/new", 0o755); err != nil {
		t.Fatal(err)
	}
	for {
		events, err := get(id)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) > 0 {
			if events[0].GetName() != "new" || events[0].GetType() != pb.EventType_EVENT_TYPE_CREATE {
				t.Errorf("%v", events)
			}
			break
		}
	}
	remove := func(id string) error {
		_, err := w.fs.RemoveWatcher(t.Context(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: id}))
		return err
	}
	if err := remove(id); err != nil {
		t.Error(err)
	}
	_, err = get(id)
	wantCode(t, err, connect.CodeNotFound)
	wantCode(t, remove(id), connect.CodeNotFound)

	_, err = w.createWatcher(t, dir+"/none")
	wantCode(t, err, connect.CodeNotFound)

	// Attack: another sandbox's client asks for the changes of this one.
	if id, err = w.createWatcher(t, dir); err != nil {
		t.Fatal(err)
	}
	mine := w.box
	if w.box, err = w.Create(w.ctx, sandbox.CreateRequest{Template: "host"}); err != nil {
		t.Fatal(err)
	}
	_, err = get(id)
	wantCode(t, err, connect.CodeNotFound)
	wantCode(t, remove(id), connect.CodeNotFound)
	w.box = mine
	if err := remove(id); err != nil {
		t.Error(err)
	}
}

// Attack: a client opens watches without end. Other sandboxes are not affected, and a
// client that stops a watch can open another.
func TestWatcherFlood(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	var last string
	for range maxWatches {
		id, err := w.createWatcher(t, dir)
		if err != nil {
			t.Fatal(err)
		}
		last = id
	}
	_, err := w.createWatcher(t, dir)
	wantCode(t, err, connect.CodeResourceExhausted)
	s, err := w.fs.WatchDir(t.Context(), connect.NewRequest(&pb.WatchDirRequest{Path: dir}))
	if err == nil {
		s.Receive()
		err = s.Err()
		_ = s.Close()
	}
	wantCode(t, err, connect.CodeResourceExhausted)
	if _, err := w.fs.RemoveWatcher(t.Context(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: last})); err != nil {
		t.Fatal(err)
	}
	if _, err := w.createWatcher(t, dir); err != nil {
		t.Error(err)
	}
	if w.box, err = w.Create(w.ctx, sandbox.CreateRequest{Template: "host"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.createWatcher(t, dir); err != nil {
		t.Error(err)
	}
}

// Attack: more changes than anybody asks for.
func TestWatcherQueue(t *testing.T) {
	w := &watcher{}
	event := &pb.FilesystemEvent{Name: strings.Repeat("x", 1000)}
	var err error
	n := 0
	for ; err == nil; n++ {
		err = w.put(event)
	}
	wantCode(t, err, connect.CodeDataLoss)
	if n > maxQueue/1000 || w.queue != nil {
		t.Errorf("%d changes were kept", n)
	}
	w.end(err)
	_, err = w.take()
	wantCode(t, err, connect.CodeDataLoss)
}
