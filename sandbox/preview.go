package sandbox

import (
	"context"
	"time"
)

// Where a visitor of a private preview sends the key or a signed link. A cookie
// can hold either of them, or both.
const (
	PreviewKeyHeader = "Cove-Preview-Key"
	PreviewKeyParam  = "cove_preview_key"
	PreviewLinkParam = "cove_preview"
)

// PreviewAccess says who may open a preview.
type PreviewAccess string

// The kinds of access. Private is the default.
const (
	// PreviewPrivate requires the preview's key, a signed link, or the cookie
	// that either of them sets.
	PreviewPrivate PreviewAccess = "private"
	// PreviewPublic is for everybody who can reach the server.
	PreviewPublic PreviewAccess = "public"
)

// Preview is a web address that serves a port of a sandbox. A port has at most
// one.
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

// CreatePreviewRequest describes a preview. A preview that the port already has is
// changed; its key stays unless NewKey is set.
type CreatePreviewRequest struct {
	Port   int           `json:"port"`
	Access PreviewAccess `json:"access,omitempty"`
	Wake   bool          `json:"wake,omitempty"`
	// ExpiresInSeconds is how long the preview lasts; 0 is as long as the sandbox.
	ExpiresInSeconds int64 `json:"expires_in_seconds,omitempty"`
	// NewKey ends the old key and all links signed so far.
	NewKey bool `json:"new_key,omitempty"`
}

type firstKey struct{}

// WithFirst says that [Previews.CreatePreview] with ctx must make the first preview of
// a port. If the port has a preview, or had a private one, the call changes nothing and
// returns a conflict.
func WithFirst(ctx context.Context) context.Context {
	return context.WithValue(ctx, firstKey{}, true)
}

// First reports whether ctx comes from [WithFirst].
func First(ctx context.Context) bool { return ctx.Value(firstKey{}) != nil }

// NewPreview is a preview with its key, if the call made one. The key is shown only
// this once.
type NewPreview struct {
	Preview
	// Key opens a private preview, as header Cove-Preview-Key or as query
	// parameter cove_preview_key.
	Key string `json:"key,omitempty"`
}

// PreviewLinkRequest asks for a link that opens a private preview until it
// expires.
type PreviewLinkRequest struct {
	// ExpiresInSeconds is how long the link is valid; 0 is [DefaultPreviewLink].
	ExpiresInSeconds int64 `json:"expires_in_seconds,omitempty"`
	// Path is where the link leads, "/" when empty.
	Path string `json:"path,omitempty"`
}

// PreviewLink is a signed link.
type PreviewLink struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"`
}

// PreviewVisit is what the door to previews knows about a visitor.
type PreviewVisit struct {
	// Label is the first label of the host name: PORT-SANDBOX, where SANDBOX is
	// an id.
	Label string
	// Key and Link are what the visitor sent, or empty: the preview's key, and
	// the signed part of a link or cookie.
	Key  string
	Link string
}

// PublishedPort is a port of the host that leads to a port of the sandbox.
type PublishedPort struct {
	// Host is the port to listen on; 0 picks a free port.
	Host int `json:"host"`
	// Guest is the sandbox's port.
	Guest int `json:"guest"`
	// Address is the host's address to listen on; empty is 127.0.0.1.
	Address string `json:"address,omitempty"`
}
