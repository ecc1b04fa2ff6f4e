package image

import (
	"context"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// debianMaking is counted up when something else is made of the same packages,
// so that what was kept of before is not used.
const debianMaking = 3

// bootstrapFor is how long a bootstrapped Debian is begun with: after that it is
// made anew, with what Debian has mended since.
const bootstrapFor = 7 * 24 * time.Hour

// debianBase returns a Debian with nothing but the base packages, which all
// templates made of Debian begin with: it is made once. What else they have is
// for steps.
func (p *Provider) debianBase(ctx context.Context, anew bool, report reporter) (*Foundation, error) {
	key := chainKey("debian", suite, basePackages, debianMaking)
	var kept *manifest
	if !anew {
		kept = p.cached(key)
	}
	m := kept
	if kept == nil || time.Since(kept.BuiltAt) > bootstrapFor {
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
			err = p.hold(m.Digest) // another build may have had it made
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
