package agent

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// put writes a file through the agent, in pieces.
func (s *server) put(t testing.TB, h *agentv1.WriteRequest_Header, data []byte) (*agentv1.WriteResponse, error) {
	t.Helper()
	stream := s.Write(t.Context())
	_ = stream.Send(&agentv1.WriteRequest{Header: h})
	for len(data) > 0 {
		n := min(len(data), 100_000)
		if stream.Send(&agentv1.WriteRequest{Data: data[:n]}) != nil {
			break // CloseAndReceive has the reason
		}
		data = data[n:]
	}
	_ = stream.Send(&agentv1.WriteRequest{End: true})
	res, err := stream.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

func (s *server) mustPut(t testing.TB, path, data string) {
	t.Helper()
	if _, err := s.put(t, &agentv1.WriteRequest_Header{Path: path, MakeParents: true}, []byte(data)); err != nil {
		t.Fatal(err)
	}
}

func (s *server) fetch(t testing.TB, req *agentv1.ReadRequest) ([]byte, *agentv1.FileInfo, error) {
	t.Helper()
	stream, err := s.Read(t.Context(), connect.NewRequest(req))
	if err != nil {
		return nil, nil, err
	}
	defer stream.Close()
	var data []byte
	var info *agentv1.FileInfo
	for stream.Receive() {
		if stream.Msg().GetInfo() != nil {
			info = stream.Msg().GetInfo()
		}
		data = append(data, stream.Msg().GetData()...)
	}
	return data, info, stream.Err()
}

// noLeftovers fails if dir holds temporary files.
func noLeftovers(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if isTemp(e.Name()) {
			t.Errorf("temporary file %s is left", e.Name())
		}
	}
}

func TestWriteRead(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2=%v", h2), func(t *testing.T) {
			s := startWith(t, Config{}, h2)
			data := make([]byte, 5_000_001)
			_, _ = rand.Read(data)
			res, err := s.put(t, &agentv1.WriteRequest_Header{Path: "a/b/c.bin", MakeParents: true, Mode: 0o640}, data)
			if err != nil {
				t.Fatal(err)
			}
			info := res.GetInfo()
			if !res.GetCreated() || info.GetPath() != s.dir+"/a/b/c.bin" || info.GetName() != "c.bin" || info.GetMode() != 0o640 ||
				info.GetSize() != int64(len(data)) || info.GetType() != agentv1.FileType_FILE_TYPE_FILE {
				t.Errorf("written: %v", res)
			}
			for _, tt := range []struct{ off, limit, from, to int64 }{
				{0, 0, 0, 5_000_001},
				{4_999_999, 0, 4_999_999, 5_000_001},
				{1000, 1_000_000, 1000, 1_001_000},
				{5_000_001, 0, 0, 0},
				{1 << 60, 5, 0, 0},
			} {
				got, info, err := s.fetch(t, &agentv1.ReadRequest{Path: "a/b/c.bin", Offset: tt.off, Limit: tt.limit})
				if err != nil || info.GetSize() != int64(len(data)) || !bytes.Equal(got, data[tt.from:tt.to]) {
					t.Errorf("read %d+%d: got %d bytes, %v, %v", tt.off, tt.limit, len(got), info, err)
				}
			}
			noLeftovers(t, s.dir+"/a/b")
		})
	}
}

