package statemachine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"pgregory.net/rapid"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// The targets of strikes. The first four are killed with SIGKILL.
const (
	daemon = "daemon"
	cell   = "cell"
	sentry = "sentry"
	// spares are the standby cells.
	spares = "spares"
	// power is lost by the whole machine, with everything that is not on the disk.
	power = "power"
	// full is the disk, which has no free byte during the step.
	full   = "full disk"
	nobody = "nobody"
)

// blow is the strike in a step.
type blow struct {
	victim string
	after  time.Duration
	number int // index of the machine
	// fresh selects a new machine rather than an old one, a strike at spares in the middle
	// of the step rather than before it, and another boot after a loss of power.
	fresh bool
}

func drawBlow(t *rapid.T, disk bool) blow {
	victims := []string{nobody, nobody, nobody, nobody, nobody, nobody, nobody, nobody, daemon, daemon, cell, sentry, spares}
	if disk {
		victims = append(victims, power, full)
	}
	return blow{
		victim: rapid.SampledFrom(victims).Draw(t, "victim"),
		after:  time.Duration(rapid.IntRange(0, 200).Draw(t, "milliseconds")) * time.Millisecond,
		number: rapid.IntRange(0, 99).Draw(t, "machine"),
		fresh:  rapid.Bool().Draw(t, "fresh"),
	}
}

// harmless reports whether a step must succeed despite the strike.
func (b blow) harmless(s *step) bool {
	return b.victim == nobody || b.victim == spares && !b.fresh || b.victim == full && s.frees
}

// errUnanswered stands for an answer that had not arrived when the power was lost.
var errUnanswered = errors.New("no answer")

// judge rejects errors that no user should see.
func judge(err error, s *step, b blow) error {
	switch {
	case err == nil || errors.Is(err, errUnanswered):
		return nil
	case b.harmless(s):
		return err
	case sandbox.CodeOf(err) == sandbox.CodeInternal, strings.Contains(err.Error(), "\n"):
		return fmt.Errorf("the answer is not for users: %w", err)
	}
	return nil
}

// outcomes returns the possible models after a step with this answer.
func outcomes(s *step, b blow, answer error, before model) []model {
	models := []model{s.after}
	switch {
	case answer == nil:
	case b.victim == daemon || b.victim == power:
		models = append(models, s.cut...)
		models = append(models, before)
	default:
		models = append(slices.Clone(s.cut), before)
	}
	if b.victim == power {
		for i, m := range models {
			models[i] = m.unpowered()
		}
	}
	return models
}

// act takes the step and strikes. It returns the answer, and a function that reports
// whether a sandbox may have failed because of the strike.
func (w *walk) act(ctx context.Context, s *step, b blow) (answer error, mayFail func(string) bool, err error) {
	none := func(string) bool { return false }
	switch b.victim {
	case nobody:
		return s.act(ctx), none, nil
	case full:
		answer, err = w.onFullDisk(ctx, s)
		return answer, none, err
	case power:
		answer, err = w.cutPower(ctx, s, b)
		return answer, none, err
	case spares:
		return w.withoutSpares(ctx, s, b)
	}
	known, err := w.d.Machines(ctx)
	if err != nil {
		return nil, none, err
	}
	targets := w.d.Targets(w.machines(known, s), b.victim == sentry)
	done := w.begin(ctx, s)
	<-time.After(b.after)
	w.see()
	var hit *covetest.Target
	if b.victim == daemon {
		w.d.Kill()
	} else {
		if b.fresh {
			if fresh := w.d.Targets(w.d.Fresh(known), b.victim == sentry); len(fresh) > 0 {
				targets = fresh
			}
		}
		if len(targets) > 0 {
			target := targets[b.number%len(targets)]
			if err := end(target.PID); err != nil {
				return nil, none, err
			}
			hit = &target
		}
	}
	if answer, err = await(done); err != nil {
		return nil, none, err
	}
	if b.victim == daemon {
		return answer, none, w.d.Run(ctx)
	}
	if hit == nil {
		return answer, none, nil
	}
	now, err := w.noticed(ctx, *hit, b.victim == sentry)
	return answer, func(id string) bool { return known.Last[id] == hit.Machine || now.Last[id] == hit.Machine }, err
}

