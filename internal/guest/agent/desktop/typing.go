package desktop

import (
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/guest/agent/desktop/x11"
)

const lockMask = 1 << 1

// with calls f while keys are held.
func (h *hand) with(combos [][]keysym, f func() error) error {
	if len(combos) == 0 {
		return f()
	}
	pressed, err := h.press(combos)
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	for _, code := range slices.Backward(pressed) {
		h.key(code, false)
	}
	return nil
}

// group returns the current group of the keyboard, and whether Caps Lock is on.
func (h *hand) group() (group int, caps bool, err error) {
	b, err := h.s.QueryPointer().Wait(h.ctx)
	if err != nil {
		return 0, false, err
	}
	// All events about the mapping arrive before the reply.
	if err := h.d.keys.refresh(h.ctx, h.s); err != nil {
		return 0, false, err
	}
	mask := x11.ParsePointer(b).Mask
	return int(mask >> 13 & 3), mask&lockMask != 0, nil
}

// press presses keys, with Shift if needed, and returns their codes in this order.
func (h *hand) press(combos [][]keysym) ([]byte, error) {
	syms := slices.Concat(combos...)
	group, _, err := h.group()
	if err != nil {
		return nil, err
	}
	if err := h.provide(syms, group); err != nil {
		return nil, err
	}
	var pressed []byte
	down := func(code byte) {
		if !slices.Contains(h.d.held.keys, code) {
			h.key(code, true)
			pressed = append(pressed, code)
		}
	}
	for _, sym := range syms {
		st, ok := h.d.keys.find(sym, group)
		if !ok {
			return pressed, errNoKeys
		}
		if shift, ok := h.d.keys.modifier(0, symShift); ok && st.shift {
			down(shift)
		}
		down(st.code)
	}
	return pressed, nil
}

// releaseKeys releases keys.
func (h *hand) releaseKeys(combos [][]keysym) error {
	group, _, err := h.group()
	if err != nil {
		return err
	}
	for _, sym := range slices.Backward(slices.Concat(combos...)) {
		if st, ok := h.d.keys.find(sym, group); ok {
			h.key(st.code, false)
		}
	}
	return nil
}

// provide assigns keys to the symbols that no key produces.
func (h *hand) provide(syms []keysym, group int) error {
	var missing []keysym
	for _, sym := range syms {
		if _, ok := h.d.keys.find(sym, group); !ok && !slices.Contains(missing, sym) {
			missing = append(missing, sym)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return h.d.keys.assign(h.ctx, h.s, missing, append(syms, h.heldSyms()...))
}

// heldSyms returns the symbols of assigned keys that are held.
func (h *hand) heldSyms() []keysym {
	var syms []keysym
	for _, code := range h.d.held.keys {
		if a := h.d.keys.assignment(code); a != nil {
			syms = append(syms, a.sym)
		}
	}
	return syms
}

// typeText presses and releases the keys of a text, one after the other.
func (h *hand) typeText(text []keysym, between time.Duration) error {
	group, caps, err := h.group()
	if err != nil {
		return err
	}
	if code, ok := h.d.keys.modifier(1, symCapsLock); ok && caps {
		toggle := func() {
			h.key(code, true)
			h.key(code, false)
		}
		toggle()
		defer toggle()
	}
	for len(text) > 0 {
		n, err := h.nextBatch(text, group)
		if err != nil {
			return err
		}
		for i, sym := range text[:n] {
			if err := h.strike(sym, group); err != nil {
				return err
			}
			if err := h.wait(between); err != nil {
				return err
			}
			if i%strokesAtOnce == strokesAtOnce-1 {
				if err := h.s.Sync(h.ctx); err != nil {
					return err
				}
			}
		}
		text = text[n:]
		if err := h.s.Sync(h.ctx); err != nil {
			return err
		}
	}
	return nil
}

// nextBatch provides keys for the beginning of a text, and returns the length of that
// beginning.
func (h *hand) nextBatch(text []keysym, group int) (int, error) {
	keys := &h.d.keys
	room := keys.capacity() - len(h.heldSyms())
	var needed, missing []keysym
	known := map[keysym]bool{}
	n := 0
	for ; n < len(text); n++ {
		sym := text[n]
		if known[sym] {
			continue
		}
		st, ok := keys.find(sym, group)
		if ok && keys.assignment(st.code) == nil { // a key of the keyboard's own mapping
			known[sym] = true
			continue
		}
		if len(needed) == room {
			break
		}
		known[sym] = true
		needed = append(needed, sym)
		if !ok {
			missing = append(missing, sym)
		}
	}
	if n == 0 {
		return 0, errNoKeys
	}
	if len(missing) == 0 {
		return n, nil
	}
	return n, keys.assign(h.ctx, h.s, missing, append(needed, h.heldSyms()...))
}

// strike presses and releases a key.
func (h *hand) strike(sym keysym, group int) error {
	st, ok := h.d.keys.find(sym, group)
	if !ok {
		return errNoKeys
	}
	shift, needed := byte(0), false
	if st.shift {
		code, ok := h.d.keys.modifier(0, symShift)
		shift, needed = code, ok && !slices.Contains(h.d.held.keys, code)
	}
	if needed {
		h.key(shift, true)
	}
	h.key(st.code, true)
	h.key(st.code, false)
	if needed {
		h.key(shift, false)
	}
	return nil
}
