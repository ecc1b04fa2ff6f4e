package expose

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

const (
	previewKeyPrefix = "pvk_"
	// maxLinkPath bounds the path of a link, in bytes.
	maxLinkPath = 2048
)

// previewLabels matches the first label of a preview's host name: a port and the id of
// a sandbox.
var previewLabels = lazyregexp.New(`^([1-9][0-9]{0,4})-(` + ids.Sandbox + `[a-z0-9]{26})$`)

// ErrNoPreview is the error for every visitor of a preview that does not exist.
var ErrNoPreview = sandbox.Errorf(sandbox.CodeNotFound, "there is no preview at this address; it may have expired, so ask the person who gave it to you")

// CreatePreview implements [sandbox.Previews].
func (x *Exposer) CreatePreview(ctx context.Context, ref string, req sandbox.CreatePreviewRequest) (*sandbox.NewPreview, error) {
	return call.Do(ctx, x.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "preview.create"), func(c *call.Call) (*sandbox.NewPreview, error) {
		if err := checkPreview(&req); err != nil {
			return nil, err
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		if r.State != sandbox.StateRunning && r.State != sandbox.StatePaused {
			return nil, call.NotRunning(&r)
		}
		c.Detail = fmt.Sprintf("port %d, %s", req.Port, req.Access)
		now := time.Now().UTC()
		var key string
		p, err := x.cfg.Store.ChangePreview(c.Ctx, r.ID, req.Port, now, sandbox.MaxPreviews, func(p *store.PreviewRecord) error {
			key = "" // it may run again
			if sandbox.First(c.Ctx) && (p.ID != "" || p.Generation > 0) {
				return sandbox.Errorf(sandbox.CodeConflict, "port %d already has a preview, or had a private one; to get another, create it yourself", req.Port)
			}
			if p.ID == "" {
				p.ID, p.Team, p.CreatedAt = ids.New(ids.Preview), r.Team, now
			}
			if req.NewKey || req.Access == sandbox.PreviewPrivate && p.KeyHash == nil {
				key = previewKeyPrefix + strings.ToLower(rand.Text())
				p.KeyHash = auth.Hash(key)
				p.Generation++
			}
			p.Access, p.Wake, p.ExpiresAt = req.Access, req.Wake, expiresAt(now, req.ExpiresInSeconds)
			return nil
		})
		if err != nil {
			return nil, err
		}
		// Visitors that the old preview admitted must be admitted again.
		x.visitors.end(p.ID)
		return &sandbox.NewPreview{Preview: x.viewPreview(&p), Key: key}, nil
	})
}

func expiresAt(from time.Time, seconds int64) *time.Time {
	if seconds == 0 {
		return nil
	}
	at := from.Add(time.Duration(seconds) * time.Second)
	return &at
}

// checkPreview refuses an invalid request and fills in defaults.
func checkPreview(req *sandbox.CreatePreviewRequest) error {
	req.Access = cmp.Or(req.Access, sandbox.PreviewPrivate)
	if req.Access != sandbox.PreviewPrivate && req.Access != sandbox.PreviewPublic {
		return validate.Errorf("access %s is not valid; use %q or %q", validate.Quote(string(req.Access)), sandbox.PreviewPrivate, sandbox.PreviewPublic)
	}
	if err := validate.Port("port", req.Port); err != nil {
		return err
	}
	return validate.Seconds("expires_in_seconds", &req.ExpiresInSeconds)
}

func previewLabel(p *store.PreviewRecord) string { return strconv.Itoa(p.Port) + "-" + p.SandboxID }

func (x *Exposer) viewPreview(p *store.PreviewRecord) sandbox.Preview {
	view := p.Preview
	view.URL = x.cfg.URL(previewLabel(p))
	return view
}

// ListPreviews implements [sandbox.Previews].
func (x *Exposer) ListPreviews(ctx context.Context, ref string, page sandbox.Page) (*sandbox.List[sandbox.Preview], error) {
	return call.Do(ctx, x.cfg.Gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Preview], error) {
		id := ""
		if ref != "" {
			r, err := c.Resolve(ref)
			if err != nil {
				return nil, err
			}
			id = r.ID
		}
		records, next, err := x.cfg.Store.ListPreviews(c.Ctx, c.Caller.Team, c.Caller.Namespace, id, time.Now(), page)
		if err != nil {
			return nil, err
		}
		list := &sandbox.List[sandbox.Preview]{Items: make([]sandbox.Preview, len(records)), NextCursor: next}
		for i := range records {
			list.Items[i] = x.viewPreview(&records[i])
		}
		return list, nil
	})
}

