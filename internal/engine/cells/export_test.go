package cells

// Waiting returns the directories of the shells that wait to be taken.
func (e *Engine) Waiting() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var dirs []string
	for _, p := range e.pools {
		for _, sh := range p.ready {
			dirs = append(dirs, sh.dir)
		}
	}
	return dirs
}
