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
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// validUpload matches the names of uploaded archives. Anyone who knows an upload's name can
// use it, so names cannot be guessed.
var validUpload = lazyregexp.New(`^upload-[a-z2-7]{26}$`)

// maxUploads bounds the size of all stored uploads together.
const maxUploads = 32 << 30

// uploadsAtOnce is how many archives are received at the same time.
const uploadsAtOnce = 4

func (p *Provider) uploadFile(name string) string { return filepath.Join(p.dir, "uploads", name) }

// Upload says how an archive is stored.
type Upload struct {
	// Name is the name of the archive; if empty, one is generated that nobody can guess.
	Name string
	// Most bounds the size of the archive in bytes; 0 is the general bound.
	Most int64
	// Ticket, unless empty, can be used for one archive: a second archive with the same
	// ticket is a conflict, for [sandbox.UploadRetention]. Incomplete uploads do not
	// count.
	Ticket string
}

// errTicketUsed rejects the second archive of a ticket.
var errTicketUsed = sandbox.Errorf(sandbox.CodeConflict, "this link has already been used, and is for one archive only; request another link")

// ticketFile exists if a ticket was used. It expires as uploads do.
func (p *Provider) ticketFile(ticket string) string {
	sum := sha256.Sum256([]byte(ticket))
	return p.uploadFile(".used-" + hex.EncodeToString(sum[:16]))
}

// KeepArchive stores an archive for [sandbox.UploadRetention], all of it or nothing.
func (p *Provider) KeepArchive(ctx context.Context, up Upload, content io.Reader) (*sandbox.ArchiveUpload, error) {
	name := up.Name
	if name == "" {
		name = "upload-" + strings.ToLower(rand.Text())
	}
	if !validUpload.MatchString(name) {
		return nil, fmt.Errorf("%.80q is not a valid name of an upload", name)
	}
	if up.Ticket != "" {
		p.expireUploads()
		if _, err := os.Lstat(p.ticketFile(up.Ticket)); err == nil {
			return nil, errTicketUsed
		}
	}
	select {
	case p.uploadSlots <- struct{}{}:
		defer func() { <-p.uploadSlots }()
	default:
		return nil, sandbox.Errorf(sandbox.CodeQuotaExceeded, "the server is already receiving %d archives; try again in a moment", uploadsAtOnce)
	}
	kept := p.expireUploads()
	limit := min(p.maxUpload, maxUploads-kept)
	if up.Most > 0 {
		limit = min(limit, up.Most)
	}
	if limit <= 0 {
		return nil, sandbox.Errorf(sandbox.CodeQuotaExceeded, "the server keeps as many uploaded archives as it can; try again when some have been removed, within an hour")
	}
	f, err := os.CreateTemp(filepath.Join(p.dir, "uploads"), ".new-*")
	if err != nil {
		return nil, fmt.Errorf("keep archive: %w", err)
	}
	defer os.Remove(f.Name()) // renamed on success
	n, err := io.Copy(f, io.LimitReader(&cancelledReader{ctx, content}, limit+1))
	if err == nil && n > limit {
		err = sandbox.Errorf(sandbox.CodeTooLarge, "the archive has more than %d bytes; make the image smaller, or use a registry", limit)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, explain(err)
	}
	if err := p.useTicket(up.Ticket); err != nil {
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

// useTicket marks a ticket as used, if there is one. Of several archives that are uploaded
// with it at the same time, the first complete one wins.
func (p *Provider) useTicket(ticket string) error {
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

// HasArchive reports whether an upload exists, and extends its retention.
func (p *Provider) HasArchive(name string) bool {
	if !validUpload.MatchString(name) {
		return false
	}
	p.expireUploads()
	now := time.Now()
	return os.Chtimes(p.uploadFile(name), now, now) == nil
}

// expireUploads removes expired and abandoned uploads, and returns the size of the
// others.
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

// openUpload opens an uploaded archive.
func (p *Provider) openUpload(name string) (*os.File, error) {
	p.expireUploads()
	f, err := os.Open(p.uploadFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "the uploaded archive %s is gone; archives are kept for an hour, so upload it again", name)
	}
	return f, err
}
