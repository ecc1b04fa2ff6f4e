package apply

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxEntries bounds the entries of a stream.
const MaxEntries = 4_000_000

// ErrStream marks errors of [Apply] for an invalid or incomplete stream. Nothing was
// changed.
var ErrStream = errors.New("the stream is not one of a merge")

// ErrStuck marks errors of [Apply] if something was changed and could not be undone. What
// was replaced is kept in the staging directory.
var ErrStuck = errors.New("the replaced files are kept")

// The names in a staging directory. In new and old, files are named by the numbers of their
// entries.
const (
	newDir  = "new"
	oldDir  = "old"
	journal = "journal"
)

// step is an entry of the stream that is being carried out. It is written to the journal,
// as a line of JSON, before it begins.
type step struct {
	Number int
	Name   string `json:"-"`
	// Path is Name in the journal: JSON strings cannot hold arbitrary bytes.
	Path []byte
	// Remove is set if nothing replaces what is at the path. Before has the attributes of a
	// directory whose attributes are changed.
	Remove bool        `json:",omitempty"`
	Before *attributes `json:",omitempty"`

	dir   bool
	after attributes
}

func (s step) number() string { return strconv.Itoa(s.Number) }

// stage is a merge in progress.
type stage struct {
	root    int
	name    string // name of the staging directory
	fd      int    // the same directory, open
	newFD   int
	oldFD   int
	steps   []step
	files   map[string]int // numbers of files that hard links may refer to
	journal *os.File
	// stuck is set if something could not be undone. What was replaced is kept then.
	stuck bool
}

// Apply reads a stream and carries it out in the directory root, all or nothing: new files
// are prepared in a staging directory, so that a full disk or a broken stream,
// [ErrStream], changes nothing, and are moved into place at the end. If a move fails, the
// earlier ones are undone; if that fails, the error is an [ErrStuck] and says what could
// not be undone. Other programs may see the moves one by one. For a crash see [Recover].
//
// Everything happens in the file system of root itself: a path on another one that is
// mounted there is an error. Once the moves begin, ctx has no effect.
func Apply(ctx context.Context, root *os.File, r io.Reader) (err error) {
	s, err := newStage(int(root.Fd()))
	if err != nil {
		return fmt.Errorf("prepare a merge: %w", err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.read(ctx, r); err != nil {
		return err
	}
	return s.commit()
}

func newStage(root int) (*stage, error) {
	s := &stage{root: root, name: StagingPrefix + strings.ToLower(rand.Text()), fd: -1, newFD: -1, oldFD: -1, files: map[string]int{}}
	if err := unix.Mkdirat(root, s.name, 0o700); err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// open opens the staging directory and makes its content.
func (s *stage) open() error {
	var err error
	if s.fd, err = OpenDir(s.root, s.name); err != nil {
		return err
	}
	for name, fd := range map[string]*int{newDir: &s.newFD, oldDir: &s.oldFD} {
		if err := unix.Mkdirat(s.fd, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if *fd, err = OpenDir(s.fd, name); err != nil {
			return err
		}
	}
	fd, err := unix.Openat(s.fd, journal, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	s.journal = os.NewFile(uintptr(fd), journal)
	return nil
}

// close removes the staging directory, unless the stage is stuck. The journal is removed
// first: without a journal, [Recover] undoes nothing.
func (s *stage) close() error {
	var err error
	if s.journal != nil {
		_ = s.journal.Close()
		if !s.stuck {
			err = unix.Unlinkat(s.fd, journal, 0)
		}
	}
	for _, fd := range []int{s.fd, s.newFD, s.oldFD} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	if err != nil || s.stuck {
		return err
	}
	return RemoveAll(s.root, s.name)
}

// read prepares all entries of the stream.
func (s *stage) read(ctx context.Context, r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: it ends before it is complete", ErrStream)
		}
		if err != nil {
			return readError(err)
		}
		if h.PAXRecords[RecordCommit] == "1" {
			if _, err := tr.Next(); !errors.Is(err, io.EOF) {
				return fmt.Errorf("%w: it continues after its end", ErrStream)
			}
			return nil
		}
		if len(s.steps) >= MaxEntries {
			return fmt.Errorf("%w: it has more than %d entries", ErrStream, MaxEntries)
		}
		if err := s.prepare(h, tr); err != nil {
			return fmt.Errorf("prepare %.200q: %w", h.Name, err)
		}
	}
}

// readError wraps an error of the tar reader, which is about the stream itself or about
// reading it.
func readError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", ErrStream, err)
	}
	return fmt.Errorf("read the stream of a merge: %w", err)
}

// prepare makes the new file of one entry in the staging directory.
func (s *stage) prepare(h *tar.Header, content io.Reader) error {
	name, err := cleanName(h.Name)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStream, err)
	}
	if h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != "" {
		return fmt.Errorf("%w: it is stored as a sparse file", ErrStream)
	}
	st := step{Number: len(s.steps), Name: name, Path: []byte(name), dir: h.Typeflag == tar.TypeDir, Remove: h.PAXRecords[RecordRemove] == "1"}
	st.after = attributes{Mode: uint32(h.Mode & 0o7777), UID: h.Uid, GID: h.Gid, Sec: h.ModTime.Unix(), Nsec: int64(h.ModTime.Nanosecond())}
	if name == "." && (!st.dir || st.Remove) {
		return fmt.Errorf("%w: the root cannot be replaced", ErrStream)
	}
	if !st.Remove {
		if err := s.make(h, st, content); err != nil {
			return err
		}
		if h.Typeflag != tar.TypeLink {
			if err := st.after.set(s.newFD, st.number(), h.Typeflag == tar.TypeSymlink); err != nil {
				return err
			}
		}
	}
	if (h.Typeflag == tar.TypeReg || h.Typeflag == TypeSparse) && !st.Remove {
		s.files[name] = st.Number
	}
	s.steps = append(s.steps, st)
	return nil
}

