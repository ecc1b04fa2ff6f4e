package layer

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/template/layer/apply"
	"github.com/cove-sh/cove/sandbox"
)

// excluded are paths that are never compared: memory, devices, and Cove's own mounts in a
// sandbox.
var excluded = map[string]bool{"/run/cove": true, "/tmp": true, "/dev": true, "/proc": true, "/sys": true}

// ownPrefixes are prefixes of Cove's and gVisor's own files in the root directory: where a
// merge is prepared, and what backs a layer.
var ownPrefixes = []string{apply.StagingPrefix, ".gvisor.filestore."}

func isExcluded(p string) bool {
	if excluded[p] {
		return true
	}
	dir, name := path.Split(p)
	return dir == "/" && slices.ContainsFunc(ownPrefixes, func(s string) bool { return strings.HasPrefix(name, s) })
}

// sandboxOwned reports whether a path belongs to each sandbox itself, so that it differs
// from the template and from forks without a change by the user: host name and machine id,
// resolver, certificate authorities, and the SSH host keys that are made at the start. Such
// a path is compared only if it is selected itself.
func sandboxOwned(p string) bool {
	switch p {
	case "/etc/hosts", "/etc/resolv.conf", "/etc/machine-id", "/var/lib/dbus/machine-id":
		return true
	case "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/pki/tls/certs/ca-bundle.crt",
		"/etc/ssl/ca-bundle.pem", "/var/lib/ca-certificates/ca-bundle.pem", "/etc/ssl/cert.pem":
		return true // the gateway's authority is in it, if the sandbox has secrets
	case "/usr/local/share/ca-certificates/cove-gateway.crt", "/etc/pki/ca-trust/source/anchors/cove-gateway.crt", "/etc/pki/trust/anchors/cove-gateway.crt":
		return true
	}
	name, ok := strings.CutPrefix(p, "/etc/ssh/ssh_host_")
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".pub"), "-cert")
	return ok && strings.HasSuffix(name, "_key") && !strings.Contains(name, "/")
}

// skips reports whether a path is left out of a comparison.
func (s selection) skips(p string) bool {
	return isExcluded(p) || sandboxOwned(p) && !slices.Contains(s, p)
}

// View is the file system of a sandbox: a layer above a template. With a nil Layer it is
// the template alone.
type View struct {
	Lower Lower
	Layer *Layer
}

// maxLowerVisits bounds how many template files one comparison stats. Only a sandbox that
// has changed that many files needs so many.
const maxLowerVisits = 4_000_000

// lookup reads a template for one comparison, and caches the entries.
type lookup struct {
	ctx    context.Context // context of the call
	lower  Lower
	seen   map[string]*Entry // nil if there is none
	visits int
}

func newLookup(ctx context.Context, lower Lower) *lookup {
	return &lookup{ctx: ctx, lower: lower, seen: map[string]*Entry{}}
}

