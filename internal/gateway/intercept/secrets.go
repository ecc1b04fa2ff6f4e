package intercept

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// held is a value in memory: one buffer, wiped when its owner has let go of it
// and nobody uses it any more.
type held struct {
	mu    sync.Mutex
	users int    // the owner counts as one; guarded by mu
	value []byte // nil once it is wiped; guarded by mu for wiping
}

// hold copies value; the caller is its owner.
func hold(value []byte) *held { return &held{users: 1, value: slices.Clone(value)} }

// lend tells whether the value is still there. If so, the borrower may read
// it until it calls giveBack.
func (h *held) lend() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users == 0 {
		return false
	}
	h.users++
	return true
}

func (h *held) giveBack() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users--; h.users == 0 {
		wipe(h.value)
		h.value = nil
	}
}

func wipe(b []byte) {
	clear(b)
	runtime.KeepAlive(&b)
}

// binding is a secret that the sandbox has a placeholder of.
type binding struct {
	engine.Binding
	held *held // nil if there is no value
}

// bindings is what the interceptor knows at one time. It is not changed.
type bindings struct {
	list         []*binding
	placeholders sandbox.PlaceholderAction
}

// newBindings takes over what values tells.
func newBindings(list []engine.Binding, values engine.Values, action sandbox.PlaceholderAction) (*bindings, error) {
	bs := &bindings{placeholders: action, list: make([]*binding, len(list))}
	byPlaceholder := make(map[string]*binding, len(list))
	for i, b := range list {
		if len(b.Placeholder) < minPlaceholder {
			return nil, fmt.Errorf("the placeholder of secret %s is too short to be looked for", b.Secret)
		}
		bs.list[i] = &binding{Binding: b}
		byPlaceholder[b.Placeholder] = bs.list[i]
	}
	if values == nil {
		return bs, nil
	}
	err := values(func(placeholder string, value []byte) error {
		b := byPlaceholder[placeholder]
		switch {
		case b == nil || b.Revoked || b.held != nil:
			return nil
		case len(value) == 0 || len(value) > sandbox.MaxSecretBytes || !fitsHeader(value):
			return fmt.Errorf("the value of secret %s cannot be put into a request", b.Secret)
		}
		b.held = hold(value)
		return nil
	})
	if err != nil {
		bs.release()
		return nil, err
	}
	return bs, nil
}

// release lets go of the values; borrowers keep them until they are done.
func (bs *bindings) release() {
	for _, b := range bs.list {
		if b.held != nil {
			b.held.giveBack()
		}
	}
}

// of returns the bindings that are for a host.
func (bs *bindings) of(host string) []*binding {
	var list []*binding
	for _, b := range bs.list {
		if b.isFor(host) {
			list = append(list, b)
		}
	}
	return list
}

// isFor tells whether the value may go to host, which is in lower case without
// a final dot.
func (b *binding) isFor(host string) bool {
	return host != "" && slices.ContainsFunc(b.Hosts, func(h string) bool {
		if domain, ok := strings.CutPrefix(h, "*"); ok { // ".example.com"
			return len(domain) > 1 && len(host) > len(domain) && strings.HasSuffix(host, domain)
		}
		return h == host
	})
}

func fitsHeader(value []byte) bool {
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
