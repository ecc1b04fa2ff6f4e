package cli

import (
	"fmt"
	"io"
	"time"

	"charm.land/bubbles/v2/progress"
)

// barEvery is how often a bar is drawn at most.
const barEvery = 100 * time.Millisecond

// bar shows how long work goes, on a terminal; elsewhere it shows nothing.
type bar struct {
	out   io.Writer // nil shows nothing
	model progress.Model
	began time.Time
	last  time.Time
	drawn bool
}

func (a *app) newBar() *bar {
	b := &bar{began: time.Now()}
	if isTerminal(a.Stderr) && isTerminal(a.Stdout) {
		b.out = a.Stderr
		b.model = progress.New(progress.WithWidth(32))
	}
	return b
}

// show draws the bar at a fraction of 0 to 1, or without one at -1. Work that
// is done in a moment shows none.
func (b *bar) show(fraction float64, text string) {
	now := time.Now()
	if b.out == nil || now.Sub(b.began) < 5*barEvery || now.Sub(b.last) < barEvery {
		return
	}
	b.last, b.drawn = now, true
	view := ""
	if fraction >= 0 {
		view = b.model.ViewAs(min(fraction, 1)) + " "
	}
	fmt.Fprintf(b.out, "\r\x1b[K%s%s", view, clean(text))
}

// clear removes the bar.
func (b *bar) clear() {
	if b.drawn {
		fmt.Fprint(b.out, "\r\x1b[K")
		b.drawn = false
	}
}
