package envd

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxParts bounds the files of one upload, and maxSources those that are put
	// together.
	maxParts   = 10_000
	maxSources = 10_000
	// drainTime is how long the rest of a refused upload is read, so that the
	// client gets to see the answer.
	drainTime = 5 * time.Second
	// maxComposeBody bounds the request to put files together.
	maxComposeBody = 4 << 20
)

// written is a file as an upload tells of it.
type written struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`
}

func writtenAs(p string) written { return written{Path: p, Name: path.Base(p), Type: "file"} }

// upload writes one file, or several of a form.
func (p *plane) upload(w http.ResponseWriter, r *http.Request) {
	// An error is answered while the client still sends.
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex()
	if r.ProtoMajor < 2 {
		w.Header().Set("Connection", "close") // what is left of a body would be the next request
	}
	files, ok := p.receive(w, r)
	if ok {
		// A form ends before its body does. In full duplex, net/http must not meet
		// the end of the body after the handler has returned: it would panic.
		if limits.Drain(w, r, drainTime) == nil {
			w.Header().Del("Connection")
		}
		answer.JSON(w, http.StatusOK, files)
		return
	}
	_ = rc.Flush()
	_ = limits.Drain(w, r, drainTime) // the client may be gone
}

// receive writes what a request brings. It answers the request if that fails.
func (p *plane) receive(w http.ResponseWriter, r *http.Request) ([]written, bool) {
	at, ok := p.restPlace(w, r, r.URL.Query().Get("username"))
	if !ok {
		return nil, false
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Metadata-") {
			answer.Fail(w, http.StatusBadRequest, "metadata of files ("+name+") is not supported by Cove; leave it out")
			return nil, false
		}
	}
	body, err := decoded(r)
	if err != nil {
		answer.Fail(w, http.StatusBadRequest, err.Error())
		return nil, false
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case err == nil && kind == "multipart/form-data" && params["boundary"] != "":
		return p.receiveForm(w, r, at, multipart.NewReader(body, params["boundary"]))
	case err == nil && kind == "application/octet-stream":
		target := r.URL.Query().Get("path")
		if target == "" {
			answer.Fail(w, http.StatusBadRequest, "the path is missing; name the file in the query")
			return nil, false
		}
		one, ok := p.write(w, r, at, target, body)
		return []written{one}, ok
	}
	answer.Fail(w, http.StatusBadRequest, "unsupported content type: "+r.Header.Get("Content-Type"))
	return nil, false
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

// gunzip decompresses. The first byte is waited for only when somebody reads.
type gunzip struct {
	body io.Reader
	z    *gzip.Reader
}

// Read implements [io.Reader].
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
func (p *plane) receiveForm(w http.ResponseWriter, r *http.Request, at *place, form *multipart.Reader) ([]written, bool) {
	query := r.URL.Query()
	files, seen := []written{}, map[string]bool{}
	for range maxParts {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return files, true
		}
		if err != nil {
			p.refuseBody(w, r, err)
			return nil, false
		}
		if part.FormName() != "file" {
			continue
		}
		target := query.Get("path")
		if target == "" {
			if target = fileName(part); target == "" {
				answer.Fail(w, http.StatusBadRequest, "a file of the form has no name; give each a filename, or name one file in the query")
				return nil, false
			}
		}
		full, err := at.resolve(r.Context(), target)
		if err != nil {
			p.refuseRPC(w, err)
			return nil, false
		}
		if seen[full] {
			answer.Fail(w, http.StatusBadRequest, "you cannot upload multiple files to the same path "+full+" in one upload request")
			return nil, false
		}
		seen[full] = true
		one, ok := p.write(w, r, at, full, part)
		if !ok {
			return nil, false
		}
		files = append(files, one)
	}
	answer.Fail(w, http.StatusBadRequest, "the form has too many parts; send at most 10000 at a time")
	return nil, false
}

// fileName returns a part's file name with its directories.
func fileName(part *multipart.Part) string {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return params["filename"]
}

// refuseBody tells that the form cannot be read.
func (p *plane) refuseBody(w http.ResponseWriter, r *http.Request, err error) {
	if _, ok := errors.AsType[*sandbox.Error](err); ok || limits.IsStalled(err) {
		p.refuse(w, r, err)
		return
	}
	answer.Fail(w, http.StatusBadRequest, "the form cannot be read: it is cut or malformed")
}

// write writes one file for the user.
func (p *plane) write(w http.ResponseWriter, r *http.Request, at *place, target string, body io.Reader) (written, bool) {
	full, err := at.resolve(r.Context(), target)
	if err != nil {
		p.refuseRPC(w, err)
		return written{}, false
	}
	_, err = p.cfg.Service.WriteFile(r.Context(), at.box.ID, sandbox.WriteFileRequest{Path: full, MakeParents: true, Owner: at.user}, body)
	if err == nil {
		return writtenAs(full), true
	}
	if sandbox.CodeOf(err) == sandbox.CodeInvalid {
		if info, serr := p.cfg.Service.StatFile(r.Context(), at.box.ID, full); serr == nil && isDir(info) {
			answer.Fail(w, http.StatusBadRequest, "path is a directory: "+full)
			return written{}, false
		}
	}
	p.refuse(w, r, err)
	return written{}, false
}

// composition asks for files to be put together as one, and to be deleted then.
type composition struct {
	Sources     []string `json:"source_paths"`
	Destination string   `json:"destination"`
	User        string   `json:"username"`
}

func (p *plane) compose(w http.ResponseWriter, r *http.Request) {
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
		answer.Fail(w, http.StatusBadRequest, "the body is not JSON of at most 4 MiB")
		return
	case len(req.Sources) == 0 || len(req.Sources) > maxSources || req.Destination == "":
		answer.Fail(w, http.StatusBadRequest, "source_paths and destination are needed; name 1 to 10000 files to put together")
		return
	}
	at, ok := p.restPlace(w, r, req.User)
	if !ok {
		return
	}
	paths := append([]string{req.Destination}, req.Sources...)
	for i, name := range paths {
		if paths[i], err = at.resolve(r.Context(), name); err != nil {
			p.refuseRPC(w, err)
			return
		}
		if i > 0 && paths[i] == paths[0] {
			answer.Fail(w, http.StatusBadRequest, "the destination is one of the sources: "+paths[0])
			return
		}
	}
	p.join(w, r, at, paths[0], paths[1:])
}

// join writes the contents of files one after another into one, and deletes them.
func (p *plane) join(w http.ResponseWriter, r *http.Request, at *place, to string, from []string) {
	all := &joined{at: at, r: r, left: from}
	one, ok := p.write(w, r, at, to, all)
	all.close()
	if !ok {
		return
	}
	for _, name := range from {
		if err := p.cfg.Service.DeleteFile(r.Context(), at.box.ID, name, false); err != nil && !notFound(err) {
			p.refuse(w, r, err)
			return
		}
	}
	answer.JSON(w, http.StatusOK, one)
}

// joined reads files one after another, of which one is open at a time.
type joined struct {
	at   *place
	r    *http.Request
	left []string
	file *sandbox.FileReader // nil: the next is to be opened
}

// Read implements [io.Reader].
func (j *joined) Read(b []byte) (int, error) {
	for {
		if j.file == nil {
			if len(j.left) == 0 {
				return 0, io.EOF
			}
			file, err := j.at.p.cfg.Service.ReadFile(j.r.Context(), j.at.box.ID, sandbox.ReadFileRequest{Path: j.left[0]})
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
