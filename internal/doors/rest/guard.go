package rest

import (
	"context"
	"mime"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/cove-sh/cove/sandbox"
)

// guard looks at a request before its body is read: whether the caller may do
// this at all, and whether the body is what it must be.
func (h *handlers) guard(hctx huma.Context, next func(huma.Context)) {
	o := hctx.Operation()
	if o.RequestBody == nil {
		next(hctx)
		return
	}
	r, w := humago.Unwrap(hctx)
	scope := infoOf(o).Scope
	caller, known := sandbox.CallerOf(r.Context())
	if err := caller.Need(scope); known && err != nil {
		if scope != sandbox.ScopeSandboxesRead {
			h.denied(r.Context(), o.OperationID)
		}
		w.Header().Set("Connection", "close") // nobody reads the body
		WriteError(w, err)
		return
	}
	if o.RequestBody.Content[contentJSON] != nil && hasBody(r) && !isJSON(r.Header.Get("Content-Type")) {
		// A web page may send bodies of other types to any address, and of no
		// type, without asking.
		p := problemOf(sandbox.Errorf(sandbox.CodeInvalid, "the body is JSON and must say so; send the header Content-Type: application/json"))
		p.Status, p.Title = http.StatusUnsupportedMediaType, http.StatusText(http.StatusUnsupportedMediaType)
		w.Header().Set("Connection", "close")
		p.write(w)
		return
	}
	next(hctx)
}

func hasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
}

func isJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && (kind == contentJSON || strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json"))
}

// denied records that a caller asked for what they may not do.
func (h *handlers) denied(ctx context.Context, operation string) {
	if h.onDenied != nil {
		h.onDenied(ctx, operation)
	}
}
