package agent

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

const (
	defaultListLimit = 1000
	maxListLimit     = 10000
	// maxListBytes bounds an answer by the size of the paths in it.
	maxListBytes = 4 << 20
)

// List implements [agentv1connect.AgentHandler].
func (a *Agent) List(ctx context.Context, req *connect.Request[agentv1.ListRequest]) (*connect.Response[agentv1.ListResponse], error) {
	m := req.Msg
	path, err := a.path(m.GetPath())
	if err != nil {
		return nil, err
	}
	if m.GetDepth() < 0 || m.GetDepth() > sandbox.MaxListDepth || m.GetLimit() < 0 {
		return nil, invalid("depth or limit is out of range; use a depth of 1 to %d and a limit that is not negative", sandbox.MaxListDepth)
	}
	after, err := listAfter(path, m.GetAfter())
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fileError("list", path, err)
	}
	w := &lister{ctx: ctx, limit: min(cmp.Or(int(m.GetLimit()), defaultListLimit), maxListLimit), bytes: maxListBytes}
	dir := os.NewFile(uintptr(fd), path)
	if err := w.walk(dir, path, max(1, int(m.GetDepth())), after); err != nil {
		return nil, fileError("list", path, err)
	}
	names := a.users.names()
	for _, entry := range w.entries {
		names.complete(entry)
	}
	return connect.NewResponse(&agentv1.ListResponse{Entries: w.entries, More: w.more}), nil
}

// listAfter splits after, the last path of the previous page, into its names below dir.
func listAfter(dir, after string) ([]string, error) {
	if after == "" {
		return nil, nil
	}
	prefix := strings.TrimSuffix(strings.ToValidUTF8(dir, "\uFFFD"), "/") + "/"
	rest, ok := strings.CutPrefix(after, prefix)
	if !ok || rest == "" || len(after) > sandbox.MaxPathBytes {
		return nil, invalid("the listing cannot go on after %q, which is not below the directory; give the path of the last entry received", after)
	}
	return strings.Split(rest, "/"), nil
}

// lister collects the entries of a walk.
type lister struct {
	ctx     context.Context // of the call
	limit   int
	bytes   int
	entries []*agentv1.FileInfo
	more    bool
}

// walk adds the entries of dir, which it closes, and of the directories in it. It
// skips those up to the path that the names in after form.
func (w *lister) walk(dir *os.File, path string, depth int, after []string) error {
	defer dir.Close()
	if w.ctx.Err() != nil {
		return cancelled(w.ctx)
	}
	from := ""
	if len(after) > 0 {
		from = after[0]
	}
	// One name more than fits shows that there are more entries.
	names, err := smallestNames(dir, from, w.limit-len(w.entries)+2)
	if err != nil {
		return err
	}
	for _, name := range names {
		if w.more {
			return nil
		}
		// The last entry of the previous page, or a directory above it.
		resumed := len(after) > 0 && name.shown == from
		if err := w.visit(dir, path, name, depth, after, resumed); err != nil {
			return err
		}
	}
	return nil
}

func (w *lister) visit(dir *os.File, path string, name entryName, depth int, after []string, resumed bool) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name.raw, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil // it is gone
	}
	path = strings.TrimSuffix(path, "/") + "/" + name.raw
	if !resumed && !w.add(dir, path, name, &st) {
		return nil
	}
	if depth <= 1 || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	sub, err := openDir(int(dir.Fd()), name.raw)
	if err != nil {
		return nil // gone, replaced, or not readable
	}
	if !resumed {
		after = nil
	} else {
		after = after[1:]
	}
	return w.walk(sub, path, depth-1, after)
}

// add reports whether there was room for the entry.
func (w *lister) add(dir *os.File, path string, name entryName, st *unix.Stat_t) bool {
	var target string
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, _ = readSymlink(int(dir.Fd()), name.raw)
	}
	w.bytes -= len(path) + len(name.raw) + 2*len(target) + 64
	if len(w.entries) >= w.limit || w.bytes < 0 && len(w.entries) > 0 {
		w.more = true
		return false
	}
	w.entries = append(w.entries, fileInfo(path, st, target))
	return true
}

// entryName is a name in a directory, and its form that a client sees and sorts by.
type entryName struct {
	raw, shown string
}

func compareNames(a, b entryName) int {
	return cmp.Or(strings.Compare(a.shown, b.shown), strings.Compare(a.raw, b.raw))
}

// smallestNames returns the first n names, from the given one on, in order. It never
// holds more than 2n of them, however large the directory is.
func smallestNames(dir *os.File, from string, n int) ([]entryName, error) {
	var found []entryName
	cut := func() {
		slices.SortFunc(found, compareNames)
		found = found[:min(n, len(found))]
	}
	for {
		names, err := dir.Readdirnames(1024)
		for _, raw := range names {
			e := entryName{raw: raw, shown: strings.ToValidUTF8(raw, "\uFFFD")}
			if e.shown < from {
				continue
			}
			if found = append(found, e); len(found) == 2*n {
				cut()
			}
		}
		if len(names) == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, err
			}
			cut()
			return found, nil
		}
	}
}
