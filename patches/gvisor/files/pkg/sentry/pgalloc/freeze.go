package pgalloc

// UpdateUsageNow is as UpdateUsage, however short ago that was called. SaveTo need not
// look at pages that are known to be committed.
func (f *MemoryFile) UpdateUsageNow() error {
	total, err := f.TotalUsage()
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isSaving || total == f.knownCommittedBytes {
		return nil
	}
	err = f.updateUsageLocked(nil)
	if _, ok := err.(updateUsageDuringSaveErr); ok {
		return nil
	}
	return err
}
