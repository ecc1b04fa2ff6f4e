package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxZip bounds an archive, in bytes. The archive is made on the server's disk.
	maxZip = 512 << 20
	// maxZips bounds how many archives are made at the same time, and zipWait is how long
	// another request waits.
	maxZips = 4
	zipWait = 20 * time.Second
)

// filePath returns the path that a request names, which must be absolute and without "..".
func filePath(r *http.Request, more ...string) (p, format string, err error) {
	query, err := onlyParams(r, append(more, "path")...)
	if err != nil {
		return "", "", err
	}
	p = query.Get("path")
	switch {
	case !strings.HasPrefix(p, "/"):
		return "", "", invalid(`path must start with "/": %s`, clip.Text(p, maxShown))
	case slices.Contains(strings.Split(p, "/"), ".."):
		return "", "", invalid(`path must not contain ".." segments: %s`, clip.Text(p, maxShown))
	case strings.Contains(p, "\x00"):
		return "", "", invalid("path must not contain NUL")
	case len(p) > sandbox.MaxPathBytes:
		return "", "", invalid("path has more than %d bytes", sandbox.MaxPathBytes)
	}
	return p, query.Get("format"), nil
}

func (d *Door) download(w http.ResponseWriter, r *http.Request, _ []string) error {
	p, format, err := filePath(r, "format")
	if err != nil {
		return err
	}
	if format != "" && format != "zip" {
		return invalid("format %q: Cove serves zip only; leave it out for the bytes of a file", clip.Text(format, maxShown))
	}
	s, _ := gate.SandboxOf(r.Context())
	info, err := d.cfg.Service.StatFile(r.Context(), s.ID, p)
	if err != nil {
		return err
	}
	switch {
	case format == "zip" && info.Type == sandbox.TypeSymlink:
		return invalid("%s is a symbolic link; name what it leads to", clip.Text(p, maxShown))
	case format == "zip" && info.Type == sandbox.TypeDirectory:
		return d.zip(w, r, s.ID, p)
	case info.Type == sandbox.TypeDirectory, info.LinkedFile != nil && info.LinkedFile.Type == sandbox.TypeDirectory:
		return invalid("%s is a directory; add format=zip for an archive of it", clip.Text(p, maxShown))
	}
	file, err := d.cfg.Service.ReadFile(r.Context(), s.ID, sandbox.ReadFileRequest{Path: p})
	if err != nil {
		return err
	}
	defer file.Close()
	sdkdoor.SendFile(w, file, p)
	return nil
}

// zip sends a directory as an archive. The names and links in the sandbox's own archive
// differ from the product's, so it is rewritten.
func (d *Door) zip(w http.ResponseWriter, r *http.Request, id, dir string) error {
	wait, stop := context.WithTimeout(r.Context(), zipWait)
	defer stop()
	select {
	case d.zips <- struct{}{}:
		defer func() { <-d.zips }()
	case <-wait.Done():
		return &sandbox.Error{Code: sandbox.CodeUnavailable, RetryAfter: zipWait, Message: fmt.Sprintf("%d archives are being sent; try again in a moment", maxZips)}
	}
	file, size, err := d.archive(r.Context(), id, dir)
	if err != nil {
		return err
	}
	defer file.Close()
	pr, pw := io.Pipe()
	go func() { _ = pw.CloseWithError(terms.Rearchive(pw, dir, file, size)) }()
	defer pr.Close()
	sdkdoor.SetAttachment(w.Header(), "application/zip", path.Base(path.Clean(dir))+".zip")
	if _, err := io.Copy(w, pr); err != nil {
		panic(http.ErrAbortHandler) // so that clients notice the truncated archive
	}
	return nil
}

// archive stores the sandbox's archive of a directory in an unlinked file.
func (d *Door) archive(ctx context.Context, id, dir string) (_ *os.File, size int64, err error) {
	from, err := d.cfg.Service.ArchiveDir(ctx, id, dir, maxZip)
	if err != nil {
		return nil, 0, err
	}
	defer from.Close()
	file, err := os.CreateTemp("", "cove-zip-")
	if err != nil {
		return nil, 0, err
	}
	if err = os.Remove(file.Name()); err == nil {
		size, err = io.Copy(file, io.LimitReader(from, maxZip+1))
	}
	if err == nil && size > maxZip {
		err = sandbox.Errorf(sandbox.CodeTooLarge, "the archive of %s is over %d bytes; download a smaller directory", clip.Text(dir, maxShown), maxZip)
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, size, nil
}

// upload writes a file and makes its parents.
func (d *Door) upload(w http.ResponseWriter, r *http.Request, _ []string) error {
	limits.Receive(w, r, func() (*sandbox.FileInfo, error) { return d.write(r) },
		func(info *sandbox.FileInfo) {
			writeJSON(w, http.StatusOK, map[string]any{"path": info.Path, "size": info.Size})
		},
		func(err error) { writeError(w, err) })
	return nil
}

func (d *Door) write(r *http.Request) (*sandbox.FileInfo, error) {
	p, _, err := filePath(r)
	if err != nil {
		return nil, err
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/octet-stream" {
		return nil, invalid("the content type is not application/octet-stream; send the bytes of the file")
	}
	if strings.HasSuffix(p, "/") {
		return nil, invalid("path must name a file: %s", clip.Text(p, maxShown))
	}
	s, _ := gate.SandboxOf(r.Context())
	return d.cfg.Service.WriteFile(r.Context(), s.ID, sandbox.WriteFileRequest{Path: p, MakeParents: true}, r.Body)
}
