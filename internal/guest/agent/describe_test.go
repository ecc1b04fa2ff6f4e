package agent

import (
	"os"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// A link is shown with the file at its end, however many links are on the way. A link
// that leads nowhere or in a circle is shown without.
func TestLinkedFile(t *testing.T) {
	s := start(t)
	dir := t.TempDir()
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"near": "file", "far": "near", "dir": "../" + filepath.Base(dir), "nowhere": "no-such", "circle": "circle"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := s.List(t.Context(), connect.NewRequest(&agentv1.ListRequest{Path: dir}))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]*agentv1.FileInfo{}
	for _, e := range resp.Msg.GetEntries() {
		got[e.GetName()] = e
	}
	for _, name := range []string{"near", "far"} {
		l := got[name].GetLinkedFile()
		if l.GetPath() != real+"/file" || l.GetType() != agentv1.FileType_FILE_TYPE_FILE || l.GetMode() != 0o640 {
			t.Errorf("%s leads to %v", name, l)
		}
	}
	if l := got["dir"].GetLinkedFile(); l.GetPath() != real || l.GetType() != agentv1.FileType_FILE_TYPE_DIRECTORY {
		t.Errorf("dir leads to %v", l)
	}
	for _, name := range []string{"nowhere", "circle", "file"} {
		if l := got[name].GetLinkedFile(); l != nil {
			t.Errorf("%s leads to %v", name, l)
		}
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	passwd, group := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(passwd, "root:x:0:0:root:/root:/bin/sh\nagain:x:0:0::/:/bin/sh\nbad line\nuser:x:1000:1000::/home/user:/bin/bash\nhuge:x:99999999999:1::/:/bin/sh\n")
	write(group, "wheel:x:0:\nuser:x:1000:\n:x:7:\n")
	n := newUserDB(passwd, group).names()
	for _, c := range []struct {
		uid, gid     uint32
		owner, group string
	}{{0, 0, "root", "wheel"}, {1000, 1000, "user", "user"}, {7, 7, "7", "7"}, {1<<32 - 1, 5, "4294967295", "5"}} {
		info := n.complete(&agentv1.FileInfo{Uid: c.uid, Gid: c.gid})
		if info.GetOwner() != c.owner || info.GetGroup() != c.group {
			t.Errorf("%d:%d is %s:%s", c.uid, c.gid, info.GetOwner(), info.GetGroup())
		}
	}
}
