package agent

import (
	"archive/zip"
	"bufio"
	"context"
	"io"
	"os"
	"slices"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// Archive implements [agentv1connect.AgentHandler].
func (a *Agent) Archive(ctx context.Context, req *connect.Request[agentv1.ArchiveRequest], s *connect.ServerStream[agentv1.ArchiveResponse]) error {
	path, err := a.path(req.Msg.GetPath())
	if err != nil {
		return err
	}
	if req.Msg.GetMaxBytes() < 0 {
		return invalid("max_bytes cannot be negative; use 0 for no limit")
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fileError("archive", path, err)
	}
	out := bufio.NewWriterSize(&archiveWriter{ctx: ctx, stream: s, limit: req.Msg.GetMaxBytes()}, chunkBytes)
	z := zipper{ctx: ctx, zip: zip.NewWriter(out)}
	err = z.dir(os.NewFile(uintptr(fd), path), "", 0)
	if err == nil {
		err = z.zip.Close() // flushes out
	}
	if err != nil {
		return fileError("archive", path, err)
	}
	return s.Send(&agentv1.ArchiveResponse{Skipped: z.skipped, End: true})
}

// archiveWriter sends each write as a message.
type archiveWriter struct {
	ctx    context.Context // of the call
	stream *connect.ServerStream[agentv1.ArchiveResponse]
	limit  int64 // 0: none
	total  int64
}

func (w *archiveWriter) Write(p []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, cancelled(w.ctx)
	}
	w.total += int64(len(p))
	if w.limit > 0 && w.total > w.limit {
		return 0, fail(connect.CodeResourceExhausted,
			"the archive is larger than %d bytes; archive a smaller directory, or fetch its files one by one", w.limit)
	}
	if err := w.stream.Send(&agentv1.ArchiveResponse{Data: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

type zipper struct {
	ctx     context.Context // of the call
	zip     *zip.Writer
	skipped int64
}

// dir adds the content of d, which it closes; prefix is the name of d in the archive.
func (z *zipper) dir(d *os.File, prefix string, depth int) error {
	defer d.Close()
	if depth > maxTreeDepth {
		return invalid("the directory is nested deeper than %d levels; archive a part of it", maxTreeDepth)
	}
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := z.entry(int(d.Fd()), name, prefix+name, depth); err != nil {
			return err
		}
	}
	return nil
}

func (z *zipper) entry(dir int, name, full string, depth int) error {
	if z.ctx.Err() != nil {
		return cancelled(z.ctx)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil // it is gone
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		sub, err := openDir(dir, name)
		if err != nil {
			z.skipped++
			return nil
		}
		if _, err := z.zip.CreateHeader(zipHeader(full+"/", &st)); err != nil {
			_ = sub.Close()
			return err
		}
		return z.dir(sub, full+"/", depth+1)
	case unix.S_IFREG:
		return z.file(dir, name, full)
	case unix.S_IFLNK:
		return z.symlink(dir, name, full, &st)
	}
	z.skipped++
	return nil
}

func (z *zipper) file(dir int, name, full string) error {
	f, _, err := openRegular(dir, name, full, unix.O_NOFOLLOW)
	if err != nil { // gone, replaced, or not readable
		z.skipped++
		return nil
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	w, err := z.zip.CreateHeader(zipHeader(full, &st))
	if err != nil {
		return err
	}
	// No more than its size: a file may grow as fast as it is read.
	_, err = io.Copy(w, io.LimitReader(f, st.Size))
	return err
}

// symlink adds a symbolic link as Info-ZIP does, with its target as content.
func (z *zipper) symlink(dir int, name, full string, st *unix.Stat_t) error {
	target, err := readSymlink(dir, name)
	if err != nil { // gone, or replaced
		z.skipped++
		return nil
	}
	w, err := z.zip.CreateHeader(zipHeader(full, st))
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, target)
	return err
}

func zipHeader(name string, st *unix.Stat_t) *zip.FileHeader {
	h := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: time.Unix(st.Mtim.Unix()).UTC()}
	mode := os.FileMode(st.Mode & 0o777)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= os.ModeDir
		h.Method = zip.Store
	case unix.S_IFLNK:
		mode |= os.ModeSymlink
		h.Method = zip.Store
	}
	h.SetMode(mode)
	return h
}
