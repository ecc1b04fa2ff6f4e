package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/template/layer/apply"
)

// mergeOf returns a stream of files, by name and content, in this order. A commitEntry
// stands for the commit.
func mergeOf(t *testing.T, files ...[2]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: "./" + f[0], Mode: 0o644, Uid: os.Getuid(), Gid: os.Getgid(), Size: int64(len(f[1])), Format: tar.FormatPAX}
		if f[0] == "commit" {
			h = &tar.Header{Typeflag: tar.TypeDir, Name: "./", PAXRecords: map[string]string{apply.RecordCommit: "1"}, Format: tar.FormatPAX}
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

var commitEntry = [2]string{"commit", ""}

// merge sends a stream in pieces that split its entries.
func (s *server) merge(ctx context.Context, stream []byte) error {
	c := s.Apply(ctx)
	for len(stream) > 0 {
		n := min(len(stream), 70_001)
		if err := c.Send(&agentv1.ApplyRequest{Data: stream[:n]}); err != nil {
			break // the answer has the error
		}
		stream = stream[n:]
	}
	_, err := c.CloseAndReceive()
	return err
}

// startMerging starts an agent that applies merges to a directory with one file.
func startMerging(t *testing.T) *server {
	t.Helper()
	s := start(t)
	s.agent.root = s.dir
	if err := os.WriteFile(filepath.Join(s.dir, "file"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.dir, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

// holds returns the files in a directory with their content.
func holds(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, dir+"/")] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestApply(t *testing.T) {
	s := startMerging(t)
	big := strings.Repeat("0123456789abcdef", 100_000)
	if err := s.merge(t.Context(), mergeOf(t, [2]string{"file", "new"}, [2]string{"dir/big", big}, commitEntry)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"file": "new", "dir/big": big}, holds(t, s.dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A client that sends more after the end still gets the answer.
	if err := s.merge(t.Context(), append(mergeOf(t, [2]string{"file", "newer"}, commitEntry), make([]byte, 300_000)...)); err != nil {
		t.Error(err)
	}
}

func TestApplyRefuses(t *testing.T) {
	s := startMerging(t)
	good := [2]string{"file", "new"}
	whole := mergeOf(t, good, [2]string{"dir/f", strings.Repeat("x", 100_000)}, commitEntry)
	if err := os.Symlink("dir", filepath.Join(s.dir, "link")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(filepath.Join(s.dir, "link")) })
	before := holdsLinks(t, s.dir)
	for _, tt := range []struct {
		name   string
		stream []byte
		code   connect.Code
		text   string
	}{
		{"empty", nil, connect.CodeInvalidArgument, "ends before it is complete"},
		{"no commit", mergeOf(t, good), connect.CodeInvalidArgument, "ends before it is complete"},
		{"cut in a file", whole[:50_000], connect.CodeInvalidArgument, "unexpected EOF"},
		{"cut before the commit", whole[:len(whole)-4096], connect.CodeInvalidArgument, "nothing was merged"},
		{"no tar", bytes.Repeat([]byte("cove"), 500_000), connect.CodeInvalidArgument, "invalid tar header"},
		{"climbing", mergeOf(t, good, [2]string{"../../etc/x", "x"}, commitEntry), connect.CodeInvalidArgument, "not clean"},
		{"staging", mergeOf(t, good, [2]string{apply.StagingPrefix + "x", "x"}, commitEntry), connect.CodeInvalidArgument, "preparation"},
		{"after the commit", mergeOf(t, good, commitEntry, [2]string{"late", "x"}), connect.CodeInvalidArgument, "after its end"},
		{"over a directory", mergeOf(t, good, [2]string{"dir", "x"}, commitEntry), connect.CodeAborted, "is a directory"},
		{"through a link", mergeOf(t, good, [2]string{"link/x", "x"}, commitEntry), connect.CodeAborted, "not a directory"},
		{"without a directory", mergeOf(t, good, [2]string{"none/x", "x"}, commitEntry), connect.CodeAborted, "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wantCode(t, s.merge(t.Context(), tt.stream), tt.code, tt.text)
			if diff := cmp.Diff(before, holdsLinks(t, s.dir)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

// holdsLinks is holds for a directory that has a link to one of its directories.
func holdsLinks(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			names = append(names, fmt.Sprint(path, info.Mode(), info.Size()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A client that goes away changes nothing, and leaves nothing behind.
func TestApplyCancelled(t *testing.T) {
	s := startMerging(t)
	whole := mergeOf(t, [2]string{"file", "new"}, [2]string{"dir/f", strings.Repeat("x", 1<<20)}, commitEntry)
	ctx, cancel := context.WithCancel(t.Context())
	c := s.Apply(ctx)
	if err := c.Send(&agentv1.ApplyRequest{Data: whole[:len(whole)/2]}); err != nil {
		t.Fatal(err)
	}
	staged := func() bool {
		found, _ := filepath.Glob(filepath.Join(s.dir, apply.StagingPrefix+"*/new/*"))
		return len(found) > 0
	}
	eventually(t, "the merge is being prepared", staged)
	cancel()
	_, err := c.CloseAndReceive()
	wantCode(t, err, connect.CodeCanceled, "")
	eventually(t, "what was prepared is removed", func() bool {
		found, _ := filepath.Glob(filepath.Join(s.dir, apply.StagingPrefix+"*"))
		return len(found) == 0
	})
	if diff := cmp.Diff(map[string]string{"file": "old"}, holds(t, s.dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// While one merge is under way, another is refused, and does not hold it up.
func TestApplyTogether(t *testing.T) {
	s := startMerging(t)
	whole := mergeOf(t, [2]string{"file", "first"}, [2]string{"dir/f", strings.Repeat("x", 4<<20)}, commitEntry)
	first := s.Apply(t.Context())
	if err := first.Send(&agentv1.ApplyRequest{Data: whole[:2000]}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the merge is being prepared", func() bool {
		found, _ := filepath.Glob(filepath.Join(s.dir, apply.StagingPrefix+"*"))
		return len(found) > 0
	})
	for range 3 {
		wantCode(t, s.merge(t.Context(), mergeOf(t, [2]string{"file", strings.Repeat("y", 4<<20)}, commitEntry)), connect.CodeAborted, "another merge")
	}
	for rest := whole[2000:]; len(rest) > 0; {
		n := min(len(rest), 100_000)
		if err := first.Send(&agentv1.ApplyRequest{Data: rest[:n]}); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if _, err := first.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	if got := holds(t, s.dir); got["file"] != "first" || len(got) != 2 {
		t.Errorf("got %d files, %q", len(got), got["file"])
	}
}

// A merge for which there is no room is refused before anything is changed.
func TestApplyDiskFull(t *testing.T) {
	dir := t.TempDir()
	s, _ := startInitWith(t, "COVE_AGENT_TEST_SMALL="+dir)
	stream := mergeOf(t, [2]string{"f", "x"}, [2]string{"big", strings.Repeat("x", 8<<20)}, commitEntry)
	wantCode(t, s.merge(t.Context(), stream), connect.CodeResourceExhausted, "disk is full")
	if got := s.sh(t, "ls -A "+dir).stdout.String(); got != "" {
		t.Errorf("left: %q", got)
	}
	if err := s.merge(t.Context(), mergeOf(t, [2]string{"f", "x"}, commitEntry)); err != nil {
		t.Errorf("a smaller one: %v", err)
	}
	if got := s.sh(t, "cat "+dir+"/f").stdout.String(); got != "x" {
		t.Errorf("got %q", got)
	}
}

// A half-applied merge in a snapshot of the files is undone.
func TestRecoverMerge(t *testing.T) {
	s := startMerging(t)
	old := filepath.Join(s.dir, apply.StagingPrefix+"x", "old")
	for _, d := range []string{filepath.Dir(old), old} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for path, content := range map[string]string{
		filepath.Join(old, "0"):                          "before the merge",
		filepath.Join(filepath.Dir(old), "journal"):      `{"Number":0,"Path":"ZmlsZQ=="}` + "\n",
		filepath.Join(s.dir, apply.StagingPrefix+"file"): "not a merge",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.agent.recoverMerge()
	if diff := cmp.Diff(map[string]string{"file": "before the merge", apply.StagingPrefix + "file": "not a merge"}, holds(t, s.dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s.agent.root = filepath.Join(s.dir, "nothing")
	s.agent.recoverMerge() // logs
}
