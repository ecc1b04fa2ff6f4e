package x11

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// The events that this package's users look at.
const (
	EventDestroyNotify    = 17
	EventConfigureNotify  = 22
	EventPropertyNotify   = 28
	EventSelectionClear   = 29
	EventSelectionRequest = 30
	EventSelectionNotify  = 31
	EventClientMessage    = 33
	EventMappingNotify    = 34
	EventGeneric          = 35
)

// Masks of events.
const (
	PropertyChangeMask       = 1 << 22
	StructureNotifyMask      = 1 << 17
	SubstructureNotifyMask   = 1 << 19
	SubstructureRedirectMask = 1 << 20
)

// Predefined atoms.
const (
	AtomNone     = 0
	AtomPrimary  = 1
	AtomAtom     = 4
	AtomCardinal = 6
	AtomInteger  = 19
	AtomString   = 31
	AtomWindow   = 33
	AtomWMName   = 39
	AtomWMClass  = 67
)

// request begins one; the length is set by done.
func request(op, data byte, size int) []byte {
	b := make([]byte, 4, size)
	b[0], b[1] = op, data
	return b
}

func put16(b []byte, n uint16) []byte { return binary.LittleEndian.AppendUint16(b, n) }
func put32(b []byte, n uint32) []byte { return binary.LittleEndian.AppendUint32(b, n) }

// done pads a request and writes its length.
func done(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint16(b[2:], uint16(len(b)/4))
	return b
}

func getInputFocus() []byte { return done(request(43, 0, 4)) }

// InputFocus returns the window that has the keyboard.
func (c *Conn) InputFocus(ctx context.Context) (uint32, error) {
	b, err := c.Ask(getInputFocus(), smallReply).Wait(ctx)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b[8:]), nil
}

// CreateWindow makes a window of one pixel that is never shown, and gets events.
func (c *Conn) CreateWindow(events uint32) (uint32, *Reply) {
	id := c.NewID()
	b := put32(request(1, 0, 44), id)
	b = put32(b, c.setup.Root)
	for _, n := range []uint16{0, 0, 1, 1, 0, 2} { // place, size, border; InputOnly
		b = put16(b, n)
	}
	b = put32(b, 0) // visual: the parent's
	b = put32(b, 1<<9|1<<11)
	b = put32(b, 1) // override-redirect: not the window manager's
	b = put32(b, events)
	return id, c.Check(done(b))
}

// SelectInput asks for events of a window of others.
func (c *Conn) SelectInput(window, events uint32) {
	c.Send(done(put32(put32(put32(request(2, 0, 16), window), 1<<11), events)))
}

// MapWindow shows a window.
func (c *Conn) MapWindow(window uint32) { c.Send(done(put32(request(8, 0, 8), window))) }

// UnmapWindow hides a window.
func (c *Conn) UnmapWindow(window uint32) { c.Send(done(put32(request(10, 0, 8), window))) }

// RaiseWindow puts a window on top.
func (c *Conn) RaiseWindow(window uint32) {
	c.Send(done(put32(put32(put32(request(12, 0, 16), window), 1<<6), 0)))
}

// PlaceWindow moves and sizes a window.
func (c *Conn) PlaceWindow(window uint32, x, y, width, height int) {
	b := put32(put32(request(12, 0, 28), window), 1|2|4|8)
	for _, n := range []int{x, y, width, height} {
		b = put32(b, uint32(int32(n)))
	}
	c.Send(done(b))
}

// FocusWindow gives a window the keyboard.
func (c *Conn) FocusWindow(window uint32) *Reply {
	return c.Check(done(put32(put32(request(42, 2, 12), window), 0))) // reverts to the parent
}

// KillClient ends the program whose resource this is.
func (c *Conn) KillClient(resource uint32) { c.Send(done(put32(request(113, 0, 8), resource))) }

// Geometry is the place and size of a window in its parent.
type Geometry struct {
	X, Y, Width, Height, Border int
}

// GetGeometry asks for the place and size of a drawable.
func (c *Conn) GetGeometry(drawable uint32) *Reply {
	return c.Ask(done(put32(request(14, 0, 8), drawable)), smallReply)
}

// ParseGeometry reads the reply to GetGeometry.
func ParseGeometry(b []byte) Geometry {
	return Geometry{
		X: int(int16(binary.LittleEndian.Uint16(b[12:]))), Y: int(int16(binary.LittleEndian.Uint16(b[14:]))),
		Width: int(binary.LittleEndian.Uint16(b[16:])), Height: int(binary.LittleEndian.Uint16(b[18:])),
		Border: int(binary.LittleEndian.Uint16(b[20:])),
	}
}

// GetWindowAttributes asks whether a window is shown, and managed.
func (c *Conn) GetWindowAttributes(window uint32) *Reply {
	return c.Ask(done(put32(request(3, 0, 8), window)), smallReply)
}

// ParseShown reads the reply to GetWindowAttributes: whether the window is
// shown, and one that window managers look after.
func ParseShown(b []byte) (shown, managed bool) {
	if len(b) < 44 {
		return false, false
	}
	return b[26] == 2, b[27] == 0
}

