package store

import (
	"context"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// SecretRecord is a secret with its sealed value, which the store cannot open.
type SecretRecord struct {
	sandbox.Secret
	Sealed []byte
}

// Secrets is the record of secrets.
type Secrets interface {
	// CreateSecret adds a record. A name that another secret of the team has is
	// a conflict. If the team has max secrets, one more is quota_exceeded; 0 is
	// no bound.
	CreateSecret(ctx context.Context, r SecretRecord, max int) error
	// Secret returns the record with this id.
	Secret(ctx context.Context, id string) (SecretRecord, error)
	// SecretByName returns the team's secret of this name.
	SecretByName(ctx context.Context, team, name string) (SecretRecord, error)
	// ListSecrets returns one page of a team's secrets, or all for "", newest
	// first, and the cursor of the next.
	ListSecrets(ctx context.Context, team string, p sandbox.Page) ([]SecretRecord, string, error)
	// UpdateSecret changes a record at once, and returns it as it is then.
	// Apply runs while the secret is locked: it must not call the store, and its
	// error undoes the change and is returned. It may change the sealed value,
	// the version and the time of rotation, and may run again, as that of a
	// [Change].
	UpdateSecret(ctx context.Context, id string, apply func(*SecretRecord) error) (SecretRecord, error)
	// TouchSecret moves LastUsedAt forward.
	TouchSecret(ctx context.Context, id string, at time.Time) error
	// DeleteSecret removes a record, if it is there, and overwrites its sealed
	// value on disk.
	DeleteSecret(ctx context.Context, id string) error
}

// PreviewRecord is a preview with what only the server knows of it. Its URL is
// not kept.
type PreviewRecord struct {
	sandbox.Preview
	Team string
	// KeyHash is the hash of its key, or nil if it has none.
	KeyHash []byte
	// Generation counts the keys of the port: a link is good for one generation. A
	// port that never had a private preview is at 0.
	Generation int64
}

// Previews is the record of previews. A sandbox has one for a port at most.
type Previews interface {
	// ChangePreview adds or changes the preview of a port, and returns it as it
	// is then. Apply gets the one that is there and has not expired by now, or
	// one with nothing but the generation of the last, to which it gives all but the
	// sandbox and the port. If
	// the sandbox has max previews, one more is quota_exceeded. Apply runs while
	// the preview is locked: it must not call the store, and its error undoes the
	// change and is returned. It may run again, as that of a [Change].
	ChangePreview(ctx context.Context, sandboxID string, port int, now time.Time, max int, apply func(*PreviewRecord) error) (PreviewRecord, error)
	// Preview returns the preview of a port, expired ones too. One that had a key is
	// kept after its end, as expired, for as long as the sandbox: the port is not to
	// become public without its owner.
	Preview(ctx context.Context, sandboxID string, port int) (PreviewRecord, error)
	// ListPreviews returns one page of the previews of a sandbox by port, or of
	// those of all sandboxes of the namespace that are not ended, by sandbox and
	// port, for "", and the cursor of the next. The namespace "" is all of the team.
	// Those that have expired by now are left out.
	ListPreviews(ctx context.Context, team, namespace, sandboxID string, now time.Time, p sandbox.Page) ([]PreviewRecord, string, error)
	// DeletePreview ends the preview of a port, if it is there.
	DeletePreview(ctx context.Context, sandboxID string, port int) error
}
