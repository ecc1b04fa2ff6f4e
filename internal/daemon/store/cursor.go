package store

import (
	"cmp"
	"context"
	"encoding/base64"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-sh/cove/sandbox"
)

// maxCursorBytes bounds a cursor as callers send it; the longest has a path.
const maxCursorBytes = 2 * sandbox.MaxPathBytes

// cursorVersion begins a cursor, before it is encoded.
const cursorVersion = "2"

// Place is where an item is in a listing: what the listing is ordered by, such
// as a time and an id. No two items have the same.
type Place struct {
	Number int64
	Text   string
}

// PlaceAt is the place of an item in a listing by time and id.
func PlaceAt(t time.Time, id string) Place { return Place{t.UnixNano(), id} }

// Compare orders places by their number, and then by their text.
func (p Place) Compare(q Place) int {
	return cmp.Or(cmp.Compare(p.Number, q.Number), strings.Compare(p.Text, q.Text))
}

// Cursor returns the opaque form that callers get, of the last item that they
// have seen of a listing. A listing is named by one word.
func (p Place) Cursor(listing string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join([]string{cursorVersion, listing, strconv.FormatInt(p.Number, 10), p.Text}, " ")))
}

// ParseCursor is the inverse of [Place.Cursor]. Anything else is an invalid
// error.
func ParseCursor(listing, s string) (Place, error) {
	bad := sandbox.Errorf(sandbox.CodeInvalid, "the cursor is not valid; start over without a cursor")
	if len(s) > maxCursorBytes {
		return Place{}, bad
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || !utf8.Valid(b) {
		return Place{}, bad
	}
	parts := strings.SplitN(string(b), " ", 4)
	if len(parts) != 4 || parts[0] != cursorVersion {
		return Place{}, bad
	}
	if parts[1] != listing {
		return Place{}, sandbox.Errorf(sandbox.CodeInvalid, "the cursor belongs to another listing; start over without a cursor")
	}
	n, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return Place{}, bad
	}
	return Place{n, parts[3]}, nil
}

// PageLimit returns how many items a page holds at most.
func PageLimit(p sandbox.Page) (int, error) {
	switch {
	case p.Limit == 0:
		return sandbox.DefaultPageSize, nil
	case p.Limit < 0 || p.Limit > sandbox.MaxPageSize:
		return 0, sandbox.Errorf(sandbox.CodeInvalid, "limit is %d; give 1 to %d, or leave it out for %d", p.Limit, sandbox.MaxPageSize, sandbox.DefaultPageSize)
	}
	return p.Limit, nil
}

// PageStart reads what a page of a listing asks for: at most how many items,
// and of which place those after; nil is the start.
func PageStart(listing string, p sandbox.Page) (limit int, after *Place, err error) {
	limit, err = PageLimit(p)
	if err != nil || p.Cursor == "" {
		return limit, nil, err
	}
	place, err := ParseCursor(listing, p.Cursor)
	return limit, &place, err
}

// PageEnd returns the first limit of the items that come after a page's start,
// and the cursor of the next page if there are more.
func PageEnd[T any](listing string, items []T, limit int, place func(*T) Place) ([]T, string) {
	if len(items) <= limit {
		return items, ""
	}
	return items[:limit], place(&items[limit-1]).Cursor(listing)
}

// PageOf returns a page of a listing that is in memory, and the cursor of the
// next. It puts all items into the order of their places first.
func PageOf[T any](listing string, all []T, p sandbox.Page, place func(*T) Place) ([]T, string, error) {
	limit, after, err := PageStart(listing, p)
	if err != nil {
		return nil, "", err
	}
	slices.SortFunc(all, func(a, b T) int { return place(&a).Compare(place(&b)) })
	if after != nil {
		first, found := slices.BinarySearchFunc(all, *after, func(item T, at Place) int { return place(&item).Compare(at) })
		if found {
			first++
		}
		all = all[first:]
	}
	items, next := PageEnd(listing, all, limit, place)
	return items, next, nil
}

// All iterates over everything that a listing selects, page by page. A page is read
// when the one before it has been consumed. An error ends the iteration.
func All[F, T any](ctx context.Context, list func(context.Context, F, sandbox.Page) ([]T, string, error), filter F) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for page := (sandbox.Page{Limit: sandbox.MaxPageSize}); ; {
			items, next, err := list(ctx, filter, page)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if page.Cursor = next; next == "" {
				return
			}
		}
	}
}
