package desktop

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/guest/agent/desktop/x11"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxTitle bounds a title, maxSmall other properties, in bytes.
	maxTitle = 1024
	maxSmall = 4096
	// maxExtent bounds the width of a frame at one side, in pixels.
	maxExtent = 1000
	// actWait bounds the wait for a window to reach the requested state.
	actWait = 1500 * time.Millisecond
	// actInterval is the polling interval.
	actInterval = 10 * time.Millisecond
)

// The states of WM_CHANGE_STATE and actions of _NET_WM_STATE.
const (
	iconicState = 3
	stateRemove = 0
	stateAdd    = 1
	// fromPager marks a request as the user's own.
	fromPager = 2
)

// ListWindows returns the top-level windows, topmost first.
func (d *Desktop) ListWindows(ctx context.Context) ([]sandbox.Window, error) {
	return retry(ctx, d, func(s *session) ([]sandbox.Window, error) {
		list, err := s.list(ctx)
		if err != nil {
			return nil, err
		}
		return public(list), nil
	})
}

// window is a window with the data that is needed to change it.
type window struct {
	sandbox.Window
	id uint32
	// frame is the width of the window manager's frame, shadow the width of the invisible
	// border that the program draws itself: left, right, top, bottom.
	frame, shadow [4]int
	maximized     bool
}

func public(list []window) []sandbox.Window {
	all := make([]sandbox.Window, len(list))
	for i := range list {
		all[i] = list[i].Window
	}
	return all
}

// list queries all windows in one round trip.
func (s *session) list(ctx context.Context) ([]window, error) {
	ids, active, err := s.ids(ctx)
	if err != nil {
		return nil, err
	}
	queries := make([]*windowQuery, len(ids))
	for i, id := range ids {
		queries[i] = s.query(id)
	}
	list := make([]window, 0, len(ids))
	for _, q := range slices.Backward(queries) { // the topmost window is last
		w, err := q.wait(ctx, s)
		if _, ok := errors.AsType[*x11.Error](err); ok {
			continue // the window is gone
		}
		if err != nil {
			return nil, err
		}
		w.Focused = w.id == active
		list = append(list, *w)
	}
	return list, nil
}

// ids returns the top-level windows, topmost last, and the active window.
func (s *session) ids(ctx context.Context) (ids []uint32, active uint32, err error) {
	root := s.Setup().Root
	stacking := s.GetProperty(root, s.atoms.clientsStacking, 4*sandbox.MaxWindows, false)
	clients := s.GetProperty(root, s.atoms.clients, 4*sandbox.MaxWindows, false)
	focused := s.GetProperty(root, s.atoms.active, maxSmall, false)
	managed := false
	for _, r := range []*x11.Reply{stacking, clients} {
		p, err := property(ctx, r)
		if err != nil {
			return nil, 0, err
		}
		if p.Type == x11.AtomWindow && ids == nil {
			ids, managed = p.Uint32s(), true
		}
	}
	p, err := property(ctx, focused)
	if err != nil {
		return nil, 0, err
	}
	if list := p.Uint32s(); len(list) > 0 {
		active = list[0]
	}
	if managed {
		return ids, active, nil
	}
	return s.unmanaged(ctx)
}

