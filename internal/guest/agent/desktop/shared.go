package desktop

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/agent/desktop/x11"
)

// segment is memory into which an X server writes pictures; sent through its socket, they
// would be copied four times. The server may be hostile: it can write to the memory at any
// time, so only colours are read from it. It cannot shrink the memory, so reading never
// fails.
type segment struct {
	of  *session
	id  uint32
	mem []byte
}

// share returns memory of at least size bytes that is shared with the server, or nil if
// that is not possible. The caller holds Desktop.shots.
func (d *Desktop) share(ctx context.Context, s *session, size int) (*segment, error) {
	if s.shm.Opcode == 0 || size > keepFrame {
		return nil, nil
	}
	if d.shared != nil && (d.shared.of != s || len(d.shared.mem) < size) {
		d.shared.release()
		d.shared = nil
	}
	if d.shared != nil {
		return d.shared, nil
	}
	fd, mem, err := sealedMemory(size)
	if err != nil {
		s.shm = x11.Extension{} // no such memory, or no descriptor: use the socket instead
		return nil, nil
	}
	defer unix.Close(fd)
	id, attached := s.AttachShm(s.shm, fd)
	g := &segment{of: s, id: id, mem: mem}
	if _, err := attached.Wait(ctx); err != nil {
		g.release()
		if _, ok := errors.AsType[*x11.Error](err); ok {
			s.shm = x11.Extension{} // the server cannot map the memory
			return nil, nil
		}
		return nil, err
	}
	d.shared = g
	return g, nil
}

// sealedMemory returns memory whose size cannot be changed, and its descriptor.
func sealedMemory(size int) (fd int, mem []byte, err error) {
	fd, err = unix.MemfdCreate("screen", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, err
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, err
	}
	return fd, mem, nil
}

// release unmaps the memory here and in the server, which ignores unknown segments.
func (g *segment) release() {
	g.of.DetachShm(g.of.shm, g.id)
	_ = unix.Munmap(g.mem)
}
