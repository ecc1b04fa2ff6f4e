package x11

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// Event codes.
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
	AtomNone    = 0
	AtomPrimary = 1
	AtomAtom    = 4
	AtomInteger = 19
	AtomString  = 31
	AtomWindow  = 33
	AtomWMName  = 39
	AtomWMClass = 67
)

// request encodes a request. More of it may be appended; the padding and the length
// are added when it is queued.
func request(op, data byte, values ...uint32) []byte {
	return put32(append(make([]byte, 0, 44), op, data, 0, 0), values...)
}

func put16(b []byte, values ...uint16) []byte {
	for _, v := range values {
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	return b
}

func put32(b []byte, values ...uint32) []byte {
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func get16(b []byte, at int) uint16 { return binary.LittleEndian.Uint16(b[at:]) }
func get32(b []byte, at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
func signed16(b []byte, at int) int { return int(int16(get16(b, at))) }

// uint32s decodes all of b; an incomplete number at the end is ignored.
func uint32s(b []byte) []uint32 {
	list := make([]uint32, 0, len(b)/4)
	for ; len(b) >= 4; b = b[4:] {
		list = append(list, get32(b, 0))
	}
	return list
}

func getInputFocus() []byte { return request(43, 0) }

// InputFocus returns the window that has the keyboard.
func (c *Conn) InputFocus(ctx context.Context) (uint32, error) {
	b, err := c.Ask(getInputFocus(), smallReply).Wait(ctx)
	if err != nil {
		return 0, err
	}
	return get32(b, 8), nil
}

// CreateWindow creates a window of one pixel that is never shown and that gets events.
func (c *Conn) CreateWindow(events uint32) (uint32, *Reply) {
	id := c.NewID()
	b := put16(request(1, 0, id, c.setup.Root), 0, 0, 1, 1, 0, 2) // position, size, border; InputOnly
	// The parent's visual; values for override-redirect (not managed) and events.
	return id, c.Check(put32(b, 0, 1<<9|1<<11, 1, events))
}

// SelectInput asks for events of another client's window.
func (c *Conn) SelectInput(window, events uint32) {
	c.Send(request(2, 0, window, 1<<11, events))
}

// MapWindow shows a window.
func (c *Conn) MapWindow(window uint32) { c.Send(request(8, 0, window)) }

// UnmapWindow hides a window.
func (c *Conn) UnmapWindow(window uint32) { c.Send(request(10, 0, window)) }

// RaiseWindow puts a window on top.
func (c *Conn) RaiseWindow(window uint32) {
	c.Send(request(12, 0, window, 1<<6, 0))
}

// PlaceWindow moves and sizes a window.
func (c *Conn) PlaceWindow(window uint32, x, y, width, height int) {
	c.Send(request(12, 0, window, 1|2|4|8, uint32(int32(x)), uint32(int32(y)), uint32(int32(width)), uint32(int32(height))))
}

// FocusWindow gives a window the keyboard focus.
func (c *Conn) FocusWindow(window uint32) *Reply {
	return c.Check(request(42, 2, window, 0)) // reverts to the parent
}

// KillClient closes the connection of the client that created a resource.
func (c *Conn) KillClient(resource uint32) { c.Send(request(113, 0, resource)) }

// Geometry is the position and size of a window in its parent.
type Geometry struct {
	X, Y, Width, Height, Border int
}

// GetGeometry asks for the position and size of a drawable.
func (c *Conn) GetGeometry(drawable uint32) *Reply {
	return c.Ask(request(14, 0, drawable), smallReply)
}

// ParseGeometry parses the reply to GetGeometry.
func ParseGeometry(b []byte) Geometry {
	return Geometry{
		X: signed16(b, 12), Y: signed16(b, 14),
		Width: int(get16(b, 16)), Height: int(get16(b, 18)),
		Border: int(get16(b, 20)),
	}
}

// GetWindowAttributes asks whether a window is shown, and whether it is managed.
func (c *Conn) GetWindowAttributes(window uint32) *Reply {
	return c.Ask(request(3, 0, window), smallReply)
}

// ParseShown parses the reply to GetWindowAttributes: whether the window is shown, and
// whether window managers manage it.
func ParseShown(b []byte) (shown, managed bool) {
	if len(b) < 44 {
		return false, false
	}
	return b[26] == 2, b[27] == 0
}

// QueryTree returns the parent and the children of a window, topmost last.
func (c *Conn) QueryTree(ctx context.Context, window uint32) (parent uint32, children []uint32, err error) {
	b, err := c.Ask(request(15, 0, window), 1<<20).Wait(ctx)
	if err != nil {
		return 0, nil, err
	}
	parent = get32(b, 12)
	n := int(get16(b, 16))
	children = uint32s(b[32:])
	return parent, children[:min(n, len(children))], nil
}

// TranslateToRoot asks where on the screen a window's top left corner is.
func (c *Conn) TranslateToRoot(window uint32) *Reply {
	return c.Ask(request(40, 0, window, c.setup.Root, 0), smallReply)
}

// ParseTranslated parses the reply to TranslateToRoot.
func ParseTranslated(b []byte) (x, y int) {
	return signed16(b, 12), signed16(b, 14)
}

// InternAtoms returns the atoms of these names, which are created if they do not exist.
func (c *Conn) InternAtoms(ctx context.Context, names ...string) ([]uint32, error) {
	replies, err := c.askByName(ctx, 16, names)
	if err != nil {
		return nil, err
	}
	atoms := make([]uint32, len(names))
	for i, b := range replies {
		atoms[i] = get32(b, 8)
	}
	return atoms, nil
}

// askByName sends a request for each of the names and returns the replies.
func (c *Conn) askByName(ctx context.Context, op byte, names []string) ([][]byte, error) {
	pending := make([]*Reply, len(names))
	for i, name := range names {
		pending[i] = c.Ask(append(put16(request(op, 0), uint16(len(name)), 0), name...), smallReply)
	}
	replies := make([][]byte, len(names))
	for i, r := range pending {
		var err error
		if replies[i], err = r.Wait(ctx); err != nil {
			return nil, err
		}
	}
	return replies, nil
}

// ChangeProperty replaces a property of a window with data of 8 or 32 bits a
// unit.
func (c *Conn) ChangeProperty(window, property, kind uint32, format byte, data []byte) *Reply {
	b := append(request(18, 0, window, property, kind), format, 0, 0, 0)
	b = put32(b, uint32(len(data)/int(format/8)))
	return c.Check(append(b, data...))
}

// DeleteProperty removes a property of a window.
func (c *Conn) DeleteProperty(window, property uint32) {
	c.Send(request(19, 0, window, property))
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

// Uint32s returns the value as numbers, or nil if its format is not 32 bits.
func (p *Property) Uint32s() []uint32 {
	if p.Format != 32 {
		return nil
	}
	return uint32s(p.Value)
}

// GetProperty asks for at most limit bytes of a property, and optionally to remove it if
// these are all.
func (c *Conn) GetProperty(window, property uint32, limit int, remove bool) *Reply {
	flag := byte(0)
	if remove {
		flag = 1
	}
	return c.Ask(request(20, flag, window, property, 0, 0, uint32((limit+3)/4)), limit+3)
}

// ParseProperty parses the reply to GetProperty.
func ParseProperty(b []byte) (*Property, error) {
	if len(b) < 32 {
		return nil, errors.New("a short property")
	}
	p := &Property{Format: b[1], Type: get32(b, 8), More: int(get32(b, 12))}
	switch p.Format {
	case 0, 8, 16, 32: // 0 if there is no property
	default:
		return nil, fmt.Errorf("a property of %d bits a unit", p.Format)
	}
	size := int64(get32(b, 16)) * int64(p.Format/8)
	if size > int64(len(b)-32) {
		return nil, errors.New("a property that is longer than its reply")
	}
	p.Value = b[32 : 32+size]
	return p, nil
}

// SetSelectionOwner makes a window the owner of a selection.
func (c *Conn) SetSelectionOwner(window, selection, time uint32) {
	c.Send(request(22, 0, window, selection, time))
}

// SelectionOwner returns the owner of a selection.
func (c *Conn) SelectionOwner(ctx context.Context, selection uint32) (uint32, error) {
	b, err := c.Ask(request(23, 0, selection), smallReply).Wait(ctx)
	if err != nil {
		return 0, err
	}
	return get32(b, 8), nil
}

// ConvertSelection asks a selection's owner for its value.
func (c *Conn) ConvertSelection(window, selection, target, property, time uint32) {
	c.Send(request(24, 0, window, selection, target, property, time))
}

// SendEvent sends an event to the clients that selected mask on a window, or if mask is
// 0 to the window's creator.
func (c *Conn) SendEvent(window, mask uint32, event *Event) {
	c.Send(append(request(25, 0, window, mask), event[:]...))
}

// ClientMessage sends a message to a window's client or, if to is the root, to the window
// manager.
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

// Pointer is the position of the pointer with the modifiers and buttons that are held.
type Pointer struct {
	X, Y int
	// Mask has the modifiers in bits 0 to 7, the buttons in 8 to 12, the
	// keyboard's group in 13 and 14.
	Mask uint16
}

// QueryPointer asks for the position of the pointer.
func (c *Conn) QueryPointer() *Reply {
	return c.Ask(request(38, 0, c.setup.Root), smallReply)
}

// ParsePointer parses the reply to QueryPointer.
func ParsePointer(b []byte) Pointer {
	return Pointer{
		X: signed16(b, 16), Y: signed16(b, 18),
		Mask: get16(b, 24),
	}
}

// GetImage asks for a part of the screen. The pixels are written to the buffer into,
// which the caller must not use before the reply has arrived, and never if it does not
// arrive.
func (c *Conn) GetImage(x, y, width, height int, into []byte) *Reply {
	b := put16(request(73, 2, c.setup.Root), uint16(x), uint16(y), uint16(width), uint16(height)) // ZPixmap
	r := &Reply{c: c, limit: len(into), into: into, done: make(chan struct{})}
	c.queue(put32(b, 0xffffffff), r)
	return r
}

// ImageSize returns how many bytes of pixels a reply to GetImage has.
func ImageSize(head []byte) int { return 4 * int(get32(head, 4)) }

// Keymap is the keyboard mapping.
type Keymap struct {
	// First is the code of the first key, PerKey the number of symbols per key.
	First  byte
	PerKey int
	Syms   []uint32
}

// Key returns the symbols of a key, or nil if there is no such key.
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
	b, err := c.Ask(append(request(101, 0), first, byte(min(count, 255))), 256*255*4).Wait(ctx)
	if err != nil {
		return nil, err
	}
	k := &Keymap{First: first, PerKey: int(b[1]), Syms: uint32s(b[32:])}
	if k.PerKey == 0 {
		return nil, errors.New("the X server has no keyboard")
	}
	return k, nil
}

// ChangeKeyboardMapping assigns symbols to the keys from first on, perKey to each.
func (c *Conn) ChangeKeyboardMapping(first byte, perKey int, syms []uint32) *Reply {
	b := append(request(100, byte(len(syms)/perKey)), first, byte(perKey), 0, 0)
	return c.Check(put32(b, syms...))
}

// ModifierMapping returns the codes of the keys of each of the eight modifiers:
// Shift, Lock, Control, Mod1 to Mod5.
func (c *Conn) ModifierMapping(ctx context.Context) (mods [8][]byte, err error) {
	b, err := c.Ask(request(119, 0), smallReply).Wait(ctx)
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
