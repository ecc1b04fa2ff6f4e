package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/sandbox"
)

// servePort passes a request for a sandbox's port to the previews. If this product's
// clients created the sandbox and something listens on the port, the first request makes
// the port's preview. A preview that is or was private is left to its owner. A paused
// sandbox stays paused.
func (d *Door) servePort(w http.ResponseWriter, r *http.Request, at target) {
	if err := d.publish(r.Context(), at); err != nil {
		d.refuse(w, r, err)
		return
	}
	r = r.Clone(r.Context())
	r.Header.Del(headerSandbox)
	r.Host = strconv.Itoa(at.port) + "-" + at.sandbox + "." + d.cfg.Domain
	d.cfg.Previews.ServeHTTP(w, r)
}

// publish makes the preview of a port. It uses the rights of the key that created the
// sandbox, and requires that something listens, so that strangers cannot use up the
// previews.
func (d *Door) publish(ctx context.Context, at target) error {
	s, err := d.cfg.Gate.Look(ctx, at.sandbox)
	// A fork has its parent's metadata, but another door made it.
	if err != nil || s.Metadata[terms.PortsTag] == "" || s.ForkedFrom != "" || s.State != sandbox.StateRunning {
		return nil // the previews handler answers
	}
	owner, err := d.cfg.Gate.Holder(ctx, strings.TrimPrefix(s.Metadata[terms.PortsTag], "key-"))
	if err != nil || owner.Team != s.Team {
		return nil
	}
	if known, err := d.cfg.Previewed(ctx, s.ID, at.port); known || err != nil {
		return err
	}
	ctx = sandbox.WithFirst(sandbox.WithCaller(ctx, owner))
	conn, err := d.cfg.Service.DialPort(ctx, s.ID, at.port)
	if err != nil {
		return sandbox.Errorf(sandbox.CodeUnavailable, "nothing listens on port %d", at.port)
	}
	_ = conn.Close() // only to find out whether something listens
	_, err = d.cfg.Service.CreatePreview(ctx, s.ID, sandbox.CreatePreviewRequest{Port: at.port, Access: sandbox.PreviewPublic})
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		return nil // another request has made it
	}
	return err
}