// preview returns the preview of a port, if there is one that has not expired.
func (x *Exposer) preview(ctx context.Context, sandboxID string, port int) (store.PreviewRecord, error) {
	p, err := x.cfg.Store.Preview(ctx, sandboxID, port)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && p.ExpiresAt != nil && !time.Now().Before(*p.ExpiresAt) {
		return store.PreviewRecord{}, ErrNoPreview
	}
	return p, err
}

// LinkPreview implements [sandbox.Previews].
func (x *Exposer) LinkPreview(ctx context.Context, ref string, port int, req sandbox.PreviewLinkRequest) (*sandbox.PreviewLink, error) {
	return call.Do(ctx, x.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "preview.link"), func(c *call.Call) (*sandbox.PreviewLink, error) {
		path, err := checkLink(&req)
		if err != nil {
			return nil, err
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		p, err := x.preview(c.Ctx, r.ID, port)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil, sandbox.Errorf(sandbox.CodeNotFound, "sandbox %s has no preview of port %d; create it first", r.ID, port)
		}
		if err != nil {
			return nil, err
		}
		if p.Access == sandbox.PreviewPublic {
			return nil, sandbox.Errorf(sandbox.CodeConflict, "the preview of port %d is public and needs no link; open %s", port, x.viewPreview(&p).URL)
		}
		until := time.Now().UTC().Add(time.Duration(req.ExpiresInSeconds) * time.Second)
		if p.ExpiresAt != nil && p.ExpiresAt.Before(until) {
			until = *p.ExpiresAt
		}
		until = until.Truncate(time.Second)
		c.Detail = fmt.Sprintf("port %d until %s", port, until.Format(time.RFC3339))
		query := path.Query()
		query.Set(sandbox.PreviewLinkParam, x.cfg.Links.SignPreview(&p, until))
		path.RawQuery = query.Encode()
		return &sandbox.PreviewLink{URL: x.viewPreview(&p).URL + path.String(), ExpiresAt: until}, nil
	})
}

