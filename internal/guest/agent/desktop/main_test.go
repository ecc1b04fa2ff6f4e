package desktop

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
	"go.uber.org/goleak"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// patience is how long a test waits for what must happen.
const patience = 90 * time.Second

func TestMain(m *testing.M) {
	xgb.Logger = log.New(io.Discard, "", 0)
	code := m.Run()
	shared.stop()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("this did not come true: %s", what)
		}
	}
}

// xserver is an X server as a child.
type xserver struct {
	display string
	cmd     *exec.Cmd
}

// startX starts an X server on a display that is free, or the one that the
// arguments begin with.
func startX(t testing.TB, program string, args ...string) *xserver {
	t.Helper()
	needs.Command(t, program)
	x, err := runX(program, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.stop)
	return x
}

func runX(program string, args ...string) (*xserver, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command(program, append(args, "-displayfd", "3", "-nolisten", "tcp", "-ac", "-noreset")...)
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("%s does not start: %w", program, err)
	}
	return &xserver{display: ":" + strings.TrimSpace(line), cmd: cmd}, nil
}

// stop ends the server in order, so that it removes its files.
func (x *xserver) stop() {
	_ = x.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(patience, func() { _ = x.cmd.Process.Kill() })
	_ = x.cmd.Wait()
	late.Stop()
}

// run starts a program on the display; it ends with the test.
func (x *xserver) run(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	needs.Command(t, program)
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "DISPLAY="+x.display)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// desktop returns a Desktop of the display.
func (x *xserver) desktop(t testing.TB) *Desktop {
	t.Helper()
	d, err := New(Config{Display: x.display})
	if err != nil {
		t.Fatal(err)
	}
	// What tests request happens, perhaps late. A call that waits in vain ends before
	// patience does.
	d.waits.actWait, d.waits.arriveWait, d.waits.arriveTotal, d.waits.pongWait = patience/3, patience/3, patience/3, patience/3
	t.Cleanup(d.Close)
	return d
}

// sharedServer is the server that most tests share, with a window manager.
type sharedServer struct {
	once    sync.Once
	x       *xserver
	manager *exec.Cmd
	ready   string // a file that exists once the manager has started
	err     error
}

var shared sharedServer

