package image

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of one root file system, against archives that are made to fill a disk.
const (
	maxTreeBytes   = 32 << 30
	maxTreeEntries = 1_000_000
	maxPathDepth   = 128
)

// tree is a root file system that is being made. All disk access goes through an
// [os.Root], and nothing is written through a symbolic link: the tree knows what it
// has made, and a parent that is not a directory made by the tree is an error. It is
// not safe for concurrent use.
type tree struct {
	root *os.Root
	// own is set if the owners of files can be set, that is, for root.
	own     bool
	entries map[string]entry
	// bytes counts the content of files.
	bytes                int64
	maxBytes, maxEntries int64

	// open is the directory used last: most neighbours in an archive share theirs.
	openPath string
	open     *os.Root

	synced []func() error
}

// entry is what the digest covers, and what finish still has to set.
type entry struct {
	kind byte // 'd', 'f', 'l'
	meta
	size int64
	sum  string // of a file
	link string // where a symbolic link points
}

// meta has the attributes of an entry.
type meta struct {
	mode     uint32 // permission, setuid, setgid and sticky bits
	uid, gid int
	mtime    time.Time
}

// newTree starts a tree in an empty directory.
func newTree(dir string, own bool) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &tree{
		root: root, own: own,
		entries:  map[string]entry{".": {kind: 'd', meta: meta{mode: 0o755}}},
		maxBytes: maxTreeBytes, maxEntries: maxTreeEntries,
	}, nil
}

func (t *tree) close() {
	if t.open != nil {
		t.open.Close()
	}
	t.root.Close()
}

// errHostile marks archives that attempt what no honest archive does.
var errHostile = errors.New("archive is not safe to unpack")

// cleanPath returns a clean relative path, "." for the root.
func cleanPath(name string) (string, error) {
	if len(name) > 4096 || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%w: path %.80q", errHostile, name)
	}
	parts := strings.Split(name, "/")
	for _, p := range parts {
		if p == ".." || len(p) > 255 {
			return "", fmt.Errorf("%w: path %.80q", errHostile, name)
		}
	}
	p := strings.TrimPrefix(path.Clean("/"+name), "/")
	if p == "" {
		return ".", nil
	}
	if strings.Count(p, "/") >= maxPathDepth {
		return "", fmt.Errorf("%w: path %.80q is too deep", errHostile, name)
	}
	return p, nil
}

// parent makes sure that p's parent directories exist. It returns the opened parent
// and p's last element.
func (t *tree) parent(p string) (*os.Root, string, error) {
	dir := path.Dir(p)
	if e, ok := t.entries[dir]; !ok {
		if err := t.mkdir(dir, meta{mode: 0o755}); err != nil {
			return nil, "", err
		}
	} else if e.kind != 'd' {
		return nil, "", fmt.Errorf("%w: %.80q is not a directory", errHostile, dir)
	}
	if dir == "." {
		return t.root, path.Base(p), nil
	}
	if t.open == nil || t.openPath != dir {
		if t.open != nil {
			t.open.Close()
			t.open = nil
		}
		r, err := t.root.OpenRoot(dir)
		if err != nil {
			return nil, "", err
		}
		t.open, t.openPath = r, dir
	}
	return t.open, path.Base(p), nil
}

// place prepares the path of a new entry that is not a directory: it removes an existing
// entry.
func (t *tree) place(p string) (*os.Root, string, error) {
	if p == "." {
		return nil, "", fmt.Errorf("%w: the top is not a directory", errHostile)
	}
	dir, base, err := t.parent(p)
	if err != nil {
		return nil, "", err
	}
	old, ok := t.entries[p]
	switch {
	case ok && old.kind == 'd':
		return nil, "", fmt.Errorf("%w: %.80q is a directory", errHostile, p)
	case ok:
		if err := dir.Remove(base); err != nil {
			return nil, "", err
		}
		t.bytes -= old.size
		delete(t.entries, p)
	case int64(len(t.entries)) >= t.maxEntries:
		return nil, "", fmt.Errorf("%w: more than %d files", errHostile, t.maxEntries)
	}
	return dir, base, nil
}

// mkdir makes a directory or changes the attributes of an existing one. finish sets
// them, so that read-only directories can be filled.
func (t *tree) mkdir(name string, m meta) error {
	p, err := cleanPath(name)
	if err != nil {
		return err
	}
	m.mode &= 0o7777
	e := entry{kind: 'd', meta: m}
	if old, ok := t.entries[p]; ok {
		if old.kind != 'd' {
			return fmt.Errorf("%w: %.80q is not a directory", errHostile, p)
		}
		t.entries[p] = e
		return nil
	}
	if int64(len(t.entries)) >= t.maxEntries {
		return fmt.Errorf("%w: more than %d files", errHostile, t.maxEntries)
	}
	dir, base, err := t.parent(p)
	if err != nil {
		return err
	}
	if err := dir.Mkdir(base, 0o700); err != nil {
		return err
	}
	t.entries[p] = e
	return nil
}

// file writes a file of at most size bytes from r.
func (t *tree) file(name string, m meta, size int64, r io.Reader) error {
	p, err := cleanPath(name)
	if err != nil {
		return err
	}
	if size < 0 || size > t.maxBytes-t.bytes {
		return fmt.Errorf("%w: more than %d bytes", errHostile, t.maxBytes)
	}
	dir, base, err := t.place(p)
	if err != nil {
		return err
	}
	f, err := dir.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	m.mode &= 0o7777
	e := entry{kind: 'f', meta: m}
	h := sha256.New()
	e.size, err = io.Copy(io.MultiWriter(f, h), io.LimitReader(r, size))
	e.sum = sum(h)
	if err == nil {
		err = dress(f, m, t.own)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %.80q: %w", p, err)
	}
	t.entries[p] = e
	t.bytes += e.size
	return nil
}

