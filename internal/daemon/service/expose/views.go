package expose

import (
	"cmp"
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// vncPort is the VNC port of display 0, on the loopback device. The port of display n
// is n higher.
const vncPort = 5900

// maxDisplay is the largest number of a display.
const maxDisplay = 99

// errNoView is the error for every link that opens no live view.
var errNoView = sandbox.Errorf(sandbox.CodeForbidden, "this link does not open a live view; it may have expired, so ask for a new one")

// ViewComputer implements [sandbox.Computers]. Neither the call nor opening the link
// resumes a paused computer.
func (x *Exposer) ViewComputer(ctx context.Context, ref string, req sandbox.ViewRequest) (*sandbox.ViewLink, error) {
	return call.Do(ctx, x.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeComputersWrite, "computer.view"), func(c *call.Call) (*sandbox.ViewLink, error) {
		req.TTLSeconds = cmp.Or(req.TTLSeconds, int64(sandbox.DefaultPreviewLink/time.Second))
		if err := validate.Range("ttl_seconds", req.TTLSeconds, 1, int64(sandbox.MaxPreviewLink/time.Second)); err != nil {
			return nil, err
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		desktop := startup.DesktopOf(&r)
		switch {
		case desktop == nil:
			return nil, x.cfg.NoScreen(c.Ctx, r.ID)
		case r.State != sandbox.StateRunning && r.State != sandbox.StatePaused:
			return nil, call.NotRunning(&r)
		}
		if _, err := displayNumber(desktop.Display); err != nil {
			return nil, err
		}
		until := time.Now().UTC().Add(time.Duration(req.TTLSeconds) * time.Second).Truncate(time.Second)
		c.Detail = viewKind(req.Control) + " until " + until.Format(time.RFC3339)
		query := url.Values{sandbox.ViewLinkParam: {x.cfg.Links.SignView(r.ID, req.Control, until)}}
		return &sandbox.ViewLink{
			URL: x.cfg.URL(sandbox.ViewLabel+r.ID) + "/?" + query.Encode(), Control: req.Control, ExpiresAt: until,
		}, nil
	})
}

// viewKind names what a link allows.
func viewKind(control bool) string {
	if control {
		return "control"
	}
	return "watch"
}

// displayNumber returns the number of an X display such as ":1".
func displayNumber(display string) (int, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(cmp.Or(display, ":1"), ":"), 10, 8)
	if err != nil || n > maxDisplay {
		return 0, sandbox.Errorf(sandbox.CodeUnsupported, "the template's display %s cannot be watched; build the template with a display from :0 to :%d", validate.Quote(display), maxDisplay)
	}
	return int(n), nil
}

// VisitView admits a visitor of a live view, who needs no API key. The error is
// forbidden for a link that opens nothing, not_found for a computer that is gone, and
// not_running for a paused one; then the view is returned too. It resumes no computer:
// a page that stays open would keep it awake for ever.
func (x *Exposer) VisitView(ctx context.Context, visit sandbox.ViewVisit) (_ *sandbox.View, err error) {
	ctx, leave, err := x.cfg.Gate.Anonymous(ctx, "preview.visit")
	defer leave(&err)
	if err != nil {
		return nil, err
	}
	view, _, err := x.visitView(ctx, visit)
	return view, err
}

func (x *Exposer) visitView(ctx context.Context, visit sandbox.ViewVisit) (*sandbox.View, store.Record, error) {
	if !ids.IsSandbox(visit.SandboxID) {
		return nil, store.Record{}, errNoView
	}
	view, err := x.cfg.Links.openView(visit.SandboxID, visit.Link)
	if err != nil {
		return nil, store.Record{}, err
	}
	r, err := x.cfg.Store.Sandbox(ctx, view.SandboxID)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound, err == nil && r.State.Final():
		return nil, r, sandbox.Errorf(sandbox.CodeNotFound, "this computer has ended")
	case err != nil:
		return nil, r, err
	case startup.DesktopOf(&r) == nil:
		return nil, r, errNoView
	}
	view.Name = cmp.Or(r.Name, r.ID)
	switch r.State {
	case sandbox.StateRunning:
		return view, r, nil
	case sandbox.StatePaused:
		return view, r, sandbox.Errorf(sandbox.CodeNotRunning, "this computer is paused; it shows again when it is resumed")
	}
	return view, r, sandbox.Errorf(sandbox.CodeNotRunning, "this computer is not running")
}

// HasView reports whether a computer with this id exists, without checking a link.
func (x *Exposer) HasView(ctx context.Context, id string) bool {
	if !ids.IsSandbox(id) {
		return false
	}
	r, err := x.cfg.Store.Sandbox(ctx, id)
	return err == nil && !r.State.Final() && startup.DesktopOf(&r) != nil
}

// DialView opens a connection to the VNC server of a computer for a visitor. The
// connection ends when the link expires. Watching does not count as use of the
// computer; call used when the visitor does something.
func (x *Exposer) DialView(ctx context.Context, visit sandbox.ViewVisit) (_ net.Conn, used func(), err error) {
	ctx, leave, err := x.cfg.Gate.Anonymous(ctx, "preview.visit")
	defer leave(&err)
	if err != nil {
		return nil, nil, err
	}
	view, r, err := x.visitView(ctx, visit)
	if err != nil {
		return nil, nil, err
	}
	number, err := displayNumber(startup.DesktopOf(&r).Display)
	if err != nil {
		return nil, nil, err
	}
	sbx, err := x.cfg.OpenRecord(ctx, &r)
	if err != nil {
		return nil, nil, err
	}
	conn, err := sbx.DialPort(ctx, vncPort+number, true)
	if err != nil {
		return nil, nil, err
	}
	x.cfg.Gate.System(&r, "computer.viewed", viewKind(view.Control))
	return x.visitors.add("view "+r.ID, conn, &view.ExpiresAt), func() { sbx.Touch(time.Now()) }, nil
}
