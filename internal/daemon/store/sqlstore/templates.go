package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/cove-sh/cove/internal/daemon/store"
)

const templateColumns = "name, source, digest, state, reason, size_bytes, built_at, definition, updated_at"

func scanTemplate(scan func(...any) error) (store.Template, error) {
	var t store.Template
	var definition string
	err := scan(&t.Name, &t.Source, &t.Digest, &t.State, &t.Reason, &t.SizeBytes, maybe{&t.BuiltAt}, &definition, instant{&t.UpdatedAt})
	if definition != "" {
		t.Definition = json.RawMessage(definition)
	}
	return t, err
}

// PutTemplate implements [store.Templates].
func (s *Store) PutTemplate(ctx context.Context, t store.Template) error {
	_, err := s.exec(ctx, "INSERT INTO templates ("+templateColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"+
		" ON CONFLICT (name) DO UPDATE SET source = excluded.source, digest = excluded.digest, state = excluded.state, reason = excluded.reason,"+
		" size_bytes = excluded.size_bytes, built_at = excluded.built_at, definition = excluded.definition, updated_at = excluded.updated_at",
		t.Name, t.Source, t.Digest, string(t.State), t.Reason, t.SizeBytes, nanos(t.BuiltAt), string(t.Definition), t.UpdatedAt.UnixNano())
	if err != nil {
		return fmt.Errorf("write template %s: %w", t.Name, err)
	}
	return s.db.Sync()
}

// Template implements [store.Templates].
func (s *Store) Template(ctx context.Context, name string) (store.Template, error) {
	return one(ctx, s.reader(), "template", scanTemplate, "SELECT "+templateColumns+" FROM templates WHERE name = ?", name)
}

// ListTemplates implements [store.Templates].
func (s *Store) ListTemplates(ctx context.Context) ([]store.Template, error) {
	all, err := collect(ctx, s.reader(), scanTemplate, "SELECT "+templateColumns+" FROM templates ORDER BY name")
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	return all, nil
}

// DeleteTemplate implements [store.Templates].
func (s *Store) DeleteTemplate(ctx context.Context, name string) error {
	if _, err := s.remove(ctx, "DELETE FROM templates WHERE name = ?", name); err != nil {
		return fmt.Errorf("delete template %s: %w", name, err)
	}
	return s.db.Sync()
}
