package x11

import (
	"context"
	"errors"
	"net"
)

// Shm finds the extension MIT-SHM, with which a server writes pictures to memory that it
// shares with its client. Opcode is 0 if the server does not accept descriptors of
// memory, as it does since version 1.2, or if the connection cannot carry them.
func (c *Conn) Shm(ctx context.Context) (Extension, error) {
	if _, ok := c.nc.(*net.UnixConn); !ok {
		return Extension{}, nil
	}
	list, err := c.QueryExtensions(ctx, "MIT-SHM")
	if err != nil || list[0].Opcode == 0 {
		return Extension{}, err
	}
	b, err := c.Ask(request(list[0].Opcode, 0), smallReply).Wait(ctx)
	if _, ok := errors.AsType[*Error](err); ok {
		return Extension{}, nil
	}
	if err != nil {
		return Extension{}, err
	}
	if major, minor := get16(b, 8), get16(b, 10); major < 1 || major == 1 && minor < 2 {
		return Extension{}, nil
	}
	return list[0], nil
}

// AttachShm shares memory with the server. Its descriptor must stay open until
// [Reply.Wait] has returned.
func (c *Conn) AttachShm(shm Extension, fd int) (segment uint32, r *Reply) {
	segment = c.NewID()
	c.mu.Lock()
	c.files = append(c.files, fd) // before the request, so that it is not sent later
	c.mu.Unlock()
	return segment, c.Check(request(shm.Opcode, 6, segment, 0)) // writable
}

// DetachShm stops sharing memory.
func (c *Conn) DetachShm(shm Extension, segment uint32) {
	c.Send(request(shm.Opcode, 2, segment))
}

// GetShmImage asks for a part of the screen. The server has written it to the beginning
// of the segment when the reply arrives.
func (c *Conn) GetShmImage(shm Extension, x, y, width, height int, segment uint32) *Reply {
	b := put16(request(shm.Opcode, 4, c.setup.Root), uint16(x), uint16(y), uint16(width), uint16(height))
	const zPixmap = 2
	return c.Ask(put32(b, 0xffffffff, zPixmap, segment, 0), smallReply)
}

// ShmImageSize returns how many bytes of pixels a reply to GetShmImage reports.
func ShmImageSize(b []byte) int { return int(get32(b, 12)) }
