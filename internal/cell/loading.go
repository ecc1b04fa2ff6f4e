package cell

import "github.com/cove-sh/cove/internal/machine"

// loadInBackground loads the memory of a restored sandbox that nobody has asked
// for yet, one read at a time. One of many children of a fork, and a sandbox for
// which there is not enough memory, take what they touch.
func (c *cell) loadInBackground(many bool) {
	if many {
		return
	}
	left, err := c.sb.LeftToLoad()
	if err == nil && left > 0 {
		for _, bound := range machine.MemoryBounds() {
			if bound.Room() < left {
				c.log.Info("memory is loaded as it is touched", "left", left, "why", bound)
				return
			}
		}
		err = c.sb.LoadInBackground(1)
	}
	if err != nil {
		c.log.Warn("load the rest of the memory", "error", err)
	}
}
