package image

import (
	"context"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// debianRecipe is incremented when the same packages are built differently, so that cached
// roots are not used.
const debianRecipe = 3

// bootstrapMaxAge is how long a bootstrapped Debian is used before it is made again, to
// include Debian's fixes.
const bootstrapMaxAge = 7 * 24 * time.Hour

// debianBase returns a Debian with only the base packages. It is made once for all
// templates based on Debian; steps install everything else.
func (p *Provider) debianBase(ctx context.Context, anew bool, report reporter) (*Foundation, error) {
	key := chainKey("debian", suite, basePackages, debianRecipe)
	var kept *manifest
	if !anew {
		kept = p.cached(key)
	}
	m := kept
	if kept == nil || time.Since(kept.BuiltAt) > bootstrapMaxAge {
		var err error
		m, err = p.bootstraps.get(ctx, key, report, func(ctx context.Context, report reporter) (*manifest, error) {
			m, err := p.make(ctx, definition{name: "base", source: p.debian, packages: basePackages, env: baseEnv}, report)
			if err == nil {
				p.keep(key, m)
			}
			return m, err
		})
		switch {
		case err == nil:
			err = p.hold(m.Digest) // it may have been made for another build
		case kept != nil && sandbox.CodeOf(err) == sandbox.CodeUnavailable:
			report("", -1, "Debian cannot be fetched anew, so that of "+kept.BuiltAt.Format(time.DateOnly)+" is used: "+sandbox.MessageOf(err))
			m, err = kept, nil
		}
		if err != nil {
			return nil, err
		}
	} else {
		report("base", 1, "Debian is kept from an earlier build")
	}
	return p.baseOf(m), nil
}
