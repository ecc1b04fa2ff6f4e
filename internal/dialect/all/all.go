// Package all lists the dialects that Cove speaks.
package all

import (
	"strings"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/internal/dialect/native"
	"github.com/cove-sh/cove/sandbox"
)

// Default is the dialect that is spoken when none is named.
const Default = native.Name

// Dialects returns all dialects, the default first.
func Dialects() []dialect.Dialect {
	return []dialect.Dialect{native.New()}
}

// Find returns the dialect of that name; "" is the default. An unknown name is
// refused with the list of the known ones.
func Find(name string) (dialect.Dialect, error) {
	if name == "" {
		name = Default
	}
	var known []string
	for _, d := range Dialects() {
		if d.Name() == name {
			return d, nil
		}
		known = append(known, d.Name())
	}
	return nil, sandbox.Errorf(sandbox.CodeInvalid, "unknown dialect %q; known are %s", name, strings.Join(known, ", "))
}
