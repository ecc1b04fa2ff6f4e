package cell

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/machine"
)

// A sandbox that goes on before all of its memory is written to a checkpoint takes as much
// memory again as it writes to meanwhile. Less is left to write then if there is little
// memory, and if it gets short nevertheless, the sandbox stands still until all is written.

const (
	// copyShare of what is free may be taken by copies: other sandboxes grow too.
	copyShare = 2
	// One part in startSlack of a sandbox's memory limit stays free when it goes on, and
	// one in shortSlack while it runs on: the agent ends programs at the limit.
	startSlack = 8
	shortSlack = 16
	// shortPoll is how often this is looked at, and one time in boundsPolls also at the
	// machine. A sandbox copies some MiB meanwhile.
	shortPoll   = 2 * time.Millisecond
	boundsPolls = 10
)

// roomToCopy returns how much memory the sandbox may take for copies while a checkpoint
// is written to dir.
func (c *cell) roomToCopy(dir string) int64 {
	inUse := c.sb.MemoryFileBytes()
	file := int64(0) // what the checkpoint takes of the memory itself
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC {
		file = inUse
	}
	return copyRoom(machine.MemoryBounds(), file, c.memoryLimit.Load(), inUse)
}

// copyRoom is roomToCopy for a sandbox that uses so much of its limit, 0 if it has none,
// and takes so much memory for a file.
func copyRoom(bounds []machine.Memory, file, limit, inUse int64) int64 {
	room := inUse
	for _, b := range bounds {
		room = min(room, (b.Room()-file)/copyShare)
	}
	if limit > 0 {
		room = min(room, limit-limit/startSlack-inUse)
	}
	return max(0, room)
}

// isShort reports whether a sandbox that uses so much of its limit, 0 if it has none, should
// take no more memory for copies.
func isShort(bounds []machine.Memory, limit, inUse int64) bool {
	for _, b := range bounds {
		if b.Available < b.Floor()/2 {
			return true
		}
	}
	return limit > 0 && inUse > limit-limit/shortSlack
}

// writeLeft writes the memory that a checkpoint lacks yet, while the sandbox runs. It goes
// on if the sandbox ends.
func (c *cell) writeLeft(ctx context.Context, left *runsc.Deferred) error {
	began, bytes := time.Now(), left.Bytes()
	written := make(chan struct{})
	halted := false
	var watch sync.WaitGroup
	watch.Go(func() { halted = c.haltIfShort(written) })
	err := left.Write(ctx)
	close(written)
	watch.Wait()
	if cerr := left.Close(); cerr != nil {
		c.log.Debug("what was frozen for a checkpoint", "error", cerr) // the next one thaws it
	}
	if halted {
		if uerr := c.sb.Unhalt(); uerr != nil {
			c.log.Warn("let the sandbox go on", "error", uerr)
		}
	}
	c.log.Info("memory of a checkpoint is written", "bytes", bytes, "took", time.Since(began), "halted", halted, "error", err)
	return err
}

// haltIfShort halts the sandbox if memory gets short before all is written, and reports
// whether it did.
func (c *cell) haltIfShort(written <-chan struct{}) bool {
	tick := time.NewTicker(shortPoll)
	defer tick.Stop()
	for polls := 1; ; polls++ {
		select {
		case <-written:
			return false
		case <-tick.C:
		}
		var bounds []machine.Memory
		if polls%boundsPolls == 0 {
			bounds = machine.MemoryBounds()
		}
		if !isShort(bounds, c.memoryLimit.Load(), c.sb.MemoryFileBytes()) {
			continue
		}
		err := c.sb.Halt()
		if err != nil {
			c.log.Warn("halt the sandbox while memory is short", "error", err)
		}
		return err == nil
	}
}
