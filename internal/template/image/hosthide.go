package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// hide searches the bound directories and covers what is not readable by everyone.
func (h *hostSource) hide(ctx context.Context, j *job) error {
	s := &search{h: h, ctx: ctx}
	s.group.SetLimit(runtime.GOMAXPROCS(0))
	for _, b := range slices.Clone(j.binds) {
		rel, err := filepath.Rel(h.machine, b.Source)
		if err != nil {
			return err
		}
		top, err := os.Lstat(b.Source)
		if err != nil {
			return fmt.Errorf("search for private files: %w", err)
		}
		if privateDir(uint32(top.Mode().Perm())) {
			s.mask(h.maskDir, rel)
			continue
		}
		if err := s.directory(rel); err != nil {
			return errors.Join(err, s.group.Wait())
		}
	}
	if err := s.group.Wait(); err != nil {
		return err
	}
	slices.SortFunc(s.masks, func(a, b engine.Bind) int { return cmp.Compare(a.Target, b.Target) })
	j.binds = append(j.binds, s.masks...)
	j.notes = append(j.notes,
		fmt.Sprintf("%d files or directories of this machine's system directories are hidden: not readable by everyone, or settings that may hold credentials", len(s.masks)),
		fmt.Sprintf("%d setuid or setgid programs are shown; inside the sandbox they act on the sandbox only", s.setuid))
	return nil
}

// search walks system directories, which may have several hundred thousand files. It stats
// files relative to their open directory, and walks directories in parallel.
type search struct {
	h     *hostSource
	ctx   context.Context
	group errgroup.Group

	mu     sync.Mutex
	masks  []engine.Bind
	setuid int
}

func privateDir(mode uint32) bool { return mode&0o004 == 0 || mode&0o001 == 0 }

func (s *search) mask(source, rel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.masks = append(s.masks, engine.Bind{Source: source, Target: "/" + rel, Mask: true})
}

func (s *search) tooMany() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.masks) > maxHidden
}

// directory searches a directory. Files that vanish meanwhile are ignored; what cannot be
// read is covered.
func (s *search) directory(rel string) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Join(s.h.machine, rel))
	if err == nil {
		defer dir.Close()
		var entries []fs.DirEntry
		if entries, err = dir.ReadDir(-1); err == nil {
			return s.entries(dir, rel, entries)
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		s.mask(s.h.maskDir, rel)
	}
	return nil
}

func (s *search) entries(dir *os.File, rel string, entries []fs.DirEntry) error {
	for _, e := range entries {
		if e.Type()&fs.ModeType&^fs.ModeDir != 0 {
			continue // neither file nor directory
		}
		var st unix.Stat_t
		if err := unix.Fstatat(int(dir.Fd()), e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue // gone meanwhile
		}
		path := filepath.Join(rel, e.Name())
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if privateDir(st.Mode) || slices.Contains(alwaysHidden, path) {
				s.mask(s.h.maskDir, path)
				break
			}
			below := func() error { return s.directory(path) }
			if s.group.TryGo(below) {
				continue
			}
			if err := below(); err != nil {
				return err
			}
		case unix.S_IFREG:
			if st.Mode&0o004 == 0 || hiddenNames[e.Name()] {
				s.mask(s.h.maskFile, path)
			} else if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
				s.mu.Lock()
				s.setuid++
				s.mu.Unlock()
			}
		}
	}
	if s.tooMany() {
		return sandbox.Errorf(sandbox.CodeUnsupported, "more than %d files and directories in /usr are not readable by everyone, too many to hide; build the template debian instead", maxHidden)
	}
	return nil
}
