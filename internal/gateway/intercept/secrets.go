package intercept

import (
	"crypto/subtle"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/sandbox"
)

// secretValue is a reference-counted value in memory, which is wiped when the last
// reference is released.
type secretValue struct {
	mu    sync.Mutex
	refs  int    // guarded by mu
	bytes []byte // nil once wiped; guarded by mu for wiping
}

// newSecretValue copies value. The caller owns the first reference.
func newSecretValue(value []byte) *secretValue {
	return &secretValue{refs: 1, bytes: slices.Clone(value)}
}

// acquire adds a reference, unless the value was wiped. The caller may read the value
// until it calls release.
func (v *secretValue) acquire() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refs == 0 {
		return false
	}
	v.refs++
	return true
}

func (v *secretValue) release() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refs--; v.refs == 0 {
		wipe(v.bytes)
		v.bytes = nil
	}
}

func wipe(b []byte) {
	clear(b)
	runtime.KeepAlive(&b)
}

// binding is a secret for which the sandbox has a placeholder.
type binding struct {
	engine.Binding
	value *secretValue // nil if there is none
}

// sameValue reports whether the binding's value equals v, to which the caller has a
// reference.
func (b *binding) sameValue(v *secretValue) bool {
	if b.value == nil || v == nil || !b.value.acquire() {
		return false
	}
	defer b.value.release()
	return subtle.ConstantTimeCompare(b.value.bytes, v.bytes) == 1
}

// bindings are the secrets of a sandbox at one time, and the headers that its policy
// sets, which may contain placeholders of secrets. They are never changed.
type bindings struct {
	list         []*binding
	headers      []sandbox.HeaderRule
	placeholders sandbox.PlaceholderAction
}

// newBindings returns bindings with copies of the values that values yields.
func newBindings(n *engine.Network, values engine.Values) (*bindings, error) {
	bs := &bindings{placeholders: n.Policy.Placeholders, headers: n.Headers, list: make([]*binding, len(n.Bindings))}
	byPlaceholder := make(map[string]*binding, len(n.Bindings))
	for i, b := range n.Bindings {
		if len(b.Placeholder) < minPlaceholder {
			return nil, fmt.Errorf("the placeholder of secret %s is too short to be searched for", b.Secret)
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
		case b == nil || b.Revoked || b.value != nil:
			return nil
		case len(value) == 0 || len(value) > sandbox.MaxSecretBytes || !fitsHeader(value):
			return fmt.Errorf("the value of secret %s cannot be put into a request", b.Secret)
		}
		b.value = newSecretValue(value)
		return nil
	})
	if err != nil {
		bs.release()
		return nil, err
	}
	return bs, nil
}

// release releases the values. Requests that use them keep their own references.
func (bs *bindings) release() {
	for _, b := range bs.list {
		if b.value != nil {
			b.value.release()
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

// changeRequestsTo reports whether requests to a host may be changed.
func (bs *bindings) changeRequestsTo(host string) bool {
	return len(bs.of(host)) > 0 || egress.HeadersFor(bs.headers, host) != nil
}

// isFor reports whether the value may be sent to host, which is in lower case without a
// trailing dot.
func (b *binding) isFor(host string) bool {
	return host != "" && slices.ContainsFunc(b.Hosts, func(h string) bool {
		if domain, ok := strings.CutPrefix(h, "*"); ok { // ".example.com"
			return len(domain) > 1 && len(host) > len(domain) && strings.HasSuffix(host, domain)
		}
		return h == host
	})
}

// fitsHeader reports whether a header can carry a value: it has no control characters
// except tabs.
func fitsHeader(value []byte) bool { return lineBytes.holds(value) }
