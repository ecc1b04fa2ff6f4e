package image

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/template/layer"
	"github.com/cove-sh/cove/internal/template/oci"
	"github.com/cove-sh/cove/sandbox"
)

// errCopy marks errors in an upload that is copied, or in its destination.
var errCopy = errors.New("copy")

func copyError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errCopy}, args...)...)
}

// Copy makes a root from a base and files of an upload, and reports whether an earlier
// build had cached it. The archive is never unpacked under its own names: it becomes a
// layer, whose names are resolved in memory, like those of images.
func (p *Provider) Copy(ctx context.Context, b *Foundation, c *sandbox.TemplateCopy, anew bool) (next *Foundation, kept bool, err error) {
	f, err := p.openUpload(c.Archive)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, &cancelledReader{ctx, f}); err != nil {
		return nil, false, fmt.Errorf("read the upload: %w", err)
	}
	k, err := newUploadCopier(b, c)
	if err != nil {
		return nil, false, err
	}
	parts := []any{"copy 1", sum(h), c.Sources, c.To}
	if c.Owner != "" || c.Mode != "" {
		parts = append(parts, k.uid, k.gid, k.mode)
	}
	key := ChainKey(b.Root, parts)
	if !anew {
		if next := p.Extended(b, key); next != nil {
			return next, true, nil
		}
	}
	next, err = p.Extend(ctx, b, key, func(ctx context.Context) (io.ReadCloser, error) {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		plain, err := oci.Plain(ctx, io.NopCloser(f))
		if err != nil {
			return nil, err
		}
		r, w := io.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			err := k.run(tar.NewReader(plain), tar.NewWriter(w))
			_ = plain.Close()
			_ = w.CloseWithError(err)
		}()
		return &pipedCopy{r, done}, nil
	})
	if errors.Is(err, errCopy) || errors.Is(err, errHostile) || errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		_, why, _ := strings.Cut(err.Error(), errCopy.Error()+": ")
		err = sandbox.Wrap(sandbox.CodeInvalid, err, "the upload cannot be copied: "+cmp.Or(why, "it is not an archive of tar, perhaps with gzip or zstd, with plain files, directories and links in it"))
	}
	return next, false, err
}

// pipedCopy reads a layer that a goroutine writes.
type pipedCopy struct {
	*io.PipeReader
	done chan struct{}
}

// Close stops the writer and waits for it.
func (p *pipedCopy) Close() error {
	err := p.PipeReader.Close()
	<-p.done
	return err
}

// uploadCopier renames the entries of an archive to their destinations.
type uploadCopier struct {
	base    *Foundation
	to      string // relative; "." is the top
	into    bool   // files keep their names below to
	sources [][]string
	found   []bool
	dirs    map[string]bool   // whether the base has such a directory
	placed  map[string]string // destinations of entries of the archive

	uid, gid int
	mode     int64 // 0: those of the archive
}

func newUploadCopier(b *Foundation, c *sandbox.TemplateCopy) (*uploadCopier, error) {
	k := &uploadCopier{base: b, to: cmp.Or(strings.Trim(path.Clean(c.To), "/"), "."), dirs: map[string]bool{}, placed: map[string]string{}}
	var err error
	if k.uid, k.gid, err = ownerIDs(b.Root.Dir, c.Owner); err != nil {
		return nil, err
	}
	if c.Mode != "" {
		if k.mode, err = strconv.ParseInt(strings.TrimPrefix(c.Mode, "0o"), 8, 64); err != nil {
			return nil, fmt.Errorf("the mode of a copy: %w", err)
		}
	}
	for _, s := range c.Sources {
		s = strings.Trim(path.Clean("/"+s), "/")
		if s == "" {
			k.sources = append(k.sources, nil) // all
		} else {
			k.sources = append(k.sources, strings.Split(s, "/"))
		}
	}
	if len(k.sources) == 0 {
		k.sources = [][]string{nil}
	}
	k.found = make([]bool, len(k.sources))
	many := len(k.sources) > 1 || slices.ContainsFunc(k.sources, func(s []string) bool { return strings.ContainsAny(strings.Join(s, "/"), "*?[") })
	k.into = many || strings.HasSuffix(c.To, "/") || k.isDir(k.to)
	return k, nil
}

