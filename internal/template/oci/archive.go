package oci

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cove-sh/cove/sandbox"
)

// Bounds of an archive.
const (
	maxArchive      = 32 << 30
	maxArchiveFiles = 10_000
	// maxArchiveName bounds a name or link of the archive's files, in bytes: all
	// of them are held in memory.
	maxArchiveName = 4096
)

// parts are the files of an archive or layout by name.
type parts interface {
	open(name string) (io.ReadCloser, int64, error)
}

// OpenArchive reads an image from a file that docker save or an OCI tool wrote:
// a tar archive, perhaps compressed, or the directory of an OCI layout. file is
// closed with the image, or when OpenArchive fails. scratch is an existing directory for
// the content of a compressed archive. The caller removes what is written there.
func OpenArchive(ctx context.Context, file *os.File, scratch string) (_ *Image, err error) {
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, err
	}
	if info.IsDir() {
		root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
		file.Close()
		if err != nil {
			return nil, err
		}
		img, err := fromParts(ctx, dirParts{root})
		return closeWith(img, err, root.Close)
	}
	if !info.Mode().IsRegular() {
		file.Close()
		return nil, bad("it is neither a file nor a directory")
	}
	plain, err := plainArchive(ctx, file, scratch)
	if err != nil {
		file.Close()
		return nil, err
	}
	p, err := indexArchive(ctx, plain)
	if err != nil {
		plain.Close()
		return nil, err
	}
	img, err := fromParts(ctx, p)
	return closeWith(img, err, plain.Close)
}

// closeWith has img.Close call closer. If err is set, there is no image, and
// closer is called at once.
func closeWith(img *Image, err error, closer func() error) (*Image, error) {
	if err != nil {
		return nil, errors.Join(err, closer())
	}
	img.close = closer
	return img, nil
}

// plainArchive returns a file with the uncompressed archive: the same file, or an
// unlinked one. It closes the file that it does not return.
func plainArchive(ctx context.Context, file *os.File, scratch string) (*os.File, error) {
	in := &stopped{ctx: ctx, r: file}
	br := bufio.NewReaderSize(in, 256<<10)
	r, done, err := decompress(br)
	if err != nil {
		return nil, err
	}
	defer done()
	if r == io.Reader(br) {
		_, err := file.Seek(0, io.SeekStart)
		return file, err
	}
	out, err := os.CreateTemp(scratch, "archive-")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(out.Name())
	n, err := io.Copy(out, io.LimitReader(&measured{r: r, in: in}, maxArchive+1))
	if err == nil && n > maxArchive {
		err = bad("the archive has more than %d bytes", int64(maxArchive))
	}
	if err == nil {
		_, err = out.Seek(0, io.SeekStart)
	}
	if err != nil {
		out.Close()
		return nil, broken(err)
	}
	file.Close()
	return out, nil
}

// stopped counts bytes, and fails when its context has ended.
type stopped struct {
	ctx context.Context
	r   io.Reader
	n   int64
}

func (s *stopped) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := s.r.Read(p)
	s.n += int64(n)
	return n, err
}

// measured fails when a decompressor's output is out of proportion to its input.
type measured struct {
	r  io.Reader
	in *stopped
	n  int64
}

func (m *measured) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if m.n += int64(n); swollen(m.in.n, m.n) {
		return 0, bad("the archive expands to more than %d times its size, which is not plausible for an image", maxRatio)
	}
	return n, err
}

// tarParts are the files of a tar archive, read in place.
type tarParts struct {
	file  *os.File
	files map[string]extent
	links map[string]string
}

type extent struct{ at, size int64 }

// position tracks the offset in a file, to find where the content of entries begins.
type position struct {
	r *os.File
	n int64
}

func (p *position) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.n += int64(n)
	return n, err
}

// Seek lets the tar reader skip content.
func (p *position) Seek(offset int64, whence int) (int64, error) {
	n, err := p.r.Seek(offset, whence)
	if err == nil {
		p.n = n
	}
	return n, err
}

