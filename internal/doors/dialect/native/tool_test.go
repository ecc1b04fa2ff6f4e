package native

import (
	"sync"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

var theDialect = sync.OnceValue(New)

// named returns a tool of the dialect.
func named(name string) dialect.Tool {
	for _, t := range theDialect().tools {
		if t.Def.Name == name {
			return t
		}
	}
	panic("no tool is called " + name)
}