func (s *stage) make(h *tar.Header, st step, content io.Reader) error {
	name := st.number()
	switch h.Typeflag {
	case tar.TypeDir:
		return unix.Mkdirat(s.newFD, name, 0o700)
	case tar.TypeReg:
		// Hide the file's ReadFrom, which would copy in small pieces.
		return s.write(name, func(f *os.File) error {
			_, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{content}, make([]byte, bufferBytes))
			return err
		})
	case TypeSparse:
		return s.write(name, func(f *os.File) error { return writePages(f, h.PAXRecords[RecordSize], content) })
	case tar.TypeSymlink:
		return unix.Symlinkat(h.Linkname, s.newFD, name)
	case tar.TypeLink:
		target, err := cleanName(h.Linkname)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrStream, err)
		}
		n, ok := s.files[target]
		if !ok {
			return fmt.Errorf("%w: the target of the hard link does not come before it", ErrStream)
		}
		return unix.Linkat(s.newFD, strconv.Itoa(n), s.newFD, name, 0)
	case tar.TypeFifo:
		return unix.Mknodat(s.newFD, name, unix.S_IFIFO|0o600, 0)
	case tar.TypeChar:
		return unix.Mknodat(s.newFD, name, unix.S_IFCHR|0o600, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))))
	case tar.TypeBlock:
		return unix.Mknodat(s.newFD, name, unix.S_IFBLK|0o600, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))))
	}
	return fmt.Errorf("%w: type %q is unknown", ErrStream, h.Typeflag)
}

// bufferBytes is how much is written to a file at a time.
const bufferBytes = 128 << 10

func (s *stage) write(name string, content func(f *os.File) error) error {
	fd, err := unix.Openat(s.newFD, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	err = content(f)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = readError(err)
	}
	return errors.Join(err, f.Close())
}

