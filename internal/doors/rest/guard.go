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

// guard checks, before the body is read, whether the caller has the scope and whether
// the body has the right type and size.
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
		// Browsers let any web page send bodies of other types, or without a type, to
		// any address.
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

// denied records that a caller lacks the scope for an operation.
func (h *handlers) denied(ctx context.Context, operation string) {
	if h.onDenied != nil {
		h.onDenied(ctx, operation)
	}
}
