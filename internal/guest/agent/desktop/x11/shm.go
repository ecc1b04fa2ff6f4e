package x11

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
)

// Shm finds the extension MIT-SHM, by which a server writes pictures to memory
// that it shares with its client. It is not there (Opcode 0) where the server
// takes no memory by its descriptor, which version 1.2 began with, or where the
// connection cannot carry one.
func (c *Conn) Shm(ctx context.Context) (Extension, error) {
	if _, ok := c.nc.(*net.UnixConn); !ok {
		return Extension{}, nil
	}
	list, err := c.QueryExtensions(ctx, "MIT-SHM")
	if err != nil || list[0].Opcode == 0 {
		return Extension{}, err
	}
	b, err := c.Ask(done(request(list[0].Opcode, 0, 4)), smallReply).Wait(ctx)
	if _, ok := errors.AsType[*Error](err); ok {
		return Extension{}, nil
	}
	if err != nil {
		return Extension{}, err
	}
	if major, minor := binary.LittleEndian.Uint16(b[8:]), binary.LittleEndian.Uint16(b[10:]); major < 1 || major == 1 && minor < 2 {
		return Extension{}, nil
	}
	return list[0], nil
}

// AttachShm gives the server memory, by a descriptor that must stay open until
// [Reply.Wait] has returned.
func (c *Conn) AttachShm(shm Extension, fd int) (segment uint32, r *Reply) {
	segment = c.NewID()
	b := put32(request(shm.Opcode, 6, 12), segment)
	b = append(b, 0, 0, 0, 0) // to be written to
	c.mu.Lock()
	c.files = append(c.files, fd) // whatever carries it, it is there before the request is
	c.mu.Unlock()
	return segment, c.Check(done(b))
}

// DetachShm takes memory back.
func (c *Conn) DetachShm(shm Extension, segment uint32) {
	c.Send(done(put32(request(shm.Opcode, 2, 8), segment)))
}

// GetShmImage asks for a part of the screen, which is at the beginning of a
// segment once the reply is there.
func (c *Conn) GetShmImage(shm Extension, x, y, width, height int, segment uint32) *Reply {
	b := put32(request(shm.Opcode, 4, 32), c.setup.Root)
	for _, n := range []int{x, y, width, height} {
		b = put16(b, uint16(n))
	}
	b = put32(b, 0xffffffff)
	b = append(b, 2, 0, 0, 0) // ZPixmap
	b = put32(put32(b, segment), 0)
	return c.Ask(done(b), smallReply)
}

// ShmImageSize reads how many bytes of pixels a reply to GetShmImage is about.
func ShmImageSize(b []byte) int { return int(binary.LittleEndian.Uint32(b[12:])) }