// writePages writes the content of an entry of [TypeSparse] to an empty file.
func writePages(f *os.File, recordedSize string, content io.Reader) error {
	size, err := strconv.ParseInt(recordedSize, 10, 64)
	if err != nil || size < 0 {
		return fmt.Errorf("%w: the size %.20q of a file with holes", ErrStream, recordedSize)
	}
	in, out := bufio.NewReaderSize(content, bufferBytes), bufio.NewWriterSize(nil, bufferBytes)
	var offset [8]byte
	page := make([]byte, PageSize)
	for end := int64(-1); ; {
		_, err := io.ReadFull(in, offset[:])
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		at := int64(binary.LittleEndian.Uint64(offset[:]))
		if at < max(end, 0) || at >= size || at%PageSize != 0 {
			return fmt.Errorf("%w: a page at %d of a file with %d bytes", ErrStream, at, size)
		}
		page = page[:min(PageSize, size-at)]
		if _, err := io.ReadFull(in, page); errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		} else if err != nil {
			return err
		}
		if at != end {
			if err := out.Flush(); err != nil {
				return err
			}
			out.Reset(io.NewOffsetWriter(f, at))
		}
		if _, err := out.Write(page); err != nil {
			return err
		}
		end = at + int64(len(page))
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return f.Truncate(size)
}

// commit moves all files into place, or undoes the moves.
func (s *stage) commit() error {
	log := json.NewEncoder(s.journal)
	for i := range s.steps {
		if err := s.do(&s.steps[i], log); err != nil {
			err = fmt.Errorf("apply to /%s: %w", s.steps[i].Name, err)
			return s.rollBack(err, s.steps[:i+1])
		}
	}
	// Moving files into directories has changed the directories' times.
	for _, st := range s.steps {
		if st.dir && !st.Remove {
			if err := s.setDir(st.Name, &st.after); err != nil {
				err = fmt.Errorf("apply to /%s: %w", st.Name, err)
				return s.rollBack(err, s.steps)
			}
		}
	}
	return nil
}

// rollBack undoes steps after err.
func (s *stage) rollBack(err error, steps []step) error {
	if undone := s.undo(steps); undone != nil {
		s.stuck = true
		return errors.Join(err, undone, fmt.Errorf("%w in /%s", ErrStuck, s.name))
	}
	return err
}

func (s *stage) do(st *step, log *json.Encoder) error {
	if st.Name == "." {
		return s.change(st, log, s.root, ".")
	}
	dir, name, err := parent(s.root, st.Name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	now, err := lstat(dir, name)
	if err != nil {
		return err
	}
	if isDir(now) && !st.Remove {
		if !st.dir {
			return unix.EISDIR
		}
		return s.change(st, log, dir, name)
	}
	if err := log.Encode(st); err != nil {
		return err
	}
	if now != nil {
		if err := s.putAside(st, dir, name); err != nil {
			return err
		}
	}
	if st.Remove {
		return nil
	}
	return unix.Renameat(s.newFD, st.number(), dir, name)
}

// putAside keeps what is at a path. A file that is about to be replaced gets a hard link,
// if possible, so that there is always a file at its path.
func (s *stage) putAside(st *step, dir int, name string) error {
	if !st.Remove && !st.dir && unix.Linkat(dir, name, s.oldFD, st.number(), 0) == nil {
		return nil
	}
	return unix.Renameat(dir, name, s.oldFD, st.number())
}

// change gives an existing directory other attributes.
func (s *stage) change(st *step, log *json.Encoder, dir int, name string) error {
	now, err := lstat(dir, name)
	if err != nil || !isDir(now) {
		return errors.Join(err, unix.ENOTDIR)
	}
	st.Before = attributesOf(now)
	if err := log.Encode(st); err != nil {
		return err
	}
	return s.setDir(st.Name, &st.after)
}

// setDir gives a directory attributes.
func (s *stage) setDir(name string, a *attributes) error {
	dir, base, err := parent(s.root, name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	fd, err := OpenDir(dir, base)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return a.set(fd, ".", false)
}
