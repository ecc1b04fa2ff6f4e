package store

import "context"

// Files keeps small files of the installation that must not stay behind on one machine: what
// is known of nodes, and keys, as they were sealed. Names have parts that are separated by
// slashes.
type Files interface {
	// Files returns the contents of all files of which the names begin with a prefix.
	Files(ctx context.Context, prefix string) (map[string][]byte, error)
	// WriteFile makes a file or replaces its content.
	WriteFile(ctx context.Context, name string, content []byte) error
	// ReplaceFile replaces the content of a file if it is still old; else that is a conflict.
	ReplaceFile(ctx context.Context, name string, old, content []byte) error
	// RemoveFile removes a file and reports whether it was there.
	RemoveFile(ctx context.Context, name string) (removed bool, err error)
	// RemoveFiles removes all files of which the names begin with a prefix.
	RemoveFiles(ctx context.Context, prefix string) error
}