// maxAccounts bounds the account file that is read from a base.
const maxAccounts = 1 << 20

// ownerIDs returns the numbers of an owner in the root in dir: a user or a uid, optionally
// followed by a colon and a group or a gid. The empty owner is root. A group that has the
// same name as the user, and no entry of its own, is the user's own group.
func ownerIDs(dir, owner string) (uid, gid int, err error) {
	if owner == "" {
		return 0, 0, nil
	}
	user, group, both := strings.Cut(owner, ":")
	ids, known := accountIDs(dir, "etc/passwd", user, 2)
	switch n, err := strconv.Atoi(user); {
	case known:
	case err == nil:
		ids = []int{n, n}
	case user == "root":
		ids = []int{0, 0}
	default:
		return 0, 0, sandbox.Errorf(sandbox.CodeInvalid, "the template has no user %.80s at this step; create one in an earlier step, or use a uid", user)
	}
	uid, gid = ids[0], ids[1]
	if !both {
		return uid, gid, nil
	}
	if ids, known := accountIDs(dir, "etc/group", group, 1); known {
		gid = ids[0]
	} else if n, err := strconv.Atoi(group); err == nil {
		gid = n
	} else if group != user {
		return 0, 0, sandbox.Errorf(sandbox.CodeInvalid, "the template has no group %.80s at this step; create one in an earlier step, or use a gid", group)
	}
	return uid, gid, nil
}

// accountIDs returns the first count numbers of the first account in a file of the root in
// dir that matches a name or number, and false if there is none.
func accountIDs(dir, file, ref string, count int) (ids []int, ok bool) {
	accounts := readAccounts(dir, file)
next:
	for line := range strings.Lines(accounts) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 2+count || f[0] != ref && f[2] != ref {
			continue
		}
		ids = ids[:0]
		for _, text := range f[2 : 2+count] {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 {
				continue next
			}
			ids = append(ids, n)
		}
		return ids, true
	}
	return nil, false
}

// readAccounts returns an account file of a root, or "" if there is none. No link leads it
// outside the root.
func readAccounts(dir, file string) string {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ""
	}
	defer root.Close()
	f, err := root.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxAccounts))
	if err != nil {
		return ""
	}
	return string(data)
}

func (k *uploadCopier) run(tr *tar.Reader, tw *tar.Writer) error {
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := k.entry(h, tr, tw); err != nil {
			return err
		}
	}
	if i := slices.Index(k.found, false); i >= 0 {
		return copyError("it has nothing named %.200q", cmp.Or(strings.Join(k.sources[i], "/"), "."))
	}
	return tw.Close()
}

