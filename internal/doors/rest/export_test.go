package rest

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/internal/doors/operation"
)

// Operations returns the operations from which the routes are made.
func Operations() []operation.Info {
	_, doc := build(Config{})
	var all []operation.Info
	for _, path := range doc.OpenAPI().Paths {
		for _, o := range []*huma.Operation{path.Get, path.Put, path.Post, path.Delete, path.Patch} {
			if o != nil {
				all = append(all, *infoOf(o))
			}
		}
	}
	return all
}
