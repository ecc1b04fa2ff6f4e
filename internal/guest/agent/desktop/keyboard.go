package desktop

import (
	"context"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/guest/agent/desktop/x11"
)

// keyboard knows which key makes which symbol, and gives symbols that no key
// has to keys that have none.
//
// Programs read the mapping when they come to know that it changed, which may
// be long after; what they then read is the mapping of that moment, for all
// keys that were pressed meanwhile. So a key that was given a symbol keeps it,
// also after the call, until all keys are taken and it is the one that was
// not used for the longest time; and before it gets another one, the program
// that has the keyboard is asked whether it has read all there was. It is asked
// again before the key is pressed, since a program may hear of the mapping on
// another connection than of keys: Chromium does, on that of GTK.
type keyboard struct {
	of    *session // whose mapping was read
	keys  *x11.Keymap
	mods  [8][]byte
	spare []byte
	given []gift
	found map[sought]stroke // what find found; 0 as the key: nothing
	tick  int64             // counts uses
	seen  int64             // uses up to this one were read by programs
}

// gift is a key that was given a symbol.
type gift struct {
	code byte
	sym  keysym
	used int64
}

// sought is a symbol in a group of the keyboard.
type sought struct {
	sym   keysym
	group int
}

// stroke is how a symbol is made.
type stroke struct {
	code  byte
	shift bool
}

const (
	// fewSpare is how many keys without symbols are enough.
	fewSpare = 8
	// firstSpare is the first code that is used: 8 is nothing on a real
	// keyboard, and some programs do not listen to it.
	firstSpare = 9
	// lateWindow is how long a program is given that cannot be asked.
	lateWindow = 250 * time.Millisecond
	// pongWait is how long a program may take to say that it has read all.
	pongWait = 2 * time.Second
	// heardAfter is how many answers a program gives until it has heard of a
	// mapping on all its connections: the first may be from a round of its
	// events that began before the mapping came.
	heardAfter = 2
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
	k.of, k.keys, k.mods, k.found = s, keys, mods, map[sought]stroke{}
	k.given = slices.DeleteFunc(k.given, func(g gift) bool {
		syms := keys.Key(g.code)
		return len(syms) == 0 || syms[0] != g.sym
	})
	k.findSpare()
	return nil
}

// findSpare lists the keys that may be given symbols: those that have none. If
// these are too few, then also those that seem to have been given one by a
// program before this one. Keys for media will not do: Chromium does not take
// them for text, whatever their symbols.
func (k *keyboard) findSpare() {
	k.spare = nil
	var left []gift
	for n := firstSpare; n < 256; n++ {
		code := byte(n)
		if k.modifies(code) || k.gift(code) != nil {
			continue
		}
		syms := k.keys.Key(code)
		if syms == nil {
			continue
		}
		same := true
		for _, sym := range syms {
			same = same && (sym == syms[0] || sym == symNone)
		}
		switch {
		case same && syms[0] == symNone:
			k.spare = append(k.spare, code)
		case same && syms[0] >= 0xa0 && (syms[0] < 0x100 || syms[0]&0xff000000 == symUnicode):
			left = append(left, gift{code: code, sym: syms[0], used: k.seen})
		}
	}
	if k.room() < fewSpare {
		k.given = append(k.given, left...)
	}
}

func (k *keyboard) modifies(code byte) bool {
	for _, codes := range k.mods {
		if slices.Contains(codes, code) {
			return true
		}
	}
	return false
}

func (k *keyboard) gift(code byte) *gift {
	for i := range k.given {
		if k.given[i].code == code {
			return &k.given[i]
		}
	}
	return nil
}

// find returns how a symbol is made in a group of the keyboard.
func (k *keyboard) find(sym keysym, group int) (stroke, bool) {
	for i := range k.given {
		if k.given[i].sym == sym {
			return stroke{code: k.given[i].code}, true
		}
	}
	st, ok := k.found[sought{sym, group}]
	if !ok {
		st = k.search(sym, group)
		k.found[sought{sym, group}] = st
	}
	return st, st.code != 0
}

// search looks for a symbol on the keys that have one of their own.
func (k *keyboard) search(sym keysym, group int) stroke {
	other := sameKey(sym)
	shifted := stroke{}
	for n := int(k.keys.First); n < 256; n++ {
		code := byte(n)
		if k.gift(code) != nil {
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

// modifier returns the key of a modifier by its number, the one with the symbol
// if there is.
func (k *keyboard) modifier(number int, sym keysym) (byte, bool) {
	for _, code := range k.mods[number] {
		if plain, _ := levels(k.keys.Key(code), 0); plain == sym {
			return code, true
		}
	}
	return 0, false
}

// use notes that a key was used now.
func (k *keyboard) use(code byte) {
	if g := k.gift(code); g != nil {
		k.tick++
		g.used = k.tick
	}
}

// room is how many symbols can be given to keys at the same time.
func (k *keyboard) room() int { return len(k.spare) + len(k.given) }

// give gives these symbols to keys, which lose the one they had if they are
// not among keep. There must be room for both.
func (k *keyboard) give(ctx context.Context, s *session, syms, keep []keysym) error {
	changes := map[byte]keysym{}
	asked := false
	for _, sym := range syms {
		if len(k.spare) == 0 {
			if !asked {
				if err := k.settle(ctx, s); err != nil {
					return err
				}
				asked = true
			}
			k.takeBack(append(keep, syms...))
		}
		if len(k.spare) == 0 {
			return errNoKeys
		}
		code := k.spare[0]
		k.spare = k.spare[1:]
		k.given = append(k.given, gift{code: code, sym: sym, used: k.tick})
		changes[code] = sym
	}
	if len(changes) == 0 {
		return nil
	}
	if err := s.changeKeys(ctx, changes); err != nil {
		return err
	}
	return s.heard(ctx)
}

// changeKeys gives each of the keys its symbol.
func (s *session) changeKeys(ctx context.Context, changes map[byte]keysym) error {
	if s.xkb.Opcode != 0 {
		return s.ChangeKeys(ctx, s.xkb, changes)
	}
	var last *x11.Reply
	for code, sym := range changes {
		// With Shift the same, so that it does not matter.
		last = s.ChangeKeyboardMapping(code, 2, []uint32{sym, sym})
	}
	_, err := last.Wait(ctx)
	return err
}

// takeBack makes the key spare that was not used for the longest time and has
// none of the symbols in keep.
func (k *keyboard) takeBack(keep []keysym) {
	oldest := -1
	for i := range k.given {
		if !slices.Contains(keep, k.given[i].sym) && (oldest < 0 || k.given[i].used < k.given[oldest].used) {
			oldest = i
		}
	}
	if oldest >= 0 {
		k.spare = append(k.spare, k.given[oldest].code)
		k.given = slices.Delete(k.given, oldest, oldest+1)
	}
}

// settle waits until the program with the keyboard has read all keys.
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

// heard waits until the program with the keyboard has heard of a new mapping,
// if it can be asked. Those that cannot are older than programs with several
// connections.
func (s *session) heard(ctx context.Context) error {
	for range heardAfter {
		if answered, err := s.ping(ctx); err != nil || !answered {
			return err
		}
	}
	return nil
}

// ping asks the program of the window with the keyboard whether it has read all
// that was sent to it; false: it does not say.
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
				return false, nil // it is gone
			}
			return false, err
		}
	}
	return false, nil
}

func (s *session) pingWindow(ctx context.Context, window uint32) (bool, error) {
	// The number only has to be another one each time.
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

// pause waits.
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
