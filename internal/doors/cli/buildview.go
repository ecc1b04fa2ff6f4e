package cli

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// buildTail is how many lines of hidden output are shown after a failure.
const buildTail = 15

// ownStep matches the titles of steps whose output a template's author wants to see.
// Before these, the base is made and Debian packages are installed.
var ownStep = lazyregexp.New(`^(\d+/\d+ (copy|files|npm|pip|run)\b|try the start command)`)

// buildView shows the progress of a build. On a terminal it is a bar for the current
// step, below the steps that are done; elsewhere it is lines.
type buildView struct {
	a              *app
	quiet, verbose bool
	stop           func() // ends the clock

	mu       sync.Mutex
	bar      *bar      // under mu; shows nothing where there is no terminal
	step     string    // under mu
	began    time.Time // under mu: the step
	fraction float64   // under mu
	own      bool      // under mu: base and packages are done
	tail     []string  // under mu: the last hidden lines
}

func (a *app) showBuild(opts buildOptions) *buildView {
	v := &buildView{a: a, quiet: opts.Quiet, verbose: opts.Verbose, bar: a.newBar(), stop: func() {}}
	if v.bar.view == nil {
		return v
	}
	// The time in the bar advances between events.
	tick, done, ended := time.NewTicker(time.Second), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-tick.C:
				v.mu.Lock()
				v.bar.show(v.fraction, v.step)
				v.mu.Unlock()
			case <-done:
				return
			}
		}
	}()
	v.stop = func() { tick.Stop(); close(done); <-ended }
	return v
}

// event shows one event.
func (v *buildView) event(ev sandbox.BuildEvent) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if ev.Step != "" && ev.Step != v.step {
		v.stepDone()
		v.step, v.began = ev.Step, time.Now()
		v.own = v.own || ownStep.MatchString(ev.Step)
		if v.bar.view == nil || v.own && !v.quiet {
			v.bar.clear()
			v.a.say("%s", clean(ev.Step))
		}
	}
	if ev.Log != "" && !ev.Failed { // the error has the reason
		v.log(ev.Log)
	}
	v.fraction = ev.Fraction
	v.bar.show(ev.Fraction, v.step)
	return nil
}

// log shows output, or keeps the end of it.
//
// Preconditions: v.mu is held.
func (v *buildView) log(text string) {
	if !v.quiet && (v.bar.view == nil || v.own || v.verbose) {
		v.bar.clear()
		fmt.Fprint(v.a.Stderr, clean(text))
		v.tail = nil
		return
	}
	v.tail = append(v.tail, strings.TrimSuffix(clean(text), "\n"))
	v.tail = v.tail[max(0, len(v.tail)-buildTail):]
}

// stepDone prints how long the step in the bar took.
//
// Preconditions: v.mu is held.
func (v *buildView) stepDone() {
	took := time.Since(v.began)
	if v.bar.view == nil || v.step == "" || v.own && !v.quiet || took < barQuick {
		return
	}
	v.bar.clear()
	v.a.say("%s (%s)", clean(v.step), took.Round(time.Second/10))
}

// end removes the bar. After a failure it shows the last output, and reports whether
// there is more.
func (v *buildView) end(err error) (more bool) {
	v.stop()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bar.clear()
	if err == nil || v.quiet || sandbox.CodeOf(err) == sandbox.CodeCancelled {
		return false
	}
	for _, line := range v.tail {
		fmt.Fprintln(v.a.Stderr, line)
	}
	return len(v.tail) > 0
}
