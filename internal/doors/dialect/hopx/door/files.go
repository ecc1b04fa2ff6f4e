package door

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/hopx"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxHeld bounds how much of a file is held in memory while its destination is unknown,
	// in bytes. A larger file is held in its sandbox.
	maxHeld = 1 << 20
	// cleanTime bounds the removal of a held file.
	cleanTime = 10 * time.Second
	// waitingPath is the prefix of the path of a held file.
	waitingPath = "/tmp/.cove-upload-"
)

// streams are the routes of an agent whose request or answer is not JSON.
var streams = map[string]func(*exchange){
	"GET /files/download":  (*exchange).download,
	"POST /files/upload":   (*exchange).upload,
	"GET /execute/stream":  socket((*connection).code),
	"GET /commands/stream": socket((*connection).command),
	"GET /terminal":        socket((*connection).terminal),
	"GET /files/watch":     socket((*connection).watch),
}

// Streams lists the routes of an agent whose request or answer is not JSON, as METHOD
// /path.
func Streams() []string { return slices.Sorted(maps.Keys(streams)) }

// download sends a file's content.
func (x *exchange) download() {
	query := x.r.URL.Query()
	if len(query["path"]) > 1 {
		x.fail(invalid("the query has more than one path; give one"))
		return
	}
	file, err := hopx.OpenFile(x.r.Context(), x.call(), x.at.sandbox, query.Get("path"))
	if err != nil {
		x.fail(err)
		return
	}
	defer file.Close()
	sdkdoor.SendFile(x.w, file, query.Get("path"))
}

// upload writes the file of a form.
func (x *exchange) upload() {
	limits.Receive(x.w, x.r, x.receive, func(v any) { x.json(http.StatusOK, v) }, x.fail)
}

// receive reads a form with one file and its path, in either order.
func (x *exchange) receive() (any, error) {
	kind, params, err := mime.ParseMediaType(x.r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return nil, invalid("the body is not a form; send multipart/form-data with file and path")
	}
	form := multipart.NewReader(x.r.Body, params["boundary"])
	name := x.r.URL.Query().Get("path")
	var file *waiting
	defer func() { file.remove() }()
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, formError(err)
		}
		switch part.FormName() {
		case "path":
			given, err := io.ReadAll(io.LimitReader(part, sandbox.MaxPathBytes+1))
			switch {
			case err != nil:
				return nil, formError(err)
			case len(given) > sandbox.MaxPathBytes:
				return nil, invalid("path has more than %d bytes; give a shorter one", sandbox.MaxPathBytes)
			case name != "" && name != string(given):
				return nil, invalid("the request has two paths; give one")
			}
			name = string(given)
		case "file":
			switch {
			case file != nil:
				return nil, invalid("the form has two files; send them one by one")
			case name != "":
				file = &waiting{}
				if file.stored, err = hopx.StoreFile(x.r.Context(), x.call(), x.at.sandbox, name, part); err != nil {
					return nil, err
				}
			default:
				if file, err = x.hold(part); err != nil {
					return nil, err
				}
			}
		default:
			return nil, invalid("%s: Cove does not know this field of the form; send file and path", clip.Text(part.FormName(), 64))
		}
	}
	switch {
	case file == nil:
		return nil, invalid("the form has no file; send it as file")
	case name == "":
		return nil, invalid("the form has no path; say with it where the file is to be")
	case file.stored != nil:
		return file.stored, nil
	}
	return file.store(name)
}

// formError returns the error for a form that could not be read.
func formError(err error) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok || limits.IsStalled(err) {
		return err
	}
	return invalid("the form cannot be read: it is cut or malformed")
}

// waiting is a file whose destination is unknown yet: clients send the file before its
// path.
type waiting struct {
	x      *exchange
	held   []byte
	path   string // in the sandbox, for a large file
	stored any    // the answer, once the file is at its destination
}

// hold stores a file in memory, or in a temporary file in the sandbox.
func (x *exchange) hold(from io.Reader) (*waiting, error) {
	f := &waiting{x: x}
	var err error
	if f.held, err = io.ReadAll(io.LimitReader(from, maxHeld)); err != nil {
		return nil, formError(err)
	}
	if len(f.held) < maxHeld {
		return f, nil
	}
	f.path = waitingPath + rand.Text()
	whole := io.MultiReader(bytes.NewReader(f.held), from)
	if _, err := hopx.StoreFile(x.r.Context(), x.call(), x.at.sandbox, f.path, whole); err != nil {
		f.remove()
		return nil, err
	}
	f.held = nil
	return f, nil
}

// store moves the file to its destination.
func (f *waiting) store(name string) (any, error) {
	ctx, c := f.x.r.Context(), f.x.call()
	if f.path == "" {
		return hopx.StoreFile(ctx, c, f.x.at.sandbox, name, bytes.NewReader(f.held))
	}
	file, err := hopx.OpenFile(ctx, c, f.x.at.sandbox, f.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return hopx.StoreFile(ctx, c, f.x.at.sandbox, name, file)
}

// remove removes what is left of a held file in the sandbox.
func (f *waiting) remove() {
	if f == nil || f.path == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.x.r.Context()), cleanTime)
	defer cancel()
	if err := f.x.d.cfg.Service.DeleteFile(ctx, f.x.at.sandbox, f.path, false); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		f.x.d.cfg.Log.WarnContext(ctx, "remove a part of an upload", "sandbox", f.x.at.sandbox, "path", f.path, "error", err)
	}
}
