package service

import (
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
)

// busyShare is the share of a processor, in percent, from which on a sandbox counts as in use
// although nobody has called it.
const busyShare = 1

// checkpointTimes say when the next automatic checkpoint of a running sandbox is due. It is
// safe for concurrent use.
type checkpointTimes struct {
	mu    sync.Mutex
	every time.Duration // guarded by mu; 0 is never
	at    time.Time     // guarded by mu; when to look next
	now   bool          // guarded by mu; one is being made
	// unfenced says that the sandbox has a state to go back to, and that the instance was not
	// fenced yet, as far as is known; fencing that it is being fenced. Guarded by mu.
	unfenced, fencing bool
	// cpu is the instance's processor time, in nanoseconds, at cpuAt. Guarded by mu.
	cpu   int64
	cpuAt time.Time
}

// set takes the interval, and what the record says of earlier checkpoints.
func (c *checkpointTimes) set(r *store.Record) {
	last := r.Kept.Since
	for _, at := range []time.Time{r.Kept.Newest().At, r.Kept.FailedAt} {
		if at.After(last) {
			last = at
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.every = time.Duration(r.CheckpointIntervalSeconds) * time.Second
	// The clock may have been set back.
	c.at = earlier(last, time.Now()).Add(c.every)
	c.unfenced = c.every > 0 && r.Kept.Newest().Checkpoint != ""
}

// beginFence reports whether the instance is to be fenced, by the caller, who then calls
// endFence.
func (c *checkpointTimes) beginFence() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.unfenced || c.fencing {
		return false
	}
	c.fencing = true
	return true
}

func (c *checkpointTimes) endFence(fenced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unfenced, c.fencing = c.unfenced && !fenced, false
}

func (c *checkpointTimes) interval() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.every
}

func (c *checkpointTimes) due(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.every > 0 && !c.now && !now.Before(c.at)
}

func (c *checkpointTimes) next() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// begin reports whether a checkpoint is due, which the caller must make and then call end.
func (c *checkpointTimes) begin(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.every <= 0 || c.now || now.Before(c.at) {
		return false
	}
	c.now = true
	return true
}

// end notes when to look again.
func (c *checkpointTimes) end(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.at = false, at
}

// used notes the processor time of a checkpoint.
func (c *checkpointTimes) used(at time.Time, cpu int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cpu, c.cpuAt = cpu, at
}

// busy reports whether the sandbox has used more than busyShare of a processor since the last
// checkpoint, or since it was first asked.
func (c *checkpointTimes) busy(now time.Time, cpu int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cpuAt.IsZero() {
		c.cpu, c.cpuAt = cpu, now
		return false
	}
	return cpu-c.cpu > int64(now.Sub(c.cpuAt))/100*busyShare
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