// put writes a file whose content is in memory.
func (t *tree) put(name string, m meta, content string) error {
	return t.file(name, m, int64(len(content)), strings.NewReader(content))
}

// dress sets the owner (if own is set), the mode, and the time (unless zero) of an open
// file or directory.
func dress(f *os.File, m meta, own bool) error {
	if own {
		if err := f.Chown(m.uid, m.gid); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(int(f.Fd()), m.mode); err != nil {
		return err
	}
	if m.mtime.IsZero() {
		return nil
	}
	tv := unix.NsecToTimeval(m.mtime.UnixNano())
	return unix.Futimes(int(f.Fd()), []unix.Timeval{tv, tv})
}

// symlink makes a symbolic link. Its target is not checked: only sandboxes resolve it,
// the tree never does.
func (t *tree) symlink(name, target string, m meta) error {
	p, err := cleanPath(name)
	if err != nil {
		return err
	}
	if target == "" || len(target) > 4095 || strings.ContainsRune(target, 0) {
		return fmt.Errorf("%w: symbolic link %.80q", errHostile, p)
	}
	dir, base, err := t.place(p)
	if err != nil {
		return err
	}
	if err := dir.Symlink(target, base); err != nil {
		return err
	}
	if t.own {
		if err := dir.Lchown(base, m.uid, m.gid); err != nil {
			return err
		}
	}
	t.entries[p] = entry{kind: 'l', meta: meta{mode: 0o777, uid: m.uid, gid: m.gid}, link: target}
	return nil
}

// hardlink makes a hard link to a file of the tree.
func (t *tree) hardlink(name, old string) error {
	p, err := cleanPath(name)
	if err != nil {
		return err
	}
	o, err := cleanPath(old)
	if err != nil {
		return err
	}
	e, ok := t.entries[o]
	if !ok || e.kind != 'f' || o == p {
		return fmt.Errorf("%w: hard link to %.80q, which is not a file of it", errHostile, old)
	}
	if _, _, err := t.place(p); err != nil {
		return err
	}
	if err := t.root.Link(o, p); err != nil {
		return err
	}
	e.size = 0
	t.entries[p] = e
	return nil
}

// has reports whether the tree has an entry of that kind.
func (t *tree) has(p string, kind byte) bool { return t.entries[p].kind == kind }

// read returns a file of the tree, up to 1 MiB.
func (t *tree) read(p string) (string, error) {
	if !t.has(p, 'f') {
		return "", fmt.Errorf("%s: %w", p, fs.ErrNotExist)
	}
	f, err := t.root.Open(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	return string(b), err
}

// finish sets the attributes of directories and returns the digest of the content.
func (t *tree) finish() (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, "cove-tree-1")
	names := slices.Sorted(maps.Keys(t.entries))
	for _, p := range names {
		e := t.entries[p]
		fmt.Fprintf(h, "%c %o %d %d %d %s %q %q\n", e.kind, e.mode, e.uid, e.gid, e.size, e.sum, e.link, p)
	}
	// Children first: afterwards, their parents may not be accessible.
	for _, p := range slices.Backward(names) {
		e := t.entries[p]
		if e.kind != 'd' {
			continue
		}
		if !t.own {
			// Root inside may enter directories whatever their mode is, so their owner
			// here must be able to as well.
			e.mode |= 0o500
		}
		if !t.own && e.uid != 0 {
			// The owner cannot be set, so everybody may write.
			e.mode |= 0o777
		}
		f, err := t.root.Open(p)
		if err != nil {
			return "", err
		}
		if err := errors.Join(dress(f, e.meta, t.own), f.Close()); err != nil {
			return "", fmt.Errorf("set directory %.80q: %w", p, err)
		}
	}
	return "sha256-" + sum(h), nil
}

// sync makes what was written durable.
func (t *tree) sync() error {
	f, err := t.root.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	for _, f := range t.synced {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// onSync registers a function that sync calls once the content is durable.
func (t *tree) onSync(f func() error) { t.synced = append(t.synced, f) }

func sum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// removeTree removes a directory with everything below it, including an ordinary user's
// write-protected directories. It never enters another file system, and fails rather than
// remove what is mounted there.
func removeTree(dir string) error {
	if err := unmountBelow(dir); err != nil {
		return err
	}
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := openUp(root); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// openUp makes all directories below root writable for their owner.
func openUp(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := root.Chmod(e.Name(), 0o700); err != nil {
			return err
		}
		sub, err := root.OpenRoot(e.Name())
		if err != nil {
			return err
		}
		err = openUp(sub)
		sub.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// unmountBelow unmounts what a killed build left mounted below dir.
func unmountBelow(dir string) error {
	dir, err := realPath(dir)
	if err != nil {
		return err
	}
	for range 2 {
		mounts, err := mountsBelow(dir)
		if err != nil {
			return err
		}
		if len(mounts) == 0 {
			return nil
		}
		for _, m := range slices.Backward(mounts) {
			_ = unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
	return fmt.Errorf("remove %s: something is mounted there; unmount it", dir)
}