func (s *sharedServer) start(t testing.TB) *xserver {
	t.Helper()
	needs.Command(t, "Xvfb", "openbox")
	s.once.Do(func() {
		if s.x, s.err = runX("Xvfb", "-screen", "0", "1280x800x24"); s.err != nil {
			return
		}
		dir, err := os.MkdirTemp("", "cove-desktop-test")
		if err != nil {
			s.err = err
			return
		}
		s.ready = filepath.Join(dir, "ready")
		s.manager = exec.Command("openbox", "--sm-disable", "--config-file", "/etc/xdg/openbox/rc.xml", "--startup", "touch "+s.ready)
		s.manager.Env = append(os.Environ(), "DISPLAY="+s.x.display)
		s.manager.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		s.err = s.manager.Start()
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	// The manager does not notice windows that appear while it starts.
	eventually(t, "the window manager runs", func() bool {
		_, err := os.Stat(s.ready)
		return err == nil
	})
	return s.x
}

func (s *sharedServer) stop() {
	if s.manager != nil && s.manager.Process != nil {
		_ = s.manager.Process.Kill()
		_ = s.manager.Wait()
	}
	if s.x != nil {
		s.x.stop()
	}
	if s.ready != "" {
		_ = os.RemoveAll(filepath.Dir(s.ready))
	}
}

// witness is a window of another program, made with another implementation of
// the protocol. It notes what happens to it, and what was typed.
type witness struct {
	t  testing.TB
	d  *Desktop
	x  *xgb.Conn
	id xproto.Window

	ping, protocols, deleteWindow, mark xproto.Atom

	slow time.Duration // before it reads a new mapping

	mu    sync.Mutex
	log   []string // guarded by mu
	text  []rune   // guarded by mu
	marks int      // guarded by mu
	keys  *xproto.GetKeyboardMappingReply
	end   chan struct{}
}

// watch shows a window. Its program may be slow; if pings is set, it answers whether it has
// read all events.
func (x *xserver) watch(t testing.TB, title string, r sandbox.Region, slow time.Duration, pings bool) *witness {
	t.Helper()
	conn, err := xgb.NewConnDisplay(x.display)
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{t: t, d: x.desktop(t), x: conn, slow: slow, end: make(chan struct{})}
	if w.id, err = xproto.NewWindowId(conn); err != nil {
		t.Fatal(err)
	}
	screen := xproto.Setup(conn).DefaultScreen(conn)
	if err := xproto.CreateWindowChecked(conn, screen.RootDepth, w.id, screen.Root, int16(r.X), int16(r.Y), uint16(r.Width), uint16(r.Height), 0,
		xproto.WindowClassInputOutput, screen.RootVisual, xproto.CwBackPixel|xproto.CwEventMask, []uint32{0xffffff,
			xproto.EventMaskKeyPress | xproto.EventMaskKeyRelease | xproto.EventMaskButtonPress | xproto.EventMaskButtonRelease |
				xproto.EventMaskPointerMotion | xproto.EventMaskStructureNotify | xproto.EventMaskFocusChange}).Check(); err != nil {
		t.Fatal(err)
	}
	w.protocols, w.ping, w.deleteWindow = w.atom("WM_PROTOCOLS"), w.atom("_NET_WM_PING"), w.atom("WM_DELETE_WINDOW")
	w.mark = w.atom("COVE_TEST_MARK")
	list := []xproto.Atom{w.deleteWindow}
	if pings {
		list = append(list, w.ping)
	}
	var value []byte
	for _, a := range list {
		value = append(value, byte(a), byte(a>>8), byte(a>>16), byte(a>>24))
	}
	xproto.ChangeProperty(conn, xproto.PropModeReplace, w.id, w.protocols, xproto.AtomAtom, 32, uint32(len(list)), value)
	xproto.ChangeProperty(conn, xproto.PropModeReplace, w.id, w.atom("_NET_WM_NAME"), w.atom("UTF8_STRING"), 8, uint32(len(title)), []byte(title))
	class := "witness\x00Witness\x00"
	xproto.ChangeProperty(conn, xproto.PropModeReplace, w.id, xproto.AtomWmClass, xproto.AtomString, 8, uint32(len(class)), []byte(class))
	pid := os.Getpid()
	xproto.ChangeProperty(conn, xproto.PropModeReplace, w.id, w.atom("_NET_WM_PID"), xproto.AtomCardinal, 32, 1, []byte{byte(pid), byte(pid >> 8), byte(pid >> 16), byte(pid >> 24)})
	// Where it is placed: the place above is the program's wish.
	hints := make([]byte, 18*4)
	hints[0] = 1 // the position is the user's choice
	xproto.ChangeProperty(conn, xproto.PropModeReplace, w.id, xproto.AtomWmNormalHints, xproto.AtomWmSizeHints, 32, 18, hints)
	if err := xproto.MapWindowChecked(conn, w.id).Check(); err != nil {
		t.Fatal(err)
	}
	w.readKeys()
	go w.run()
	t.Cleanup(w.close)
	return w
}

func (w *witness) atom(name string) xproto.Atom {
	w.t.Helper()
	r, err := xproto.InternAtom(w.x, false, uint16(len(name)), name).Reply()
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Atom
}

// close ends the program, and waits until its window is no longer listed: the
// next program may get the same number.
func (w *witness) close() {
	w.x.Close()
	<-w.end
	eventually(w.t, "the window is gone", func() bool {
		list, err := w.d.ListWindows(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		return !slices.ContainsFunc(list, func(l sandbox.Window) bool { return l.ID == int64(w.id) })
	})
}

func (w *witness) readKeys() {
	setup := xproto.Setup(w.x)
	if keys, err := xproto.GetKeyboardMapping(w.x, setup.MinKeycode, byte(setup.MaxKeycode-setup.MinKeycode+1)).Reply(); err == nil {
		w.keys = keys
	}
}

func (w *witness) run() {
	defer close(w.end)
	for {
		e, err := w.x.WaitForEvent()
		if e == nil && err == nil {
			return
		}
		if e == nil {
			continue
		}
		if _, ok := e.(xproto.MappingNotifyEvent); ok {
			time.Sleep(w.slow)
			w.readKeys()
			continue
		}
		w.note(e)
	}
}

func (w *witness) note(e xgb.Event) {
	line := ""
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e := e.(type) {
	case xproto.KeyPressEvent:
		sym := w.symbol(byte(e.Detail), e.State)
		line = fmt.Sprintf("press %#x %d", sym, e.State&0xff)
		switch {
		case sym == 0xff0d:
			w.text = append(w.text, '\n')
		case sym == 0xff09:
			w.text = append(w.text, '\t')
		case sym < 0x100:
			w.text = append(w.text, rune(sym))
		case sym>>24 == 1:
			w.text = append(w.text, rune(sym&0xffffff))
		default:
			if r, ok := keysymTable().letters[sym]; ok {
				w.text = append(w.text, r)
			}
		}
	case xproto.KeyReleaseEvent:
		line = fmt.Sprintf("release %#x", w.symbol(byte(e.Detail), e.State))
	case xproto.ButtonPressEvent:
		line = fmt.Sprintf("button %d at %d,%d mask %#x", e.Detail, e.RootX, e.RootY, e.State&0xff)
	case xproto.ButtonReleaseEvent:
		line = fmt.Sprintf("unbutton %d at %d,%d", e.Detail, e.RootX, e.RootY)
	case xproto.MotionNotifyEvent:
		line = fmt.Sprintf("motion %d,%d mask %#x", e.RootX, e.RootY, e.State&0x1f00)
	case xproto.FocusInEvent:
		line = "focus"
	case xproto.UnmapNotifyEvent:
		line = "unmapped"
	case xproto.ClientMessageEvent:
		if e.Type == w.mark {
			w.marks++
		}
		if e.Type != w.protocols {
			return
		}
		switch xproto.Atom(e.Data.Data32[0]) {
		case w.deleteWindow:
			line = "delete"
			go w.x.Close()
		case w.ping:
			root := xproto.Setup(w.x).DefaultScreen(w.x).Root
			e.Window = root
			xproto.SendEvent(w.x, false, root, xproto.EventMaskSubstructureNotify|xproto.EventMaskSubstructureRedirect, string(e.Bytes()))
			return
		}
	}
	if line != "" {
		w.log = append(w.log, line)
	}
}

// symbol is what a program makes of a key, as the protocol says.
func (w *witness) symbol(code byte, state uint16) uint32 {
	at := (int(code) - int(xproto.Setup(w.x).MinKeycode)) * int(w.keys.KeysymsPerKeycode)
	syms := w.keys.Keysyms[at:]
	plain, shifted := uint32(syms[0]), uint32(syms[1])
	if shifted == 0 {
		shifted = plain
	}
	if state&xproto.ModMaskShift != 0 != (state&xproto.ModMaskLock != 0 && plain != shifted && plain >= 'a' && plain <= 'z') {
		return shifted
	}
	return plain
}

// catchUp waits until the program has read everything sent so far.
func (w *witness) catchUp() {
	w.t.Helper()
	marks := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.marks
	}
	before := marks()
	e := xproto.ClientMessageEvent{Format: 32, Window: w.id, Type: w.mark, Data: xproto.ClientMessageDataUnionData32New(make([]uint32, 5))}
	xproto.SendEvent(w.x, false, w.id, 0, string(e.Bytes()))
	eventually(w.t, "the program has read all", func() bool { return marks() > before })
}

func (w *witness) typed() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}

func (w *witness) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text, w.log = nil, nil
}