// stat returns the template's entry for a path, or nil.
func (l *lookup) stat(p string) (*Entry, error) {
	if e, ok := l.seen[p]; ok {
		return e, nil
	}
	if err := l.ctx.Err(); err != nil {
		return nil, err
	}
	if l.visits++; l.visits > maxLowerVisits {
		return nil, tooLarge("the sandbox has removed or replaced too much of its template to compare; ask for single paths")
	}
	e, err := l.lower.Stat(p)
	if errors.Is(err, fs.ErrNotExist) {
		e, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	l.seen[p] = e
	return e, nil
}

// hashOf returns the hash of a file, and reads the file if it is the template's.
func (l *lookup) hashOf(e *Entry, p string) (Hash, error) {
	if e.hashed {
		return e.hash, nil
	}
	f, err := l.lower.Open(p)
	if err != nil {
		return Hash{}, err
	}
	defer f.Close()
	sum, err := hashContent(&contextReader{l.ctx, f}, io.Discard, io.Discard)
	if err != nil {
		return Hash{}, err
	}
	e.hash, e.hashed = sum.hash, true
	return e.hash, nil
}

// contextReader stops when its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// spot is a path in one view.
type spot struct {
	// node is the layer's node, or nil.
	node *node
	// low is set if the template is visible at the path, unless node covers it.
	low bool
	// entry is what the view has at the path, or nil.
	entry *Entry
	// through is set if the content of the template's directory is visible in this one.
	through bool
}

// absent is a path that a view does not have.
var absent = spot{}

// top returns the root of a view.
func (l *lookup) top(v View) (spot, error) {
	var n *node
	if v.Layer != nil {
		n = v.Layer.root
	}
	return l.spot(n, true, "/")
}

// child returns an entry of a directory.
func (l *lookup) child(s spot, name, p string) (spot, error) {
	var n *node
	if s.node != nil {
		n = s.node.children[name]
	}
	return l.spot(n, s.through, p)
}

func (l *lookup) spot(n *node, low bool, p string) (spot, error) {
	s := spot{node: n, low: low}
	if n == nil {
		if !low {
			return absent, nil
		}
		e, err := l.stat(p)
		s.entry = e
		s.through = e != nil && e.Kind == KindDirectory
		return s, err
	}
	switch {
	case n.entry.Kind == KindWhiteout:
		return absent, nil
	case n.entry.Kind == KindDirectory && !n.entry.Opaque && low:
		e, err := l.stat(p)
		if err != nil {
			return s, err
		}
		s.through = e != nil && e.Kind == KindDirectory
	}
	s.entry = n.entry
	return s, nil
}

func (s spot) isDir() bool { return s.entry != nil && s.entry.Kind == KindDirectory }

// untouched reports whether all spots are the template's, with everything below them, or
// none exists.
func untouched(spots ...spot) bool {
	for _, s := range spots {
		if s.node != nil || (s.entry == nil) != (spots[0].entry == nil) {
			return false
		}
	}
	return true
}

// names returns the sorted names in a directory in which the views may differ.
func (l *lookup) names(p string, spots ...spot) ([]string, error) {
	seen := map[string]bool{}
	for _, s := range spots {
		if s.node == nil {
			continue
		}
		for name := range s.node.children {
			seen[name] = true
		}
	}
	through := 0
	for _, s := range spots {
		if s.through {
			through++
		}
	}
	if through > 0 && through < len(spots) {
		names, err := l.lower.List(p)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, name := range names {
			seen[name] = true
		}
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// join adds a name to a clean path.
func join(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

// aspects returns how two entries of one path differ. Times are not compared.
func (l *lookup) aspects(p string, a, b *Entry) ([]sandbox.Aspect, error) {
	if a == b {
		return nil, nil
	}
	if a.Kind != b.Kind {
		return []sandbox.Aspect{sandbox.AspectType}, nil
	}
	var out []sandbox.Aspect
	if a.Kind == KindFile {
		differs := a.Size != b.Size
		if !differs {
			ha, err := l.hashOf(a, p)
			if err != nil {
				return nil, err
			}
			hb, err := l.hashOf(b, p)
			if err != nil {
				return nil, err
			}
			differs = ha != hb
		}
		if differs {
			out = append(out, sandbox.AspectContent)
		}
	}
	// The permissions of a symbolic link have no meaning.
	if a.Mode != b.Mode && a.Kind != KindSymlink {
		out = append(out, sandbox.AspectMode)
	}
	if a.UID != b.UID || a.GID != b.GID {
		out = append(out, sandbox.AspectOwner)
	}
	if a.Target != b.Target || a.Major != b.Major || a.Minor != b.Minor {
		out = append(out, sandbox.AspectTarget)
	}
	return out, nil
}

// same reports whether two entries are equal, or both nil.
func (l *lookup) same(p string, a, b *Entry) (bool, error) {
	if a == nil || b == nil {
		return a == b, nil
	}
	diff, err := l.aspects(p, a, b)
	return len(diff) == 0, err
}

// selection is a set of paths with everything below them; empty is everything.
type selection []string

// covers reports whether a path is selected.
func (s selection) covers(p string) bool {
	return len(s) == 0 || slices.ContainsFunc(s, func(sel string) bool { return p == sel || below(p, sel) })
}

// reachesBelow reports whether something below a path is selected.
func (s selection) reachesBelow(p string) bool {
	return slices.ContainsFunc(s, func(sel string) bool { return below(sel, p) })
}

// below reports whether p is in the directory dir or further down.
func below(p, dir string) bool {
	if dir == "/" {
		return p != "/"
	}
	return len(p) > len(dir) && p[len(dir)] == '/' && p[:len(dir)] == dir
}

func newSelection(paths []string) (selection, error) {
	s := make(selection, 0, len(paths))
	for _, p := range paths {
		if !strings.HasPrefix(p, "/") {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "the path %q must be absolute; begin it with /", p)
		}
		s = append(s, path.Clean(p))
	}
	if slices.Contains(s, "/") {
		return nil, nil
	}
	return s, nil
}
