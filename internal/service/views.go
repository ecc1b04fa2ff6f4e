package service

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/service/call"
	"github.com/cove-sh/cove/internal/service/ids"
	"github.com/cove-sh/cove/internal/service/startup"
	"github.com/cove-sh/cove/internal/service/validate"
	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

// vncPort is where the X server of display 0 speaks VNC, on the loopback device;
// others come after it.
const vncPort = 5900

// maxDisplay is the largest number of a display.
const maxDisplay = 99

// errNoView is the answer to every visitor of what is not there for them.
var errNoView = sandbox.Errorf(sandbox.CodeForbidden, "this link opens no live view; it may have expired, ask for a new one")

// ViewComputer implements [sandbox.Computers]. It does not wake a paused
// computer, and neither does whoever opens the link.
func (s *Service) ViewComputer(ctx context.Context, ref string, req sandbox.ViewRequest) (*sandbox.ViewLink, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeComputersWrite, "computer.view"), func(c *call.Call) (*sandbox.ViewLink, error) {
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
			return nil, s.noScreen(c.Ctx, r.ID)
		case r.State != sandbox.StateRunning && r.State != sandbox.StatePaused:
			return nil, call.NotRunning(&r)
		}
		if _, err := displayNumber(desktop.Display); err != nil {
			return nil, err
		}
		until := time.Now().UTC().Add(time.Duration(req.TTLSeconds) * time.Second).Truncate(time.Second)
		c.Detail = viewKind(req.Control) + " until " + until.Format(time.RFC3339)
		query := url.Values{sandbox.ViewLinkParam: {s.signView(r.ID, req.Control, until)}}
		return &sandbox.ViewLink{
			URL: s.cfg.PreviewURL(sandbox.ViewLabel+r.ID) + "/?" + query.Encode(), Control: req.Control, ExpiresAt: until,
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
		return 0, sandbox.Errorf(sandbox.CodeUnsupported, "the template's display %s is none that can be watched; build it with one from :0 to :%d", validate.Quote(display), maxDisplay)
	}
	return int(n), nil
}

// signView returns the signed part of a link: it is good for this sandbox until
// then.
func (s *Service) signView(id string, control bool, until time.Time) string {
	kind, expires := viewKind(control), strconv.FormatInt(until.Unix(), 10)
	return strings.Join([]string{linkVersion, kind, expires, base64.RawURLEncoding.EncodeToString(s.viewMAC(id, kind, expires))}, ".")
}

func (s *Service) viewMAC(id, kind, expires string) []byte {
	mac := hmac.New(sha256.New, s.cfg.PreviewKey)
	fmt.Fprintf(mac, "cove view link %s\n%s\n%s\n%s\n", linkVersion, id, kind, expires)
	return mac.Sum(nil)
}

// openViewLink returns what a link opens.
func (s *Service) openViewLink(id, link string) (*sandbox.View, error) {
	parts := strings.Split(link, ".")
	if len(parts) != 4 || parts[0] != linkVersion {
		return nil, errNoView
	}
	kind, expires := parts[1], parts[2]
	got, err := base64.RawURLEncoding.Strict().DecodeString(parts[3])
	if err != nil || !hmac.Equal(got, s.viewMAC(id, kind, expires)) {
		return nil, errNoView
	}
	seconds, err := strconv.ParseInt(expires, 10, 64)
	if err != nil || !time.Now().Before(time.Unix(seconds, 0)) {
		return nil, errNoView
	}
	return &sandbox.View{SandboxID: id, Control: kind == viewKind(true), ExpiresAt: time.Unix(seconds, 0).UTC()}, nil
}

// VisitView admits a visitor of a live view, who needs no key of the server's.
// The error is forbidden for a link that opens nothing, not_found for a
// computer that is gone, not_running for one that is paused, which comes with its
// view. It wakes none: a page that stays open would keep it awake for ever.
func (s *Service) VisitView(ctx context.Context, visit sandbox.ViewVisit) (_ *sandbox.View, err error) {
	ctx, leave, err := s.gate.Anonymous(ctx, "preview.visit")
	defer leave(&err)
	if err != nil {
		return nil, err
	}
	view, _, err := s.visitView(ctx, visit)
	return view, err
}

func (s *Service) visitView(ctx context.Context, visit sandbox.ViewVisit) (*sandbox.View, store.Record, error) {
	if !ids.IsSandbox(visit.SandboxID) {
		return nil, store.Record{}, errNoView
	}
	view, err := s.openViewLink(visit.SandboxID, visit.Link)
	if err != nil {
		return nil, store.Record{}, err
	}
	r, err := s.cfg.Store.Sandbox(ctx, view.SandboxID)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound, err == nil && r.State.Final():
		return nil, r, sandbox.Errorf(sandbox.CodeNotFound, "this computer is gone")
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

// HasView reports whether there is such a computer, whoever may see it.
func (s *Service) HasView(ctx context.Context, id string) bool {
	if !ids.IsSandbox(id) {
		return false
	}
	r, err := s.cfg.Store.Sandbox(ctx, id)
	return err == nil && !r.State.Final() && startup.DesktopOf(&r) != nil
}

// DialView opens a connection to the VNC server of a computer for a visitor. It
// ends with the link. Watching is no use of the computer, and does not keep it
// from being idle; used notes that the visitor did something.
func (s *Service) DialView(ctx context.Context, visit sandbox.ViewVisit) (_ net.Conn, used func(), err error) {
	ctx, leave, err := s.gate.Anonymous(ctx, "preview.visit")
	defer leave(&err)
	if err != nil {
		return nil, nil, err
	}
	view, r, err := s.visitView(ctx, visit)
	if err != nil {
		return nil, nil, err
	}
	number, err := displayNumber(startup.DesktopOf(&r).Display)
	if err != nil {
		return nil, nil, err
	}
	h, err := s.openRecord(ctx, &r)
	if err != nil {
		return nil, nil, err
	}
	gateway, ok := h.instance.(engine.Gateway)
	if !ok {
		return nil, nil, sandbox.Errorf(sandbox.CodeUnsupported, "this server cannot connect to sandboxes")
	}
	conn, err := gateway.DialPort(ctx, vncPort+number, true)
	if err != nil {
		return nil, nil, h.explain(ctx, err)
	}
	s.gate.System(&r, "computer.viewed", viewKind(view.Control))
	return s.visitors.add("view "+r.ID, conn, &view.ExpiresAt), func() { h.Touch(time.Now()) }, nil
}
