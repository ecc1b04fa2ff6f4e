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

// KeepArchive stores an archive of an image for a while.
func (p *Provider) KeepArchive(ctx context.Context, content io.Reader) (*sandbox.ArchiveUpload, error) {
	select {
	case p.upSlots <- struct{}{}:
		defer func() { <-p.upSlots }()
	default:
		return nil, sandbox.Errorf(sandbox.CodeQuotaExceeded, "the server receives %d archives already; try again in a moment", uploadsAtOnce)
	}
	kept := p.expireUploads()
	limit := min(p.maxUpload, maxUploads-kept)
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
	name := "upload-" + strings.ToLower(rand.Text())
	if err := os.Rename(f.Name(), p.uploadFile(name)); err != nil {
		return nil, fmt.Errorf("keep archive: %w", err)
	}
	return &sandbox.ArchiveUpload{Archive: name, SizeBytes: n, ExpiresAt: time.Now().Add(sandbox.UploadRetention).UTC()}, nil
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
