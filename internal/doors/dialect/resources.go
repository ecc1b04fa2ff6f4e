package dialect

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/sandbox"
)

// Lister is implemented by a [Resourcer] whose resources can be listed: what
// there is depends on the caller that ctx carries, and on the moment.
type Lister interface {
	// ListResources returns a page of resources, and the cursor of the next or
	// "". cursor is that of the page before, hostile, or "".
	ListResources(ctx context.Context, svc sandbox.Service, cursor string) (page []*mcp.Resource, next string, err error)
}

// Watcher is implemented by a [Lister] whose clients can subscribe to resources. They
// are also notified of changes of the list.
type Watcher interface {
	Lister
	// Watched returns the id of the sandbox whose changes are changes of a resource. It
	// fails for resources whose changes are not reported, and if the caller may not
	// read the resource. Uri is not trusted.
	Watched(ctx context.Context, svc sandbox.Service, uri string) (sandboxID string, err error)
}

// Completer is implemented by a dialect that completes arguments of its prompts
// and of the URIs of its resources.
type Completer interface {
	// Complete returns values that complete the beginning of an argument, best first
	// and at most 100, and whether there are more. It returns none for an argument that
	// cannot be completed. Nothing in req is trusted.
	Complete(ctx context.Context, svc sandbox.Service, req *mcp.CompleteParams) (values []string, more bool, err error)
}
