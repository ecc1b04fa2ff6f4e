package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// node is a path of a root that is being composed in memory.
type node struct {
	entry
	// from is the directory that has the content of a file, stored its name there.
	from, stored string
	// below has the entries of a directory.
	below map[string]*node
}

func newNode() *node {
	return &node{entry: entry{kind: 'd', meta: meta{mode: 0o755}}, below: map[string]*node{}}
}

// budget bounds what all layers of a root together may hold, including files that other
// layers hide.
type budget struct {
	bytes, entries int64
	// names counts the bytes of names and links, which are held in memory; steps counts
	// resolved parts of paths.
	names, steps int64
}

// Bounds of composing a root: bytes of memory for names, and steps. Honest images need a
// tenth of each.
const (
	maxNames = 256 << 20
	maxSteps = 200_000_000
)

func newBudget(bytes, entries int64) *budget {
	return &budget{bytes: bytes, entries: entries, names: maxNames, steps: maxSteps}
}

func (b *budget) take(e *layerEntry) error {
	b.bytes -= e.Size
	b.entries--
	b.names -= int64(len(e.Path) + len(e.Link))
	switch {
	case b.names < 0:
		return fmt.Errorf("%w: the names in all layers together are too long", errHostile)
	case b.bytes < 0:
		return fmt.Errorf("%w: too many bytes in all layers together", errHostile)
	case b.entries < 0:
		return fmt.Errorf("%w: too many files in all layers together", errHostile)
	}
	return nil
}

// merge adds a layer on top of those merged before.
func (s *layerStore) merge(ctx context.Context, top *node, digest string, b *budget) error {
	if !validDigest.MatchString(digest) {
		return fmt.Errorf("layer %.80q: %w", digest, fs.ErrNotExist)
	}
	if _, err := s.stored(digest); err != nil {
		return fmt.Errorf("layer %s is not stored: %w", digest, err)
	}
	dir := s.layerDir(digest)
	files := filepath.Join(dir, layerFilesDir)
	return readIndex(dir, func(e *layerEntry) error {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := b.take(e); err != nil {
			return err
		}
		return top.apply(e, files, digest, b)
	})
}

// apply applies an entry of a layer.
func (n *node) apply(e *layerEntry, files, digest string, b *budget) error {
	switch e.Kind {
	case 'w':
		// Removing an entry does not create its directory.
		if dir := n.find(path.Dir(e.Path), b); dir != nil && dir.kind == 'd' {
			delete(dir.below, path.Base(e.Path))
		}
		return nil
	case 'o':
		if dir := n.find(e.Path, b); dir != nil && dir.kind == 'd' {
			clear(dir.below)
		}
		return nil
	}
	m := entry{kind: e.Kind, meta: e.meta(), size: e.Size, link: e.Link}
	made := &node{entry: m}
	switch e.Kind {
	case 'd':
		m.size, m.link = 0, ""
		if e.Path == "." {
			n.entry = m
			return nil
		}
	case 'f':
		made.from, made.stored = files, storedName(e.File)
		made.sum = fmt.Sprintf("%s#%d", digest, e.File)
	case 'l':
		made.mode = 0o777
	case 'h':
		// If the last element is a symbolic link, the link itself gets another name.
		dir := n.find(path.Dir(e.Link), b)
		if dir == nil || dir.below[path.Base(e.Link)] == nil || dir.below[path.Base(e.Link)].kind == 'd' {
			return fmt.Errorf("%w: hard link to %.80q, which is not a file of it", errHostile, e.Link)
		}
		old := *dir.below[path.Base(e.Link)]
		old.size = 0 // its content is counted once
		made = &old
	}
	if e.Path == "." {
		return fmt.Errorf("%w: the top is not a directory", errHostile)
	}
	dir, err := n.directory(path.Dir(e.Path), b)
	if err != nil {
		return err
	}
	name := path.Base(e.Path)
	if e.Kind == 'd' {
		if old := dir.below[name]; old != nil && old.kind == 'd' {
			old.entry = m
			return nil
		}
		made.below = map[string]*node{}
	}
	dir.below[name] = made
	return nil
}

