package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// IsHost reports whether a digest is that of the template host as it is now.
func (p *Provider) IsHost(ctx context.Context, digest string) (bool, error) {
	m, err := p.currentHost(ctx, false)
	if err != nil {
		return false, err
	}
	return m.Digest == digest, nil
}

// WriteRoot writes the content of a root, without what is bound there, as a tar stream.
// The error is a not_found error if there is no such root.
func (p *Provider) WriteRoot(ctx context.Context, digest string, w io.Writer) error {
	if !validDigest.MatchString(digest) || p.hold(digest) != nil {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no root %.80q", digest)
	}
	root, err := os.OpenRoot(p.rootfsDir(digest))
	if err != nil {
		return err
	}
	defer root.Close()
	pk := &packer{root: root, tw: tar.NewWriter(w), own: p.own, links: map[[2]uint64]string{}}
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		return errors.Join(err, ctx.Err(), pk.add(name, d))
	})
	return errors.Join(err, pk.tw.Close())
}

// packer writes a root into an archive.
type packer struct {
	root *os.Root
	tw   *tar.Writer
	// own is set if files belong to whom they seem to; otherwise all belong to root.
	own   bool
	links map[[2]uint64]string
}

func (pk *packer) add(name string, d fs.DirEntry) error {
	if d == nil {
		return nil // WalkDir has an error
	}
	info, err := pk.root.Lstat(name)
	if err != nil {
		return err
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = pk.root.Readlink(name); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname, h.Format = name, "", "", tar.FormatPAX
	if info.IsDir() {
		h.Name = path.Clean(name) + "/"
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !pk.own {
		h.Uid, h.Gid = 0, 0
	}
	if ok && info.Mode().IsRegular() && st.Nlink > 1 {
		id := [2]uint64{st.Dev, st.Ino}
		if first := pk.links[id]; first != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return pk.tw.WriteHeader(h)
		}
		pk.links[id] = name
	}
	if err := pk.tw.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := pk.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(pk.tw, f); err != nil {
		return fmt.Errorf("read %.80q of a root: %w", name, err)
	}
	return nil
}

// HasRoot reports whether a root is here, and keeps it from being collected for a while.
func (p *Provider) HasRoot(digest string) bool {
	return validDigest.MatchString(digest) && p.hold(digest) == nil
}

// ReadRoot stores a root that another server wrote with WriteRoot. check is called at the
// end of the stream; only if it returns nil the root is kept, under that digest. A
// directory that is already there is kept.
func (p *Provider) ReadRoot(digest string, r io.Reader, check func() error) error {
	if !validDigest.MatchString(digest) {
		return sandbox.Errorf(sandbox.CodeInvalid, "%.80q is not the digest of a root", digest)
	}
	j := &job{as: digest}
	_, err := p.makeRoot("root", j, func() error {
		if err := unpack(j.tree, r, nil, nil); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, io.LimitReader(r, maxPadding)); err != nil {
			return err
		}
		return check()
	})
	return err
}

// maxPadding bounds what follows the end of an archive.
const maxPadding = 1 << 20

// Here returns a root with its place on this machine. bound are the binds that it has on
// the machine where it was made: the same must be in this machine's template host, whose
// directories they show.
func (p *Provider) Here(ctx context.Context, digest string, bound []engine.Bind) (engine.Root, error) {
	root := engine.Root{Digest: digest, Dir: p.rootfsDir(digest)}
	if len(bound) == 0 {
		return root, nil
	}
	own, _, err := p.Root(ctx, Host)
	if err != nil {
		return root, err
	}
	place := func(b engine.Bind) string { return fmt.Sprintf("%q %t", b.Target, b.Mask) }
	if !slices.EqualFunc(own.Binds, bound, func(a, b engine.Bind) bool { return place(a) == place(b) }) {
		return root, sandbox.Errorf(sandbox.CodeUnsupported, "the template is made from programs of the server's own machine, which this node does not have at the same places; use the template host, or build it from debian or an image")
	}
	root.Binds = own.Binds
	return root, nil
}