// QueryTree returns the parent and the children of a window, topmost last.
func (c *Conn) QueryTree(ctx context.Context, window uint32) (parent uint32, children []uint32, err error) {
	b, err := c.Ask(done(put32(request(15, 0, 8), window)), 1<<20).Wait(ctx)
	if err != nil {
		return 0, nil, err
	}
	parent = binary.LittleEndian.Uint32(b[12:])
	n := int(binary.LittleEndian.Uint16(b[16:]))
	for rest := b[32:]; n > 0 && len(rest) >= 4; n, rest = n-1, rest[4:] {
		children = append(children, binary.LittleEndian.Uint32(rest))
	}
	return parent, children, nil
}

// TranslateToRoot asks where on the screen a window's top left corner is.
func (c *Conn) TranslateToRoot(window uint32) *Reply {
	return c.Ask(done(put32(put32(put32(request(40, 0, 16), window), c.setup.Root), 0)), smallReply)
}

// ParseTranslated reads the reply to TranslateToRoot.
func ParseTranslated(b []byte) (x, y int) {
	return int(int16(binary.LittleEndian.Uint16(b[12:]))), int(int16(binary.LittleEndian.Uint16(b[14:])))
}

// InternAtoms returns the atoms of these names, which are made if there are
// none.
func (c *Conn) InternAtoms(ctx context.Context, names ...string) ([]uint32, error) {
	replies := make([]*Reply, len(names))
	for i, name := range names {
		b := put16(put16(request(16, 0, 8+len(name)+3), uint16(len(name))), 0)
		replies[i] = c.Ask(done(append(b, name...)), smallReply)
	}
	atoms := make([]uint32, len(names))
	for i, r := range replies {
		b, err := r.Wait(ctx)
		if err != nil {
			return nil, err
		}
		atoms[i] = binary.LittleEndian.Uint32(b[8:])
	}
	return atoms, nil
}

// ChangeProperty replaces a property of a window with data of 8 or 32 bits a
// unit.
func (c *Conn) ChangeProperty(window, property, kind uint32, format byte, data []byte) *Reply {
	b := request(18, 0, 24+len(data)+3)
	b = put32(put32(put32(b, window), property), kind)
	b = append(b, format, 0, 0, 0)
	b = put32(b, uint32(len(data)/int(format/8)))
	return c.Check(done(append(b, data...)))
}

// DeleteProperty removes a property of a window.
func (c *Conn) DeleteProperty(window, property uint32) {
	c.Send(done(put32(put32(request(19, 0, 12), window), property)))
}

// Property is the value of a property of a window. Its Type is [AtomNone] if
// there is none.
type Property struct {
	Type   uint32
	Format byte // 8, 16 or 32 bits a unit
	Value  []byte
	// More is how many bytes there are after Value.
	More int
}

// Uint32s returns the value as numbers; none if it is not of 32 bits a unit.
func (p *Property) Uint32s() []uint32 {
	if p.Format != 32 {
		return nil
	}
	list := make([]uint32, 0, len(p.Value)/4)
	for b := p.Value; len(b) >= 4; b = b[4:] {
		list = append(list, binary.LittleEndian.Uint32(b))
	}
	return list
}

// GetProperty asks for at most limit bytes of a property, and to remove it if
// they are all of it.
func (c *Conn) GetProperty(window, property uint32, limit int, remove bool) *Reply {
	flag := byte(0)
	if remove {
		flag = 1
	}
	b := put32(put32(request(20, flag, 24), window), property)
	b = put32(put32(put32(b, 0), 0), uint32((limit+3)/4))
	return c.Ask(done(b), limit+3)
}

// ParseProperty reads the reply to GetProperty.
func ParseProperty(b []byte) (*Property, error) {
	if len(b) < 32 {
		return nil, errors.New("a short property")
	}
	p := &Property{Format: b[1], Type: binary.LittleEndian.Uint32(b[8:]), More: int(binary.LittleEndian.Uint32(b[12:]))}
	units := int64(binary.LittleEndian.Uint32(b[16:]))
	switch p.Format {
	case 0:
		units = 0
	case 8, 16, 32:
	default:
		return nil, fmt.Errorf("a property of %d bits a unit", p.Format)
	}
	size := units * int64(p.Format/8)
	if size > int64(len(b)-32) {
		return nil, errors.New("a property that is longer than its reply")
	}
	p.Value = b[32 : 32+size]
	return p, nil
}

// SetSelectionOwner makes a window the owner of a selection.
func (c *Conn) SetSelectionOwner(window, selection, time uint32) {
	c.Send(done(put32(put32(put32(request(22, 0, 16), window), selection), time)))
}

// SelectionOwner returns the owner of a selection.
func (c *Conn) SelectionOwner(ctx context.Context, selection uint32) (uint32, error) {
	b, err := c.Ask(done(put32(request(23, 0, 8), selection)), smallReply).Wait(ctx)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b[8:]), nil
}

