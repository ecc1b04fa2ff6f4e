package network

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

// searcher looks for words in everything that a daemon has: files, command
// lines, environments and memory.
type searcher struct {
	d     *covetest.Daemon
	words [][]byte
	keep  int    // bytes of one piece that the next one is searched with
	buf   []byte // the data that is being searched
	pages []byte // the kernel's information about pages
	bytes int64  // how much was searched
	found map[string]bool
}

// newSearcher returns a searcher for words, in plain text and in base64.
func newSearcher(d *covetest.Daemon, words ...string) *searcher {
	s := &searcher{d: d, found: map[string]bool{}}
	for _, w := range words {
		s.words = append(s.words, []byte(w))
		for shift := range 3 {
			// The middle is the same wherever the word begins.
			text := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat(" ", shift) + w))
			s.words = append(s.words, []byte(text[4:len(text)-4]))
		}
	}
	for _, w := range s.words {
		s.keep = max(s.keep, len(w)-1)
	}
	s.buf, s.pages = make([]byte, s.keep+1<<20), make([]byte, 1<<19)
	return s
}

// stream searches the data of a reader.
func (s *searcher) stream(where string, r io.Reader) error {
	buf, have := s.buf, 0
	for {
		n, err := r.Read(buf[have:])
		s.bytes += int64(n)
		have += n
		for _, w := range s.words {
			if bytes.Contains(buf[:have], w) {
				s.found[where] = true
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if have > s.keep {
			have = copy(buf, buf[have-s.keep:have])
		}
	}
}

// file searches a file without its holes.
func (s *searcher) file(where, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	end := int64(0)
	for {
		from, err := unix.Seek(int(f.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		if end, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE); err != nil {
			return err
		}
		if err := s.stream(where, io.NewSectionReader(f, from, end-from)); err != nil {
			return err
		}
	}
}

// files searches all files of the state directory.
func (s *searcher) files(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(s.d.StateDir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it is in use
		}
		if err != nil {
			return err
		}
		if bytes.Contains([]byte(path), s.words[0]) {
			s.found["the name of "+path] = true
		}
		if !e.Type().IsRegular() {
			return nil
		}
		if err := s.file(path, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
	if err != nil {
		t.Errorf("search files: %v", err)
	}
}

// arguments searches the command lines and environments of all processes of
// the machine but this one, as far as root may read them.
func (s *searcher) arguments(t *testing.T) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(all) < 3 {
		t.Fatalf("found the processes %v, %v", all, err)
	}
	var tree []string
	for _, pid := range s.d.Tree() {
		tree = append(tree, strconv.Itoa(pid))
	}
	for _, dir := range all {
		if filepath.Base(dir) == strconv.Itoa(os.Getpid()) {
			continue
		}
		for _, name := range []string{"cmdline", "environ"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err == nil {
				// Neither is missing of a process that lives and can be read.
				err = s.stream(filepath.Join(dir, name), bytes.NewReader(data))
			}
			if err != nil && !gone(err) && (!errors.Is(err, fs.ErrPermission) || slices.Contains(tree, filepath.Base(dir))) {
				t.Errorf("search %s/%s: %v", dir, name, err)
			}
		}
	}
}

// gone reports whether an error says that a process has ended.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// memory searches the memory of the daemon and of all processes that it has started,
// except the given ones. It returns how many processes it has searched.
func (s *searcher) memory(t *testing.T, but map[int]bool) (processes int) {
	t.Helper()
	for _, pid := range s.d.Tree() {
		if but[pid] {
			continue
		}
		processes++
		if err := s.process(pid); err != nil && !gone(err) {
			t.Errorf("search the memory of %d: %v", pid, err)
		}
	}
	return processes
}

// process searches the memory of one process, and its files that have no name.
func (s *searcher) process(pid int) error {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return err
	}
	where := fmt.Sprintf("the memory of %s (%d)", strings.TrimSpace(string(name)), pid)
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return err
	}
	defer mem.Close()
	pages, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return err
	}
	defer pages.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		var flags string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &flags); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		program := flags[1] != 'w' && strings.Contains(line, " /") && !strings.Contains(line, "/memfd:")
		if flags[0] != 'r' || program || strings.Contains(line, "[v") { // vvar, vsyscall
			continue
		}
		err := s.region(where, mem, pages, from, to)
		if errors.Is(err, io.EOF) && hasEnded(pid) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return s.unnamed(where, pid)
}

// hasEnded reports whether a process has no memory any more, although its files
// below /proc may still be open or even there.
func hasEnded(pid int) bool {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	return err == nil && len(maps) == 0 || gone(err)
}

const pageSize = 4096

// region searches the existing pages of a region: reading others would create them.
func (s *searcher) region(where string, mem, pages *os.File, from, to uint64) error {
	entries := s.pages
	for at := from; at < to; {
		n := min(uint64(len(entries)/8), (to-at)/pageSize)
		if _, err := pages.ReadAt(entries[:8*n], int64(at/pageSize*8)); err != nil {
			return err
		}
		begin := uint64(0)
		for i := uint64(0); i <= n; i++ {
			if i < n && binary.LittleEndian.Uint64(entries[8*i:])>>62 != 0 { // present or swapped
				continue
			}
			if i > begin {
				run := io.NewSectionReader(mem, int64(at+begin*pageSize), int64((i-begin)*pageSize))
				// A page may go away while it is looked at.
				if err := s.stream(where, run); err != nil && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.EFAULT) {
					return err
				}
			}
			begin = i + 1
		}
		at += n * pageSize
	}
	return nil
}

// unnamed searches files that a process has open and that no directory has:
// gVisor keeps the memory of programs in one.
func (s *searcher) unnamed(where string, pid int) error {
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return err
	}
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !strings.HasPrefix(target, "/memfd:") && !(strings.HasPrefix(target, "/") && strings.HasSuffix(target, " (deleted)")) {
			continue
		}
		if info, err := os.Stat(fd); err != nil || !info.Mode().IsRegular() {
			continue
		}
		if err := s.file(where+", "+target, fd); err != nil && !gone(err) {
			return fmt.Errorf("%s: %w", target, err)
		}
	}
	return nil
}