// indexArchive finds the files of a tar archive.
func indexArchive(ctx context.Context, file *os.File) (*tarParts, error) {
	t := &tarParts{file: file, files: map[string]extent{}, links: map[string]string{}}
	pos := &position{r: file}
	tr := tar.NewReader(pos)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, bad("it is not a tar archive: %v", err)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if len(t.files)+len(t.links) >= maxArchiveFiles {
			return nil, bad("the archive holds more than %d files", maxArchiveFiles)
		}
		if max(len(h.Name), len(h.Linkname)) > maxArchiveName {
			return nil, bad("the archive holds names of more than %d bytes", maxArchiveName)
		}
		name := path.Clean("/" + h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			if h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != "" {
				return nil, bad("the archive holds sparse files; write it with docker save or an OCI tool")
			}
			t.files[name] = extent{pos.n, h.Size}
		case tar.TypeSymlink:
			// Old versions of docker save link to layers that images share.
			t.links[name] = path.Join("/", path.Dir(name), h.Linkname)
		case tar.TypeLink:
			t.links[name] = path.Clean("/" + h.Linkname)
		}
	}
	return t, nil
}

func (t *tarParts) open(name string) (io.ReadCloser, int64, error) {
	name = path.Clean("/" + name)
	for range 8 {
		if e, ok := t.files[name]; ok {
			return io.NopCloser(io.NewSectionReader(t.file, e.at, e.size)), e.size, nil
		}
		next, ok := t.links[name]
		if !ok {
			break
		}
		name = next
	}
	return nil, 0, fmt.Errorf("%.200s: %w", name, fs.ErrNotExist)
}

// dirParts are the files of a directory. Links cannot escape from it.
type dirParts struct{ root *os.Root }

func (d dirParts) open(name string) (io.ReadCloser, int64, error) {
	f, err := d.root.OpenFile(strings.TrimPrefix(path.Clean("/"+name), "/"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, err
	}
	if err != nil {
		return nil, 0, sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("the image cannot be used: its part %.200q cannot be read, or a link leads out of the directory", name))
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = bad("%.200q is not a file", name)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// fromParts reads the image of an archive or layout. An archive that is in both formats
// is read as an OCI layout, whose parts are named by their digests.
func fromParts(ctx context.Context, p parts) (*Image, error) {
	index, err := readPart(p, "index.json", maxManifest)
	if err == nil {
		return resolve(ctx, layoutContent{p}, v1.Descriptor{MediaType: types.OCIImageIndex}, index)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	manifest, err := readPart(p, "manifest.json", maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, bad("it is not an archive of an image: it has neither index.json nor manifest.json; create one with 'docker save'")
	}
	if err != nil {
		return nil, err
	}
	return fromDocker(p, manifest)
}

func readPart(p parts, name string, limit int64) ([]byte, error) {
	r, size, err := p.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > limit {
		return nil, bad("%s has %d bytes; at most %d are read", name, size, limit)
	}
	return io.ReadAll(io.LimitReader(r, limit))
}

// layoutContent are the parts of an OCI layout.
type layoutContent struct{ parts parts }

func (c layoutContent) blob(_ context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	r, _, err := c.parts.open("blobs/" + d.Digest.Algorithm + "/" + d.Digest.Hex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, bad("the archive is missing its part %s; create it again", d.Digest)
	}
	return r, err
}

func (c layoutContent) manifest(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	r, err := c.blob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxManifest+1))
}

// fromDocker reads the format that docker save wrote before it wrote OCI layouts too.
func fromDocker(p parts, manifest []byte) (*Image, error) {
	var all []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(manifest, &all); err != nil {
		return nil, bad("its manifest.json is not valid: %v", err)
	}
	if len(all) != 1 {
		return nil, bad("the archive has %d images; save a single image", len(all))
	}
	m := all[0]
	if len(m.Layers) > maxLayers {
		return nil, bad("it has %d layers; at most %d are read", len(m.Layers), maxLayers)
	}
	data, err := readPart(p, m.Config, maxConfig)
	if err != nil {
		return nil, missing(err, m.Config)
	}
	conf, err := parseConfig(data)
	if err != nil {
		return nil, err
	}
	img, err := newImage(conf, len(m.Layers))
	if err != nil {
		return nil, err
	}
	for i, name := range m.Layers {
		r, size, err := p.open(name)
		if err != nil {
			return nil, missing(err, name)
		}
		r.Close()
		if size > maxStored {
			return nil, bad("a layer has %d bytes; at most %d are read", size, int64(maxStored))
		}
		l := &img.Layers[i]
		l.Size, l.open = size, func(context.Context) (io.ReadCloser, error) {
			r, _, err := p.open(name)
			return r, err
		}
	}
	return img, nil
}

func missing(err error, name string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("the image cannot be used: the archive is missing %.200q; create it again", name))
	}
	return err
}
