package image

import (
	"context"
	"fmt"
	"slices"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// IsHost reports whether a digest is that of the template host as it is now.
func (p *Provider) IsHost(ctx context.Context, digest string) (bool, error) {
	m, err := p.currentHost(ctx, false)
	if err != nil {
		return false, err
	}
	return m.Digest == digest, nil
}

// Locate returns a root with its place on this machine. bound are the binds that it has on
// the machine where it was made: the same must be in this machine's template host, whose
// directories they show.
func (p *Provider) Locate(ctx context.Context, digest string, bound []engine.Bind) (engine.Root, error) {
	root := engine.Root{Digest: digest, Dir: p.rootfsDir(digest)}
	if len(bound) == 0 {
		return root, nil
	}
	own, _, err := p.Root(ctx, Host)
	if err != nil {
		return root, err
	}
	place := func(b engine.Bind) string { return fmt.Sprintf("%q %t", b.Target, b.Mask) }
	if !slices.EqualFunc(own.Binds, bound, func(a, b engine.Bind) bool { return place(a) == place(b) }) {
		return root, sandbox.Errorf(sandbox.CodeUnsupported, "the template is made from programs of the server's own machine, which this node does not have at the same places; use the template host, or build it from debian or an image")
	}
	root.Binds = own.Binds
	return root, nil
}
