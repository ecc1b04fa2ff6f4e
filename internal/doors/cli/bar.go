package cli

import (
	"time"

	"github.com/schollz/progressbar/v3"
)

// barSteps is the resolution of the bar; barQuick is how long work takes before there
// is one.
const (
	barSteps = 1000
	barQuick = 500 * time.Millisecond
)

// bar shows the progress of work on a terminal; elsewhere it shows nothing.
type bar struct {
	view  *progressbar.ProgressBar // nil shows nothing
	began time.Time
}

func (a *app) newBar() *bar {
	b := &bar{began: time.Now()}
	if isTerminal(a.Stderr) && isTerminal(a.Stdout) {
		b.view = progressbar.NewOptions(barSteps,
			progressbar.OptionSetWriter(a.Stderr),
			progressbar.OptionSetWidth(32),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionSetElapsedTime(true),
			progressbar.OptionUseANSICodes(true), // also removes the ^C of an interrupt
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetRenderBlankState(false),
		)
	}
	return b
}

// show draws the bar at a fraction from 0 to 1. At -1, which means unknown, the bar
// stays where it was. Very short work shows no bar.
func (b *bar) show(fraction float64, text string) {
	if b.view == nil || time.Since(b.began) < barQuick {
		return
	}
	b.view.Describe(clean(text))
	if fraction >= 0 {
		// Full would end the bar; clear does that.
		_ = b.view.Set(min(int(fraction*barSteps), barSteps-1))
	}
}

// clear removes the bar.
func (b *bar) clear() {
	if b.view != nil {
		_ = b.view.Clear()
	}
}
