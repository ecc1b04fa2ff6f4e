package desktop

import (
	"context"
	"time"
)

// A shortcut such as Ctrl+L in a browser often moves the keyboard focus within a program,
// and with a delay: Chromium offers the keys to the page first. Text typed meanwhile goes
// to the old target. A person waits until the new target appears, and so does a [hand].

const (
	// reactWait bounds the wait for the screen to change after the program has read a
	// shortcut: many shortcuts have no visible effect.
	reactWait = 400 * time.Millisecond
	// reactCalm is how long the screen must not change before the program counts as done.
	reactCalm = 100 * time.Millisecond
	// reactTotal bounds the whole wait, for a screen that keeps changing.
	reactTotal = time.Second
)

// reaction watches the screen, starting before a shortcut.
type reaction struct {
	d *Desktop
	w *watch
}

// isShortcut reports whether a combination does more than write a character.
func isShortcut(combo []keysym) bool {
	for _, sym := range combo {
		switch sym {
		case symControl, symControl + 1, symAlt, symAlt + 1, symSuper, symSuper + 1:
			return len(combo) > 1
		}
	}
	return false
}

// shortcut presses and releases keys, and waits for the reaction.
func (h *hand) shortcut(combo []keysym, hold time.Duration) error {
	r, err := h.watchReaction()
	if err != nil {
		return err
	}
	defer r.end()
	if err := h.with([][]keysym{combo}, func() error { return h.wait(hold) }); err != nil {
		return err
	}
	return r.await(h.ctx)
}

// watchReaction starts to watch. It returns nil if the screen cannot be watched, or another
// call watches it.
func (h *hand) watchReaction() (*reaction, error) {
	if h.s.damage.Opcode == 0 || !h.d.settling.tryLock() {
		return nil, nil
	}
	select {
	case <-h.s.changed: // from an earlier watch
	default:
	}
	w, err := h.s.watch(h.ctx)
	if err != nil {
		h.d.settling.unlock()
		return nil, err
	}
	return &reaction{d: h.d, w: w}, nil
}

func (r *reaction) end() {
	if r == nil {
		return
	}
	r.w.end()
	r.d.settling.unlock()
}

// await waits until the program has read the shortcut, and then for the screen to change
// and to become calm.
func (r *reaction) await(ctx context.Context) error {
	if r == nil {
		return nil
	}
	s := r.w.s
	if err := s.Sync(ctx); err != nil {
		return err
	}
	if _, err := s.ping(ctx); err != nil {
		return err
	}
	_, err := r.w.await(ctx, s.waits.reactWait, s.waits.reactCalm, s.waits.reactTotal)
	return err
}
