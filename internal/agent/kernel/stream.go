package kernel

import (
	"os"
	"sync"
	"syscall"
)

// stream reads what code writes to one of its descriptors, from the start of
// the kernel to the end of the last process that holds the other end.
type stream struct {
	file *os.File
	raw  syscall.RawConn
	take func(data []byte)

	mu  sync.Mutex
	buf []byte // guarded by mu
}

// streamBuffer is how much is read at once.
const streamBuffer = 64 << 10

func newStream(file *os.File, take func([]byte)) (*stream, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &stream{file: file, raw: raw, take: take}, nil
}

// run reads until the end.
func (s *stream) run() {
	for {
		var end bool
		err := s.raw.Read(func(fd uintptr) bool {
			var empty bool
			empty, end = s.empty(fd)
			return !empty || end
		})
		if err != nil || end {
			_ = s.file.Close()
			return
		}
	}
}

// empty reads at most some buffers and reports whether nothing is left, for now
// or, at the end, for good.
func (s *stream) empty(fd uintptr) (empty, end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buf == nil {
		s.buf = make([]byte, streamBuffer)
	}
	for range 16 {
		n, err := syscall.Read(int(fd), s.buf)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			s.buf = nil // idle kernels cost no memory
			return true, false
		case err != nil || n <= 0:
			return true, true
		default:
			s.take(s.buf[:n])
		}
	}
	return false, false
}

// drain reads what is there now. A flood has no end: after so many bytes the
// rest is not of before the call.
func (s *stream) drain() {
	for range 64 {
		done := true
		_ = s.raw.Control(func(fd uintptr) {
			empty, end := s.empty(fd)
			done = empty || end
		})
		if done {
			return
		}
	}
}
