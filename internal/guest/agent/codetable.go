package agent

import (
	"crypto/rand"
	"maps"
	"slices"
	"sync"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/sandbox"
)

// contextKey names a context.
type contextKey struct {
	language sandbox.Language
	name     string
}

func (k contextKey) String() string { return string(k.language) + "/" + k.name }

// codeTable holds the contexts of code and all running interpreters.
type codeTable struct {
	mu       sync.Mutex
	closed   bool                        // guarded by mu
	contexts map[contextKey]*codeContext // guarded by mu
	running  map[int]*kernelProcess      // guarded by mu; by pid
	readers  map[streamReader]struct{}   // guarded by mu; the open streams
	owners   map[int]string              // guarded by mu; "python/default" by pid
	seeds    uint64                      // guarded by mu; grows when random numbers must differ
}

// streamReader reads the streams of a process: processes that it leaves behind may
// write to them after it has ended.
type streamReader interface {
	PID() int
	Quiet()
	Abandon()
}

func newCodeTable() *codeTable {
	return &codeTable{
		contexts: map[contextKey]*codeContext{},
		running:  map[int]*kernelProcess{},
		readers:  map[streamReader]struct{}{},
		owners:   map[int]string{},
	}
}

var errStopping = fail(connect.CodeUnavailable, "the sandbox is stopping; use another one")

// get returns a context. It makes it if there is none.
func (t *codeTable) get(key contextKey, acc *account) (*codeContext, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errStopping
	}
	if c := t.contexts[key]; c != nil {
		return c, nil
	}
	if len(t.contexts) >= sandbox.MaxContexts {
		return nil, fail(connect.CodeResourceExhausted,
			"the sandbox has %d contexts of code, as many as it may; delete one, or use one of them", sandbox.MaxContexts)
	}
	c := newCodeContext(key, acc)
	c.seeds = t.seeds
	t.contexts[key] = c
	return c, nil
}

// find returns a context that exists.
func (t *codeTable) find(key contextKey) (*codeContext, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.contexts[key]; c != nil {
		return c, nil
	}
	return nil, fail(connect.CodeNotFound, "there is no context %s; code that runs in it makes it, and the list of contexts shows which there are", key)
}

func (t *codeTable) remove(c *codeContext) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.contexts[c.key] == c {
		delete(t.contexts, c.key)
	}
}

// list returns the contexts, in no order.
func (t *codeTable) list() []*codeContext {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.contexts))
}

// started registers a process until it ends.
func (t *codeTable) started(p *kernelProcess) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running[p.pid] = p
	closed := t.closed
	go func() {
		if closed {
			p.Kill()
		}
		<-p.done
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.running[p.pid] == p {
			delete(t.running, p.pid)
			delete(t.owners, p.pid)
		}
	}()
}

// sessions returns which context the session of an interpreter belongs to.
func (t *codeTable) sessions() map[int]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.owners)
}

// bySession finds the interpreter whose session sid is.
func (t *codeTable) bySession(sid int) *kernelProcess {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running[sid]
}

// hold registers r while any process can write to its streams, and the context to which
// r's own process belongs.
func (t *codeTable) hold(r streamReader, context string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readers[r] = struct{}{}
	if t.running[r.PID()] != nil {
		t.owners[r.PID()] = context
	}
	go func() {
		r.Quiet()
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.readers, r)
	}()
}

// reseed makes the random numbers of every interpreter differ from those of its copies
// in other sandboxes.
func (t *codeTable) reseed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seeds++
}

// renew prepares the interpreters that were started before the sandbox was created for
// their first callers.
func (t *codeTable) renew() {
	for _, c := range t.list() {
		c.renew()
	}
}

// seed returns random bytes if reseed was called since last, and the value of last for
// the next call.
func (t *codeTable) seed(last uint64) ([]byte, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last == t.seeds {
		return nil, last
	}
	seed := make([]byte, 32)
	_, _ = rand.Read(seed) // never fails
	return seed, t.seeds
}

// close kills all interpreters and returns them. No further ones start.
func (t *codeTable) close() []*kernelProcess {
	t.mu.Lock()
	t.closed = true
	all := slices.Collect(maps.Values(t.running))
	t.mu.Unlock()
	for _, p := range all {
		p.killFor("the sandbox is stopping")
	}
	return all
}

// abandon stops reading from processes that interpreters have left behind, and removes
// the interpreters' files.
func (t *codeTable) abandon() {
	t.mu.Lock()
	all := slices.Collect(maps.Keys(t.readers))
	t.mu.Unlock()
	for _, r := range all {
		r.Abandon()
		r.Quiet()
	}
	for _, c := range t.list() {
		c.removeFiles()
	}
}
