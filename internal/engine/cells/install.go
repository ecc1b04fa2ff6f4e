package cells

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/machine"
)

// install copies what sandboxes run: the agent, and this program, which gVisor executes
// again by its path. An upgrade may replace the original files while the daemon runs.
func (e *Engine) install() error {
	if err := os.MkdirAll(e.cellsDir(), 0o700); err != nil {
		return fmt.Errorf("make the cells' directory: %w", err)
	}
	if err := e.installAgent(); err != nil {
		return fmt.Errorf("install the agent: %w", err)
	}
	path, err := installProgram(e.programsDir(), e.cfg.Executable)
	if err != nil {
		return fmt.Errorf("install the program: %w", err)
	}
	e.program = path
	return e.removeOldPrograms()
}

func (e *Engine) programsDir() string { return filepath.Join(e.cfg.Dir, "bin") }

// removeOldPrograms removes the programs of other versions, except those of checkpoints,
// which only the same build of gVisor can restore. Processes that run a removed program
// keep it open.
func (e *Engine) removeOldPrograms() error {
	whole, broken, err := e.checkpoints.List()
	if err != nil {
		return err
	}
	if len(broken) > 0 {
		return nil // the programs that they need are unknown
	}
	keep := map[string]bool{filepath.Base(e.program): true}
	for _, m := range whole {
		keep[m.Program] = true
	}
	for _, dir := range []string{e.cellsDir(), e.standbyDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			// Checkpoints of a running sandbox will need its program.
			o, err := readOrigin(filepath.Join(dir, entry.Name()))
			if machine.Scarce(err) {
				return err
			}
			if err == nil {
				keep[o.Program] = true
			}
		}
	}
	entries, err := os.ReadDir(e.programsDir())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if keep[entry.Name()] {
			continue
		}
		if err := os.Remove(filepath.Join(e.programsDir(), entry.Name())); err != nil {
			return err
		}
	}
	// The last engine may have been killed before it did this. Copies start only after the
	// removal above, which would remove their files.
	for _, m := range whole {
		e.keepProgram(m.Program)
	}
	return nil
}

func (e *Engine) installAgent() error {
	path := filepath.Join(e.agentDir(), "agent")
	// Older versions did not sync the file, so it may be empty after a power failure.
	if info, err := os.Stat(path); err == nil && info.Size() == int64(len(e.cfg.Agent)) {
		return nil
	}
	// The sandbox's users must be able to read the directory.
	if err := os.MkdirAll(e.agentDir(), 0o755); err != nil {
		return err
	}
	return writeProgram(path, func(f *os.File) error {
		_, err := f.Write(e.cfg.Agent)
		return err
	})
}

// installProgram makes a file in dir with the program's content and returns its path.
func installProgram(dir, executable string) (string, error) {
	src, err := os.Open(executable)
	if err != nil {
		return "", err
	}
	defer src.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return "", err
	}
	path := filepath.Join(dir, programName(&st))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	// A hard link costs nothing. It fails across file systems, for a file of another user,
	// and for a removed file.
	if real, err := filepath.EvalSymlinks(executable); err == nil && sameFile(real, &st) && os.Link(real, path) == nil {
		return path, nil
	}
	return path, copyTo(path, src)
}

// copyTo copies a program with its modification time.
func copyTo(path string, src *os.File) error {
	info, err := src.Stat()
	if err != nil {
		return err
	}
	return writeProgram(path, func(f *os.File) error {
		_, err := io.Copy(f, src)
		return errors.Join(err, os.Chtimes(f.Name(), time.Time{}, info.ModTime()))
	})
}

// programName names a program by its file's attributes, since its content is not read at
// each start.
func programName(st *unix.Stat_t) string {
	return fmt.Sprintf("cove-%x-%x-%x", st.Ino, st.Size, st.Mtim.Nano())
}

// isUsers reports whether a kept program is the file that the user started, and not a
// copy.
func isUsers(name string, st *unix.Stat_t) bool {
	return strings.HasPrefix(name, fmt.Sprintf("cove-%x-", st.Ino))
}

// intact checks that a kept program is still the one that its name identifies: a hard
// link to the user's file changes when that file is written to.
func intact(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if name := filepath.Base(path); isUsers(name, &st) && name != programName(&st) {
		return fmt.Errorf("%s was written to", path)
	}
	return nil
}

func sameFile(path string, want *unix.Stat_t) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Ino == want.Ino && st.Dev == want.Dev
}

// writeProgram writes an executable file.
func writeProgram(path string, write func(*os.File) error) error {
	return durable.Write(path, func(f *os.File) error { return errors.Join(write(f), f.Chmod(0o555)) })
}
