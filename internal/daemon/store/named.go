package store

import "context"

// Named tells which files a record has ever been of: what a store has named and
// does not name any more was deleted on request. Files that it has never named
// are not its to remove, since it may be older than they are, or another.
type Named interface {
	// WasNamed reports whether the store has, or had, a record that names this
	// checkpoint of the engine or volume, and has not forgotten it.
	WasNamed(ctx context.Context, id string) (bool, error)
	// ForgetNamed notes that there are no files of this id any more. It works on
	// a full disk; an unknown id is not an error.
	ForgetNamed(ctx context.Context, id string) error
}
