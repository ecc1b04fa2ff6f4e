package agent

import (
	"strings"
	"sync"
)

// maxAwaited bounds the announced writes whose events a watch has not seen yet.
const maxAwaited = 1024

// written announces to watches the files that the agent itself writes. Such a file is
// renamed when it is complete, which looks like a creation, although the file may have
// existed, and was written to in any case. The zero value has no watches.
type written struct {
	mu      sync.Mutex
	watches map[*watch]*awaited // guarded by mu
}

// awaited are the announced writes whose events a watch has not seen yet: for each
// path, whether the file is new.
type awaited struct {
	count int
	files map[string][]bool
}

// join announces writes to a watch until leave is called.
func (t *written) join(w *watch) (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watches == nil {
		t.watches = map[*watch]*awaited{}
	}
	t.watches[w] = &awaited{files: map[string][]bool{}}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.watches, w)
	}
}

// announce tells the watches that a file is about to be renamed to path. If it is not,
// the caller calls undo.
func (t *written) announce(path string, created bool) (undo func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var informed []*watch
	for w, a := range t.watches {
		if (path == w.root || strings.HasPrefix(path, strings.TrimSuffix(w.root, "/")+"/")) && a.count < maxAwaited {
			a.files[path] = append(a.files[path], created)
			a.count++
			informed = append(informed, w)
		}
	}
	return func() {
		for _, w := range informed {
			t.seen(w, path)
		}
	}
}

// seen reports whether the agent itself wrote a file of which a watch sees an event,
// and whether the file is new.
func (t *written) seen(w *watch, path string) (created, own bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.watches[w]
	if a == nil || len(a.files[path]) == 0 {
		return false, false
	}
	created = a.files[path][0]
	a.count--
	if a.files[path] = a.files[path][1:]; len(a.files[path]) == 0 {
		delete(a.files, path)
	}
	return created, true
}
