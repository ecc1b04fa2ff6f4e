package agent

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// pump copies what a job writes from a pipe or terminal into its output, until the
// end of the file. That may be long after the job has exited: a process that the job
// left behind can hold the other end.
type pump struct {
	out    *output
	stream int
	file   *os.File
	raw    syscall.RawConn

	draining atomic.Bool
	// settled is closed at the end of the file, or when the pump has found the pipe
	// empty after a call of drain.
	settled chan struct{}
	settle  func()
	// ended is closed when the pump stops.
	ended chan struct{}
}

func newPump(out *output, stream int, file *os.File) (*pump, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &pump{out: out, stream: stream, file: file, raw: raw, settled: make(chan struct{}), ended: make(chan struct{})}
	p.settle = sync.OnceFunc(func() { close(p.settled) })
	return p, nil
}

// buffers are in use only while there is something to read: idle jobs cost no memory.
var buffers = sync.Pool{New: func() any { return new([liveWindow]byte) }}

func (p *pump) run() {
	defer close(p.ended)
	defer p.settle()
	defer p.out.end(p.stream)
	for {
		switch err := p.step(); {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded): // drain wakes it so
			if p.file.SetReadDeadline(time.Time{}) != nil {
				return
			}
		default:
			return
		}
	}
}

// step waits for output and appends it.
func (p *pump) step() error {
	buf := buffers.Get().(*[liveWindow]byte)
	defer func() {
		if buf != nil {
			buffers.Put(buf)
		}
	}()
	var n int
	var err error
	draining := p.draining.Load()
	rerr := p.raw.Read(func(fd uintptr) bool {
		if buf == nil {
			buf = buffers.Get().(*[liveWindow]byte)
		}
		for {
			n, err = syscall.Read(int(fd), buf[:])
			if err != syscall.EINTR {
				break
			}
		}
		if err != syscall.EAGAIN || draining {
			return true
		}
		buffers.Put(buf)
		buf = nil
		return false
	})
	switch {
	case rerr != nil:
		return rerr
	case err == syscall.EAGAIN: // draining, and empty
		p.draining.Store(false)
		p.settle()
		return nil
	case err != nil || n <= 0: // a terminal returns EIO once all others have closed it
		return io.EOF
	}
	p.out.write(p.stream, buf[:n])
	return nil
}

// drain asks the pump to close settled as soon as nothing is left to read.
func (p *pump) drain() {
	p.draining.Store(true)
	if p.file.SetReadDeadline(time.Unix(1, 0)) != nil {
		p.settle()
	}
}
