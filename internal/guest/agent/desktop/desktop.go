// Package desktop operates the screen of a sandbox: it takes screenshots, moves the
// pointer, types, and controls windows and the clipboard. It is itself an X client with
// one persistent connection, so an action takes a few messages and starts no process.
//
// All state of the connection is inside the sandbox, at both ends of a socket, so it
// survives pause, snapshot and fork. If the server has been restarted, the package
// reconnects.
package desktop

import (
	"cmp"
	"context"
	"errors"
	"image"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sh/cove/internal/guest/agent/desktop/x11"
	"github.com/cove-sh/cove/sandbox"
)

// SocketDir is where X servers have their sockets.
const SocketDir = "/tmp/.X11-unix"

// DefaultDisplay is the display that an empty name means.
const DefaultDisplay = ":1"

// startWait is how long to wait for a server that is starting or restarting.
const startWait = 2 * time.Second

// Config selects the screen of a [Desktop].
type Config struct {
	// Display is the name of the display; [DefaultDisplay] if empty.
	Display string
	// SocketDir is the directory of the X server's socket; [SocketDir] if empty.
	SocketDir string
}

// Desktop operates one screen. Its methods are safe for concurrent use: screenshots do
// not wait for inputs, while inputs wait for each other. Their errors are
// [sandbox.Error] values.
type Desktop struct {
	display string
	socket  string

	connecting mutex         // held while connecting
	live       *session      // guarded by connecting
	closed     bool          // guarded by connecting
	inputs     mutex         // held while the pointer and keyboard are used
	held       holding       // guarded by inputs
	keys       keyboard      // guarded by inputs
	shots      mutex         // held while a picture is in memory
	settling   mutex         // held while waiting for changes
	windows    mutex         // held while a window is changed
	maxSettle  time.Duration // the longest wait for a screen that keeps changing
	waits      waits
	frame      []byte     // for the next picture; guarded by shots
	shared     *segment   // for pictures; guarded by shots
	png        pngEncoder // guarded by shots
}

// waits holds timeouts. They have the values of the constants of the same names, except in
// tests, which may run on slow machines.
type waits struct {
	actWait, arriveWait, arriveTotal, pongWait time.Duration
	reactWait, reactCalm, reactTotal           time.Duration
	// late waits lateWindow for a program that does not answer pings.
	late func(context.Context) error
}

// New returns a Desktop. It connects when it is first used.
func New(cfg Config) (*Desktop, error) {
	display := cmp.Or(cfg.Display, DefaultDisplay)
	number, err := displayNumber(display)
	if err != nil {
		return nil, err
	}
	return &Desktop{
		maxSettle: sandbox.MaxStableWait,
		waits: waits{
			actWait: actWait, arriveWait: arriveWait, arriveTotal: arriveTotal, pongWait: pongWait,
			reactWait: reactWait, reactCalm: reactCalm, reactTotal: reactTotal,
			late: func(ctx context.Context) error { return pause(ctx, lateWindow) },
		},
		display:    display,
		socket:     filepath.Join(cmp.Or(cfg.SocketDir, SocketDir), "X"+strconv.Itoa(number)),
		connecting: newMutex(), inputs: newMutex(), shots: newMutex(), settling: newMutex(), windows: newMutex(),
	}, nil
}

// displayNumber parses the name of a display on this machine.
func displayNumber(display string) (int, error) {
	name, _ := strings.CutSuffix(display, ".0")
	number, ok := strings.CutPrefix(name, ":")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 0 || n > 1000 || strconv.Itoa(n) != number {
		return 0, sandbox.Errorf(sandbox.CodeInvalid, "the display %.32q is not one of the sandbox; give a name such as \":1\"", display)
	}
	return n, nil
}

// Close ends the connection, and the calls in progress. The server keeps held keys and
// buttons held.
func (d *Desktop) Close() {
	if d.connecting.lock(context.Background()) != nil {
		return
	}
	live := d.live
	d.live, d.closed = nil, true
	d.connecting.unlock()
	if live != nil {
		live.close()
	}
	// A screenshot in progress cannot reconnect, so it ends.
	if d.shots.lock(context.Background()) != nil {
		return
	}
	defer d.shots.unlock()
	if d.shared != nil {
		d.shared.release()
		d.shared = nil
	}
}