// checkLink refuses an invalid request, fills in defaults and returns where the link
// leads: a path, perhaps with a query.
func checkLink(req *sandbox.PreviewLinkRequest) (*url.URL, error) {
	req.ExpiresInSeconds = cmp.Or(req.ExpiresInSeconds, int64(sandbox.DefaultPreviewLink/time.Second))
	if err := validate.Range("expires_in_seconds", req.ExpiresInSeconds, 1, int64(sandbox.MaxPreviewLink/time.Second)); err != nil {
		return nil, err
	}
	req.Path = cmp.Or(req.Path, "/")
	bad := validate.Errorf("path %s is not a path of the preview; use one such as /docs/index.html", validate.Quote(req.Path))
	if len(req.Path) > maxLinkPath || req.Path[0] != '/' || strings.HasPrefix(req.Path, "//") || strings.Contains(req.Path, `\`) || validate.Text("path", req.Path) != nil {
		return nil, bad
	}
	u, err := url.Parse(req.Path)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" || u.Fragment != "" {
		return nil, bad
	}
	return u, nil
}

// DeletePreview implements [sandbox.Previews].
func (x *Exposer) DeletePreview(ctx context.Context, ref string, port int) error {
	return call.Run(ctx, x.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "preview.delete"), func(c *call.Call) error {
		r, err := c.Resolve(ref)
		if err != nil {
			return err
		}
		c.Detail = fmt.Sprintf("port %d", port)
		p, err := x.cfg.Store.Preview(c.Ctx, r.ID, port)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		if err := x.cfg.Store.DeletePreview(c.Ctx, r.ID, port); err != nil {
			return err
		}
		x.visitors.end(p.ID)
		return nil
	})
}

// VisitPreview implements [sandbox.Previews].
func (x *Exposer) VisitPreview(ctx context.Context, visit sandbox.PreviewVisit) (_ *sandbox.Preview, err error) {
	ctx, leave, err := x.cfg.Gate.Anonymous(ctx, "preview.visit")
	defer leave(&err)
	if err != nil {
		return nil, err
	}
	parts := previewLabels.FindStringSubmatch(visit.Label)
	if parts == nil {
		return nil, ErrNoPreview
	}
	port, err := strconv.Atoi(parts[1])
	if err != nil || port > 65535 {
		return nil, ErrNoPreview
	}
	p, err := x.preview(ctx, parts[2], port)
	if err != nil {
		return nil, err
	}
	if err := x.admitVisitor(&p, &visit); err != nil {
		return nil, err
	}
	if _, err := x.awake(ctx, &p); err != nil {
		return nil, err
	}
	view := x.viewPreview(&p)
	return &view, nil
}

// admitVisitor returns an error unless a visitor may open a preview.
func (x *Exposer) admitVisitor(p *store.PreviewRecord, visit *sandbox.PreviewVisit) error {
	if p.Access == sandbox.PreviewPublic {
		return nil
	}
	if visit.Key != "" && p.KeyHash != nil && subtle.ConstantTimeCompare(auth.Hash(visit.Key), p.KeyHash) == 1 {
		return nil
	}
	if visit.Link != "" && x.cfg.Links.OpensPreview(p, visit.Link) {
		return nil
	}
	if visit.Key == "" && visit.Link == "" {
		return sandbox.Errorf(sandbox.CodeForbidden, "this preview is private; open it with its key or a signed link")
	}
	return sandbox.Errorf(sandbox.CodeForbidden, "the key or link does not open this preview; it may have expired, so ask for a new one")
}

// awake returns the record of a preview's sandbox, which is running. It resumes a
// paused one if the preview allows that. Errors are for strangers and say little.
func (x *Exposer) awake(ctx context.Context, p *store.PreviewRecord) (store.Record, error) {
	r, err := x.cfg.Store.Sandbox(ctx, p.SandboxID)
	if err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			err = ErrNoPreview
		}
		return r, err
	}
	if r.State == sandbox.StatePaused && p.Wake {
		r, err = x.cfg.Wake(ctx, &r)
		switch sandbox.CodeOf(err) {
		case "", sandbox.CodeNotRunning:
		case sandbox.CodeCancelled, sandbox.CodeTimeout:
			return r, err
		default:
			x.cfg.Log.Warn("wake a sandbox for a visitor of its preview", "sandbox", p.SandboxID, "error", call.Detailed(err))
			return r, call.Unavailable(err, "the sandbox of this preview cannot be resumed now; try again later")
		}
	}
	switch r.State {
	case sandbox.StateRunning:
		return r, nil
	case sandbox.StatePaused:
		return r, sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox of this preview is paused; ask its owner to resume it")
	}
	return r, sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox of this preview has ended")
}

// DialPreview implements [sandbox.Previews].
func (x *Exposer) DialPreview(ctx context.Context, visited *sandbox.Preview) (_ net.Conn, err error) {
	ctx, leave, err := x.cfg.Gate.Anonymous(ctx, "preview.visit")
	defer leave(&err)
	if err != nil {
		return nil, err
	}
	// The preview may have been deleted or changed since the visit.
	p, err := x.preview(ctx, visited.SandboxID, visited.Port)
	if err != nil {
		return nil, err
	}
	if p.ID != visited.ID || visited.Access == sandbox.PreviewPublic && p.Access == sandbox.PreviewPrivate {
		return nil, ErrNoPreview
	}
	r, err := x.awake(ctx, &p)
	if err != nil {
		return nil, err
	}
	h, err := x.cfg.OpenRecord(ctx, &r)
	if err != nil {
		return nil, err
	}
	conn, err := x.dialPort(ctx, h, p.Port, true)
	if err != nil {
		return nil, err
	}
	conn = x.visitors.add(p.ID, conn, p.ExpiresAt)
	// Deleting or changing a preview ends its registered connections, but this one was
	// not registered yet.
	now, err := x.preview(ctx, p.SandboxID, p.Port)
	if err == nil && (now.ID != p.ID || now.Generation != p.Generation || now.Access != p.Access) {
		err = ErrNoPreview
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}
