package agent

import (
	"strings"
	"sync"
)

// maxAwaited bounds the writes that a watch is told of before it sees them.
const maxAwaited = 1024

// written tells watches of the files that the agent itself writes. Such a file
// takes its name when it is whole, which looks like the creation of a file, where
// the file may have been there, and was written to in any case. The zero value
// has no watches.
type written struct {
	mu      sync.Mutex
	watches map[*watch]*awaited // guarded by mu
}

// awaited are the writes whose event a watch has not seen: by path, whether the
// file is new.
type awaited struct {
	count int
	files map[string][]bool
}

// join lets a watch be told from now on, until leave is called.
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

// announce says that the file at path is about to take its name. If it does not,
// the caller calls undo.
func (t *written) announce(path string, created bool) (undo func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var told []*watch
	for w, a := range t.watches {
		if (path == w.root || strings.HasPrefix(path, strings.TrimSuffix(w.root, "/")+"/")) && a.count < maxAwaited {
			a.files[path] = append(a.files[path], created)
			a.count++
			told = append(told, w)
		}
	}
	return func() {
		for _, w := range told {
			t.seen(w, path)
		}
	}
}

// seen reports whether the agent wrote a file that appears to a watch, and
// whether it is new.
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
