package desktop

import (
	"context"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/guest/agent/desktop/x11"
)

// keyboard finds the keys that produce symbols, and assigns symbols that no key produces
// to keys that have none.
//
// Programs read the mapping some time after it changed, and apply it to all keys pressed
// meanwhile. So an assigned symbol stays on its key, even after the call, until no key is
// free; then the least recently used key is reassigned. Before that, the program with the
// keyboard focus is asked whether it has read all events. It is asked again before the key
// is pressed, since a program may receive the change of the mapping on another connection
// than key events, as Chromium does, on GTK's.
type keyboard struct {
	of       *session // the session whose mapping was read
	keys     *x11.Keymap
	mods     [8][]byte
	free     []byte // codes of keys without symbols
	assigned []assignment
	found    map[groupSymbol]stroke // cache of search; code 0 if there is no key
	tick     int64                  // counts uses
	seen     int64                  // uses up to this one were read by programs
}

// assignment is a key to which a symbol was assigned.
type assignment struct {
	code byte
	sym  keysym
	used int64
}

// groupSymbol is a symbol in a group of the keyboard.
type groupSymbol struct {
	sym   keysym
	group int
}

// stroke is the key, with or without Shift, that produces a symbol.
type stroke struct {
	code  byte
	shift bool
}

const (
	// minFree is how many free keys suffice.
	minFree = 8
	// firstFree is the first key code to use: no real keyboard has key 8, and some programs
	// ignore it.
	firstFree = 9
	// lateWindow is how long to wait for a program that does not answer pings.
	lateWindow = 250 * time.Millisecond
	// pongWait bounds the wait for the answer to a ping.
	pongWait = 2 * time.Second
	// mappingPings is how many pings a program must answer before it is known to have read
	// a new mapping on all its connections: the first answer may come from an iteration of
	// its event loop that began before the mapping arrived.
	mappingPings = 2
)

// refresh reads the mapping if it has changed.
func (k *keyboard) refresh(ctx context.Context, s *session) error {
	if !s.remapped.Swap(false) && k.of == s {
		return nil
	}
	fail := func(err error) error {
		s.remapped.Store(true)
		return err
	}
	keys, err := s.KeyboardMapping(ctx)
	if err != nil {
		return fail(err)
	}
	mods, err := s.ModifierMapping(ctx)
	if err != nil {
		return fail(err)
	}
	k.of, k.keys, k.mods, k.found = s, keys, mods, map[groupSymbol]stroke{}
	k.assigned = slices.DeleteFunc(k.assigned, func(a assignment) bool {
		syms := keys.Key(a.code)
		return len(syms) == 0 || syms[0] != a.sym
	})
	k.findFree()
	return nil
}

// findFree finds the keys to which symbols may be assigned: those without a symbol. If
// there are too few, it adds those to which an earlier program seems to have assigned one.
// Media keys are unsuitable: Chromium ignores them in text, whatever their symbols.
func (k *keyboard) findFree() {
	k.free = nil
	var earlier []assignment
	for n := firstFree; n < 256; n++ {
		code := byte(n)
		syms := k.keys.Key(code)
		if syms == nil || k.isModifier(code) || k.assignment(code) != nil ||
			slices.ContainsFunc(syms, func(sym keysym) bool { return sym != syms[0] && sym != symNone }) {
			continue
		}
		switch {
		case syms[0] == symNone:
			k.free = append(k.free, code)
		case syms[0] >= 0xa0 && (syms[0] < 0x100 || syms[0]&0xff000000 == symUnicode):
			earlier = append(earlier, assignment{code: code, sym: syms[0], used: k.seen})
		}
	}
	if k.capacity() < minFree {
		k.assigned = append(k.assigned, earlier...)
	}
}

func (k *keyboard) isModifier(code byte) bool {
	return slices.ContainsFunc(k.mods[:], func(codes []byte) bool { return slices.Contains(codes, code) })
}

// assignment returns the assignment of a key, or nil.
func (k *keyboard) assignment(code byte) *assignment {
	for i := range k.assigned {
		if k.assigned[i].code == code {
			return &k.assigned[i]
		}
	}
	return nil
}

// find returns the stroke that produces a symbol in a group of the keyboard.
func (k *keyboard) find(sym keysym, group int) (stroke, bool) {
	for _, a := range k.assigned {
		if a.sym == sym {
			return stroke{code: a.code}, true
		}
	}
	st, ok := k.found[groupSymbol{sym, group}]
	if !ok {
		st = k.search(sym, group)
		k.found[groupSymbol{sym, group}] = st
	}
	return st, st.code != 0
}

// search finds a symbol on the keys without an assignment.
func (k *keyboard) search(sym keysym, group int) stroke {
	other := sameKey(sym)
	shifted := stroke{}
	for n := int(k.keys.First); n < 256; n++ {
		code := byte(n)
		if k.assignment(code) != nil {
			continue
		}
		plain, upper := levels(k.keys.Key(code), group)
		switch {
		case plain == symNone:
		case plain == sym || plain == other:
			return stroke{code: code}
		case shifted.code == 0 && (upper == sym || upper == other) && upper != symNone:
			shifted = stroke{code: code, shift: true}
		}
	}
	return shifted
}

