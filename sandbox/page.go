package sandbox

import (
	"context"
	"iter"
)

// Page asks for one part of a listing. Items that are made or removed between
// two parts neither repeat nor hide others.
type Page struct {
	// Limit is 1 to [MaxPageSize]; 0 is [DefaultPageSize].
	Limit int `json:"limit,omitempty" query:"limit" doc:"At most this many items, 1 to 1000; 100 when absent."`
	// Cursor is NextCursor of the previous part; empty is the start.
	Cursor string `json:"cursor,omitempty" query:"cursor" doc:"The next_cursor of the previous part."`
}

// List is one part of a listing, newest first unless the verb says otherwise.
type List[T any] struct {
	Items []T `json:"items"`
	// NextCursor is empty on the last part.
	NextCursor string `json:"next_cursor,omitempty"`
}

// Lister returns one part of a listing, as [Volumes].ListVolumes does.
type Lister[T any] func(ctx context.Context, page Page) (*List[T], error)

// Of makes a lister from a verb that lists what one sandbox has, such as
// [Jobs].ListJobs.
func Of[T any](sandbox string, list func(ctx context.Context, sandbox string, page Page) (*List[T], error)) Lister[T] {
	return func(ctx context.Context, page Page) (*List[T], error) { return list(ctx, sandbox, page) }
}

// Each iterates over a whole listing and requests each part when it gets there. An
// error ends the iteration as the last pair.
func Each[T any](ctx context.Context, list Lister[T]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		page := Page{Limit: MaxPageSize}
		for {
			part, err := list(ctx, page)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range part.Items {
				if !yield(item, nil) {
					return
				}
			}
			if page.Cursor = part.NextCursor; page.Cursor == "" {
				return
			}
		}
	}
}

// All returns a whole listing, or nil with an error. It has no bound; the caller must
// know how large the listing can be.
func All[T any](ctx context.Context, list Lister[T]) ([]T, error) {
	all := []T{}
	for item, err := range Each(ctx, list) {
		if err != nil {
			return nil, err
		}
		all = append(all, item)
	}
	return all, nil
}
