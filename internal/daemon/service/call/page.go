package call

import (
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// PageOf returns a page of a listing that does not come from the store, in the order of
// the items' places.
func PageOf[T any](listing string, all []T, p sandbox.Page, place func(*T) store.Place) (*sandbox.List[T], error) {
	items, next, err := store.PageOf(listing, all, p, place)
	if err != nil {
		return nil, err
	}
	return &sandbox.List[T]{Items: append([]T{}, items...), NextCursor: next}, nil
}
