package e2b

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/sandbox"
)

// servePort passes a request for any other port to the previews. A port of a sandbox
// with public ports gets its preview with the first request, if something listens.
func (d *Door) servePort(w http.ResponseWriter, r *http.Request, at target) {
	if err := d.publish(r.Context(), at); err != nil {
		d.cfg.Refuse(w, r)
		answer.Gone(w, access.ToE2B(at.sandbox), err)
		return
	}
	if label, below := d.label(r.Host); !below || label == "sandbox" {
		r = r.Clone(r.Context())
		r.Header.Del(headerSandbox)
		r.Header.Del(headerPort)
		r.Host = strconv.Itoa(at.port) + "-" + at.sandbox + "." + d.domain
	}
	d.cfg.Previews.ServeHTTP(w, r)
}

// publish makes the preview of a port, if its sandbox was created with public
// ports. It acts with the rights of the key that created the sandbox, and only
// where something listens, so that strangers cannot use up the previews.
func (d *Door) publish(ctx context.Context, at target) error {
	box, err := d.cfg.Gate.Look(ctx, at.sandbox)
	if err != nil || box.Metadata[access.TagPorts] == "" {
		return nil // the previews answer
	}
	owner, err := d.cfg.Gate.Holder(ctx, strings.TrimPrefix(box.Metadata[access.TagPorts], "key-"))
	if err != nil || owner.Team != box.Team {
		return nil
	}
	ctx = sandbox.WithCaller(ctx, owner)
	there, err := sandbox.All(ctx, sandbox.Of(box.ID, d.cfg.Service.ListPreviews))
	if err != nil {
		return err
	}
	for _, p := range there {
		if p.Port == at.port {
			return nil
		}
	}
	if _, err := d.resumed(ctx, box); err != nil {
		return err
	}
	conn, err := d.cfg.Service.DialPort(ctx, box.ID, at.port)
	if err != nil {
		return sandbox.Errorf(sandbox.CodeNotRunning, "nothing listens on port %d", at.port)
	}
	_ = conn.Close() // only to find out whether something listens
	_, err = d.cfg.Service.CreatePreview(sandbox.WithFirst(ctx), box.ID, sandbox.CreatePreviewRequest{
		Port: at.port, Access: sandbox.PreviewPublic, Wake: box.Metadata[access.TagAutoResume] != "",
	})
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		return nil // there is one, or was a private one: the previews answer
	}
	return err
}