// events returns the recorded events, without those that begin with one of these words.
func (w *witness) events(without ...string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []string
next:
	for _, line := range w.log {
		for _, word := range without {
			if strings.HasPrefix(line, word) {
				continue next
			}
		}
		list = append(list, line)
	}
	return list
}

// paint fills a part of the window with a colour.
func (w *witness) paint(pixel uint32, r sandbox.Region) {
	w.t.Helper()
	gc, err := xproto.NewGcontextId(w.x)
	if err != nil {
		w.t.Fatal(err)
	}
	xproto.CreateGC(w.x, gc, xproto.Drawable(w.id), xproto.GcForeground, []uint32{pixel})
	if err := xproto.PolyFillRectangleChecked(w.x, xproto.Drawable(w.id), gc, []xproto.Rectangle{
		{X: int16(r.X), Y: int16(r.Y), Width: uint16(r.Width), Height: uint16(r.Height)},
	}).Check(); err != nil {
		w.t.Fatal(err)
	}
	xproto.FreeGC(w.x, gc)
}

func do(t testing.TB, d *Desktop, inputs ...sandbox.Input) *sandbox.Screen {
	t.Helper()
	screen, err := d.SendInput(t.Context(), inputs)
	if err != nil {
		t.Fatal(err)
	}
	return screen
}

func at(n int) *int { return &n }

// focus gives a witness the keyboard.
func (w *witness) focus(d *Desktop) {
	w.t.Helper()
	eventually(w.t, "the window is listed", func() bool {
		list, err := d.ListWindows(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		for i := range list {
			if list[i].ID == int64(w.id) {
				return true
			}
		}
		return false
	})
	eventually(w.t, "the window has the keyboard", func() bool {
		list, err := d.ControlWindow(context.Background(), &sandbox.WindowRequest{ID: int64(w.id), Action: sandbox.WindowFocus})
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return false // the listed window was an earlier one with the same id
		}
		if err != nil {
			w.t.Fatal(err)
		}
		s, err := d.connect(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		focus, err := s.InputFocus(context.Background())
		return err == nil && focus == uint32(w.id) && list[0].Focused
	})
}
