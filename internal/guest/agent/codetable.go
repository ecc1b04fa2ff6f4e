package agent

import (
	"cmp"
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/sandbox"
)

// contextKey names a context.
type contextKey struct {
	language sandbox.Language
	name     string
}

func (k contextKey) String() string { return string(k.language) + "/" + k.name }

// codeTable holds the contexts of code, and every interpreter that runs.
type codeTable struct {
	mu       sync.Mutex
	closed   bool                        // guarded by mu
	contexts map[contextKey]*codeContext // guarded by mu
	running  map[int]*kernelProcess      // guarded by mu; by pid
	kernels  map[reading]struct{}        // guarded by mu; whose streams are read
	owners   map[int]string              // guarded by mu; "python/default" by pid
	seeds    uint64                      // guarded by mu; grows when random numbers must differ
}

// reading is what reads streams, maybe longer than the process lives that they
// were made for.
type reading interface {
	Quiet()
	Abandon()
}

func newCodeTable() *codeTable {
	return &codeTable{
		contexts: map[contextKey]*codeContext{},
		running:  map[int]*kernelProcess{},
		kernels:  map[reading]struct{}{},
		owners:   map[int]string{},
	}
}

var errStopping = fail(connect.CodeUnavailable, "the sandbox is stopping; use another one")

// get returns a context, which it makes if there is none.
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

// list returns the contexts, oldest first.
func (t *codeTable) list() []*codeContext {
	t.mu.Lock()
	all := slices.Collect(maps.Values(t.contexts))
	t.mu.Unlock()
	made := make(map[*codeContext]time.Time, len(all))
	for _, c := range all {
		c.mu.Lock()
		made[c] = c.created
		c.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b *codeContext) int {
		return cmp.Or(made[a].Compare(made[b]), strings.Compare(a.key.String(), b.key.String()))
	})
	return all
}

// started enters a process until it ends.
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

// own says whose a process is.
func (t *codeTable) own(pid int, context string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running[pid] != nil {
		t.owners[pid] = context
	}
}

// sessions returns which context the session of an interpreter belongs to.
func (t *codeTable) sessions() map[int]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := make(map[int]string, len(t.owners))
	for pid, context := range t.owners {
		m[pid] = context
	}
	return m
}

// bySession finds the interpreter whose session sid is.
func (t *codeTable) bySession(sid int) *kernelProcess {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running[sid]
}

// hold remembers a kernel while anything can write to its streams.
func (t *codeTable) hold(k reading) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kernels[k] = struct{}{}
	go func() {
		k.Quiet()
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.kernels, k)
	}()
}

// reseed makes every interpreter's random numbers differ from those of others
// that began as it did.
func (t *codeTable) reseed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seeds++
}

// renew makes the interpreters that were started ahead those of a new sandbox.
func (t *codeTable) renew() {
	for _, c := range t.list() {
		c.renew()
	}
}

// seed returns random bytes if there is reason to reseed since last, and the
// value for the next call.
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

// close kills all interpreters and returns them; none starts any more.
func (t *codeTable) close() []*kernelProcess {
	t.mu.Lock()
	t.closed = true
	all := make([]*kernelProcess, 0, len(t.running))
	for _, p := range t.running {
		all = append(all, p)
	}
	t.mu.Unlock()
	for _, p := range all {
		p.killFor("the sandbox is stopping")
	}
	return all
}

// abandon stops reading what interpreters have left behind, and removes their files.
func (t *codeTable) abandon() {
	t.mu.Lock()
	all := make([]reading, 0, len(t.kernels))
	for k := range t.kernels {
		all = append(all, k)
	}
	t.mu.Unlock()
	for _, k := range all {
		k.Abandon()
		k.Quiet()
	}
	for _, c := range t.list() {
		c.forget()
	}
}