// unmanaged is ids for a screen without a window manager: the root's visible children are
// the windows.
func (s *session) unmanaged(ctx context.Context) (ids []uint32, active uint32, err error) {
	_, children, err := s.QueryTree(ctx, s.Setup().Root)
	if err != nil {
		return nil, 0, err
	}
	children = children[max(0, len(children)-sandbox.MaxWindows):]
	replies := make([]*x11.Reply, len(children))
	for i, id := range children {
		replies[i] = s.GetWindowAttributes(id)
	}
	for i, r := range replies {
		b, err := r.Wait(ctx)
		if _, ok := errors.AsType[*x11.Error](err); ok {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		if shown, managed := x11.ParseShown(b); shown && managed {
			ids = append(ids, children[i])
		}
	}
	if active, err = s.InputFocus(ctx); err != nil {
		return nil, 0, err
	}
	return ids, active, nil
}

func property(ctx context.Context, r *x11.Reply) (*x11.Property, error) {
	b, err := r.Wait(ctx)
	if err != nil {
		return nil, err
	}
	return x11.ParseProperty(b)
}

// windowQuery holds the pending replies about a window.
type windowQuery struct {
	id                                                    uint32
	geometry, place                                       *x11.Reply
	name, oldName, class, pid, extents, gtkExtents, state *x11.Reply
}

func (s *session) query(id uint32) *windowQuery {
	get := func(atom uint32, limit int) *x11.Reply { return s.GetProperty(id, atom, limit, false) }
	return &windowQuery{
		id: id, geometry: s.GetGeometry(id), place: s.TranslateToRoot(id),
		name: get(s.atoms.name, maxTitle), oldName: get(x11.AtomWMName, maxTitle), class: get(x11.AtomWMClass, maxTitle),
		pid: get(s.atoms.pid, maxSmall), extents: get(s.atoms.extents, maxSmall), gtkExtents: get(s.atoms.gtkExtents, maxSmall),
		state: get(s.atoms.state, maxSmall),
	}
}

// wait waits for the replies. Properties come from programs; malformed ones are ignored.
func (q *windowQuery) wait(ctx context.Context, s *session) (*window, error) {
	w := &window{Window: sandbox.Window{ID: int64(q.id)}, id: q.id}
	b, err := q.geometry.Wait(ctx)
	if err != nil {
		return nil, err
	}
	g := x11.ParseGeometry(b)
	if b, err = q.place.Wait(ctx); err != nil {
		return nil, err
	}
	x, y := x11.ParseTranslated(b)
	props := make([]*x11.Property, 7)
	for i, r := range []*x11.Reply{q.name, q.oldName, q.class, q.pid, q.extents, q.gtkExtents, q.state} {
		b, err := r.Wait(ctx)
		if err != nil {
			return nil, err
		}
		if props[i], err = x11.ParseProperty(b); err != nil {
			props[i] = &x11.Property{}
		}
	}
	if w.Title = text(props[0]); w.Title == "" {
		w.Title = text(props[1])
	}
	w.Class = class(props[2])
	if n := props[3].Uint32s(); len(n) > 0 && n[0] < 1<<31 {
		w.PID = int(n[0])
	}
	w.frame, w.shadow = extents(props[4]), extents(props[5])
	states := props[6].Uint32s()
	w.Hidden = slices.Contains(states, s.atoms.hidden)
	w.maximized = slices.Contains(states, s.atoms.maxVert) || slices.Contains(states, s.atoms.maxHorz)
	w.Region = sandbox.Region{
		X: x - g.Border - w.frame[0] + w.shadow[0], Y: y - g.Border - w.frame[2] + w.shadow[2],
		Width:  max(1, g.Width+2*g.Border+w.frame[0]+w.frame[1]-w.shadow[0]-w.shadow[1]),
		Height: max(1, g.Height+2*g.Border+w.frame[2]+w.frame[3]-w.shadow[2]-w.shadow[3]),
	}
	return w, nil
}

// text decodes a title. Old programs write Latin-1.
func text(p *x11.Property) string {
	if p.Format != 8 {
		return ""
	}
	v, _, _ := strings.Cut(string(p.Value), "\x00")
	if p.Type == x11.AtomString && !utf8.ValidString(v) {
		return latin1([]byte(v))
	}
	if p.More > 0 {
		v = clip.TrimEnd(v)
	}
	return strings.ToValidUTF8(v, "\uFFFD")
}

func latin1(b []byte) string {
	runes := make([]rune, len(b))
	for i, c := range b {
		runes[i] = rune(c)
	}
	return string(runes)
}

// class returns the second of the two names in WM_CLASS, the program's class.
func class(p *x11.Property) string {
	if p.Format != 8 {
		return ""
	}
	names := strings.Split(string(p.Value), "\x00")
	if len(names) > 1 && names[1] != "" {
		return strings.ToValidUTF8(names[1], "\uFFFD")
	}
	return strings.ToValidUTF8(names[0], "\uFFFD")
}

// extents decodes the widths at the left, right, top and bottom.
func extents(p *x11.Property) (e [4]int) {
	n := p.Uint32s()
	if len(n) < 4 {
		return e
	}
	for i := range e {
		if n[i] > maxExtent {
			return [4]int{}
		}
		e[i] = int(n[i])
	}
	return e
}

// hasProtocol reports whether a window's program supports a protocol.
func (s *session) hasProtocol(ctx context.Context, id, protocol uint32) bool {
	p, err := property(ctx, s.GetProperty(id, s.atoms.protocols, maxSmall, false))
	return err == nil && slices.Contains(p.Uint32s(), protocol)
}

// ControlWindow changes a window, waits until the change is done or a timeout expires, and
// returns all windows. A program may ask the user before it closes a window.
func (d *Desktop) ControlWindow(ctx context.Context, req *sandbox.WindowRequest) ([]sandbox.Window, error) {
	if err := checkControl(req); err != nil {
		return nil, err
	}
	if err := d.windows.lock(ctx); err != nil {
		return nil, d.explain(err)
	}
	defer d.windows.unlock()
	s, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	list, err := s.control(ctx, req)
	if err != nil {
		return nil, d.explain(err)
	}
	return public(list), nil
}

func checkControl(req *sandbox.WindowRequest) error {
	switch req.Action {
	case sandbox.WindowPlace:
		r := req.Region
		if r == nil || r.Width < 1 || r.Height < 1 || r.Width > sandbox.MaxScreenWidth || r.Height > sandbox.MaxScreenHeight ||
			r.X < -sandbox.MaxScreenWidth || r.X > sandbox.MaxScreenWidth || r.Y < -sandbox.MaxScreenHeight || r.Y > sandbox.MaxScreenHeight {
			return sandbox.Errorf(sandbox.CodeInvalid, "to place a window takes a region on the screen")
		}
		return nil
	case sandbox.WindowFocus, sandbox.WindowClose, sandbox.WindowMinimize, sandbox.WindowMaximize:
		if req.Region != nil {
			return sandbox.Errorf(sandbox.CodeInvalid, "the action %s has no region; leave it out", req.Action)
		}
		return nil
	}
	return sandbox.Errorf(sandbox.CodeInvalid, "the action %.32q is unknown; use focus, close, minimize, maximize or place", req.Action)
}

func find(list []window, id int64) *window {
	if i := slices.IndexFunc(list, func(w window) bool { return w.ID == id }); i >= 0 {
		return &list[i]
	}
	return nil
}

func (s *session) control(ctx context.Context, req *sandbox.WindowRequest) ([]window, error) {
	list, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	w := find(list, req.ID)
	if w == nil {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no window %d; list the windows to see their ids", req.ID)
	}
	manager, err := s.manager(ctx)
	if err != nil {
		return nil, err
	}
	reached, err := s.act(ctx, w, req, manager)
	if err != nil {
		return nil, err
	}
	if list, err = s.await(ctx, req.ID, reached); err != nil || req.Action != sandbox.WindowPlace {
		return list, err
	}
	if now := find(list, req.ID); now != nil && (now.frame != w.frame || now.shadow != w.shadow) && now.Region != *req.Region {
		// Its frame was different while it was maximised.
		reached = s.place(now, req.Region, len(manager) > 0)
		return s.await(ctx, req.ID, reached)
	}
	return list, nil
}

// manager returns the features of the window manager, or nil if there is none.
func (s *session) manager(ctx context.Context) ([]uint32, error) {
	p, err := property(ctx, s.GetProperty(s.Setup().Root, s.atoms.supported, maxSmall, false))
	if err != nil {
		return nil, err
	}
	return p.Uint32s(), nil
}

// act sends the request. It returns a function that reports whether a window, or nil if it
// is gone, has reached the requested state.
func (s *session) act(ctx context.Context, w *window, req *sandbox.WindowRequest, manager []uint32) (func(*window) bool, error) {
	root, managed := s.Setup().Root, len(manager) > 0
	switch req.Action {
	case sandbox.WindowFocus:
		if managed {
			s.activate(w)
		} else {
			s.RaiseWindow(w.id)
			s.FocusWindow(w.id)
		}
		return func(w *window) bool { return w == nil || w.Focused && !w.Hidden }, s.Flush()
	case sandbox.WindowClose:
		return func(w *window) bool { return w == nil }, s.closeWindow(ctx, w, manager)
	case sandbox.WindowMinimize:
		if managed {
			s.ClientMessage(root, w.id, s.atoms.changeState, iconicState)
		} else {
			s.UnmapWindow(w.id)
		}
		return func(w *window) bool { return w == nil || w.Hidden }, s.Flush()
	case sandbox.WindowMaximize:
		if managed {
			s.activate(w)
			s.ClientMessage(root, w.id, s.atoms.state, stateAdd, s.atoms.maxVert, s.atoms.maxHorz, fromPager)
			before := *w // the state changes before the size
			return func(w *window) bool {
				return w == nil || w.maximized && (before.maximized || w.Region != before.Region)
			}, s.Flush()
		}
		screen, err := s.screen(ctx)
		if err != nil {
			return nil, err
		}
		s.PlaceWindow(w.id, 0, 0, screen.Width, screen.Height)
		return func(*window) bool { return true }, s.Flush()
	}
	if w.maximized && managed {
		// The frame changes with the state.
		s.ClientMessage(root, w.id, s.atoms.state, stateRemove, s.atoms.maxVert, s.atoms.maxHorz, fromPager)
		list, err := s.await(ctx, w.ID, func(w *window) bool { return w == nil || !w.maximized })
		if err != nil {
			return nil, err
		}
		if now := find(list, w.ID); now != nil {
			w = now
		}
	}
	return s.place(w, req.Region, managed), s.Flush()
}

// await lists the windows until the window has reached a state or a timeout expires.
func (s *session) await(ctx context.Context, id int64, reached func(*window) bool) ([]window, error) {
	end := time.Now().Add(s.waits.actWait)
	for {
		list, err := s.list(ctx)
		if err != nil || reached(find(list, id)) || time.Now().After(end) {
			return list, err
		}
		if err := pause(ctx, actInterval); err != nil {
			return nil, err
		}
	}
}

// activate shows a window, raises it and gives it the keyboard focus.
func (s *session) activate(w *window) {
	if w.Hidden {
		s.MapWindow(w.id)
	}
	s.ClientMessage(s.Setup().Root, w.id, s.atoms.active, fromPager)
}

// closeWindow asks a window to close, as its close button does.
func (s *session) closeWindow(ctx context.Context, w *window, manager []uint32) error {
	switch {
	case slices.Contains(manager, s.atoms.closeWindow):
		s.ClientMessage(s.Setup().Root, w.id, s.atoms.closeWindow, 0, fromPager)
	case s.hasProtocol(ctx, w.id, s.atoms.deleteWindow):
		s.ClientMessage(w.id, w.id, s.atoms.protocols, s.atoms.deleteWindow)
	default:
		s.KillClient(w.id)
	}
	return s.Flush()
}

// place moves and sizes a window so that its visible part fills a region.
func (s *session) place(w *window, r *sandbox.Region, managed bool) func(*window) bool {
	width := max(1, r.Width-w.frame[0]-w.frame[1]+w.shadow[0]+w.shadow[1])
	height := max(1, r.Height-w.frame[2]-w.frame[3]+w.shadow[2]+w.shadow[3])
	x, y := r.X-w.shadow[0], r.Y-w.shadow[2]
	if !managed {
		s.PlaceWindow(w.id, x, y, width, height)
		return func(*window) bool { return true }
	}
	root := s.Setup().Root
	s.activate(w)
	// With gravity north-west the position is that of the frame. All four values are set.
	const flags = 1 | 1<<8 | 1<<9 | 1<<10 | 1<<11 | fromPager<<12
	s.ClientMessage(root, w.id, s.atoms.moveSize, flags, uint32(int32(x)), uint32(int32(y)), uint32(width), uint32(height))
	before, wanted := w.Region, *r
	var seen time.Time
	return func(w *window) bool {
		switch {
		case w == nil || w.Region == wanted:
			return true
		case w.Region == before || w.maximized:
			return false
		case seen.IsZero():
			seen = time.Now()
		}
		// Programs limit their sizes, to whole characters or a minimum: this may be the
		// nearest size.
		return time.Since(seen) > 20*actInterval
	}
}
