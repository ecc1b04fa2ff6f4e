package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// uploadPath is what stands before a link by which an archive is sent.
const uploadPath = "/v1/template-uploads/"

// receiver is a service that takes archives by signed links.
type receiver interface {
	ReceiveUpload(ctx context.Context, link string, size int64, content io.Reader) (*sandbox.ArchiveUpload, error)
}

// uploads answers those who have a link and no key. The link is looked at before
// anything of the body is read.
func (s *Server) uploads(to receiver, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		link, ok := strings.CutPrefix(r.URL.Path, uploadPath)
		if !ok || link == "" || strings.Contains(link, "/") {
			next.ServeHTTP(w, r)
			return
		}
		if r.Method != http.MethodPut {
			hurry(w, r)
			w.Header().Set("Allow", http.MethodPut)
			http.Error(w, "send the archive with PUT", http.StatusMethodNotAllowed)
			return
		}
		_ = http.NewResponseController(w).EnableFullDuplex() // an error is told while the client sends
		up, err := to.ReceiveUpload(r.Context(), link, r.ContentLength, r.Body)
		if err != nil {
			if sandbox.CodeOf(err) == sandbox.CodeInternal {
				s.log.ErrorContext(r.Context(), "receive an archive by a link", "error", err)
				err = sandbox.Errorf(sandbox.CodeInternal, "the archive could not be saved")
			}
			refuse(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(up) // the client may be gone
	})
}
