package podflare

import (
	"context"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

type diffArgs struct {
	inSandbox
	Other string   `json:"other"`
	Paths []string `json:"paths"`
}

// differences are absolute paths of regular files, sorted.
type differences struct {
	Added    []string `json:"added"`
	Removed  []string `json:"removed"`
	Modified []string `json:"modified"`
}

// maxListing bounds the listing of a sandbox's files, in bytes: about 300,000 files. The
// listing comes from the sandbox, which is hostile.
const maxListing = 32 << 20

// list prints the digest and the name of each file below its arguments, each followed by
// NUL. It includes /tmp, which the service does not compare because it is in memory.
const list = `export LC_ALL=C; for p; do [ ! -e "$p" ] || find "$p" -type f -print0; done | sort -zu | xargs -0r sha256sum -z --`

func diff(ctx context.Context, c *call, id string, in diffArgs) (any, error) {
	for _, p := range in.Paths {
		if !path.IsAbs(p) {
			return nil, dialect.Invalid("paths: %.100q is not absolute", p)
		}
	}
	c.Status("comparing")
	var sides [2]map[string]string
	g, gctx := errgroup.WithContext(ctx)
	for i, side := range []string{id, in.Other} {
		g.Go(func() (err error) {
			sides[i], err = digests(gctx, c, side, in.Paths)
			if err != nil {
				err = c.explain(ctx, side, err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return compare(sides[0], sides[1]), nil
}

// digests returns the digests of a sandbox's files, by path.
func digests(ctx context.Context, c *call, id string, paths []string) (map[string]string, error) {
	res, err := shell(ctx, c, id, sandbox.ExecRequest{
		Command: append([]string{"/bin/sh", "-c", list, "sh"}, paths...), User: "root", TimeoutMS: sandbox.MaxExecTimeout.Milliseconds(),
	}, maxListing)
	switch {
	case err != nil:
		return nil, err
	case len(res.Stdout) >= maxListing:
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "there are too many files to compare; name fewer directories in paths")
	case res.ExitCode != 0 && res.ExitCode != someFailed:
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "the files of sandbox %s could not be listed: %.200s", id, res.Stderr)
	}
	return parse(res.Stdout), nil
}

// someFailed is the exit code of xargs when a file was removed meanwhile.
const someFailed = 123

// parse reads the output of list. Malformed entries are left out.
func parse(listing string) map[string]string {
	const digest = 64
	files := make(map[string]string)
	for entry := range strings.SplitSeq(listing, "\x00") {
		if len(entry) > digest+2 && entry[digest] == ' ' {
			files[entry[digest+2:]] = entry[:digest]
		}
	}
	return files
}

// compare returns the changes from base to other.
func compare(base, other map[string]string) differences {
	d := differences{Added: []string{}, Removed: []string{}, Modified: []string{}}
	for p, digest := range other {
		was, exists := base[p]
		switch {
		case !exists:
			d.Added = append(d.Added, p)
		case was != digest:
			d.Modified = append(d.Modified, p)
		}
	}
	for p := range base {
		if _, exists := other[p]; !exists {
			d.Removed = append(d.Removed, p)
		}
	}
	for _, l := range [][]string{d.Added, d.Removed, d.Modified} {
		slices.Sort(l)
	}
	return d
}