func TestWriteKinds(t *testing.T) {
	s := start(t)
	put := func(h *agentv1.WriteRequest_Header, data string) (*agentv1.WriteResponse, error) {
		return s.put(t, h, []byte(data))
	}
	check := func(path, want string, mode os.FileMode) {
		t.Helper()
		got, err := os.ReadFile(filepath.Join(s.dir, path))
		fi, _ := os.Lstat(filepath.Join(s.dir, path))
		if err != nil || string(got) != want || fi.Mode() != mode {
			t.Errorf("%s: got %q %v, %v; want %q %v", path, got, fi.Mode(), err, want, mode)
		}
	}
	must := func(res *agentv1.WriteResponse, err error) *agentv1.WriteResponse {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	must(put(&agentv1.WriteRequest_Header{Path: "f"}, "one"))
	check("f", "one", 0o644)
	must(put(&agentv1.WriteRequest_Header{Path: "f", Mode: 0o755}, "two"))
	check("f", "two", 0o755)
	if res := must(put(&agentv1.WriteRequest_Header{Path: "f"}, "three")); res.GetCreated() {
		t.Error("a file that was there was created")
	}
	check("f", "three", 0o755) // the mode stays
	must(put(&agentv1.WriteRequest_Header{Path: "f", Append: true}, "+four"))
	check("f", "three+four", 0o755)
	must(put(&agentv1.WriteRequest_Header{Path: "new", Append: true}, "x"))
	check("new", "x", 0o644)
	_, err := put(&agentv1.WriteRequest_Header{Path: "f", Exclusive: true}, "no")
	wantCode(t, err, connect.CodeAlreadyExists, "already exists")
	must(put(&agentv1.WriteRequest_Header{Path: "only", Exclusive: true}, "once"))
	check("only", "once", 0o644)

	// Links: the file behind is written; a dangling one makes it.
	for link, target := range map[string]string{"link": "f", "sub/up": "../f", "dangling": "made"} {
		_ = os.Mkdir(s.dir+"/sub", 0o755)
		if err := os.Symlink(target, filepath.Join(s.dir, link)); err != nil {
			t.Fatal(err)
		}
		must(put(&agentv1.WriteRequest_Header{Path: link}, "via "+link))
		if fi, _ := os.Lstat(filepath.Join(s.dir, link)); fi.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s is no link any more", link)
		}
		if got, _ := os.ReadFile(filepath.Join(s.dir, filepath.Dir(link), target)); string(got) != "via "+link {
			t.Errorf("behind %s: got %q", link, got)
		}
	}
	noLeftovers(t, s.dir)
}

func TestWriteRefused(t *testing.T) {
	s := start(t)
	for _, d := range []string{"dir", "full/x"} {
		if err := os.MkdirAll(filepath.Join(s.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(s.dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"loop": "loop", "todir": "dir", "dangling": "no/where"} {
		if err := os.Symlink(target, filepath.Join(s.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	long := strings.Repeat("x", 300)
	for _, tt := range []struct {
		h    *agentv1.WriteRequest_Header
		code connect.Code
	}{
		{nil, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: "a\x00b"}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: strings.Repeat("x/", 3000)}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: long}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: "/"}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: "dir"}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: "todir"}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: "fifo"}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: "fifo", Append: true}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: "/dev/null"}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: "loop"}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: "dangling"}, connect.CodeNotFound},
		{&agentv1.WriteRequest_Header{Path: "dangling", Exclusive: true}, connect.CodeAlreadyExists},
		{&agentv1.WriteRequest_Header{Path: "no/such/file"}, connect.CodeNotFound},
		{&agentv1.WriteRequest_Header{Path: "fifo/x", MakeParents: true}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: "f", Mode: 0o10000}, connect.CodeInvalidArgument},
		{&agentv1.WriteRequest_Header{Path: "f", Owner: "no-such-user"}, connect.CodeInvalidArgument},
	} {
		_, err := s.put(t, tt.h, []byte("data"))
		if connect.CodeOf(err) != tt.code {
			t.Errorf("%v: got %v, want %v", tt.h, err, tt.code)
		}
	}
	noLeftovers(t, s.dir)
}

// TestWriteBroken ends streams before their last message.
func TestWriteBroken(t *testing.T) {
	s := start(t)
	s.mustPut(t, "f", "old")
	stream := s.Write(t.Context())
	_ = stream.Send(&agentv1.WriteRequest{Header: &agentv1.WriteRequest_Header{Path: "f"}, Data: []byte("new")})
	_, err := stream.CloseAndReceive()
	wantCode(t, err, connect.CodeCanceled, "nothing was changed")
	if got, _ := os.ReadFile(s.dir + "/f"); string(got) != "old" {
		t.Errorf("the file holds %q", got)
	}
	eventually(t, "the temporary file is gone", func() bool {
		entries, _ := os.ReadDir(s.dir)
		return len(entries) == 1
	})
}