// begin takes a step in the background.
func (w *walk) begin(ctx context.Context, s *step) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.act(ctx) }()
	return done
}

// await returns the answer of a step that was begun.
func await(done <-chan error) (answer, err error) {
	select {
	case answer = <-done:
		return answer, nil
	case <-time.After(2 * time.Minute):
		return nil, errors.New("the call in flight hangs")
	}
}

func end(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// onFullDisk takes a step while the disk has no free byte.
func (w *walk) onFullDisk(ctx context.Context, s *step) (answer, err error) {
	if err := w.disk.Fill(); err != nil {
		return nil, err
	}
	answer, err = await(w.begin(ctx, s))
	return answer, errors.Join(err, w.disk.Free())
}

// cutPower cuts the power in the middle of a step, and starts the daemon with what is on
// the disk.
func (w *walk) cutPower(ctx context.Context, s *step, b blow) (answer, err error) {
	done := w.begin(ctx, s)
	<-time.After(b.after)
	w.see()
	select {
	case answer = <-done:
		done = nil
	default:
		answer = errUnanswered
	}
	if err := errors.Join(w.disk.CutPower(), w.d.EndAll(slices.Collect(maps.Keys(w.groups)))); err != nil {
		return nil, err
	}
	if done != nil { // an answer that arrives now is lost
		if _, err := await(done); err != nil {
			return nil, err
		}
	}
	if err := w.disk.RestorePower(ctx); err != nil {
		return nil, err
	}
	if b.fresh {
		if _, err := w.d.AnotherBoot(ctx); err != nil {
			return nil, err
		}
	}
	return answer, w.d.Run(ctx)
}

// withoutSpares kills the standby cells, before a step or in the middle of it. In the
// middle, one of them may have become a new sandbox. Others take their place.
func (w *walk) withoutSpares(ctx context.Context, s *step, b blow) (answer error, mayFail func(string) bool, err error) {
	none := func(string) bool { return false }
	known, err := w.d.Machines(ctx)
	if err != nil {
		return nil, none, err
	}
	w.see()
	var done <-chan error
	if b.fresh {
		done = w.begin(ctx, s)
		<-time.After(b.after)
		w.see()
	}
	killed, standbys := w.d.Spares(), len(w.d.Standbys())
	for _, pid := range killed {
		if err := end(pid); err != nil {
			return nil, none, err
		}
	}
	if !b.fresh {
		done = w.begin(ctx, s)
	}
	if answer, err = await(done); err != nil {
		return nil, none, err
	}
	others := func() bool {
		return slices.ContainsFunc(w.d.Spares(), func(pid int) bool { return !slices.Contains(killed, pid) })
	}
	// A cell that is not a standby yet may be about to become one, and have no successor.
	if standbys > 0 && !covetest.Eventually(time.Minute, others) {
		return nil, none, fmt.Errorf("nothing has taken the place of the spares %v", killed)
	}
	if !b.fresh {
		return answer, none, nil
	}
	now, err := w.d.Machines(ctx)
	old := slices.Collect(maps.Values(known.Last))
	return answer, func(id string) bool { return !slices.Contains(old, now.Last[id]) }, err
}

// noticed waits until no sandbox is reported as running on a machine that was killed. A
// creation may have started again under that machine's name.
func (w *walk) noticed(ctx context.Context, hit covetest.Target, sentries bool) (now covetest.Machines, err error) {
	ok := covetest.Eventually(30*time.Second, func() bool {
		now, err = w.d.Machines(ctx)
		if err != nil || !slices.Contains(slices.Collect(maps.Values(now.Instances)), hit.Machine) {
			return err == nil
		}
		successor := w.d.Targets([]string{hit.Machine}, sentries)
		return len(successor) == 1 && successor[0].PID != hit.PID
	})
	if !ok && err == nil {
		err = fmt.Errorf("a sandbox is said to run 30 s after its machine %s was killed", hit.Machine)
	}
	return now, err
}

// machines returns the machines of the step's sandboxes, or else all, ordered by sandbox.
func (w *walk) machines(known covetest.Machines, s *step) []string {
	var list []string
	ids := s.prefer
	if len(ids) == 0 {
		ids = w.now.order
	}
	for _, id := range ids {
		if m, ok := known.Instances[id]; ok {
			list = append(list, m)
		}
	}
	return list
}
