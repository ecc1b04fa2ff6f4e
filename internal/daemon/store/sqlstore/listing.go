package sqlstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// listQuery describes one page of a table.
type listQuery struct {
	columns, table string
	where          []string
	args           []any
	page           sandbox.Page
	order          listOrder
}

// only adds a condition on a value, which "" leaves out.
func (l *listQuery) only(condition, value string) {
	if value != "" {
		l.where, l.args = append(l.where, condition), append(l.args, value)
	}
}

// listOrder is what a listing is ordered by: columns that no two rows have
// alike, and the values of these for a place.
type listOrder struct {
	by         []string
	descending bool
	values     func(store.Place) []any
}

// newestFirst orders by a column of a time, and by id.
func newestFirst(at string) listOrder {
	return listOrder{[]string{at, "id"}, true, func(p store.Place) []any { return []any{p.Number, p.Text} }}
}

// listing reads a page and the cursor of the next.
func listing[T any](ctx context.Context, q conn, scan func(func(...any) error) (T, error), l listQuery, place func(*T) store.Place) ([]T, string, error) {
	limit, after, err := store.PageStart(l.table, l.page)
	if err != nil {
		return nil, "", err
	}
	beyond, direction := ">", " ASC"
	if l.order.descending {
		beyond, direction = "<", " DESC"
	}
	if after != nil {
		l.where = append(l.where, fmt.Sprintf("(%s) %s (%s)", strings.Join(l.order.by, ", "), beyond, marks(len(l.order.by))))
		l.args = append(l.args, l.order.values(*after)...)
	}
	where := ""
	if len(l.where) > 0 {
		where = " WHERE " + strings.Join(l.where, " AND ")
	}
	// One more than asked for tells whether there is a next page.
	query := fmt.Sprintf("SELECT %s FROM %s%s ORDER BY %s LIMIT %d", l.columns, l.table, where, strings.Join(l.order.by, direction+", ")+direction, limit+1)
	items, err := collect(ctx, q, scan, query, l.args...)
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", l.table, err)
	}
	items, next := store.PageEnd(l.table, items, limit, place)
	return items, next, nil
}