func TestWriteOwner(t *testing.T) {
	s := start(t)
	if os.Getuid() != 0 {
		_, err := s.put(t, &agentv1.WriteRequest_Header{Path: "f", Owner: "0:0"}, nil)
		wantCode(t, err, connect.CodePermissionDenied, "leave the owner out")
		noLeftovers(t, s.dir)
		return
	}
	user := "12345:23456"
	if _, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{User: &user})); err != nil {
		t.Fatal(err)
	}
	s.mustPut(t, "d1/d2/f", "x")
	for _, p := range []string{"d1", "d1/d2", "d1/d2/f"} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(s.dir, p), &st); err != nil || st.Uid != 12345 || st.Gid != 23456 {
			t.Errorf("%s belongs to %d:%d, %v", p, st.Uid, st.Gid, err)
		}
	}
	res, err := s.put(t, &agentv1.WriteRequest_Header{Path: "d1/g", Owner: "7:8", Mode: 0o4755}, nil)
	if err != nil || res.GetInfo().GetUid() != 7 || res.GetInfo().GetGid() != 8 || res.GetInfo().GetMode() != 0o4755 {
		t.Errorf("got %v, %v", res, err)
	}
}

func TestReadRefused(t *testing.T) {
	s := start(t)
	if err := unix.Mkfifo(s.dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		req  *agentv1.ReadRequest
		code connect.Code
		text string
	}{
		{&agentv1.ReadRequest{Path: "none"}, connect.CodeNotFound, "does not exist"},
		{&agentv1.ReadRequest{Path: "."}, connect.CodeInvalidArgument, "is a directory"},
		{&agentv1.ReadRequest{Path: "fifo"}, connect.CodeInvalidArgument, "not a regular file"},
		{&agentv1.ReadRequest{Path: "/dev/zero"}, connect.CodeInvalidArgument, "not a regular file"},
		{&agentv1.ReadRequest{Path: "none", Offset: -1}, connect.CodeInvalidArgument, "negative"},
		{&agentv1.ReadRequest{Path: "none", Limit: -1}, connect.CodeInvalidArgument, "negative"},
		{&agentv1.ReadRequest{Path: "\x00"}, connect.CodeInvalidArgument, "NUL"},
	} {
		_, _, err := s.fetch(t, tt.req)
		wantCode(t, err, tt.code, tt.text)
	}
	// A file that reports no size is read to its end.
	got, _, err := s.fetch(t, &agentv1.ReadRequest{Path: "/proc/self/status"})
	if err != nil || !bytes.Contains(got, []byte("Name:")) {
		t.Errorf("/proc/self/status: %q, %v", got, err)
	}
}

