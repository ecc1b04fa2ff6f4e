package durable

import (
	"bytes"
	"io/fs"
	"maps"
	"strings"
	"sync"
)

// Cached returns files that are read once, and then from memory. Nobody else may change them
// meanwhile.
func Cached(all Files) (Files, error) {
	c := &cached{all: all, doubted: true}
	return c, c.settle()
}

type cached struct {
	all Files
	// changing is held while files are changed, or read again. It is taken before mu.
	changing sync.Mutex

	mu      sync.Mutex
	known   map[string][]byte // guarded by mu
	doubted bool              // guarded by mu; a change has failed, and may have been made
}

// settle reads all files if it is not known what they are.
func (c *cached) settle() error {
	if !c.isDoubted() {
		return nil
	}
	c.changing.Lock()
	defer c.changing.Unlock()
	if !c.isDoubted() {
		return nil
	}
	known, err := c.all.ReadAll("")
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known, c.doubted = known, false
	return nil
}

func (c *cached) isDoubted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubted
}

func (c *cached) Read(name string) ([]byte, error) {
	if err := c.settle(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	data, ok := c.known[name]
	if !ok {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
	}
	return bytes.Clone(data), nil
}

func (c *cached) ReadAll(dir string) (map[string][]byte, error) {
	if err := c.settle(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[string][]byte{}
	for name, data := range c.known {
		if isBelow(name, dir) {
			found[name] = bytes.Clone(data)
		}
	}
	return found, nil
}

func (c *cached) Write(name string, data []byte) error {
	return c.change(func() error { return c.all.Write(name, data) }, func() { c.known[name] = bytes.Clone(data) })
}

func (c *cached) Remove(name string) error {
	return c.change(func() error { return c.all.Remove(name) }, func() { delete(c.known, name) })
}

func (c *cached) RemoveAll(dir string) error {
	return c.change(func() error { return c.all.RemoveAll(dir) }, func() {
		maps.DeleteFunc(c.known, func(name string, _ []byte) bool { return isBelow(name, dir) })
	})
}

func (c *cached) Sync(dir string) error { return c.all.Sync(dir) }

// change makes a change, and the same in memory.
func (c *cached) change(do func() error, note func()) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	err := do()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.doubted = true
	} else {
		note()
	}
	return err
}

// isBelow reports whether a file is below a name; all are below "".
func isBelow(name, dir string) bool { return dir == "" || strings.HasPrefix(name, dir+"/") }
