package sqlite

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

// listQuery describes one page of a table with an id column, newest first.
type listQuery struct {
	columns, table string
	where          []string
	args           []any
	page           sandbox.Page
	at             string // the column of the time that orders it
}

func listing[T any](ctx context.Context, q querier, scan func(func(...any) error) (T, error), l listQuery, place func(*T) store.Cursor) ([]T, string, error) {
	limit, err := store.PageLimit(l.page)
	if err != nil {
		return nil, "", err
	}
	if l.page.Cursor != "" {
		c, err := store.ParseCursor(l.page.Cursor)
		if err != nil {
			return nil, "", err
		}
		l.where = append(l.where, fmt.Sprintf("(%s, id) < (?, ?)", l.at))
		l.args = append(l.args, c.At.UnixNano(), c.ID)
	}
	where := ""
	if len(l.where) > 0 {
		where = " WHERE " + strings.Join(l.where, " AND ")
	}
	// One more than asked for tells whether there is a next page.
	query := fmt.Sprintf("SELECT %s FROM %s%s ORDER BY %s DESC, id DESC LIMIT %d", l.columns, l.table, where, l.at, limit+1)
	items, err := collect(ctx, q, scan, query, l.args...)
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", l.table, err)
	}
	if len(items) <= limit {
		return items, "", nil
	}
	items = items[:limit]
	return items, place(&items[limit-1]).String(), nil
}