func TestEdit(t *testing.T) {
	s := start(t)
	s.mustPut(t, "f", "a b a c")
	if err := os.Chmod(s.dir+"/f", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("f", s.dir+"/link"); err != nil {
		t.Fatal(err)
	}
	s.mustPut(t, "big", strings.Repeat("x", sandbox.MaxEditFileBytes+1))
	edit := func(path, from, to string, all bool) (*agentv1.EditResponse, error) {
		res, err := s.Edit(t.Context(), connect.NewRequest(&agentv1.EditRequest{Path: path, OldText: from, NewText: to, ReplaceAll: all}))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	for _, tt := range []struct {
		path, from, to string
		all            bool
		code           connect.Code
		text           string
	}{
		{"f", "", "x", false, connect.CodeInvalidArgument, "empty"},
		{"f", "a", "a", false, connect.CodeInvalidArgument, "same"},
		{"f", "zz", "x", false, connect.CodeFailedPrecondition, "does not occur"},
		{"f", "a", "x", false, connect.CodeFailedPrecondition, "occurs 2 times"},
		{"none", "a", "x", false, connect.CodeNotFound, "none"},
		{".", "a", "x", false, connect.CodeInvalidArgument, "directory"},
		{"/dev/zero", "a", "x", false, connect.CodeInvalidArgument, "regular"},
		{"big", "x", "y", true, connect.CodeResourceExhausted, "larger"},
		{"f", "a", strings.Repeat("y", sandbox.MaxEditFileBytes), true, connect.CodeResourceExhausted, "larger"},
	} {
		_, err := edit(tt.path, tt.from, tt.to, tt.all)
		wantCode(t, err, tt.code, tt.text)
	}
	if res, err := edit("f", "b", "ü", false); err != nil || res.GetReplacements() != 1 || res.GetInfo().GetMode() != 0o700 {
		t.Errorf("edit once: %v, %v", res, err)
	}
	if res, err := edit("link", "a", "", true); err != nil || res.GetReplacements() != 2 {
		t.Errorf("edit all: %v, %v", res, err)
	}
	if got, _ := os.ReadFile(s.dir + "/f"); string(got) != " ü  c" {
		t.Errorf("got %q", got)
	}
	noLeftovers(t, s.dir)
}

// TestEditConcurrently checks that no concurrent edit is lost.
func TestEditConcurrently(t *testing.T) {
	s := start(t)
	s.mustPut(t, "f", "<0><1><2><3><4><5><6><7>")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			_, err := s.Edit(t.Context(), connect.NewRequest(&agentv1.EditRequest{Path: "f", OldText: fmt.Sprintf("<%d>", i), NewText: "x"}))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, _ := os.ReadFile(s.dir + "/f"); string(got) != "xxxxxxxx" {
		t.Errorf("got %q", got)
	}
}

func TestStat(t *testing.T) {
	s := start(t)
	s.mustPut(t, "f", "1234")
	when := time.Unix(1234567890, 987654321)
	if err := os.Chtimes(s.dir+"/f", when, when); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("f", s.dir+"/link"); err != nil {
		t.Fatal(err)
	}
	stat := func(path string, follow bool) (*agentv1.FileInfo, error) {
		res, err := s.Stat(t.Context(), connect.NewRequest(&agentv1.StatRequest{Path: path, Follow: follow}))
		if err != nil {
			return nil, err
		}
		return res.Msg.GetInfo(), nil
	}
	if fi, err := stat("./x/../f", false); err != nil || fi.GetPath() != s.dir+"/f" || fi.GetSize() != 4 || fi.GetModifiedUnixNano() != when.UnixNano() || fi.GetUid() != uint32(os.Getuid()) {
		t.Errorf("file: %v, %v", fi, err)
	}
	if fi, err := stat("link", false); err != nil || fi.GetType() != agentv1.FileType_FILE_TYPE_SYMLINK || fi.GetSymlinkTarget() != "f" {
		t.Errorf("link: %v, %v", fi, err)
	}
	if fi, err := stat("link", true); err != nil || fi.GetType() != agentv1.FileType_FILE_TYPE_FILE || fi.GetName() != "link" {
		t.Errorf("behind the link: %v, %v", fi, err)
	}
	if fi, err := stat("/", false); err != nil || fi.GetType() != agentv1.FileType_FILE_TYPE_DIRECTORY || fi.GetPath() != "/" {
		t.Errorf("root: %v, %v", fi, err)
	}
	if fi, err := stat("/dev/null", false); err != nil || fi.GetType() != agentv1.FileType_FILE_TYPE_OTHER {
		t.Errorf("device: %v, %v", fi, err)
	}
	_, err := stat("f/x", false)
	wantCode(t, err, connect.CodeInvalidArgument, "not a directory")
}

func FuzzResolvePath(f *testing.F) {
	for _, p := range []string{"", "/", "..", "../../etc/passwd", "a//b/./c/../d", "a\x00b", strings.Repeat("x/", 4000)} {
		f.Add("/workspace", p)
	}
	f.Fuzz(func(t *testing.T, workdir, p string) {
		if !strings.HasPrefix(workdir, "/") || strings.Contains(workdir, "\x00") {
			return
		}
		got, err := resolvePath(workdir, p)
		if err != nil {
			return
		}
		if !filepath.IsAbs(got) || got != filepath.Clean(got) || len(got) > sandbox.MaxPathBytes || strings.Contains(got, "\x00") {
			t.Errorf("resolvePath(%q, %q) = %q", workdir, p, got)
		}
		for part := range strings.SplitSeq(got, "/") {
			if part == ".." {
				t.Errorf("resolvePath(%q, %q) = %q", workdir, p, got)
			}
		}
	})
}
