package cells

import "path/filepath"

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

// Expected returns the names of the standbys that were made for expected
// instances and are still there.
func (e *Engine) Expected() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := map[*expectation]bool{}
	var names []string
	for _, x := range e.expected {
		if seen[x] {
			continue
		}
		seen[x] = true
		for _, sb := range x.ready {
			names = append(names, filepath.Base(sb.dir))
		}
	}
	return names
}
