package control

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/access"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

func portOf(r *http.Request) (int, error) {
	n, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || n == 0 {
		return 0, answer.Invalid("%.20q is not a port; give 1 to 65535", r.PathValue("port"))
	}
	return int(n), nil
}

// preview returns the preview of a port, which is made if there is none.
func (p *plane) preview(ctx context.Context, box *sandbox.Sandbox, port int) (*sandbox.Preview, error) {
	for there, err := range sandbox.Each(ctx, sandbox.Of(box.ID, p.cfg.Service.ListPreviews)) {
		if err != nil {
			return nil, err
		}
		if there.Port == port {
			return &there, nil
		}
	}
	req := sandbox.CreatePreviewRequest{Port: port, Access: sandbox.PreviewPrivate}
	if box.Metadata[access.TagPublic] != "" {
		req.Access = sandbox.PreviewPublic
	}
	made, err := p.cfg.Service.CreatePreview(ctx, box.ID, req)
	if err != nil {
		return nil, err
	}
	return &made.Preview, nil
}

// previewURL serves the address of a port with a token that opens it.
func (p *plane) previewURL(w http.ResponseWriter, r *http.Request) error {
	box, port, err := p.ofPort(r)
	if err != nil {
		return err
	}
	caller, _ := sandbox.CallerOf(r.Context())
	if port == access.PortToolbox {
		answer.JSON(w, http.StatusOK, map[string]string{"sandboxId": box.ID, "url": p.cfg.Toolbox(r), "token": p.cfg.Gate.Token(access.Toolbox, caller, box.ID)})
		return nil
	}
	found, err := p.preview(r.Context(), box, port)
	if err != nil {
		return about(box.ID, err)
	}
	answer.JSON(w, http.StatusOK, map[string]string{"sandboxId": box.ID, "url": found.URL, "token": p.cfg.Gate.Token(access.Preview(port), caller, box.ID)})
	return nil
}

func (p *plane) ofPort(r *http.Request) (*sandbox.Sandbox, int, error) {
	port, err := portOf(r)
	if err != nil {
		return nil, 0, err
	}
	box, err := p.living(r)
	return box, port, err
}

// signedPreviewURL serves a link that opens a port until it expires.
func (p *plane) signedPreviewURL(w http.ResponseWriter, r *http.Request) error {
	box, port, err := p.ofPort(r)
	if err != nil {
		return err
	}
	var req sandbox.PreviewLinkRequest
	if text := r.URL.Query().Get("expiresInSeconds"); text != "" {
		if req.ExpiresInSeconds, err = strconv.ParseInt(text, 10, 64); err != nil || req.ExpiresInSeconds < 1 {
			return answer.Invalid("expiresInSeconds is %.20q; give a number of seconds", text)
		}
	}
	if _, err := p.preview(r.Context(), box, port); err != nil {
		return about(box.ID, err)
	}
	link, err := p.cfg.Service.LinkPreview(r.Context(), box.ID, port, req)
	if err != nil {
		return about(box.ID, err)
	}
	u, err := url.Parse(link.URL)
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, map[string]any{
		"sandboxId": box.ID, "port": port, "token": u.Query().Get(sandbox.PreviewLinkParam), "url": link.URL,
	})
	return nil
}

// signingKey serves the key with which a client signs links to files. It is good for
// the one sandbox, and for as long as the caller's API key.
func (p *plane) signingKey(w http.ResponseWriter, r *http.Request) error {
	box, err := p.living(r)
	if err != nil {
		return err
	}
	caller, _ := sandbox.CallerOf(r.Context())
	answer.JSON(w, http.StatusOK, p.cfg.Gate.Token(access.Files, caller, box.ID))
	return nil
}
