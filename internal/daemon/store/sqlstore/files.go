package sqlstore

import (
	"context"
	"fmt"

	"github.com/cove-sh/cove/sandbox"
)

// Files implements [store.Files].
func (s *Store) Files(ctx context.Context, prefix string) (map[string][]byte, error) {
	type file struct {
		name    string
		content []byte
	}
	all, err := collect(ctx, s.reader(), func(scan func(...any) error) (f file, err error) {
		return f, scan(&f.name, &f.content)
	}, "SELECT name, content FROM files WHERE substr(name, 1, ?) = ?", len(prefix), prefix)
	if err != nil {
		return nil, fmt.Errorf("read the files %s…: %w", prefix, err)
	}
	found := make(map[string][]byte, len(all))
	for _, f := range all {
		found[f.name] = f.content
	}
	return found, nil
}

// WriteFile implements [store.Files].
func (s *Store) WriteFile(ctx context.Context, name string, content []byte) error {
	return s.lasting(ctx, func(tx conn) error {
		if _, err := tx.exec(ctx, "INSERT INTO files (name, content) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET content = excluded.content", name, content); err != nil {
			return fmt.Errorf("write the file %s: %w", name, err)
		}
		return nil
	})
}

// ReplaceFile implements [store.Files].
func (s *Store) ReplaceFile(ctx context.Context, name string, old, content []byte) error {
	return s.lasting(ctx, func(tx conn) error {
		n, err := tx.exec(ctx, "UPDATE files SET content = ? WHERE name = ? AND content = ?", content, name, old)
		switch {
		case err != nil:
			return fmt.Errorf("replace the file %s: %w", name, err)
		case n != 1:
			return sandbox.Errorf(sandbox.CodeConflict, "the file %s was changed meanwhile; try again", name)
		}
		return nil
	})
}

// RemoveFile implements [store.Files].
func (s *Store) RemoveFile(ctx context.Context, name string) (bool, error) {
	n, err := s.remove(ctx, "DELETE FROM files WHERE name = ?", name)
	if err != nil {
		return false, fmt.Errorf("remove the file %s: %w", name, err)
	}
	return n > 0, nil
}

// RemoveFiles implements [store.Files].
func (s *Store) RemoveFiles(ctx context.Context, prefix string) error {
	if _, err := s.remove(ctx, "DELETE FROM files WHERE substr(name, 1, ?) = ?", len(prefix), prefix); err != nil {
		return fmt.Errorf("remove the files %s…: %w", prefix, err)
	}
	return nil
}
