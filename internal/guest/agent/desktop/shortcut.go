package desktop

import (
	"context"
	"time"

	"github.com/cove-sh/cove/internal/guest/agent/desktop/x11"
)

// A shortcut often moves the keyboard within a program, such as Ctrl+L in a
// browser, and does that later: Chromium asks the page about the keys first. What
// is typed meanwhile goes to the old place. A person types when the new place
// shows; so does a hand.

const (
	// reactWait is how long to wait for the screen to change after a shortcut that
	// the program has read: many shortcuts show nothing.
	reactWait = 400 * time.Millisecond
	// reactCalm is how long the screen stands still when the program is done.
	reactCalm = 100 * time.Millisecond
	// reactTotal bounds the wait, where a screen never stands still.
	reactTotal = time.Second
)

// reaction watches the screen from before a shortcut on.
type reaction struct {
	d      *Desktop
	s      *session
	damage uint32
}

// isShortcut reports whether keys are more than a way to write a character.
func isShortcut(combo []keysym) bool {
	for _, sym := range combo {
		switch sym {
		case symControl, symControl + 1, symAlt, symAlt + 1, symSuper, symSuper + 1:
			return len(combo) > 1
		}
	}
	return false
}

// shortcut presses and releases keys, and waits for what comes of them.
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

// watchReaction begins to watch, or returns nil if the screen cannot be watched
// or is watched by another call.
func (h *hand) watchReaction() (*reaction, error) {
	if h.s.damage.Opcode == 0 || !h.d.settling.tryLock() {
		return nil, nil
	}
	r := &reaction{d: h.d, s: h.s}
	select {
	case <-h.s.changed: // of an earlier watch
	default:
	}
	var made *x11.Reply
	r.damage, made = h.s.WatchDamage(h.s.damage, h.s.Setup().Root)
	if _, err := made.Wait(h.ctx); err != nil {
		h.d.settling.unlock()
		return nil, err
	}
	return r, nil
}

func (r *reaction) end() {
	if r == nil {
		return
	}
	r.s.ForgetDamage(r.s.damage, r.damage)
	_ = r.s.Flush() // a connection that broke has no watch
	r.d.settling.unlock()
}

// await waits until the program has read the shortcut, and then for the screen to
// change and stand still.
func (r *reaction) await(ctx context.Context) error {
	if r == nil {
		return nil
	}
	if err := r.s.Sync(ctx); err != nil {
		return err
	}
	if _, err := r.s.ping(ctx); err != nil {
		return err
	}
	end := time.NewTimer(r.s.waits.reactTotal)
	defer end.Stop()
	calm := time.NewTimer(r.s.waits.reactWait)
	defer calm.Stop()
	for {
		select {
		case <-calm.C:
			return nil
		case <-end.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-r.s.Dead():
			return r.s.Err()
		case <-r.s.changed:
		}
		time.Sleep(changeInterval)
		r.s.RepairDamage(r.s.damage, r.damage)
		if err := r.s.Sync(ctx); err != nil {
			return err
		}
		calm.Reset(r.s.waits.reactCalm)
	}
}
