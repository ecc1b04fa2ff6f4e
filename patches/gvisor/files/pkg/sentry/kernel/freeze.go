package kernel

import (
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
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

// MemoryFiles returns the main MemoryFile, and after it those of tmpfs filesystems that
// have one of their own.
func (k *Kernel) MemoryFiles(ctx context.Context) []*pgalloc.MemoryFile {
	all := []*pgalloc.MemoryFile{k.mf}
	seen := map[*pgalloc.MemoryFile]struct{}{k.mf: {}}
	for _, fs := range k.vfs.GetFilesystems() {
		if mf := tmpfs.MemoryFileOf(fs); mf != nil {
			if _, ok := seen[mf]; !ok {
				seen[mf] = struct{}{}
				all = append(all, mf)
			}
		}
		fs.DecRef(ctx)
	}
	return all
}