// ConvertSelection asks a selection's owner for its value.
func (c *Conn) ConvertSelection(window, selection, target, property, time uint32) {
	b := put32(put32(request(24, 0, 24), window), selection)
	c.Send(done(put32(put32(put32(b, target), property), time)))
}

// SendEvent sends an event to a window, as mask says.
func (c *Conn) SendEvent(window, mask uint32, event *Event) {
	b := put32(put32(request(25, 0, 44), window), mask)
	c.Send(done(append(b, event[:]...)))
}

// ClientMessage sends a message to the program of a window, or where the window
// is the root, to its window manager.
func (c *Conn) ClientMessage(to, window, kind uint32, data ...uint32) {
	var e Event
	e[0], e[1] = EventClientMessage, 32
	binary.LittleEndian.PutUint32(e[4:], window)
	binary.LittleEndian.PutUint32(e[8:], kind)
	for i, n := range data[:min(5, len(data))] {
		binary.LittleEndian.PutUint32(e[12+4*i:], n)
	}
	mask := uint32(0)
	if to == c.setup.Root {
		mask = SubstructureNotifyMask | SubstructureRedirectMask
	}
	c.SendEvent(to, mask, &e)
}

// Pointer is where the pointer is, and what is held.
type Pointer struct {
	X, Y int
	// Mask has the modifiers in bits 0 to 7, the buttons in 8 to 12, the
	// keyboard's group in 13 and 14.
	Mask uint16
}

// QueryPointer asks for the pointer.
func (c *Conn) QueryPointer() *Reply {
	return c.Ask(done(put32(request(38, 0, 8), c.setup.Root)), smallReply)
}

// ParsePointer reads the reply to QueryPointer.
func ParsePointer(b []byte) Pointer {
	return Pointer{
		X: int(int16(binary.LittleEndian.Uint16(b[16:]))), Y: int(int16(binary.LittleEndian.Uint16(b[18:]))),
		Mask: binary.LittleEndian.Uint16(b[24:]),
	}
}

// GetImage asks for a part of the screen. The pixels come into the buffer,
// which the caller must not use before the reply is there, and not at all if
// it does not come.
func (c *Conn) GetImage(x, y, width, height int, into []byte) *Reply {
	b := put32(request(73, 2, 20), c.setup.Root) // ZPixmap
	for _, n := range []int{x, y, width, height} {
		b = put16(b, uint16(n))
	}
	r := &Reply{c: c, limit: len(into), into: into, done: make(chan struct{})}
	c.queue(done(put32(b, 0xffffffff)), r)
	return r
}

// ImageSize reads how many bytes of pixels came with a reply to GetImage.
func ImageSize(head []byte) int { return 4 * int(binary.LittleEndian.Uint32(head[4:])) }

// Keymap is the keyboard mapping.
type Keymap struct {
	// First is the code of the first key, PerKey how many symbols each has.
	First  byte
	PerKey int
	Syms   []uint32
}

// Key returns the symbols of a key; nil if it is not a key.
func (k *Keymap) Key(code byte) []uint32 {
	at := (int(code) - int(k.First)) * k.PerKey
	if code < k.First || at+k.PerKey > len(k.Syms) {
		return nil
	}
	return k.Syms[at : at+k.PerKey]
}

// KeyboardMapping returns the symbols of all keys.
func (c *Conn) KeyboardMapping(ctx context.Context) (*Keymap, error) {
	first, count := c.setup.MinKeycode, int(c.setup.MaxKeycode)-int(c.setup.MinKeycode)+1
	b, err := c.Ask(done(append(request(101, 0, 8), first, byte(min(count, 255)))), 256*255*4).Wait(ctx)
	if err != nil {
		return nil, err
	}
	k := &Keymap{First: first, PerKey: int(b[1])}
	for rest := b[32:]; len(rest) >= 4; rest = rest[4:] {
		k.Syms = append(k.Syms, binary.LittleEndian.Uint32(rest))
	}
	if k.PerKey == 0 {
		return nil, errors.New("the X server has no keyboard")
	}
	return k, nil
}

// ChangeKeyboardMapping gives the keys from first on new symbols, perKey each.
func (c *Conn) ChangeKeyboardMapping(first byte, perKey int, syms []uint32) *Reply {
	b := request(100, byte(len(syms)/perKey), 8+4*len(syms))
	b = append(b, first, byte(perKey), 0, 0)
	for _, s := range syms {
		b = put32(b, s)
	}
	return c.Check(done(b))
}

// ModifierMapping returns the codes of the keys of each of the eight modifiers:
// Shift, Lock, Control, Mod1 to Mod5.
func (c *Conn) ModifierMapping(ctx context.Context) (mods [8][]byte, err error) {
	b, err := c.Ask(done(request(119, 0, 4)), smallReply).Wait(ctx)
	if err != nil {
		return mods, err
	}
	per := int(b[1])
	if len(b)-32 < 8*per {
		return mods, errors.New("a short list of modifiers")
	}
	for i := range mods {
		for _, code := range b[32+i*per:][:per] {
			if code != 0 {
				mods[i] = append(mods[i], code)
			}
		}
	}
	return mods, nil
}
