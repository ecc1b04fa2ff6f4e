package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// undo undoes steps, the last one first. A step may be half done, or not begun. After an
// error it continues, to undo as much as possible.
func (s *stage) undo(steps []step) error {
	var errs []error
	for _, st := range slices.Backward(steps) {
		if err := s.undoStep(st); err != nil {
			errs = append(errs, fmt.Errorf("undo /%s: %w", st.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (s *stage) undoStep(st step) error {
	if st.Before != nil {
		return s.setDir(st.Name, st.Before)
	}
	if st.Name == "." {
		return nil
	}
	old, err := lstat(s.oldFD, st.number())
	if err != nil {
		return err
	}
	staged, err := lstat(s.newFD, st.number())
	if err != nil {
		return err
	}
	placed := !st.Remove && staged == nil
	if old == nil && !placed {
		return nil
	}
	dir, name, err := parent(s.root, st.Name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if placed {
		now, err := lstat(dir, name)
		if err != nil {
			return err
		}
		// A file is replaced atomically below.
		if old == nil || isDir(now) || isDir(old) {
			if err := RemoveAll(dir, name); err != nil {
				return err
			}
		}
	}
	if old == nil {
		return nil
	}
	if err := unix.Renameat(s.oldFD, st.number(), dir, name); err != nil {
		return err
	}
	// Renaming a file over a hard link to it does nothing.
	if err := unix.Unlinkat(s.oldFD, st.number(), 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// Recover undoes merges that a crash has interrupted, and removes their staging
// directories. Call it only when no merge is running.
func Recover(root *os.File) error {
	fd, err := OpenDir(int(root.Fd()), ".")
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), ".")
	names, err := f.Readdirnames(-1)
	_ = f.Close()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if strings.HasPrefix(name, StagingPrefix) {
			if err := recoverOne(int(root.Fd()), name); err != nil {
				errs = append(errs, fmt.Errorf("recover a merge from %q: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

func recoverOne(root int, name string) error {
	s := &stage{root: root, name: name, fd: -1, newFD: -1, oldFD: -1}
	st, err := lstat(root, name)
	if err != nil {
		return err
	}
	if !isDir(st) || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		// Not made by Apply: programs in a sandbox may use the name too.
		return nil
	}
	if err := s.open(); err != nil {
		return errors.Join(err, s.close())
	}
	steps, err := readJournal(s.journal)
	if err == nil {
		err = s.undo(steps)
	}
	// What could not be undone stays, for a person to inspect.
	s.stuck = err != nil
	return errors.Join(err, s.close())
}

// readJournal returns the steps that had begun. A truncated last line belongs to a step
// that had not.
func readJournal(r io.Reader) ([]step, error) {
	dec := json.NewDecoder(r)
	var steps []step
	for len(steps) < MaxEntries {
		var st step
		err := dec.Decode(&st)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return steps, nil
		}
		if err != nil {
			return nil, err
		}
		st.Name = string(st.Path)
		if _, err := cleanName(st.Name); err != nil || st.Number < 0 {
			return nil, errors.New("the journal is damaged")
		}
		steps = append(steps, st)
	}
	return nil, errors.New("the journal is too long")
}
