package cells

// Waiting returns the directories of the standbys that wait to be taken.
func (e *Engine) Waiting() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var dirs []string
	for _, p := range e.pools {
		for _, sb := range p.ready {
			dirs = append(dirs, sb.dir)
		}
	}
	return dirs
}

// KnowsLeft reports whether the engine knows how much of its memory an instance has not
// loaded yet.
func (e *Engine) KnowsLeft(id string) bool {
	_, known := e.admissions.left(id)
	return known
}