// mutex is a mutex whose lock can be cancelled.
type mutex chan struct{}

func newMutex() mutex { return make(mutex, 1) }

func (m mutex) lock(ctx context.Context) error {
	select {
	case m <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m mutex) unlock() { <-m }

func (m mutex) tryLock() bool {
	select {
	case m <- struct{}{}:
		return true
	default:
		return false
	}
}

// session is one connection to the server.
type session struct {
	*x11.Conn
	waits waits

	xtest, xfixes, damage, xkb x11.Extension
	shm                        x11.Extension // guarded by Desktop.shots once the session is ready

	atoms  atoms
	window uint32 // our own: owns selections and receives conversions

	size            atomic.Pointer[image.Point] // the last known size of the screen
	remapped        atomic.Bool                 // the keyboard mapping changed since it was read
	changed         chan struct{}               // the watched screen changed
	pong            chan uint32
	selectionEvents broadcaster
	clipboard       *clipboard
	ready           atomic.Bool // the fields above are set
	ended           sync.WaitGroup
}

// connect returns the current connection, or a new one if that has ended.
func (d *Desktop) connect(ctx context.Context) (*session, error) {
	if err := d.connecting.lock(ctx); err != nil {
		return nil, d.explain(err)
	}
	defer d.connecting.unlock()
	if d.closed {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the display %s was given up for others; try again", d.display)
	}
	if d.live != nil {
		select {
		case <-d.live.Dead():
			d.live.close()
			d.live = nil
		default:
			return d.live, nil
		}
	}
	s, err := d.dial(ctx)
	if err != nil {
		return nil, d.explain(err)
	}
	d.live = s
	return s, nil
}

func (d *Desktop) dial(ctx context.Context) (*session, error) {
	deadline := time.Now().Add(startWait)
	for {
		nc, err := (&net.Dialer{Timeout: startWait}).DialContext(ctx, "unix", d.socket)
		if err == nil {
			return newSession(ctx, nc, d.waits)
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return nil, &dialError{err}
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

type dialError struct{ error }

func newSession(ctx context.Context, nc net.Conn, w waits) (*session, error) {
	s := &session{waits: w, changed: make(chan struct{}, 1), pong: make(chan uint32, 16)}
	s.remapped.Store(true)
	conn, err := x11.Connect(ctx, nc, s.event)
	if err != nil {
		return nil, err
	}
	s.Conn = conn
	if err := s.prepare(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	s.ended.Go(s.clipboard.run)
	s.ready.Store(true)
	return s, nil
}

func (s *session) prepare(ctx context.Context) error {
	list, err := s.QueryExtensions(ctx, "XTEST", "XFIXES", "DAMAGE", "XKEYBOARD")
	if err != nil {
		return err
	}
	s.xtest, s.xfixes, s.damage, s.xkb = list[0], list[1], list[2], list[3]
	// DAMAGE needs XFIXES. Both must be told the version first.
	if s.xfixes.Opcode != 0 {
		if err := s.Version(ctx, s.xfixes, 5, 0); err != nil {
			return err
		}
	}
	if s.damage.Opcode != 0 {
		if err := s.Version(ctx, s.damage, 1, 1); err != nil {
			return err
		}
	}
	if s.xkb.Opcode != 0 {
		if err := s.UseXKB(ctx, s.xkb); err != nil {
			return err
		}
	}
	if s.shm, err = s.Shm(ctx); err != nil {
		return err
	}
	if s.atoms, err = internAtoms(ctx, s.Conn); err != nil {
		return err
	}
	s.clipboard = newClipboard(s)
	id, made := s.CreateWindow(x11.PropertyChangeMask)
	if _, err := made.Wait(ctx); err != nil {
		return err
	}
	s.window = id
	s.SelectInput(s.Setup().Root, x11.SubstructureNotifyMask|x11.StructureNotifyMask)
	_, err = s.screen(ctx)
	return err
}

func (s *session) close() {
	s.Conn.Close()
	s.ended.Wait()
}

// event handles an event of the server. It must not block.
func (s *session) event(e *x11.Event) {
	if e.Code() == x11.EventMappingNotify {
		s.remapped.Store(true)
	}
	if !s.ready.Load() {
		return
	}
	if s.xkb.Opcode != 0 && e.Code() == s.xkb.FirstEvent {
		s.remapped.Store(true)
	}
	switch code := e.Code(); {
	case code == x11.EventConfigureNotify && e.Uint32(8) == s.Setup().Root:
		if w, h := int(e.Uint32(20)&0xffff), int(e.Uint32(20)>>16); w > 0 && h > 0 {
			s.size.Store(&image.Point{X: w, Y: h})
		}
	case code == x11.EventClientMessage && e.Uint32(8) == s.atoms.protocols && e.Uint32(12) == s.atoms.ping:
		select {
		case s.pong <- e.Uint32(16):
		default:
		}
	case code == x11.EventSelectionNotify, code == x11.EventPropertyNotify, code == x11.EventDestroyNotify:
		s.selectionEvents.deliver(e)
	case code == x11.EventSelectionRequest, code == x11.EventSelectionClear:
		s.clipboard.post(e)
	case s.damage.Opcode != 0 && code == s.damage.FirstEvent:
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// retry calls f, and calls it once more if the connection ended meanwhile: the server may
// have been restarted. f must be idempotent.
func retry[T any](ctx context.Context, d *Desktop, f func(*session) (T, error)) (T, error) {
	for again := false; ; again = true {
		s, err := d.connect(ctx)
		if err != nil {
			var none T
			return none, err
		}
		result, err := f(s)
		if err == nil {
			return result, nil
		}
		if again || ctx.Err() != nil || s.Err() == nil || errors.Is(err, x11.ErrSilent) {
			return result, d.explain(err)
		}
	}
}

// explain converts an error to a [sandbox.Error].
func (d *Desktop) explain(err error) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return sandbox.Wrap(sandbox.CodeCancelled, err, "the call was cancelled")
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return sandbox.Wrap(sandbox.CodeTimeout, err, "the call ran out of time")
	}
	if _, ok := errors.AsType[*dialError](err); ok {
		return sandbox.Errorf(sandbox.CodeUnavailable, "no X server runs on display %s; look at the jobs for why it ended, and start it", d.display)
	}
	if e, ok := errors.AsType[*x11.RefusedError](err); ok {
		return sandbox.Errorf(sandbox.CodeUnavailable, "the X server on display %s refuses connections (%.200s); start it without access control, as with -ac", d.display, e.Reason)
	}
	if errors.Is(err, x11.ErrSilent) {
		return sandbox.Errorf(sandbox.CodeUnavailable, "the X server on display %s does not answer; try again, or start it anew", d.display)
	}
	if e, ok := errors.AsType[*x11.Error](err); ok {
		return sandbox.Errorf(sandbox.CodeUnavailable, "the X server on display %s refused: %v; try again", d.display, e)
	}
	return sandbox.Errorf(sandbox.CodeUnavailable, "the connection to the X server on display %s broke: %v; try again", d.display, err)
}

// GetScreen returns the size of the screen and the position of the pointer.
func (d *Desktop) GetScreen(ctx context.Context) (*sandbox.Screen, error) {
	return retry(ctx, d, func(s *session) (*sandbox.Screen, error) { return s.screen(ctx) })
}

// screen queries the size of the screen and the pointer in one round trip.
func (s *session) screen(ctx context.Context) (*sandbox.Screen, error) {
	return s.askScreen().wait(ctx)
}

// screenReply holds pending replies with the size of the screen and the pointer.
type screenReply struct {
	s             *session
	size, pointer *x11.Reply
}

func (s *session) askScreen() screenReply {
	return screenReply{s: s, size: s.GetGeometry(s.Setup().Root), pointer: s.QueryPointer()}
}

func (r screenReply) wait(ctx context.Context) (*sandbox.Screen, error) {
	b, err := r.size.Wait(ctx)
	if err != nil {
		return nil, err
	}
	g := x11.ParseGeometry(b)
	if b, err = r.pointer.Wait(ctx); err != nil {
		return nil, err
	}
	p := x11.ParsePointer(b)
	if g.Width < 1 || g.Height < 1 {
		return nil, errors.New("the screen has no size")
	}
	r.s.size.Store(&image.Point{X: g.Width, Y: g.Height})
	return &sandbox.Screen{
		Width: g.Width, Height: g.Height,
		CursorX: min(max(p.X, 0), g.Width-1), CursorY: min(max(p.Y, 0), g.Height-1),
	}, nil
}

// atoms are the server's numbers of names.
type atoms struct {
	clipboard, targets, utf8, text, plain, plainUTF8, multiple, timestamp, incr, atomPair, transfer uint32

	protocols, ping, deleteWindow, changeState                         uint32
	supported, clientsStacking, clients, active, name, pid, extents    uint32
	gtkExtents, state, hidden, maxVert, maxHorz, closeWindow, moveSize uint32
}

func internAtoms(ctx context.Context, c *x11.Conn) (a atoms, err error) {
	table := []struct {
		name string
		at   *uint32
	}{
		{"CLIPBOARD", &a.clipboard}, {"TARGETS", &a.targets}, {"UTF8_STRING", &a.utf8}, {"TEXT", &a.text},
		{"text/plain", &a.plain}, {"text/plain;charset=utf-8", &a.plainUTF8}, {"MULTIPLE", &a.multiple},
		{"TIMESTAMP", &a.timestamp}, {"INCR", &a.incr}, {"ATOM_PAIR", &a.atomPair}, {"COVE_TRANSFER", &a.transfer},
		{"WM_PROTOCOLS", &a.protocols}, {"_NET_WM_PING", &a.ping}, {"WM_DELETE_WINDOW", &a.deleteWindow},
		{"WM_CHANGE_STATE", &a.changeState}, {"_NET_SUPPORTED", &a.supported},
		{"_NET_CLIENT_LIST_STACKING", &a.clientsStacking}, {"_NET_CLIENT_LIST", &a.clients},
		{"_NET_ACTIVE_WINDOW", &a.active}, {"_NET_WM_NAME", &a.name}, {"_NET_WM_PID", &a.pid},
		{"_NET_FRAME_EXTENTS", &a.extents}, {"_GTK_FRAME_EXTENTS", &a.gtkExtents}, {"_NET_WM_STATE", &a.state},
		{"_NET_WM_STATE_HIDDEN", &a.hidden}, {"_NET_WM_STATE_MAXIMIZED_VERT", &a.maxVert},
		{"_NET_WM_STATE_MAXIMIZED_HORZ", &a.maxHorz}, {"_NET_CLOSE_WINDOW", &a.closeWindow},
		{"_NET_MOVERESIZE_WINDOW", &a.moveSize},
	}
	names := make([]string, len(table))
	for i := range table {
		names[i] = table[i].name
	}
	list, err := c.InternAtoms(ctx, names...)
	if err != nil {
		return a, err
	}
	for i := range table {
		*table[i].at = list[i]
	}
	return a, nil
}

// broadcaster passes events to subscribers. The zero value has no subscribers.
type broadcaster struct {
	mu          sync.Mutex
	subscribers map[chan x11.Event]bool // guarded by mu
}

// subscribe returns a channel that gets events until stop is called. Events are lost
// while it is full.
func (b *broadcaster) subscribe() (events <-chan x11.Event, stop func()) {
	ch := make(chan x11.Event, 256)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subscribers == nil {
		b.subscribers = map[chan x11.Event]bool{}
	}
	b.subscribers[ch] = true
	return ch, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subscribers, ch)
	}
}

func (b *broadcaster) deliver(e *x11.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ch := range b.subscribers {
		select {
		case ch <- *e:
		default:
		}
	}
}
