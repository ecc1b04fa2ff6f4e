package runsc

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// memfd finds the file in which gVisor keeps all memory of the sandbox's programs. A page
// that was loaded but not touched is mapped by no process, so only the file shows what
// the sandbox uses.
type memfd struct {
	mu   sync.Mutex
	path string // of the descriptor below /proc; guarded by mu
}

// memfdName is gVisor's name for the file, as it appears in links below /proc.
const memfdName = "memfd:runsc-memory"

// MemoryFileBytes returns the memory used by the sandbox's programs and by its file
// systems in memory, or 0 if it is unknown. It may be called at any time.
func (s *Sandbox) MemoryFileBytes() int64 {
	s.memfd.mu.Lock()
	defer s.memfd.mu.Unlock()
	if n, ok := memfdBytes(s.memfd.path); ok {
		return n
	}
	dir, err := fdDir(s.c.SandboxPid())
	if err != nil {
		return 0
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if n, ok := memfdBytes(path); ok {
			s.memfd.path = path
			return n
		}
	}
	return 0
}

// memfdBytes returns the size of the memory file if a descriptor refers to it.
func memfdBytes(path string) (int64, bool) {
	target, err := os.Readlink(path)
	if err != nil || !strings.Contains(target, memfdName) {
		return 0, false
	}
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0, false
	}
	return st.Blocks * 512, true
}
