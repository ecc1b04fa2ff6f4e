package kernel

import (
	"gvisor.dev/gvisor/pkg/sentry/mm"
)

// PausedMemoryManagers returns the MemoryManagers of all tasks, or nil if k is not
// paused. Those that no task has, as of a process that has ended while others have its
// memory open, are not among them.
func (k *Kernel) PausedMemoryManagers() []*mm.MemoryManager {
	k.extMu.Lock()
	defer k.extMu.Unlock()
	if !k.IsPaused() {
		return nil
	}
	k.tasks.mu.RLock()
	defer k.tasks.mu.RUnlock()
	seen := make(map[*mm.MemoryManager]struct{})
	var all []*mm.MemoryManager
	for t := range k.tasks.Root.tids {
		// As in invalidateUnsavableMappings, Task.mu can be skipped.
		m := t.image.MemoryManager
		if m == nil {
			continue
		}
		if _, ok := seen[m]; !ok {
			seen[m] = struct{}{}
			all = append(all, m)
		}
	}
	return all
}
