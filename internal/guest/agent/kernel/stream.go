package kernel

import (
	"errors"
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

// maxSpoken bounds what a pipe holds, in bytes.
const maxSpoken = 1 << 20

// spoken reads a pipe up to its deadline, and then what is in it: that is not
// lost on a reader who comes late.
type spoken struct {
	file *os.File
	late int // bytes read after the deadline
}

// Read implements [io.Reader].
func (s *spoken) Read(p []byte) (int, error) {
	n, err := s.file.Read(p)
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || s.late >= maxSpoken {
		return n, err
	}
	raw, rerr := s.file.SyscallConn()
	if rerr != nil {
		return 0, err
	}
	_ = raw.Control(func(fd uintptr) {
		for {
			var errno error
			if n, errno = syscall.Read(int(fd), p); errno != syscall.EINTR {
				return
			}
		}
	})
	if n <= 0 { // nothing, or the end
		return 0, err
	}
	s.late += n
	return n, nil
}