// entry copies an entry, if it is one of those to be copied.
func (k *uploadCopier) entry(h *tar.Header, r io.Reader, tw *tar.Writer) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if strings.HasPrefix(h.Name, "/") || slices.Contains(strings.Split(h.Name, "/"), "..") {
		return copyError("the name %.200q leads outside the archive", h.Name)
	}
	name, err := cleanPath(h.Name)
	if err != nil {
		return copyError("the name %.200q is too long or too deep", h.Name)
	}
	to := k.place(name, h.Typeflag == tar.TypeDir)
	if to == "" {
		return nil
	}
	if strings.Contains("/"+name, "/"+layer.Whiteout) {
		return copyError("the name %.200q has a special meaning in images", name)
	}
	if i := slices.IndexFunc(k.base.Root.Binds, func(b engine.Bind) bool {
		at := strings.Trim(b.Target, "/")
		return "/"+to == b.Target || to == at || strings.HasPrefix(to, at+"/")
	}); i >= 0 {
		return copyError("%s belongs to this machine in this template; choose another directory", k.base.Root.Binds[i].Target)
	}
	out := &tar.Header{Typeflag: h.Typeflag, Name: to, Mode: h.Mode & 0o7777, ModTime: h.ModTime, Format: tar.FormatPAX, Uid: k.uid, Gid: k.gid}
	if k.mode != 0 && (h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeDir) {
		out.Mode = k.mode
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if to == "." || k.isDir(to) {
			return nil // the existing directory is unchanged, and so is a link to it
		}
		out.Name += "/"
	case tar.TypeReg:
		if h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != "" {
			return copyError("the file %.200q is stored as a sparse file; create the archive without sparse files", name)
		}
		if to == "." {
			return copyError("the file %.200q cannot be the top directory", name)
		}
		out.Size = h.Size
	case tar.TypeSymlink:
		out.Linkname = h.Linkname
	case tar.TypeLink:
		target, err := cleanPath(h.Linkname)
		if err != nil || k.placed[target] == "" || strings.HasPrefix(h.Linkname, "/") {
			return copyError("the link %.200q points to %.200q, which is not copied before it", name, h.Linkname)
		}
		out.Linkname = k.placed[target]
	default:
		return copyError("%.200q is neither a file, a directory nor a link", name)
	}
	if h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeSymlink {
		k.placed[name] = to
	}
	if err := tw.WriteHeader(out); err != nil {
		return err
	}
	_, err = io.Copy(tw, r)
	return err
}

// place returns the destination of an entry, or "" if it is not copied.
func (k *uploadCopier) place(name string, dir bool) string {
	parts := strings.Split(name, "/")
	if name == "." {
		parts = nil
	}
	for i, s := range k.sources {
		n := matched(s, parts)
		if n < 0 {
			continue
		}
		k.found[i] = true
		rest := path.Join(parts[n:]...)
		switch {
		case rest == "" && !dir && k.into:
			return path.Join(k.to, path.Base(name))
		case rest == "":
			return k.to
		}
		return path.Join(k.to, rest)
	}
	return ""
}

// matched returns how many parts of a name a source matches, or -1 if it does not match.
// Parts of a source are patterns; ** matches any number of parts. If there are several **,
// only the last one needs to backtrack, since those before it have matched as little as
// possible.
func matched(source, name []string) int {
	at, star, from := 0, -1, 0
	for i := 0; i < len(source); {
		switch {
		case source[i] == "**":
			i++
			star, from = i, at
		case at < len(name) && matchedPart(source[i], name[at]):
			i++
			at++
		case star >= 0 && from < len(name):
			from++
			i, at = star, from
		default:
			return -1
		}
	}
	return at
}

func matchedPart(pattern, part string) bool {
	ok, err := path.Match(pattern, part)
	return pattern == part || err == nil && ok
}

// isDir reports whether a path resolves to a directory of the base, following links as they
// are followed inside.
func (k *uploadCopier) isDir(p string) bool {
	if p == "." {
		return true
	}
	if known, ok := k.dirs[p]; ok {
		return known
	}
	k.dirs[p] = resolvesToDir(k.base.Root.Dir, p)
	return k.dirs[p]
}

func resolvesToDir(dir, p string) bool {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false
	}
	defer root.Close()
	at, todo := "", strings.Split(p, "/")
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		if part == "" || part == "." {
			continue
		}
		if part == ".." {
			at = strings.TrimPrefix(path.Dir("/"+at), "/")
			continue
		}
		next := path.Join(at, part)
		info, err := root.Lstat(next)
		switch {
		case err != nil:
			return false
		case info.IsDir():
			at = next
			continue
		case info.Mode()&os.ModeSymlink == 0:
			return false
		}
		link, err := root.Readlink(next)
		if links++; err != nil || links > maxLinks || len(todo) > 4096 {
			return false
		}
		if strings.HasPrefix(link, "/") {
			at = ""
		}
		todo = slices.Concat(strings.Split(link, "/"), todo)
	}
	return true
}
