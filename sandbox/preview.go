package sandbox

import (
	"context"
	"time"
)

// How a visitor of a private preview shows the key or a signed link. A cookie
// may hold either of them, or both.
const (
	PreviewKeyHeader = "Cove-Preview-Key"
	PreviewKeyParam  = "cove_preview_key"
	PreviewLinkParam = "cove_preview"
)

// PreviewAccess says who may open a preview.
type PreviewAccess string

// The kinds of access. Private is the default.
const (
	// PreviewPrivate asks for the preview's key, a signed link, or the cookie
	// that either leaves.
	PreviewPrivate PreviewAccess = "private"
	// PreviewPublic is for everybody who can reach the server.
	PreviewPublic PreviewAccess = "public"
)

// Preview makes a port of a sandbox a URL outside. There is one for a port at
// most.
type Preview struct {
	ID        string        `json:"id"`
	SandboxID string        `json:"sandbox_id"`
	Port      int           `json:"port"`
	Access    PreviewAccess `json:"access"`
	// URL is http(s)://PORT-SANDBOX.DOMAIN[:PORT].
	URL string `json:"url"`
	// Wake resumes a paused sandbox when somebody opens the preview.
	Wake      bool       `json:"wake"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// CreatePreviewRequest describes a preview. One that is there for the port
// already is changed; its key stays unless NewKey is set.
type CreatePreviewRequest struct {
	Port   int           `json:"port"`
	Access PreviewAccess `json:"access,omitempty"`
	Wake   bool          `json:"wake,omitempty"`
	// ExpiresInSeconds 0 is with the sandbox.
	ExpiresInSeconds int64 `json:"expires_in_seconds,omitempty"`
	// NewKey ends the old key and all links signed so far.
	NewKey bool `json:"new_key,omitempty"`
}

type firstKey struct{}

// WithFirst says that [Previews.CreatePreview] with ctx is to make the first preview of
// a port: where there is one, or was a private one, it is a conflict and changes
// nothing.
func WithFirst(ctx context.Context) context.Context {
	return context.WithValue(ctx, firstKey{}, true)
}

// First reports whether ctx is of [WithFirst].
func First(ctx context.Context) bool { return ctx.Value(firstKey{}) != nil }

// NewPreview is a preview with its key, if one was made: it is shown this once.
type NewPreview struct {
	Preview
	// Key opens a private preview, as header Cove-Preview-Key or as query
	// parameter cove_preview_key.
	Key string `json:"key,omitempty"`
}

// PreviewLinkRequest asks for a link that opens a private preview until it
// expires.
type PreviewLinkRequest struct {
	// ExpiresInSeconds 0 is [DefaultPreviewLink].
	ExpiresInSeconds int64 `json:"expires_in_seconds,omitempty"`
	// Path is where the link leads, "/" when empty.
	Path string `json:"path,omitempty"`
}

// PreviewLink is a signed link.
type PreviewLink struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"`
}

// PreviewVisit is what the proxy knows of a visitor.
type PreviewVisit struct {
	// Label is the first label of the host name: PORT-SANDBOX, where SANDBOX is
	// an id.
	Label string
	// Key and Link are what the visitor brought, or empty: the preview's key,
	// and the signed part of a link or cookie.
	Key  string
	Link string
}

// PublishedPort is a port of the host that leads to one of the sandbox.
type PublishedPort struct {
	// Host is the port to listen on; 0 is one that is free.
	Host int `json:"host"`
	// Guest is the sandbox's port.
	Guest int `json:"guest"`
	// Address is the host's address to listen on; empty is 127.0.0.1.
	Address string `json:"address,omitempty"`
}
