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

// Watcher is implemented by a [Lister] whose clients may subscribe to resources. Of its
// list they are told as well.
type Watcher interface {
	Lister
	// Watched returns the id of the sandbox whose changes are those of a resource. It
	// fails where nobody would be told, and where the caller may not read it. uri is
	// hostile.
	Watched(ctx context.Context, svc sandbox.Service, uri string) (sandboxID string, err error)
}

// Completer is implemented by a dialect that completes arguments of its prompts
// and of the URIs of its resources.
type Completer interface {
	// Complete returns what an argument can be that begins so, best first and at
	// most 100, and whether there is more. What cannot be completed has none.
	// Everything in req is hostile.
	Complete(ctx context.Context, svc sandbox.Service, req *mcp.CompleteParams) (values []string, more bool, err error)
}
