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

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/sandbox"
)

// restPlace returns the sandbox of a request, and the user whom its query names.
// It answers the request if there is no such user.
func (p *plane) restPlace(w http.ResponseWriter, r *http.Request, user string) (*place, bool) {
	visit, _ := access.VisitOf(r.Context())
	at, err := p.enter(r.Context(), visit.Sandbox, user)
	if connect.CodeOf(err) == connect.CodeUnauthenticated {
		answer.Fail(w, http.StatusUnauthorized, "error looking up user '"+user[:min(len(user), 256)]+"': unknown user")
		return nil, false
	}
	if err != nil {
		p.refuseRPC(w, err)
		return nil, false
	}
	return at, true
}

// refuseRPC answers with an error that is meant for a call.
func (p *plane) refuseRPC(w http.ResponseWriter, err error) {
	status, message := http.StatusInternalServerError, "internal error; the server's log has the details"
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		message = ce.Message()
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument:
		status = http.StatusBadRequest
	case connect.CodeNotFound:
		status = http.StatusNotFound
	case connect.CodeUnavailable:
		status = http.StatusBadGateway
	}
	answer.Fail(w, status, message)
}

// download sends a file.
func (p *plane) download(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	at, ok := p.restPlace(w, r, query.Get("username"))
	if !ok {
		return
	}
	coding := chooseCoding(r)
	if coding == "" {
		answer.Fail(w, http.StatusNotAcceptable, "no encoding that the client accepts is possible; accept gzip or identity")
		return
	}
	name, err := at.resolve(r.Context(), query.Get("path"))
	if err != nil {
		p.refuseRPC(w, err)
		return
	}
	file, err := p.cfg.Service.ReadFile(r.Context(), at.box.ID, sandbox.ReadFileRequest{Path: name})
	if err != nil {
		p.refuseRead(w, r, at, name, err)
		return
	}
	c := &content{ctx: r.Context(), svc: p.cfg.Service, id: at.box.ID, path: name, file: file, size: file.Info.Size}
	defer c.Close()
	setFileHeaders(w.Header(), name)
	if coding == "gzip" && c.size > 0 {
		sendGzip(w, r, c)
		return
	}
	if c.size == 0 {
		sendUnsized(w, r, c)
		return
	}
	http.ServeContent(w, r, "", file.Info.ModifiedAt, c)
}

// setFileHeaders describes what is sent. Whatever a sandbox holds must not run as
// a page of this server.
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

func (p *plane) refuseRead(w http.ResponseWriter, r *http.Request, at *place, name string, err error) {
	switch {
	case notFound(err) && !p.gone(r.Context(), at.box.ID, err):
		answer.Fail(w, http.StatusNotFound, "path '"+name+"' does not exist")
		return
	case sandbox.CodeOf(err) == sandbox.CodeInvalid:
		if info, serr := p.cfg.Service.StatFile(r.Context(), at.box.ID, name); serr == nil && isDir(info) {
			answer.Fail(w, http.StatusBadRequest, "path '"+name+"' is a directory")
			return
		}
	}
	p.refuse(w, r, err)
}

func isDir(info *sandbox.FileInfo) bool {
	return info.Type == sandbox.TypeDirectory || info.LinkedFile != nil && info.LinkedFile.Type == sandbox.TypeDirectory
}

// chooseCoding returns "gzip" or "identity", or "" if the client takes neither.
// Ranges and conditions are about a file as it is.
func chooseCoding(r *http.Request) string {
	gzipped, identity := weigh(r.Header.Values("Accept-Encoding"))
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

// weigh reads which encodings a client accepts.
func weigh(accept []string) (gzipped, identity bool) {
	identity = true
	var named bool // identity is
	for _, part := range strings.Split(strings.Join(accept, ","), ",") {
		name, params, _ := strings.Cut(part, ";")
		q := 1.0
		if _, value, ok := strings.Cut(strings.TrimSpace(params), "="); ok {
			q, _ = strconv.ParseFloat(strings.TrimSpace(value), 64) // what is no number is no
		}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "gzip", "x-gzip":
			gzipped = q > 0
		case "identity":
			identity, named = q > 0, true
		case "*": // asks for nothing in particular, or refuses all others
			identity = identity && (q > 0 || named)
		}
	}
	return gzipped, identity
}

// sendGzip sends a file compressed. A failure breaks the connection, so that a
// cut file is never taken for whole.
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

// sendUnsized sends a file that does not tell its size, as those of /proc do not,
// or that is empty: clients look for its length of 0.
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

// content is a file as [http.ServeContent] reads it. It opens the file again
// where that goes on at another place.
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

// Seek implements [io.Seeker].
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

// Read implements [io.Reader].
func (c *content) Read(p []byte) (int, error) {
	if c.want >= c.size {
		return 0, io.EOF
	}
	if c.file != nil && c.at != c.want {
		_ = c.Close() // what is read is no longer wanted
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

// Close closes the file.
func (c *content) Close() error {
	if c.file == nil {
		return nil
	}
	err := c.file.Close()
	c.file = nil
	return err
}
