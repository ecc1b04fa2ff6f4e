package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// validUpload is how archives that were sent here are named. The name is all
// that it takes to use one, so it cannot be guessed.
var validUpload = regexp.MustCompile(`^upload-[a-z2-7]{26}$`)

// maxUploads bounds all uploads that are kept, in bytes.
const maxUploads = 32 << 30

// uploadsAtOnce is how many archives are received at the same time.
const uploadsAtOnce = 4

func (p *Provider) uploadFile(name string) string { return filepath.Join(p.dir, "uploads", name) }

// KeepArchive stores an archive for a while, of at most so many bytes if most is
// not 0, under a name that nobody can guess, or one made by the caller.
func (p *Provider) KeepArchive(ctx context.Context, name string, most int64, content io.Reader) (*sandbox.ArchiveUpload, error) {
	if name == "" {
		name = "upload-" + strings.ToLower(rand.Text())
	}
	if !validUpload.MatchString(name) {
		return nil, fmt.Errorf("%.80q cannot name an upload", name)
	}
	select {
	case p.upSlots <- struct{}{}:
		defer func() { <-p.upSlots }()
	default:
		return nil, sandbox.Errorf(sandbox.CodeQuotaExceeded, "the server receives %d archives already; try again in a moment", uploadsAtOnce)
	}
	kept := p.expireUploads()
	limit := min(p.maxUpload, maxUploads-kept)
	if most > 0 {
		limit = min(limit, most)
	}
	if limit <= 0 {
		return nil, sandbox.Errorf(sandbox.CodeQuotaExceeded, "the server keeps as many uploaded archives as it may; try again when some have been removed, within an hour")
	}
	f, err := os.CreateTemp(filepath.Join(p.dir, "uploads"), ".new-*")
	if err != nil {
		return nil, fmt.Errorf("keep archive: %w", err)
	}
	defer os.Remove(f.Name()) // gone already when all went well
	n, err := io.Copy(f, io.LimitReader(&cancelledReader{ctx, content}, limit+1))
	if err == nil && n > limit {
		err = sandbox.Errorf(sandbox.CodeTooLarge, "the archive has more than %d bytes; make the image smaller, or use a registry", limit)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, explain(err)
	}
	if err := os.Rename(f.Name(), p.uploadFile(name)); err != nil {
		return nil, fmt.Errorf("keep archive: %w", err)
	}
	return &sandbox.ArchiveUpload{Archive: name, SizeBytes: n, ExpiresAt: time.Now().Add(sandbox.UploadRetention).UTC()}, nil
}

// HasArchive reports whether an upload is there, and keeps it for another while.
func (p *Provider) HasArchive(name string) bool {
	if !validUpload.MatchString(name) {
		return false
	}
	p.expireUploads()
	now := time.Now()
	return os.Chtimes(p.uploadFile(name), now, now) == nil
}

// expireUploads removes uploads that are old, and what was broken off long ago,
// and returns how many bytes there still are.
func (p *Provider) expireUploads() (kept int64) {
	entries, _ := os.ReadDir(filepath.Join(p.dir, "uploads"))
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		if time.Since(info.ModTime()) > sandbox.UploadRetention {
			if err := os.Remove(p.uploadFile(e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				p.log.Warn("remove an uploaded archive", "error", err)
			}
			continue
		}
		kept += info.Size()
	}
	return kept
}

// openUpload opens an archive that was sent here.
func (p *Provider) openUpload(name string) (*os.File, error) {
	p.expireUploads()
	f, err := os.Open(p.uploadFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no uploaded archive %s any more; they are kept for an hour: send it again", name)
	}
	return f, err
}