// levels returns the symbols of a key, without and with Shift.
func levels(syms []uint32, group int) (plain, shifted keysym) {
	at := func(i int) keysym {
		if i < len(syms) {
			return syms[i]
		}
		return symNone
	}
	if group > 0 && (at(2) != symNone || at(3) != symNone) {
		plain, shifted = at(2), at(3)
	} else {
		plain, shifted = at(0), at(1)
	}
	if shifted == symNone {
		shifted = upperKey(plain)
	}
	return plain, shifted
}

// modifier returns the key of a modifier, by its number, that has a symbol.
func (k *keyboard) modifier(number int, sym keysym) (byte, bool) {
	for _, code := range k.mods[number] {
		if plain, _ := levels(k.keys.Key(code), 0); plain == sym {
			return code, true
		}
	}
	return 0, false
}

// use records that a key was used now.
func (k *keyboard) use(code byte) {
	if a := k.assignment(code); a != nil {
		k.tick++
		a.used = k.tick
	}
}

// capacity returns how many symbols can be assigned to keys at the same time.
func (k *keyboard) capacity() int { return len(k.free) + len(k.assigned) }

// assign assigns symbols to keys. If no key is free, it reassigns keys whose symbols are
// not in keep. The capacity must suffice for syms and keep.
func (k *keyboard) assign(ctx context.Context, s *session, syms, keep []keysym) error {
	changes := map[byte]keysym{}
	settled := false
	for _, sym := range syms {
		if len(k.free) == 0 {
			if !settled {
				if err := k.settle(ctx, s); err != nil {
					return err
				}
				settled = true
			}
			k.reclaim(append(keep, syms...))
		}
		if len(k.free) == 0 {
			return errNoKeys
		}
		code := k.free[0]
		k.free = k.free[1:]
		k.assigned = append(k.assigned, assignment{code: code, sym: sym, used: k.tick})
		changes[code] = sym
	}
	if len(changes) == 0 {
		return nil
	}
	if err := s.changeKeys(ctx, changes); err != nil {
		return err
	}
	return s.awaitMapping(ctx)
}

// changeKeys assigns the symbols in the server's mapping.
func (s *session) changeKeys(ctx context.Context, changes map[byte]keysym) error {
	if s.xkb.Opcode != 0 {
		return s.ChangeKeys(ctx, s.xkb, changes)
	}
	var last *x11.Reply
	for code, sym := range changes {
		// The same symbol with and without Shift.
		last = s.ChangeKeyboardMapping(code, 2, []uint32{sym, sym})
	}
	_, err := last.Wait(ctx)
	return err
}

// reclaim frees the least recently used key whose symbol is not in keep.
func (k *keyboard) reclaim(keep []keysym) {
	oldest := -1
	for i, a := range k.assigned {
		if !slices.Contains(keep, a.sym) && (oldest < 0 || a.used < k.assigned[oldest].used) {
			oldest = i
		}
	}
	if oldest >= 0 {
		k.free = append(k.free, k.assigned[oldest].code)
		k.assigned = slices.Delete(k.assigned, oldest, oldest+1)
	}
}

// settle waits until the program with the keyboard focus has read all key events.
func (k *keyboard) settle(ctx context.Context, s *session) error {
	if k.seen == k.tick {
		return nil
	}
	answered, err := s.ping(ctx)
	if err != nil {
		return err
	}
	if !answered {
		if err := s.waits.late(ctx); err != nil {
			return err
		}
	}
	k.seen = k.tick
	return nil
}

// awaitMapping waits until the program with the keyboard focus has read a new mapping, if
// it answers pings. Programs that do not are too old to have several connections.
func (s *session) awaitMapping(ctx context.Context) error {
	for range mappingPings {
		if answered, err := s.ping(ctx); err != nil || !answered {
			return err
		}
	}
	return nil
}

// ping asks the program with the keyboard focus whether it has read all events. The
// result is false if it does not answer.
func (s *session) ping(ctx context.Context) (bool, error) {
	window, err := s.InputFocus(ctx)
	if err != nil {
		return false, err
	}
	for depth := 0; depth < 16 && window > 1 && window != s.Setup().Root; depth++ {
		if s.hasProtocol(ctx, window, s.atoms.ping) {
			return s.pingWindow(ctx, window)
		}
		if window, _, err = s.QueryTree(ctx, window); err != nil {
			if _, ok := err.(*x11.Error); ok {
				return false, nil // the window is gone
			}
			return false, err
		}
	}
	return false, nil
}

func (s *session) pingWindow(ctx context.Context, window uint32) (bool, error) {
	// The number only has to be different each time.
	number := uint32(time.Now().UnixMicro())
	for len(s.pong) > 0 {
		<-s.pong
	}
	s.ClientMessage(window, window, s.atoms.protocols, s.atoms.ping, number, window)
	if err := s.Flush(); err != nil {
		return false, err
	}
	end := time.NewTimer(s.waits.pongWait)
	defer end.Stop()
	for {
		select {
		case got := <-s.pong:
			if got == number {
				return true, nil
			}
		case <-end.C:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		case <-s.Dead():
			return false, s.Err()
		}
	}
}

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
