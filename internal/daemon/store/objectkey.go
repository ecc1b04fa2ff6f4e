package store

import "context"

// ObjectKey keeps the key of what is in the object store.
type ObjectKey interface {
	// ObjectKey returns the key as it was sealed, or nil if there is none.
	ObjectKey(ctx context.Context) ([]byte, error)
	// SetObjectKey replaces one sealed key by another, at once; old is nil if there is none.
	// If the key is not old any more, that is a conflict.
	SetObjectKey(ctx context.Context, old, sealed []byte) error
}
