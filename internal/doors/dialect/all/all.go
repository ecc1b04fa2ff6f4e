// Package all lists the dialects that Cove speaks.
package all

import (
	"strings"
	"sync"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/hopx"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox"
	"github.com/cove-sh/cove/internal/doors/dialect/miosa"
	"github.com/cove-sh/cove/internal/doors/dialect/native"
	"github.com/cove-sh/cove/internal/doors/dialect/podflare"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve"
	"github.com/cove-sh/cove/sandbox"
)

// Default is the dialect that is used if none is named.
const Default = native.Name

// dialects makes each dialect once, when it is first needed: making a table of tools
// takes milliseconds, and every request needs one.
var dialects = []func() dialect.Dialect{
	once(native.New), once(podflare.New), once(podflare.NewHosted), once(superserve.New),
	once(miosa.New), once(microsandbox.New), once(hopx.New), once(hopx.NewV2),
}

func once[D dialect.Dialect](make func() D) func() dialect.Dialect {
	return sync.OnceValue(func() dialect.Dialect { return make() })
}

// Dialects returns all dialects, the default first.
func Dialects() []dialect.Dialect {
	list := make([]dialect.Dialect, len(dialects))
	for i, d := range dialects {
		list[i] = d()
	}
	return list
}

// Find returns the dialect of that name; "" is the default. An unknown name is
// refused with the list of the known ones.
func Find(name string) (dialect.Dialect, error) {
	if name == "" {
		name = Default
	}
	var known []string
	for _, made := range dialects {
		d := made()
		if d.Name() == name {
			return d, nil
		}
		known = append(known, d.Name())
	}
	return nil, sandbox.Errorf(sandbox.CodeInvalid, "unknown dialect %q; known are %s", name, strings.Join(known, ", "))
}
