package cell

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/machine"
)

// loadingPoll is the interval at which a sandbox that is still loading is checked.
const loadingPoll = 2 * time.Second

// watchLoading tracks how much of a restored sandbox is not loaded yet, until all of it
// is. Memory that nothing has touched is loaded one read at a time, as long as there is
// memory for all of it. With many, as for one of many children of a fork, only what the
// sandbox touches is loaded.
func (c *cell) watchLoading(many bool) {
	log := c.log // replaced when the standby becomes a sandbox
	left, err := c.updateUnloaded()
	if err == nil && left.Total() == 0 {
		return
	}
	go func() {
		tick := time.NewTicker(loadingPoll)
		defer tick.Stop()
		for reads := 0; err == nil && left.Total() > 0; left, err = c.updateUnloaded() {
			want := 0
			if !many && roomFor(left, machine.MemoryBounds(), machine.Memory.Room) == nil {
				want = 1
			}
			if want != reads {
				log.Info("memory is loaded", "left", left.Total(), "reads", want)
				if err := c.sb.LoadInBackground(want); err == nil {
					reads = want
				}
			}
			select {
			case <-tick.C:
			case <-c.gone:
				return
			}
		}
		if err != nil {
			log.Debug("read what is left to load", "error", err) // it has ended
		}
	}()
}

// updateUnloaded records for [cell.stats] how much is not loaded yet.
func (c *cell) updateUnloaded() (runsc.Unloaded, error) {
	left, err := c.sb.Unloaded()
	if err == nil {
		c.unloaded.Store(left.Memory)
	}
	return left, err
}

// loadAll loads the rest of a sandbox's memory while it runs, before its state is saved:
// a checkpoint needs all of it. After an error the sandbox goes on and loads what it
// touches.
func (c *cell) loadAll(ctx context.Context, filesOnly bool) error {
	began := time.Now()
	room := func(left runsc.Unloaded) error {
		if filesOnly {
			return nil // their disk space is reserved
		}
		return roomFor(left, machine.MemoryBounds(), func(m machine.Memory) int64 { return m.Available - m.Floor()/2 })
	}
	err := c.sb.Load(ctx, filesOnly, room)
	left, lerr := c.updateUnloaded()
	switch {
	case err == nil && lerr == nil:
		c.log.Debug("all is loaded", "took", time.Since(began))
		return nil
	case errors.Is(err, errNoMemory):
		return connect.NewError(connect.CodeOutOfRange, err)
	case errors.Is(err, runsc.ErrUnread):
		return connect.NewError(connect.CodeDataLoss, err)
	}
	c.log.Warn("load the remaining memory", "left", left.Total(), "error", err)
	return errors.Join(err, lerr)
}

// errNoMemory means that there is not enough memory to load the rest of a sandbox.
var errNoMemory = errors.New("there is not enough memory to load the rest of it")

// roomFor returns an error that wraps errNoMemory if a bound lacks room for what is left.
func roomFor(left runsc.Unloaded, bounds []machine.Memory, room func(machine.Memory) int64) error {
	for _, b := range bounds {
		if room(b) < left.Memory {
			return fmt.Errorf("%w: %d MiB are left, and %s", errNoMemory, (left.Memory+1<<20-1)>>20, b)
		}
	}
	return nil
}
