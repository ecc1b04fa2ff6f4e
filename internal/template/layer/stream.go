package layer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"

	"github.com/cove-sh/cove/internal/template/layer/apply"
)

// errEnough ends the reading of a stream once all that is needed was read.
var errEnough = errors.New("enough")

// WritePlan writes a plan as the stream that package apply carries out. theirs is the
// tar stream of the winner's layer, read again, in the same state but in any order; it is
// read as far as it is needed, and may be nil if the plan writes no file of that layer.
// After an error, as when ctx ends, the stream is incomplete, and package apply changes
// nothing.
func WritePlan(ctx context.Context, w io.Writer, p *Plan, theirs io.Reader) error {
	s := planWriter{ctx: ctx, tw: tar.NewWriter(w), plan: p}
	if err := s.write(theirs); err != nil {
		return err
	}
	if err := s.header(&tar.Header{Typeflag: tar.TypeDir, Name: "./", PAXRecords: map[string]string{apply.RecordCommit: "1"}}); err != nil {
		return err
	}
	return s.tw.Close()
}

func (p *Plan) inLayer(f write) bool {
	return p.theirs.Layer != nil && p.theirs.Layer.Entry(f.path) == f.entry
}

type planWriter struct {
	ctx  context.Context
	tw   *tar.Writer
	plan *Plan
}

func (s *planWriter) header(h *tar.Header) error {
	h.Format = tar.FormatPAX
	return s.tw.WriteHeader(h)
}

func (s *planWriter) write(theirs io.Reader) error {
	for _, p := range s.plan.removes {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: "." + p, PAXRecords: map[string]string{apply.RecordRemove: "1"}}
		if err := s.header(h); err != nil {
			return err
		}
	}
	for _, d := range s.plan.dirs {
		if err := s.header(headerOf(d)); err != nil {
			return err
		}
	}
	// Of several paths of one file of the winner's layer, the first is written and the
	// others become hard links to it.
	wanted := map[*Entry]string{}
	var links []write
	for _, f := range s.plan.files {
		switch {
		case f.entry.Kind != KindFile:
			if err := s.header(headerOf(f)); err != nil {
				return err
			}
		case !s.plan.inLayer(f):
			if err := s.fromLower(f); err != nil {
				return err
			}
		case wanted[f.entry] != "":
			links = append(links, f)
		default:
			wanted[f.entry] = f.path
		}
	}
	first := maps.Clone(wanted) // fromLayer empties wanted
	if err := s.fromLayer(theirs, wanted); err != nil {
		return err
	}
	for _, f := range links {
		h := headerOf(f)
		h.Typeflag, h.Size, h.Linkname = tar.TypeLink, 0, "."+first[f.entry]
		if err := s.header(h); err != nil {
			return err
		}
	}
	return nil
}

func headerOf(f write) *tar.Header {
	e := f.entry
	h := &tar.Header{
		Name: "." + f.path, Mode: int64(e.Mode), Uid: int(e.UID), Gid: int(e.GID), ModTime: e.ModTime,
		Devmajor: int64(e.Major), Devminor: int64(e.Minor),
	}
	switch e.Kind {
	case KindDirectory:
		h.Typeflag = tar.TypeDir
		if f.path != "/" {
			h.Name += "/"
		}
	case KindSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
	case KindFIFO, KindSocket:
		// Templates have no sockets, and apply could not make one.
		h.Typeflag = tar.TypeFifo
	case KindCharDevice:
		h.Typeflag = tar.TypeChar
	case KindBlockDevice:
		h.Typeflag = tar.TypeBlock
	default:
		h.Typeflag, h.Size = tar.TypeReg, e.Size
	}
	return h
}

// fromLower writes a file of the template.
func (s *planWriter) fromLower(f write) error {
	r, err := s.plan.theirs.Lower.Open(f.path)
	if err != nil {
		return err
	}
	defer r.Close()
	return s.content(f, r)
}

// content writes a file and makes sure that it has not changed since it was planned.
func (s *planWriter) content(f write, r io.Reader) error {
	e, h := f.entry, headerOf(f)
	whole, pages := io.Writer(s.tw), io.Discard
	if e.sparse {
		h.Typeflag, h.Size = apply.TypeSparse, e.pageBytes
		h.PAXRecords = map[string]string{apply.RecordSize: strconv.FormatInt(e.Size, 10)}
		whole, pages = io.Discard, s.tw
	}
	if err := s.header(h); err != nil {
		return err
	}
	sum, err := hashContent(io.LimitReader(r, e.Size), whole, pages)
	if err != nil && !errors.Is(err, tar.ErrWriteTooLong) {
		return err
	}
	if err != nil || sum.size != e.Size || e.hashed && sum.hash != e.hash {
		return fmt.Errorf("layer: %.200q has changed since the merge was planned", f.path)
	}
	return nil
}

// fromLayer writes the wanted files from the winner's layer.
func (s *planWriter) fromLayer(theirs io.Reader, wanted map[*Entry]string) error {
	if len(wanted) == 0 {
		return nil
	}
	if theirs == nil {
		return errors.New("layer: the plan needs the winner's layer")
	}
	err := walkTar(s.ctx, theirs, func(h *tar.Header, path string, content io.Reader) error {
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		e := s.plan.theirs.Layer.Entry(path)
		to, ok := wanted[e]
		if !ok {
			return nil
		}
		if h.Size != e.Size {
			return fmt.Errorf("layer: %.200q has changed since the merge was planned", path)
		}
		if err := s.content(write{to, e}, content); err != nil {
			return err
		}
		if delete(wanted, e); len(wanted) == 0 {
			return errEnough
		}
		return nil
	})
	if err == nil {
		return fmt.Errorf("layer: %d files are gone since the merge was planned", len(wanted))
	}
	if !errors.Is(err, errEnough) {
		return err
	}
	return nil
}
