package kernel

import (
	"errors"
	"os"
	"sync"
	"syscall"
)

// stream reads what code writes to one of its descriptors, until the last process that
// holds the other end has closed it.
type stream struct {
	file *os.File
	raw  syscall.RawConn
	take func(data []byte)

	mu  sync.Mutex
	buf []byte // guarded by mu
}

// streamBuffer is the size of a read, in bytes.
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

// empty reads up to 16 buffers. It reports whether nothing is left for now (empty) or
// permanently (end).
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

// drain reads what was written before the call. It is bounded, since a program may write
// endlessly: data beyond the bound was written later.
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

// maxLate is the most that a pipe can hold, in bytes.
const maxLate = 1 << 20

// lateReader reads a pipe until its deadline, and after that what is left in it.
type lateReader struct {
	file *os.File
	late int // bytes read after the deadline
}

func (r *lateReader) Read(p []byte) (int, error) {
	n, err := r.file.Read(p)
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || r.late >= maxLate {
		return n, err
	}
	raw, rerr := r.file.SyscallConn()
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
	r.late += n
	return n, nil
}
