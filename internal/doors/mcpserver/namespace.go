package mcpserver

import (
	"context"
	"net/http"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/all"
	"github.com/cove-sh/cove/sandbox"
)

// inNamespace sets the namespace of a request's caller: the one that the request names,
// or else the default of the dialect. A caller that has a namespace keeps it.
func inNamespace(r *http.Request, name string) (*http.Request, error) {
	caller, ok := sandbox.CallerOf(r.Context())
	if !ok || caller.Namespace != "" {
		return r, nil
	}
	d, err := all.Find(name)
	if err != nil {
		return r, err
	}
	if caller.Namespace, err = auth.Namespace(r.Header); err != nil {
		return r, err
	}
	if len(r.Header.Values(auth.NamespaceHeader)) == 0 {
		caller.Namespace = dialect.DefaultNamespace(d)
	}
	return r.WithContext(sandbox.WithCaller(r.Context(), caller)), nil
}

// namespaceOf returns the namespace that a caller works in.
func namespaceOf(ctx context.Context) string {
	c, _ := sandbox.CallerOf(ctx)
	return c.Namespace
}
