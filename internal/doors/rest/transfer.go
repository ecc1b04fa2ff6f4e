package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// fileHeader describes the file whose content is in a response.
	fileHeader = "X-Cove-File"
	// endTrailer is sent after the content: "ok" or the error. Only clients that send
	// "TE: trailers" get it; for others the connection is broken instead.
	endTrailer = "X-Cove-End"
	// contentPath is the end of the path of a file's content.
	contentPath = "/files/content"
)

func (h *handlers) registerTransfers(a huma.API) {
	huma.Register(a, sends(describeRoute(operation.ReadFile.Info), contentRaw), h.readFile)
	registerUpload(h, a, operation.WriteFile, func(ctx context.Context, in *operation.WriteInput, body io.Reader) (*sandbox.FileInfo, error) {
		return h.svc.WriteFile(ctx, in.Sandbox, in.WriteFileRequest, body)
	})
	huma.Register(a, sends(describeRoute(operation.ArchiveDir.Info), contentZIP), h.archive)
}

func (h *handlers) registerUpload(a huma.API) {
	registerUpload(h, a, operation.UploadArchive, func(ctx context.Context, _ *struct{}, body io.Reader) (*sandbox.ArchiveUpload, error) {
		return h.svc.UploadArchive(ctx, body)
	})
}

// registerUpload registers an operation whose body is content of any size.
func registerUpload[In, Out any](h *handlers, a huma.API, op operation.Op[In, Out], take func(context.Context, *In, io.Reader) (*Out, error)) {
	o := describeRoute(op.Info)
	o.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{contentRaw: {}}}
	huma.Register(a, answers[Out](a, o, contentJSON), func(_ context.Context, in *In) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(hctx huma.Context) {
			r, w := humago.Unwrap(hctx)
			limits.Receive(w, r, func() (*Out, error) { return take(r.Context(), in, r.Body) }, func(v *Out) {
				w.Header().Set("Content-Type", contentJSON)
				if encodeJSON(w, v) != nil {
					panic(http.ErrAbortHandler)
				}
			}, func(err error) { h.fail(r.Context(), err).write(w) })
		}}, nil
	})
}

// sends documents an operation that answers with bytes.
func sends(o huma.Operation, contentType string) huma.Operation {
	responseOf(&o).Content[contentType] = &huma.MediaType{Schema: &huma.Schema{Type: "string", Format: "binary"}}
	return o
}

func (h *handlers) readFile(_ context.Context, in *operation.ReadInput) (*huma.StreamResponse, error) {
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		r, w := humago.Unwrap(hctx)
		file, err := h.svc.ReadFile(r.Context(), in.Sandbox, in.ReadFileRequest)
		if err != nil {
			h.fail(r.Context(), err).write(w)
			return
		}
		w.Header().Set(fileHeader, asciiJSON(file.Info))
		h.sendBody(w, r, file, contentRaw, path.Base(in.Path))
	}}, nil
}

func (h *handlers) archive(_ context.Context, in *operation.ArchiveInput) (*huma.StreamResponse, error) {
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		r, w := humago.Unwrap(hctx)
		zip, err := h.svc.ArchiveDir(r.Context(), in.Sandbox, in.Path, in.MaxBytes)
		if err != nil {
			h.fail(r.Context(), err).write(w)
			return
		}
		h.sendBody(w, r, zip, contentZIP, path.Base(in.Path)+".zip")
	}}, nil
}

// sendBody sends content to its end and closes it. A browser saves the content under a
// name and never displays it, since it comes from a sandbox.
func (h *handlers) sendBody(w http.ResponseWriter, r *http.Request, content io.ReadCloser, contentType, name string) {
	defer content.Close()
	// An error before the first byte gets a proper status.
	first := make([]byte, 32<<10)
	n, err := fill(content, first)
	if err != nil && err != io.EOF {
		w.Header().Del(fileHeader)
		h.fail(r.Context(), err).write(w)
		return
	}
	trailers := acceptsTrailers(r)
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": plainName(name)}))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if trailers {
		w.Header().Set("Trailer", endTrailer)
	}
	w.WriteHeader(http.StatusOK)
	if _, werr := w.Write(first[:n]); werr != nil {
		panic(http.ErrAbortHandler)
	}
	if err == nil {
		_, err = io.CopyBuffer(clientWriter{w}, content, make([]byte, 256<<10))
	}
	end := "ok"
	if err != nil && err != io.EOF {
		p := h.fail(r.Context(), err)
		if !trailers {
			panic(http.ErrAbortHandler)
		}
		end = asciiJSON(p)
	}
	if trailers {
		w.Header().Set(endTrailer, end)
	}
}

// plainName returns a file name that is safe on another machine. It replaces with "_"
// separators of paths, invisible characters, and those that change the direction of
// text, which can disguise the file's extension.
func plainName(name string) string {
	plain := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError || strings.ContainsRune(`/\:`, r) {
			return '_'
		}
		return r
	}, name)
	if strings.Trim(plain, "._ ") == "" {
		return "download"
	}
	return plain
}

// clientWriter marks errors of writing to the client, as opposed to those of reading the
// content.
type clientWriter struct{ w io.Writer }

func (c clientWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err != nil {
		return n, gone(err)
	}
	return n, nil
}

// fill reads until buf is full or reading fails. Unlike [io.ReadFull] it
// returns the reader's own error.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

func acceptsTrailers(r *http.Request) bool {
	for _, te := range r.Header.Values("Te") {
		if strings.Contains(strings.ToLower(te), "trailers") {
			return true
		}
	}
	return false
}

// asciiJSON encodes v for a header: JSON in which everything except ASCII is escaped.
func asciiJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return "{}"
	}
	var b strings.Builder
	for _, r := range string(data) {
		switch {
		case r < 0x7f:
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		}
	}
	return b.String()
}
