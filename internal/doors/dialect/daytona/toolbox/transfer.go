package toolbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"path"
	"strconv"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxParts bounds the parts of a form, and the files of a download.
	maxParts = 20_000
	// maxErrors bounds the errors in an answer.
	maxErrors = 100
)

var partName = lazyregexp.New(`^files\[(\d{1,6})\]\.(path|file)$`)

// uploaded is what came of a form.
type uploaded struct {
	Files  []string `json:"files"`
	Errors []string `json:"errors,omitempty"`
}

func (u *uploaded) failed(format string, args ...any) {
	if len(u.Errors) < maxErrors {
		u.Errors = append(u.Errors, fmt.Sprintf(format, args...))
	}
}

// uploadMany writes the files of a form, in which the path of each comes before it. What
// fails does not keep others from being written.
func (p *plane) uploadMany(r *http.Request) (status int, v any, err error) {
	form, err := formOf(r)
	if err != nil {
		return 0, nil, err
	}
	u := &uploaded{Files: []string{}}
	if err := p.receive(r, form, u); err != nil {
		return 0, nil, err
	}
	if len(u.Errors) == 0 {
		return http.StatusOK, u, nil
	}
	body := answer.BodyOf(answer.Invalid("%s", u.Errors[0]), answer.Toolbox)
	return body.StatusCode, struct {
		answer.Body
		*uploaded
	}{body, u}, nil
}

func formOf(r *http.Request) (*multipart.Reader, error) {
	form, err := r.MultipartReader()
	if err != nil {
		return nil, answer.Invalid("the body is not a form: %v", err)
	}
	return form, nil
}

func (p *plane) receive(r *http.Request, form *multipart.Reader, u *uploaded) error {
	paths := map[string]string{}
	for range maxParts {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return formError(err)
		}
		name := partName.FindStringSubmatch(part.FormName())
		if name == nil {
			return answer.Invalid("part %.64q of the form is neither files[N].path nor files[N].file", part.FormName())
		}
		if name[2] == "path" {
			data, err := io.ReadAll(io.LimitReader(part, sandbox.MaxPathBytes+1))
			if err != nil {
				return formError(err)
			}
			paths[name[1]] = string(data)
			continue
		}
		target, given := paths[name[1]]
		delete(paths, name[1])
		full, err := absolute(boxOf(r), target)
		if !given || target == "" {
			err = answer.Invalid("file %s of the form has no path before it", name[1])
		}
		if err != nil {
			u.failed("%s", answer.Of(err).Message)
			continue
		}
		if err := p.write(r, full, part); err != nil {
			if r.Context().Err() != nil || limits.IsStalled(err) {
				return err
			}
			u.failed("%s: %s", target, answer.Of(err).Message)
			continue
		}
		u.Files = append(u.Files, target)
	}
	return answer.Invalid("the form has too many parts; send at most %d", maxParts)
}

func formError(err error) error {
	if limits.IsStalled(err) {
		return err
	}
	return answer.Invalid("the form cannot be read: it is cut or malformed")
}

func (p *plane) write(r *http.Request, full string, body io.Reader) error {
	_, err := p.svc.WriteFile(r.Context(), boxOf(r).ID, sandbox.WriteFileRequest{Path: full, MakeParents: true}, body)
	return aboutFile(full, err)
}

// uploadOne writes the file of a form to the path of the query.
func (p *plane) uploadOne(r *http.Request) (status int, v any, err error) {
	full, err := named(r, "path")
	if err != nil {
		return 0, nil, err
	}
	form, err := formOf(r)
	if err != nil {
		return 0, nil, err
	}
	part, err := form.NextRawPart()
	switch {
	case err != nil:
		err = formError(err)
	case part.FormName() != "file":
		err = answer.Invalid("the form has no part file")
	default:
		err = p.write(r, full, part)
	}
	return http.StatusOK, map[string]string{"name": path.Base(full), "path": full, "type": "file"}, err
}

// downloadOne sends a file.
func (p *plane) downloadOne(w http.ResponseWriter, r *http.Request) error {
	full, err := named(r, "path")
	if err != nil {
		return err
	}
	file, err := p.svc.ReadFile(r.Context(), boxOf(r).ID, sandbox.ReadFileRequest{Path: full})
	if err != nil {
		return aboutFile(full, err)
	}
	defer file.Close()
	sdkdoor.SendFile(w, file, full)
	return nil
}

type downloadBody struct {
	Paths []string `json:"paths"`
}

// downloadMany sends files as parts of a form, each under the path that the client gave.
func (p *plane) downloadMany(w http.ResponseWriter, r *http.Request, body *downloadBody) error {
	if len(body.Paths) == 0 || len(body.Paths) > maxParts {
		return answer.Invalid("name 1 to %d paths", maxParts)
	}
	form := multipart.NewWriter(w)
	w.Header().Set("Content-Type", form.FormDataContentType())
	w.Header().Set("Cache-Control", "no-store")
	for _, name := range body.Paths {
		if err := p.sendPart(r, form, name); err != nil {
			panic(http.ErrAbortHandler) // the answer has begun
		}
	}
	if form.Close() != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// sendPart sends one file, or why it cannot be sent.
func (p *plane) sendPart(r *http.Request, form *multipart.Writer, name string) error {
	full, err := absolute(boxOf(r), name)
	var file *sandbox.FileReader
	if err == nil {
		file, err = p.svc.ReadFile(r.Context(), boxOf(r).ID, sandbox.ReadFileRequest{Path: full})
	}
	if err != nil {
		data, merr := json.Marshal(answer.BodyOf(aboutFile(name, err), answer.Toolbox))
		if merr != nil {
			return merr
		}
		part, perr := form.CreatePart(partHeader("error", name, "application/json", int64(len(data))))
		if perr == nil {
			_, perr = io.Copy(part, bytes.NewReader(data))
		}
		return perr
	}
	defer file.Close()
	part, err := form.CreatePart(partHeader("file", name, "application/octet-stream", file.Info.Size))
	if err != nil {
		return err
	}
	sdkdoor.CopyFile(part, file)
	return nil
}

func partHeader(field, name, kind string, size int64) textproto.MIMEHeader {
	h := textproto.MIMEHeader{
		"Content-Disposition": {mime.FormatMediaType("form-data", map[string]string{"name": field, "filename": name})},
		"Content-Type":        {kind},
	}
	if size > 0 {
		h.Set("Content-Length", strconv.FormatInt(size, 10))
	}
	return h
}
