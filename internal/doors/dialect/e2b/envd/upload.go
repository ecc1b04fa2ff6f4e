package envd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxParts bounds the files of one upload, and maxSources the files that are
	// concatenated by one request.
	maxParts   = 10_000
	maxSources = 10_000
	// maxComposeBody bounds the request to concatenate files.
	maxComposeBody = 4 << 20
)

// written describes a file in the answer to an upload.
type written struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`
}

// upload writes one file, or the files of a form.
func (p *plane) upload(w http.ResponseWriter, r *http.Request) {
	limits.Receive(w, r, func() ([]written, error) { return p.receive(r) },
		func(files []written) { answer.JSON(w, http.StatusOK, files) },
		func(err error) { p.refuse(w, r, err) })
}

// receive writes the files that a request carries.
func (p *plane) receive(r *http.Request) ([]written, error) {
	at, err := p.restAccount(r, r.URL.Query().Get("username"))
	if err != nil {
		return nil, err
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Metadata-") {
			return nil, refused(http.StatusBadRequest, "metadata of files ("+name+") is not supported by Cove; leave it out")
		}
	}
	body, err := decoded(r)
	if err != nil {
		return nil, refused(http.StatusBadRequest, err.Error())
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case err == nil && kind == "multipart/form-data" && params["boundary"] != "":
		return p.receiveForm(r, at, multipart.NewReader(body, params["boundary"]))
	case err == nil && kind == "application/octet-stream":
		target := r.URL.Query().Get("path")
		if target == "" {
			return nil, refused(http.StatusBadRequest, "the path is missing; name the file in the query")
		}
		one, err := p.write(r.Context(), at, target, body)
		return []written{one}, err
	}
	return nil, refused(http.StatusBadRequest, "unsupported content type: "+r.Header.Get("Content-Type"))
}

// decoded returns the body without its encoding.
func decoded(r *http.Request) (io.Reader, error) {
	switch coding := strings.ToLower(r.Header.Get("Content-Encoding")); coding {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		return &gunzip{body: r.Body}, nil
	default:
		return nil, errors.New("unsupported content encoding: " + coding + "; send gzip or identity")
	}
}

// gunzip decompresses. It reads the header with the first read, not before.
type gunzip struct {
	body io.Reader
	z    *gzip.Reader
}

func (g *gunzip) Read(p []byte) (n int, err error) {
	if g.z == nil {
		if g.z, err = gzip.NewReader(g.body); err != nil {
			g.z = nil
			return 0, badGzip(err)
		}
	}
	n, err = g.z.Read(p)
	return n, badGzip(err)
}

func badGzip(err error) error {
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, io.ErrUnexpectedEOF) {
		return sandbox.Wrap(sandbox.CodeInvalid, err, "the body is not whole gzip data; send it again")
	}
	return err
}

// receiveForm writes the files of a form: the parts named file, each under its
// own path unless the query has one.
func (p *plane) receiveForm(r *http.Request, at *account, form *multipart.Reader) ([]written, error) {
	query := r.URL.Query()
	files, seen := []written{}, map[string]bool{}
	for range maxParts {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, formError(err)
		}
		if part.FormName() != "file" {
			continue
		}
		target := query.Get("path")
		if target == "" {
			if target = fileName(part); target == "" {
				return nil, refused(http.StatusBadRequest, "a file of the form has no name; give each a filename, or name one file in the query")
			}
		}
		full, err := at.resolve(r.Context(), target)
		if err != nil {
			return nil, err
		}
		if seen[full] {
			return nil, refused(http.StatusBadRequest, "you cannot upload multiple files to the same path "+full+" in one upload request")
		}
		seen[full] = true
		one, err := p.write(r.Context(), at, full, part)
		if err != nil {
			return nil, err
		}
		files = append(files, one)
	}
	return nil, refused(http.StatusBadRequest, "the form has too many parts; send at most 10000 at a time")
}

// fileName returns a part's file name with its directories.
func fileName(part *multipart.Part) string {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return params["filename"]
}

// formError describes why a form could not be read.
func formError(err error) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok || limits.IsStalled(err) {
		return err
	}
	return refused(http.StatusBadRequest, "the form cannot be read: it is cut or malformed")
}

// write writes one file for the user.
func (p *plane) write(ctx context.Context, at *account, target string, body io.Reader) (written, error) {
	full, err := at.resolve(ctx, target)
	if err != nil {
		return written{}, err
	}
	_, err = p.cfg.Service.WriteFile(ctx, at.box.ID, sandbox.WriteFileRequest{Path: full, MakeParents: true, Owner: at.user}, body)
	if err == nil {
		return written{Path: full, Name: path.Base(full), Type: "file"}, nil
	}
	if sandbox.CodeOf(err) == sandbox.CodeInvalid {
		if info, serr := p.cfg.Service.StatFile(ctx, at.box.ID, full); serr == nil && isDir(info) {
			return written{}, refused(http.StatusBadRequest, "path is a directory: "+full)
		}
	}
	return written{}, err
}

// composition is a request to concatenate files into one, and then to delete them.
type composition struct {
	Sources     []string `json:"source_paths"`
	Destination string   `json:"destination"`
	User        string   `json:"username"`
}

func (p *plane) compose(w http.ResponseWriter, r *http.Request) error {
	var req composition
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxComposeBody))
	if err == nil {
		err = limits.CheckJSON(data)
	}
	if err == nil {
		err = json.Unmarshal(data, &req)
	}
	switch {
	case err != nil:
		return refused(http.StatusBadRequest, "the body is not JSON of at most 4 MiB")
	case len(req.Sources) == 0 || len(req.Sources) > maxSources || req.Destination == "":
		return refused(http.StatusBadRequest, "source_paths and destination are needed; name 1 to 10000 files to put together")
	}
	at, err := p.restAccount(r, req.User)
	if err != nil {
		return err
	}
	paths := append([]string{req.Destination}, req.Sources...)
	for i, name := range paths {
		if paths[i], err = at.resolve(r.Context(), name); err != nil {
			return err
		}
		if i > 0 && paths[i] == paths[0] {
			return refused(http.StatusBadRequest, "the destination is one of the sources: "+paths[0])
		}
	}
	one, err := p.join(r.Context(), at, paths[0], paths[1:])
	if err == nil {
		answer.JSON(w, http.StatusOK, one)
	}
	return err
}

// join concatenates files into one, and deletes them.
func (p *plane) join(ctx context.Context, at *account, to string, from []string) (written, error) {
	all := &joined{ctx: ctx, at: at, left: from}
	one, err := p.write(ctx, at, to, all)
	all.close()
	if err != nil {
		return one, err
	}
	for _, name := range from {
		if err := p.cfg.Service.DeleteFile(ctx, at.box.ID, name, false); err != nil && !notFound(err) {
			return one, err
		}
	}
	return one, nil
}

// joined reads files one after another. One file is open at a time.
type joined struct {
	ctx  context.Context // of the one request that this serves
	at   *account
	left []string
	file *sandbox.FileReader // nil: the next is not open yet
}

func (j *joined) Read(b []byte) (int, error) {
	for {
		if j.file == nil {
			if len(j.left) == 0 {
				return 0, io.EOF
			}
			file, err := j.at.p.cfg.Service.ReadFile(j.ctx, j.at.box.ID, sandbox.ReadFileRequest{Path: j.left[0]})
			if err != nil {
				return 0, err
			}
			j.file, j.left = file, j.left[1:]
		}
		n, err := j.file.Read(b)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		j.close()
		if n > 0 {
			return n, nil
		}
	}
}

func (j *joined) close() {
	if j.file != nil {
		_ = j.file.Close()
		j.file = nil
	}
}
