package x11

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// Extension is where an extension's requests and events begin. It is not there
// if Opcode is 0.
type Extension struct {
	Opcode, FirstEvent byte
}

// QueryExtensions finds extensions by their names.
func (c *Conn) QueryExtensions(ctx context.Context, names ...string) ([]Extension, error) {
	replies := make([]*Reply, len(names))
	for i, name := range names {
		b := put16(put16(request(98, 0, 8+len(name)+3), uint16(len(name))), 0)
		replies[i] = c.Ask(done(append(b, name...)), smallReply)
	}
	list := make([]Extension, len(names))
	for i, r := range replies {
		b, err := r.Wait(ctx)
		if err != nil {
			return nil, err
		}
		if b[8] != 0 && b[9] >= 128 {
			list[i] = Extension{Opcode: b[9], FirstEvent: b[10]}
		}
	}
	return list, nil
}

// Version tells an extension's server which version is spoken, as some want to
// be told before all else.
func (c *Conn) Version(ctx context.Context, e Extension, major, minor uint32) error {
	_, err := c.Ask(done(put32(put32(request(e.Opcode, 0, 12), major), minor)), smallReply).Wait(ctx)
	return err
}

// Kinds of input that [Conn.FakeInput] makes.
const (
	FakeKeyPress      = 2
	FakeKeyRelease    = 3
	FakeButtonPress   = 4
	FakeButtonRelease = 5
	FakeMotion        = 6
)

// FakeInput does as if a device had been used; xtest is the extension XTEST.
// detail is the key or button, x and y are where a motion leads.
func (c *Conn) FakeInput(xtest Extension, kind, detail byte, x, y int) {
	b := request(xtest.Opcode, 2, 36)
	b = append(b, kind, detail, 0, 0)
	b = put32(b, 0) // now
	b = put32(b, 0) // the pointer's own root
	b = append(b, make([]byte, 8)...)
	b = put16(put16(b, uint16(int16(x))), uint16(int16(y)))
	c.Send(done(append(b, make([]byte, 8)...)))
}

// Cursor is the picture of the pointer.
type Cursor struct {
	// X and Y are where its top left corner is on the screen.
	X, Y, Width, Height int
	// Pixels are ARGB, with colours multiplied by alpha.
	Pixels []uint32
}

// maxCursor bounds width and height of a cursor.
const maxCursor = 512

// CursorImage asks for the cursor; xfixes is the extension XFIXES.
func (c *Conn) CursorImage(xfixes Extension) *Reply {
	return c.Ask(done(request(xfixes.Opcode, 4, 4)), 4*maxCursor*maxCursor)
}

// ParseCursor reads the reply to CursorImage.
func ParseCursor(b []byte) (*Cursor, error) {
	if len(b) < 32 {
		return nil, errors.New("a short cursor")
	}
	at := func(i int) int { return int(binary.LittleEndian.Uint16(b[i:])) }
	k := &Cursor{Width: at(12), Height: at(14)}
	if k.Width > maxCursor || k.Height > maxCursor || len(b)-32 < 4*k.Width*k.Height {
		return nil, fmt.Errorf("a cursor of %d by %d pixels", k.Width, k.Height)
	}
	k.X, k.Y = int(int16(at(8)))-at(16), int(int16(at(10)))-at(18)
	k.Pixels = make([]uint32, k.Width*k.Height)
	for i := range k.Pixels {
		k.Pixels[i] = binary.LittleEndian.Uint32(b[32+4*i:])
	}
	return k, nil
}

// WatchDamage asks for an event when a window's content changes; it comes once,
// until RepairDamage. damage is the extension DAMAGE.
func (c *Conn) WatchDamage(damage Extension, window uint32) (uint32, *Reply) {
	id := c.NewID()
	b := put32(put32(request(damage.Opcode, 1, 16), id), window)
	return id, c.Check(done(append(b, 3, 0, 0, 0))) // level: not empty
}

// RepairDamage says that a change was seen.
func (c *Conn) RepairDamage(damage Extension, id uint32) {
	c.Send(done(put32(put32(put32(request(damage.Opcode, 3, 16), id), 0), 0)))
}

// ForgetDamage ends WatchDamage.
func (c *Conn) ForgetDamage(damage Extension, id uint32) {
	c.Send(done(put32(request(damage.Opcode, 2, 8), id)))
}
