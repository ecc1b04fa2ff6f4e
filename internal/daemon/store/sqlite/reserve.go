package sqlite

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	msqlite "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

const (
	// ReserveBytes is the size of the reserve: the disk space, in bytes, that
	// only deletions may use. It is larger than the journal gets between two
	// checkpoints, 4 MiB, so that any number of deletions fits in.
	ReserveBytes = 8 << 20
	// reserveStep is how much of the reserve one attempt of a deletion gets.
	reserveStep = 1 << 20
	// reserveSuffix and journalSuffix follow the name of the database.
	reserveSuffix = "-reserve"
	journalSuffix = "-wal"
)

// reserve is a file that occupies disk space until a deletion needs the space.
// Its size says how much is left. Only the daemon that has locked the state
// directory changes it.
type reserve struct {
	path    string
	journal string // of the database, which gets the space
}

func reserveOf(database string) reserve {
	return reserve{path: database + reserveSuffix, journal: database + journalSuffix}
}

// fill makes the reserve as large as it should be, or as large as the disk
// allows. A full disk is not an error.
func (r reserve) fill() error {
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE, 0o600)
	if full(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the disk reserve: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("look at the disk reserve: %w", err)
	}
	for size := info.Size(); size < ReserveBytes; size += reserveStep {
		if err := occupy(f, size, reserveStep); err != nil {
			err = errors.Join(err, f.Truncate(size))
			if full(err) {
				return nil
			}
			return fmt.Errorf("fill the disk reserve: %w", err)
		}
	}
	return nil
}

// occupy allocates disk space for a range of a file, which grows with it. It
// writes zeros where the file system cannot allocate.
func occupy(f *os.File, from, n int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, from, n)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = f.WriteAt(make([]byte, n), from)
	}
	return err
}

// give frees a step of the reserve and reports whether there was one. The
// journal gets half of the step at once, before another program can take it;
// the other half is for the rest of the database.
func (r reserve) give() bool {
	f, err := os.OpenFile(r.path, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return false
	}
	journal, err := os.OpenFile(r.journal, os.O_RDWR, 0)
	if err != nil {
		journal = nil // the database is being opened
	} else {
		defer journal.Close()
	}
	if f.Truncate(max(0, info.Size()-reserveStep)) != nil {
		return false
	}
	if journal != nil {
		if info, err := journal.Stat(); err == nil {
			// Where this fails, the deletion is tried with what is free.
			_ = unix.Fallocate(int(journal.Fd()), unix.FALLOC_FL_KEEP_SIZE, info.Size(), reserveStep/2)
		}
	}
	return true
}

// full reports whether an error says that the disk is full.
func full(err error) bool {
	if e, ok := errors.AsType[*msqlite.Error](err); ok {
		return e.Code() == sqlite3.SQLITE_FULL || e.Code() == sqlite3.SQLITE_IOERR_SHMSIZE
	}
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// Freeing implements [sqlstore.Database]. While the disk is full, f is tried again
// with more of the reserve.
func (d *database) Freeing(f func() error) error {
	for {
		if err := f(); !full(err) || !d.reserve.give() {
			return err
		}
	}
}

// FillReserve makes the reserve for deletions whole again, as far as there is
// room on the disk. Without room it returns nil, and should be called again
// later.
func (s *Store) FillReserve() error { return s.db.reserve.fill() }
