package x11

import (
	"context"
	"errors"
)

// coreKeyboard is the default device.
const coreKeyboard = 0x100

const (
	xkbKeySyms          = 1 << 1
	xkbRecomputeActions = 1 << 1
)

// UseXKB enables the extension XKEYBOARD for this client. When the keyboard mapping
// changes, it then gets the extension's events instead of MappingNotify.
func (c *Conn) UseXKB(ctx context.Context, xkb Extension) error {
	b, err := c.Ask(put16(request(xkb.Opcode, 0), 1, 0), smallReply).Wait(ctx)
	if err != nil {
		return err
	}
	if b[1] == 0 {
		return errors.New("the X server does not support this version of XKEYBOARD")
	}
	const keyboardAndMap = 1<<0 | 1<<1
	c.Send(put16(request(xkb.Opcode, 1), coreKeyboard, keyboardAndMap, 0, keyboardAndMap, 0xff, 0xff))
	return nil
}

// ChangeKeys assigns one symbol to each of the keys, which they then produce whatever
// modifiers are held. Other keys are unchanged. Programs get one event for all changes:
// after each event every program reads the mapping again, which takes a window manager 50
// ms.
func (c *Conn) ChangeKeys(ctx context.Context, xkb Extension, changes map[byte]uint32) error {
	first, last := byte(255), byte(0)
	for code := range changes {
		first, last = min(first, code), max(last, code)
	}
	if first > last {
		return nil
	}
	keys, err := c.keyMaps(ctx, xkb, first, int(last)-int(first)+1)
	if err != nil {
		return err
	}
	for code, sym := range changes {
		// One group with the key type of two levels, which is always the second type:
		// both levels have the symbol, so Shift makes no difference.
		one := []byte{1, 0, 0, 0, 1, 2, 2, 0}
		keys[code-first] = put32(one, sym, sym)
	}
	var body []byte
	total := 0
	for _, k := range keys {
		body = append(body, k...)
		total += (len(k) - 8) / 4
	}
	b := put16(request(xkb.Opcode, 9), coreKeyboard, xkbKeySyms, xkbRecomputeActions)
	b = append(b, c.setup.MinKeycode, c.setup.MaxKeycode, 0, 0, first, byte(len(keys)))
	b = put16(b, uint16(total))
	b = append(b, make([]byte, 36-len(b))...) // no other parts than symbols
	_, err = c.Check(append(b, body...)).Wait(ctx)
	return err
}

// keyMaps returns the symbols of the keys from first on, each in the encoding of the
// protocol.
func (c *Conn) keyMaps(ctx context.Context, xkb Extension, first byte, count int) ([][]byte, error) {
	b := put16(request(xkb.Opcode, 8), coreKeyboard, 0, xkbKeySyms)
	b = append(b, 0, 0, first, byte(count))
	b = append(b, make([]byte, 28-len(b))...)
	reply, err := c.Ask(b, 1<<20).Wait(ctx)
	if err != nil {
		return nil, err
	}
	return parseKeyMaps(reply, first, count)
}

func parseKeyMaps(b []byte, first byte, count int) ([][]byte, error) {
	if len(b) < 40 || b[17] != first || int(b[20]) != count {
		return nil, errors.New("the X server describes other keys")
	}
	var keys [][]byte
	for rest := b[40:]; len(keys) < count; {
		if len(rest) < 8 {
			return nil, errors.New("a short list of keys")
		}
		size := 8 + 4*int(get16(rest, 6))
		if size > len(rest) {
			return nil, errors.New("a key that is longer than the list")
		}
		keys = append(keys, rest[:size:size])
		rest = rest[size:]
	}
	return keys, nil
}