// maxLinks is how many symbolic links the resolution of a path may follow, as in Linux.
const maxLinks = 40

// directory returns a directory, which it makes if missing. Links in its path are followed
// as they would be inside, so they resolve within the root: a parent is often a link in one
// layer that the next layer does not mention (/bin to /usr/bin).
func (n *node) directory(p string, b *budget) (*node, error) {
	dir, err := n.walk(p, true, b)
	if err != nil {
		return nil, err
	}
	if dir.kind != 'd' {
		return nil, fmt.Errorf("%w: %.80q is not a directory", errHostile, p)
	}
	return dir, nil
}

// find returns what a path resolves to, or nil.
func (n *node) find(p string, b *budget) *node {
	found, err := n.walk(p, false, b)
	if err != nil {
		return nil
	}
	return found
}

// walk resolves a path from the root, n. It follows all links, including that of
// the last element.
func (n *node) walk(p string, make bool, b *budget) (*node, error) {
	links := 0
	at := []*node{n} // from the root to the current directory
	todo := strings.Split(p, "/")
	for len(todo) > 0 {
		if b.steps--; b.steps < 0 {
			return nil, fmt.Errorf("%w: its paths go through too many directories and links", errHostile)
		}
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = at[:max(1, len(at)-1)]
			continue
		}
		here := at[len(at)-1]
		if here.kind != 'd' {
			return nil, fmt.Errorf("%w: a parent of %.80q is not a directory", errHostile, p)
		}
		next := here.below[name]
		switch {
		case next == nil && !make:
			return nil, fs.ErrNotExist
		case next == nil:
			next = newNode()
			here.below[name] = next
		case next.kind == 'l':
			if links++; links > maxLinks || len(todo) > 4096 {
				return nil, fmt.Errorf("%w: %.80q goes through too many links", errHostile, p)
			}
			if strings.HasPrefix(next.link, "/") {
				at = at[:1]
			}
			todo = slices.Concat(strings.Split(next.link, "/"), todo)
			b.steps -= int64(len(todo))
			continue
		}
		if at = append(at, next); len(at) > maxPathDepth {
			return nil, fmt.Errorf("%w: path %.80q is too deep", errHostile, p)
		}
	}
	return at[len(at)-1], nil
}

// readBase reads the root of another template.
func readBase(ctx context.Context, top *node, b base, own bool) error {
	root, err := os.OpenRoot(b.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return readBaseDir(ctx, top, root, b, "", own)
}

// readBaseDir reads one directory, which is the node's own.
func readBaseDir(ctx context.Context, n *node, dir *os.Root, b base, at string, own bool) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return err
	}
	n.entry = statEntry(&st, own)
	n.below = map[string]*node{}
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		p := path.Join(at, name)
		if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		child := &node{entry: statEntry(&st, own)}
		switch child.kind {
		case 'd':
			sub, err := dir.OpenRoot(name)
			if err != nil {
				return err
			}
			err = readBaseDir(ctx, child, sub, b, p, own)
			sub.Close()
			if err != nil {
				return err
			}
		case 'f':
			child.from, child.stored, child.sum = b.dir, p, b.digest+"/"+p
		case 'l':
			if child.link, err = dir.Readlink(name); err != nil {
				return err
			}
		default:
			continue
		}
		n.below[name] = child
	}
	return nil
}

// statEntry returns the entry of a file of a root. A root that an ordinary user made has no
// owners: everything belongs to root, with modes to match.
func statEntry(st *unix.Stat_t, own bool) entry {
	e := entry{meta: meta{mode: st.Mode & 0o7777, mtime: time.Unix(st.Mtim.Unix())}, size: st.Size}
	if own {
		e.uid, e.gid = int(st.Uid), int(st.Gid)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.kind, e.size = 'd', 0
	case unix.S_IFREG:
		e.kind = 'f'
	case unix.S_IFLNK:
		e.kind, e.size = 'l', 0
	}
	return e
}

