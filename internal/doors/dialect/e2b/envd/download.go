package envd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/klauspost/compress/gzip"

	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

// restAccount returns the account of a user whom an HTTP request names.
func (p *plane) restAccount(r *http.Request, user string) (*account, error) {
	box, _ := gate.SandboxOf(r.Context())
	at, err := p.account(r.Context(), box, user)
	if connect.CodeOf(err) == connect.CodeUnauthenticated {
		return nil, refused(http.StatusUnauthorized, "error looking up user '"+user[:min(len(user), 256)]+"': unknown user")
	}
	return at, err
}

// download sends a file.
func (p *plane) download(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	at, err := p.restAccount(r, query.Get("username"))
	if err != nil {
		return err
	}
	coding := chooseCoding(r)
	if coding == "" {
		return refused(http.StatusNotAcceptable, "no encoding that the client accepts is possible; accept gzip or identity")
	}
	name, err := at.resolve(r.Context(), query.Get("path"))
	if err != nil {
		return err
	}
	file, err := p.cfg.Service.ReadFile(r.Context(), at.box.ID, sandbox.ReadFileRequest{Path: name})
	if err != nil {
		return p.readError(r.Context(), at, name, err)
	}
	c := &content{ctx: r.Context(), svc: p.cfg.Service, id: at.box.ID, path: name, file: file, size: file.Info.Size}
	defer c.Close()
	setFileHeaders(w.Header(), name)
	switch {
	case c.size == 0:
		sendUnsized(w, r, c)
	case coding == "gzip":
		sendGzip(w, r, c)
	default:
		http.ServeContent(w, r, "", file.Info.ModifiedAt, c)
	}
	return nil
}

// setFileHeaders describes the file. A browser must not run content of a sandbox as a
// page of this server.
func setFileHeaders(h http.Header, name string) {
	base := path.Base(name)
	kind := mime.TypeByExtension(path.Ext(base))
	if kind == "" {
		kind = "application/octet-stream"
	}
	h.Set("Content-Type", kind)
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": strings.ToValidUTF8(base, "_")}))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept-Encoding")
}

// readError describes why a file could not be read, where clients know the reason.
func (p *plane) readError(ctx context.Context, at *account, name string, err error) error {
	switch {
	case notFound(err) && !p.gone(ctx, at.box.ID, err):
		return refused(http.StatusNotFound, "path '"+name+"' does not exist")
	case sandbox.CodeOf(err) == sandbox.CodeInvalid:
		if info, serr := p.cfg.Service.StatFile(ctx, at.box.ID, name); serr == nil && isDir(info) {
			return refused(http.StatusBadRequest, "path '"+name+"' is a directory")
		}
	}
	return err
}

func isDir(info *sandbox.FileInfo) bool {
	return info.Type == sandbox.TypeDirectory || info.LinkedFile != nil && info.LinkedFile.Type == sandbox.TypeDirectory
}

// chooseCoding returns "gzip" or "identity", or "" if the client takes neither.
// Ranges and conditions apply to the uncompressed file.
func chooseCoding(r *http.Request) string {
	gzipped, identity := acceptedCodings(r.Header.Values("Accept-Encoding"))
	for _, name := range []string{"Range", "If-Range", "If-Modified-Since", "If-Unmodified-Since", "If-Match", "If-None-Match"} {
		if r.Header.Get(name) != "" {
			gzipped = false
		}
	}
	switch {
	case gzipped:
		return "gzip"
	case identity:
		return "identity"
	}
	return ""
}

// acceptedCodings parses the values of Accept-Encoding.
func acceptedCodings(accept []string) (gzipped, identity bool) {
	identity = true
	var named bool // identity is listed
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		name, params, _ := strings.Cut(part, ";")
		q := 1.0
		if _, value, ok := strings.Cut(strings.TrimSpace(params), "="); ok {
			q, _ = strconv.ParseFloat(strings.TrimSpace(value), 64) // an invalid weight is 0
		}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "gzip", "x-gzip":
			gzipped = q > 0
		case "identity":
			identity, named = q > 0, true
		case "*": // accepts, or refuses, all codings that are not listed
			identity = identity && (q > 0 || named)
		}
	}
	return gzipped, identity
}

// sendGzip sends a file compressed. A failure breaks the connection, so that clients
// notice a truncated file.
func sendGzip(w http.ResponseWriter, r *http.Request, c *content) {
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Last-Modified", c.file.Info.ModifiedAt.UTC().Format(http.TimeFormat))
	if r.Method == http.MethodHead {
		return
	}
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err == nil {
		_, err = io.Copy(z, c)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// sendUnsized sends a file of size 0, which is either empty or, as in /proc, of unknown
// size. It sets the length if it can: clients of an empty file rely on that.
func sendUnsized(w http.ResponseWriter, r *http.Request, c *content) {
	w.Header().Set("Last-Modified", c.file.Info.ModifiedAt.UTC().Format(http.TimeFormat))
	var first bytes.Buffer
	_, err := io.CopyN(&first, c.file, 32<<10)
	if err != nil && !errors.Is(err, io.EOF) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		w.Header().Set("Content-Length", strconv.Itoa(first.Len()))
	}
	if r.Method == http.MethodHead {
		return
	}
	if _, err := io.Copy(w, io.MultiReader(&first, c.file)); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// content is a file for [http.ServeContent]. It reopens the file to read at another
// offset.
type content struct {
	ctx  context.Context // of the one request that this serves
	svc  sandbox.Service
	id   string
	path string
	size int64
	file *sandbox.FileReader // nil: to be opened
	at   int64               // of file
	want int64               // of the next read
}

func (c *content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.want
	case io.SeekEnd:
		offset += c.size
	}
	if offset < 0 {
		return 0, errors.New("a position before the start")
	}
	c.want = offset
	return offset, nil
}

func (c *content) Read(p []byte) (int, error) {
	if c.want >= c.size {
		return 0, io.EOF
	}
	if c.file != nil && c.at != c.want {
		_ = c.Close() // the rest is not needed
	}
	if c.file == nil {
		file, err := c.svc.ReadFile(c.ctx, c.id, sandbox.ReadFileRequest{Path: c.path, Offset: c.want})
		if err != nil {
			return 0, err
		}
		c.file, c.at = file, c.want
	}
	n, err := c.file.Read(p[:min(int64(len(p)), c.size-c.want)])
	c.at += int64(n)
	c.want = c.at
	return n, err
}

func (c *content) Close() error {
	if c.file == nil {
		return nil
	}
	err := c.file.Close()
	c.file = nil
	return err
}
