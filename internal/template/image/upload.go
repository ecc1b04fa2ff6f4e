package image

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
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

// Upload says how an archive is kept.
type Upload struct {
	// Name is what the archive is kept as; empty is a name that nobody can guess.
	Name string
	// Most is how many bytes the archive may have; 0 is as many as any.
	Most int64
	// Ticket is good for one archive, if it is not empty: another archive that
	// comes with it is a conflict, for [sandbox.UploadRetention]. An archive that
	// broke off does not count.
	Ticket string
}

// errTicketUsed refuses the second archive of a ticket.
var errTicketUsed = sandbox.Errorf(sandbox.CodeConflict, "this link was used already, and is good for one archive; ask for another link")

// ticketFile is there if a ticket was used. It is removed as old uploads are.
func (p *Provider) ticketFile(ticket string) string {
	sum := sha256.Sum256([]byte(ticket))
	return p.uploadFile(".used-" + hex.EncodeToString(sum[:16]))
}

// KeepArchive stores an archive for a while, all of it or nothing.
func (p *Provider) KeepArchive(ctx context.Context, up Upload, content io.Reader) (*sandbox.ArchiveUpload, error) {
	name := up.Name
	if name == "" {
		name = "upload-" + strings.ToLower(rand.Text())
	}
	if !validUpload.MatchString(name) {
		return nil, fmt.Errorf("%.80q cannot name an upload", name)
	}
	if up.Ticket != "" {
		p.expireUploads()
		if _, err := os.Lstat(p.ticketFile(up.Ticket)); err == nil {
			return nil, errTicketUsed
		}
	}
	select {
	case p.upSlots <- struct{}{}:
		defer func() { <-p.upSlots }()
	default:
		return nil, sandbox.Errorf(sandbox.CodeQuotaExceeded, "the server receives %d archives already; try again in a moment", uploadsAtOnce)
	}
	kept := p.expireUploads()
	limit := min(p.maxUpload, maxUploads-kept)
	if up.Most > 0 {
		limit = min(limit, up.Most)
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
	if err := p.punch(up.Ticket); err != nil {
		return nil, err
	}
	if err := os.Rename(f.Name(), p.uploadFile(name)); err != nil {
		if up.Ticket != "" {
			err = errors.Join(err, os.Remove(p.ticketFile(up.Ticket)))
		}
		return nil, fmt.Errorf("keep archive: %w", err)
	}
	return &sandbox.ArchiveUpload{Archive: name, SizeBytes: n, ExpiresAt: time.Now().Add(sandbox.UploadRetention).UTC()}, nil
}

// punch uses up a ticket, if there is one. Of several archives that come with it
// at the same time, the first that is whole gets it.
func (p *Provider) punch(ticket string) error {
	if ticket == "" {
		return nil
	}
	f, err := os.OpenFile(p.ticketFile(ticket), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return errTicketUsed
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fmt.Errorf("keep archive: %w", err)
	}
	return nil
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
