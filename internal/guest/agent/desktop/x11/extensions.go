package x11

import (
	"context"
	"errors"
	"fmt"
)

// Extension has the codes of an extension's requests and first event. Opcode is 0 if the
// server does not have the extension.
type Extension struct {
	Opcode, FirstEvent byte
}

// QueryExtensions finds extensions by their names.
func (c *Conn) QueryExtensions(ctx context.Context, names ...string) ([]Extension, error) {
	replies, err := c.askByName(ctx, 98, names)
	if err != nil {
		return nil, err
	}
	list := make([]Extension, len(names))
	for i, b := range replies {
		if b[8] != 0 && b[9] >= 128 {
			list[i] = Extension{Opcode: b[9], FirstEvent: b[10]}
		}
	}
	return list, nil
}

// Version negotiates the version of an extension, which some require before all other
// requests.
func (c *Conn) Version(ctx context.Context, e Extension, major, minor uint32) error {
	_, err := c.Ask(request(e.Opcode, 0, major, minor), smallReply).Wait(ctx)
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

// FakeInput simulates input from a device; xtest is the extension XTEST. detail is the
// key or button, x and y are the target of a motion.
func (c *Conn) FakeInput(xtest Extension, kind, detail byte, x, y int) {
	b := append(request(xtest.Opcode, 2), kind, detail, 0, 0)
	b = put32(b, 0, 0, 0, 0) // now, the pointer's own root, unused
	b = put16(b, uint16(int16(x)), uint16(int16(y)))
	c.Send(put32(b, 0, 0))
}

// Cursor is the picture of the pointer.
type Cursor struct {
	// X and Y are the position of its top left corner on the screen.
	X, Y, Width, Height int
	// Pixels are ARGB, with colours multiplied by alpha.
	Pixels []uint32
}

// maxCursor bounds width and height of a cursor.
const maxCursor = 512

// CursorImage asks for the cursor; xfixes is the extension XFIXES.
func (c *Conn) CursorImage(xfixes Extension) *Reply {
	return c.Ask(request(xfixes.Opcode, 4), 4*maxCursor*maxCursor)
}

// ParseCursor parses the reply to CursorImage.
func ParseCursor(b []byte) (*Cursor, error) {
	if len(b) < 32 {
		return nil, errors.New("a short cursor")
	}
	k := &Cursor{Width: int(get16(b, 12)), Height: int(get16(b, 14))}
	if k.Width > maxCursor || k.Height > maxCursor || len(b)-32 < 4*k.Width*k.Height {
		return nil, fmt.Errorf("a cursor of %d by %d pixels", k.Width, k.Height)
	}
	k.X, k.Y = signed16(b, 8)-int(get16(b, 16)), signed16(b, 10)-int(get16(b, 18))
	k.Pixels = uint32s(b[32:][:4*k.Width*k.Height])
	return k, nil
}

// WatchDamage asks for one event when a window's content changes, and for another after
// each RepairDamage. damage is the extension DAMAGE.
func (c *Conn) WatchDamage(damage Extension, window uint32) (uint32, *Reply) {
	id := c.NewID()
	b := request(damage.Opcode, 1, id, window)
	return id, c.Check(append(b, 3, 0, 0, 0)) // level: not empty
}

// RepairDamage acknowledges a change.
func (c *Conn) RepairDamage(damage Extension, id uint32) {
	c.Send(request(damage.Opcode, 3, id, 0, 0))
}

// ForgetDamage ends WatchDamage.
func (c *Conn) ForgetDamage(damage Extension, id uint32) {
	c.Send(request(damage.Opcode, 2, id))
}