// plant writes a composed root into an empty tree.
func plant(ctx context.Context, t *tree, top *node, progress func(done, all int)) error {
	if len(t.entries) != 1 {
		return errors.New("compose: the tree is not empty")
	}
	d, err := t.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	pl := &planter{ctx: ctx, tree: t, progress: progress, all: top.count(), names: maxNames, dirs: map[string]int{}, link: unix.Linkat}
	defer pl.close()
	t.entries["."] = top.entry
	return pl.fill(int(d.Fd()), ".", top)
}

func (n *node) count() int {
	all := 1
	for _, c := range n.below {
		all += c.count()
	}
	return all
}

// planter makes files in directories that it has just made, through their descriptors, so
// that no path can resolve elsewhere.
type planter struct {
	ctx       context.Context
	tree      *tree
	progress  func(done, all int)
	done, all int
	names     int64 // bytes left for paths
	// dirs are descriptors of directories of stored files.
	dirs map[string]int
	link func(olddir int, old string, newdir int, name string, flags int) error
}

func (pl *planter) close() {
	for _, fd := range pl.dirs {
		unix.Close(fd)
	}
}

func (pl *planter) fill(dir int, at string, n *node) error {
	if err := pl.ctx.Err(); err != nil {
		return context.Cause(pl.ctx)
	}
	if int64(len(pl.tree.entries)+len(n.below)) > pl.tree.maxEntries {
		return fmt.Errorf("%w: more than %d files", errHostile, pl.tree.maxEntries)
	}
	for name, c := range n.below {
		p := path.Join(at, name)
		if err := pl.plant(dir, p, name, c); err != nil {
			return fmt.Errorf("make %.200q: %w", p, err)
		}
		if pl.done++; pl.progress != nil && pl.done%1000 == 0 {
			pl.progress(pl.done, pl.all)
		}
	}
	return nil
}

func (pl *planter) plant(dir int, p, name string, n *node) error {
	if strings.Count(p, "/") >= maxPathDepth {
		return fmt.Errorf("%w: path %.80q is too deep", errHostile, p)
	}
	if pl.names -= int64(len(p)); pl.names < 0 || len(p) >= unix.PathMax {
		return fmt.Errorf("%w: its paths are too long", errHostile)
	}
	pl.tree.entries[p] = n.entry
	switch n.kind {
	case 'd':
		if err := unix.Mkdirat(dir, name, 0o700); err != nil {
			return err
		}
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return pl.fill(fd, p, n)
	case 'l':
		if err := unix.Symlinkat(n.entry.link, dir, name); err != nil {
			return err
		}
		if pl.tree.own {
			return unix.Fchownat(dir, name, n.uid, n.gid, unix.AT_SYMLINK_NOFOLLOW)
		}
		return nil
	}
	pl.tree.bytes += n.size
	return pl.share(dir, name, n)
}

// share hard-links stored content into a directory. If that is not possible, because the
// file system does not support it, is another one, or the file has the maximum number of
// links, it copies the content, by reference if possible.
func (pl *planter) share(dir int, name string, n *node) error {
	from, err := pl.storedDir(n.from)
	if err != nil {
		return err
	}
	err = pl.link(from, n.stored, dir, name, 0)
	switch {
	case errors.Is(err, unix.EMLINK), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EPERM), errors.Is(err, unix.EOPNOTSUPP):
		return copyStored(from, dir, name, n, pl.tree.own)
	}
	return err
}

func (pl *planter) storedDir(p string) (int, error) {
	if fd, ok := pl.dirs[p]; ok {
		return fd, nil
	}
	fd, err := unix.Open(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		pl.dirs[p] = fd
	}
	return fd, err
}

func copyStored(from, dir int, name string, n *node, own bool) error {
	fd, err := unix.Openat(from, n.stored, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	src := os.NewFile(uintptr(fd), n.stored)
	defer src.Close()
	if fd, err = unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600); err != nil {
		return err
	}
	dst := os.NewFile(uintptr(fd), name)
	if err = unix.IoctlFileClone(fd, int(src.Fd())); err != nil {
		_, err = dst.ReadFrom(src)
	}
	if err == nil {
		err = dress(dst, storedMeta(n.meta, own), own)
	}
	return errors.Join(err, dst.Close())
}
