package desktop

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jezek/xgb"
	"github.com/jezek/xgb/randr"
	"github.com/jezek/xgb/xproto"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/agent/desktop/x11"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

func shoot(t testing.TB, d *Desktop, req sandbox.ScreenshotRequest) (*sandbox.Screenshot, image.Image) {
	t.Helper()
	shot, err := d.Screenshot(t.Context(), &req)
	if err != nil {
		t.Fatal(err)
	}
	decode := png.Decode
	if shot.MIME == "image/jpeg" {
		decode = jpeg.Decode
	}
	img, err := decode(bytes.NewReader(shot.Data))
	if err != nil {
		t.Fatal(err)
	}
	if img.Bounds().Dx() != shot.Width || img.Bounds().Dy() != shot.Height {
		t.Errorf("the picture has %v, and is said to have %d by %d", img.Bounds(), shot.Width, shot.Height)
	}
	return shot, img
}

// near reports whether a pixel has approximately a colour.
func near(img image.Image, x, y int, want color.RGBA, off int) bool {
	r, g, b, _ := img.At(x, y).RGBA()
	diff := func(a uint32, b uint8) int { return max(int(a>>8)-int(b), int(b)-int(a>>8)) }
	return diff(r, want.R) <= off && diff(g, want.G) <= off && diff(b, want.B) <= off
}

func TestScreenshot(t *testing.T) {
	x := shared.start(t)
	d := x.desktop(t)
	w := x.watch(t, "colours", somewhere, 0, true)
	w.focus(d)
	red, green, blue := color.RGBA{0xff, 0x10, 0x20, 255}, color.RGBA{0x10, 0xe0, 0x30, 255}, color.RGBA{0x01, 0x02, 0xfe, 255}
	w.paint(0xff1020, sandbox.Region{X: 0, Y: 0, Width: 100, Height: 100})
	w.paint(0x10e030, sandbox.Region{X: 100, Y: 0, Width: 100, Height: 100})
	w.paint(0x0102fe, sandbox.Region{X: 0, Y: 100, Width: 100, Height: 100})
	place := sandbox.Region{}
	list, err := d.ListWindows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		if l.ID == int64(w.id) {
			place = l.Region
		}
	}
	// Within the frame the window is at the bottom.
	left, top := place.X+(place.Width-somewhere.Width)/2, place.Y
	_, whole := shoot(t, d, sandbox.ScreenshotRequest{})
	for top < place.Y+60 && !near(whole, left+50, top, red, 0) {
		top++
	}
	do(t, d, sandbox.Input{Type: "move", X: at(left + 300), Y: at(top + 300)})

	shot, whole := shoot(t, d, sandbox.ScreenshotRequest{})
	if shot.Width != 1280 || shot.Height != 800 || shot.Screen.CursorX != left+300 || !shot.Stable || time.Since(shot.TakenAt) > patience {
		t.Errorf("the picture is said to be %+v", shot.Screen)
	}
	if !near(whole, left+50, top+50, red, 0) || !near(whole, left+150, top+50, green, 0) || !near(whole, left+50, top+150, blue, 0) {
		t.Error("the colours differ")
	}
	_, part := shoot(t, d, sandbox.ScreenshotRequest{Region: &sandbox.Region{X: left + 90, Y: top + 95, Width: 21, Height: 11}})
	for p, want := range map[image.Point]color.RGBA{{X: 9, Y: 4}: red, {X: 10, Y: 4}: green, {X: 9, Y: 5}: blue} {
		if !near(part, p.X, p.Y, want, 0) {
			t.Errorf("at %v of a part is another colour than %v", p, want)
		}
	}
	small, half := shoot(t, d, sandbox.ScreenshotRequest{Width: 640, Height: 700})
	if small.Width != 640 || small.Height != 400 || small.Screen.Width != 1280 || !near(half, left/2+25, top/2+25, red, 2) {
		t.Errorf("scaled it is %d by %d", small.Width, small.Height)
	}
	if big, _ := shoot(t, d, sandbox.ScreenshotRequest{Width: 4000, Height: 4000}); big.Width != 1280 || big.Height != 800 {
		t.Error("a picture was made larger")
	}
	photo, pixels := shoot(t, d, sandbox.ScreenshotRequest{Format: sandbox.ImageJPEG, Quality: 90})
	if photo.MIME != "image/jpeg" || !near(pixels, left+50, top+50, red, 16) || !near(pixels, left+150, top+50, green, 16) {
		t.Error("the colours differ as JPEG")
	}
	with, hand := shoot(t, d, sandbox.ScreenshotRequest{Cursor: true})
	changed := 0
	for dy := range 24 {
		for dx := range 24 {
			if hand.At(left+290+dx, top+290+dy) != whole.At(left+290+dx, top+290+dy) {
				changed++
			}
		}
	}
	if changed < 20 || !near(hand, left+50, top+50, red, 0) || with.Width != 1280 {
		t.Errorf("the cursor has %d pixels", changed)
	}
	for name, req := range map[string]sandbox.ScreenshotRequest{
		"outside":  {Region: &sandbox.Region{X: 1200, Y: 0, Width: 81, Height: 10}},
		"nowhere":  {Region: &sandbox.Region{X: -1, Y: 0, Width: 10, Height: 10}},
		"empty":    {Region: &sandbox.Region{X: 1, Y: 1}},
		"overflow": {Region: &sandbox.Region{X: 1, Y: 1, Width: 1 << 62, Height: 1 << 62}},
		"width":    {Width: -1},
		"quality":  {Quality: 101},
		"format":   {Format: "gif"},
		"stable":   {StableMS: 10_001},
	} {
		if _, err := d.Screenshot(t.Context(), &req); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestStableScreenshot(t *testing.T) {
	x := shared.start(t)
	for _, frames := range []bool{false, true} {
		name := "by damage"
		if frames {
			name = "by frames"
		}
		t.Run(name, func(t *testing.T) {
			d := x.desktop(t)
			s, err := d.connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.damage.Opcode == 0 {
				t.Fatal("the server has no DAMAGE")
			}
			if frames {
				s.damage.Opcode = 0
			}
			w := x.watch(t, "stable", somewhere, 0, true)
			w.focus(d)
			began, end := make(chan struct{}), make(chan struct{})
			var paints [][2]time.Time // begun and done
			go func() {
				defer close(end)
				for i := range 30 {
					from := time.Now()
					w.paint(rand.Uint32()&0xffffff, sandbox.Region{Width: 50, Height: 50})
					paints = append(paints, [2]time.Time{from, time.Now()})
					if i == 0 {
						close(began)
					}
					time.Sleep(20 * time.Millisecond)
				}
			}()
			<-began
			const quiet = 700 * time.Millisecond
			shot, _ := shoot(t, d, sandbox.ScreenshotRequest{StableMS: quiet.Milliseconds()})
			<-end
			for _, p := range paints {
				if p[1].Before(shot.TakenAt) && shot.TakenAt.Sub(p[0]) < quiet {
					t.Errorf("the picture was taken %v after a change", shot.TakenAt.Sub(p[0]))
				}
			}
			if !shot.Stable {
				t.Error("the screen is reported as not stable")
			}
		})
	}
	t.Run("never", func(t *testing.T) {
		d := x.desktop(t)
		d.maxSettle = 300 * time.Millisecond
		w := x.watch(t, "never stable", somewhere, 0, true)
		w.focus(d)
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
					w.paint(rand.Uint32()&0xffffff, sandbox.Region{Width: 50, Height: 50})
				}
			}
		}()
		shot, _ := shoot(t, d, sandbox.ScreenshotRequest{StableMS: 5000})
		close(stop)
		<-ended
		if shot.Stable {
			t.Error("a screen that keeps changing is reported as stable")
		}
	})
}

// TestOtherServers uses servers of another depth and kind, without a window
// manager.
func TestOtherServers(t *testing.T) {
	for _, c := range []struct {
		name    string
		program string
		args    []string
		exact   int
	}{
		{"16 bits", "Xvfb", []string{"-screen", "0", "640x481x16"}, 8},
		{"16 bits, no shared memory", "Xvfb", []string{"-screen", "0", "640x481x16", "-extension", "MIT-SHM"}, 8},
		{"no shared memory", "Xvfb", []string{"-screen", "0", "640x481x24", "-extension", "MIT-SHM"}, 0},
		{"Xvnc", "Xvnc", []string{"-geometry", "640x481", "-depth", "24", "-SecurityTypes", "None", "-rfbport", "-1"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := startX(t, c.program, c.args...)
			d := x.desktop(t)
			w := x.watch(t, "alone", sandbox.Region{X: 10, Y: 20, Width: 301, Height: 200}, 0, true)
			paint := uint32(0xff1020)
			if c.exact > 0 {
				paint = 0xff>>3<<11 | 0x10>>2<<5 | 0x20>>3
			}
			w.paint(paint, sandbox.Region{Width: 301, Height: 100})
			_, img := shoot(t, d, sandbox.ScreenshotRequest{})
			if !near(img, 10, 20, color.RGBA{0xff, 0x10, 0x20, 255}, c.exact) || !near(img, 310, 119, color.RGBA{0xff, 0x10, 0x20, 255}, c.exact) || !near(img, 310, 120, color.RGBA{255, 255, 255, 255}, c.exact) {
				t.Error("the colours differ")
			}
			_, img = shoot(t, d, sandbox.ScreenshotRequest{Region: &sandbox.Region{X: 9, Y: 19, Width: 3, Height: 3}})
			if near(img, 0, 0, color.RGBA{0xff, 0x10, 0x20, 255}, c.exact) || !near(img, 1, 1, color.RGBA{0xff, 0x10, 0x20, 255}, c.exact) {
				t.Error("the colours of a part differ")
			}
			if shared := !strings.Contains(c.name, "no shared memory"); (d.shared != nil) != shared {
				t.Errorf("pictures come by shared memory: %t", !shared)
			}
			id := int64(w.id)
			control := func(action sandbox.WindowAction, r *sandbox.Region) []sandbox.Window {
				list, err := d.ControlWindow(t.Context(), &sandbox.WindowRequest{ID: id, Action: action, Region: r})
				if err != nil {
					t.Fatal(err)
				}
				return list
			}
			control(sandbox.WindowFocus, nil)
			do(t, d, sandbox.Input{Type: "click", X: at(50), Y: at(50)}, sandbox.Input{Type: "type", Text: "Hällo 世界"})
			eventually(t, "all was typed", func() bool { return w.typed() == "Hällo 世界" && slices.Contains(w.events(), "unbutton 1 at 50,50") })
			list := control(sandbox.WindowPlace, &sandbox.Region{X: 100, Y: 90, Width: 80, Height: 70})
			if want := (sandbox.Region{X: 100, Y: 90, Width: 80, Height: 70}); len(list) != 1 || list[0].Region != want || !list[0].Focused {
				t.Errorf("placed without a manager: %+v", list)
			}
			if list = control(sandbox.WindowClose, nil); len(list) != 0 || !slices.Contains(w.events(), "delete") {
				t.Errorf("closed without a manager: %+v", list)
			}
		})
	}
}

// TestSharedMemoryStays does what a hostile server could do with the shared memory: reading
// truncated memory would end the first process.
func TestSharedMemoryStays(t *testing.T) {
	fd, mem, err := sealedMemory(8192)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	defer unix.Munmap(mem)
	if err := unix.Ftruncate(fd, 4096); err != unix.EPERM {
		t.Errorf("it was made smaller: %v", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != unix.EPERM {
		t.Errorf("it was sealed once more: %v", err)
	}
	mem[8191] = 1
}

// TestCloseWhileInUse gives up a screen that does not answer, in the middle of a
// picture.
func TestCloseWhileInUse(t *testing.T) {
	x := startX(t, "Xvfb", "-screen", "0", "320x240x24")
	d := x.desktop(t)
	shoot(t, d, sandbox.ScreenshotRequest{})
	if err := x.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer x.cmd.Process.Signal(syscall.SIGCONT)
	taken := make(chan error, 1)
	go func() {
		_, err := d.Screenshot(t.Context(), &sandbox.ScreenshotRequest{})
		taken <- err
	}()
	eventually(t, "the picture is being taken", func() bool { return len(d.shots) == 1 })
	d.Close()
	if err := <-taken; sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("the picture that was being taken: %v", err)
	}
	if _, err := d.GetScreen(t.Context()); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("used after it was closed: %v", err)
	}
}

// TestScreenChangesSize uses a screen right after it has become smaller, and
// larger again.
func TestScreenChangesSize(t *testing.T) {
	x := startX(t, "Xvnc", "-geometry", "1024x768", "-depth", "24", "-SecurityTypes", "None", "-rfbport", "-1")
	d := x.desktop(t)
	shoot(t, d, sandbox.ScreenshotRequest{})
	conn, err := xgb.NewConnDisplay(x.display)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := randr.Init(conn); err != nil {
		t.Fatal(err)
	}
	for _, size := range []image.Point{{X: 640, Y: 480}, {X: 800, Y: 600}} {
		resize(t, conn, size)
		eventually(t, "the server tells of the size", func() bool { return *d.live.size.Load() == size })
		shot, img := shoot(t, d, sandbox.ScreenshotRequest{})
		if img.Bounds().Size() != size || shot.Screen.Width != size.X || shot.Screen.Height != size.Y {
			t.Errorf("a picture of %v of a screen of %v: %+v", img.Bounds(), size, shot.Screen)
		}
		edge := sandbox.Region{X: size.X - 1, Y: size.Y - 1, Width: 1, Height: 1}
		shoot(t, d, sandbox.ScreenshotRequest{Region: &edge})
		do(t, d, sandbox.Input{Type: "move", X: at(size.X - 1), Y: at(size.Y - 1)})
		if _, err := d.SendInput(t.Context(), []sandbox.Input{{Type: "move", X: at(size.X), Y: at(0)}}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("a place beside the screen: %v", err)
		}
	}
}

// resize gives a screen another of its sizes.
func resize(t *testing.T, conn *xgb.Conn, size image.Point) {
	t.Helper()
	root := xproto.Setup(conn).DefaultScreen(conn).Root
	res, err := randr.GetScreenResources(conn, root).Reply()
	if err != nil {
		t.Fatal(err)
	}
	mode := slices.IndexFunc(res.Modes, func(m randr.ModeInfo) bool { return int(m.Width) == size.X && int(m.Height) == size.Y })
	if mode < 0 {
		t.Fatalf("the server has no mode of %v", size)
	}
	set := func(mode randr.Mode, outputs []randr.Output) {
		if _, err := randr.SetCrtcConfig(conn, res.Crtcs[0], 0, res.ConfigTimestamp, 0, 0, mode, randr.RotationRotate0, outputs).Reply(); err != nil {
			t.Fatal(err)
		}
	}
	set(0, nil)
	if err := randr.SetScreenSizeChecked(conn, root, uint16(size.X), uint16(size.Y), 300, 200).Check(); err != nil {
		t.Fatal(err)
	}
	set(randr.Mode(res.Modes[mode].Id), res.Outputs[:1])
}

// TestServerRestart ends the server; the next call finds the new one.
func TestServerRestart(t *testing.T) {
	// A number of its own, which stays free while no server runs.
	x := startX(t, "Xvfb", fmt.Sprintf(":%d", 200+os.Getpid()%700), "-screen", "0", "320x240x24")
	d := x.desktop(t)
	if _, err := d.GetScreen(t.Context()); err != nil {
		t.Fatal(err)
	}
	do(t, d, sandbox.Input{Type: "key_down", Keys: []string{"a"}})
	x.stop()
	if _, err := d.GetScreen(t.Context()); sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), x.display) {
		t.Errorf("without a server: %v", err)
	}
	again := startX(t, "Xvfb", x.display, "-screen", "0", "400x300x24")
	screen, err := d.GetScreen(t.Context())
	if err != nil || screen.Width != 400 {
		t.Errorf("with another server: %+v, %v", screen, err)
	}
	if d.held.of == nil || len(d.held.keys) != 1 {
		t.Error("nothing was held")
	}
	do(t, d, sandbox.Input{Type: "key", Keys: []string{"é"}}, sandbox.Input{Type: "type", Text: "hé"})
	if len(d.held.keys) != 0 {
		t.Error("a key of the ended server is held")
	}
	again.stop()
	last := startX(t, "Xvfb", x.display, "-screen", "0", "500x300x24")
	shot, err := d.Screenshot(t.Context(), &sandbox.ScreenshotRequest{})
	if err != nil || shot.Width != 500 {
		t.Errorf("a picture of another server: %v", err)
	}
	_ = last
}

// TestHostileServers connects to programs that are not X servers.
func TestHostileServers(t *testing.T) {
	for name, says := range map[string]string{
		"nothing":   "",
		"text":      "220 mail.example.com ESMTP\r\n" + strings.Repeat("x", 1<<20),
		"refusal":   "\x00\x04\x0b\x00\x00\x00\x01\x00no\x1b!",
		"zeroes":    strings.Repeat("\x00", 100),
		"a success": "\x01\x00\x0b\x00\x00\x00\xff\xff" + strings.Repeat("\xff", 4*0xffff),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, err := net.Listen("unix", filepath.Join(dir, "X5"))
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = c.Write([]byte(says))
					c.Close()
				}
			}()
			defer func() {
				l.Close()
				<-ended
			}()
			d, err := New(Config{Display: ":5", SocketDir: dir})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			_, err = d.GetScreen(t.Context())
			if sandbox.CodeOf(err) != sandbox.CodeUnavailable || strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
				t.Errorf("got %q", err)
			}
		})
	}
	for _, display := range []string{"host:1", ":x", ":-1", "/tmp/x:0", ":1.1", ":99999", ":01"} {
		if _, err := New(Config{Display: display}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("display %q: got %v", display, err)
		}
	}
}

func TestWindows(t *testing.T) {
	x := shared.start(t)
	d := x.desktop(t)
	one := x.watch(t, "one \u65e5\u672c", sandbox.Region{X: 50, Y: 60, Width: 300, Height: 200}, 0, true)
	one.focus(d)
	two := x.watch(t, "two", sandbox.Region{X: 150, Y: 160, Width: 300, Height: 200}, 0, true)
	two.focus(d)
	names := func(list []sandbox.Window) []string {
		var all []string
		for _, w := range list {
			if w.Class == "Witness" {
				all = append(all, w.Title)
			}
		}
		return all
	}
	get := func(list []sandbox.Window, w *witness) sandbox.Window {
		for _, l := range list {
			if l.ID == int64(w.id) {
				return l
			}
		}
		return sandbox.Window{}
	}
	control := func(w *witness, action sandbox.WindowAction, r *sandbox.Region) []sandbox.Window {
		t.Helper()
		list, err := d.ControlWindow(t.Context(), &sandbox.WindowRequest{ID: int64(w.id), Action: action, Region: r})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	list, err := d.ListWindows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"two", "one 日本"}, names(list)); diff != "" {
		t.Error(diff)
	}
	if w := get(list, two); !w.Focused || w.Hidden || w.PID != os.Getpid() || w.Region.Height <= 200 || w.Region.Width < 300 {
		t.Errorf("the window is %+v", w)
	}
	list = control(one, sandbox.WindowFocus, nil)
	if names(list)[0] != "one 日本" || !get(list, one).Focused {
		t.Errorf("focused: %+v", list)
	}
	if w := get(control(one, sandbox.WindowMinimize, nil), one); !w.Hidden {
		t.Errorf("minimised: %+v", w)
	}
	if w := get(control(one, sandbox.WindowFocus, nil), one); w.Hidden || !w.Focused {
		t.Errorf("focused again: %+v", w)
	}
	control(one, sandbox.WindowMaximize, nil)
	want := sandbox.Region{X: 33, Y: 44, Width: 555, Height: 333}
	// The manager announces a window's frame after it has changed it.
	is := func(want sandbox.Region) func() bool {
		return func() bool {
			list, err := d.ListWindows(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return get(list, one).Region == want
		}
	}
	eventually(t, "the window has the whole screen", is(sandbox.Region{Width: 1280, Height: 800}))
	control(one, sandbox.WindowPlace, &want)
	eventually(t, "the window has its place", is(want))
	if list = control(two, sandbox.WindowClose, nil); get(list, two).ID != 0 {
		t.Errorf("closed: %+v", list)
	}
	for _, req := range []sandbox.WindowRequest{
		{ID: int64(two.id) + 1<<20, Action: sandbox.WindowClose}, {ID: 1, Action: sandbox.WindowFocus},
		{ID: int64(one.id), Action: "explode"}, {ID: int64(one.id), Action: sandbox.WindowPlace}, {ID: int64(one.id), Action: sandbox.WindowClose, Region: &want},
		{ID: int64(one.id), Action: sandbox.WindowPlace, Region: &sandbox.Region{X: 1 << 40, Width: 10, Height: 10}},
	} {
		if _, err := d.ControlWindow(t.Context(), &req); sandbox.CodeOf(err) != sandbox.CodeInvalid && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("%+v: got %v", req, err)
		}
	}
}

func TestClipboard(t *testing.T) {
	x := shared.start(t)
	d, other := x.desktop(t), x.desktop(t)
	needs.Command(t, "xclip")
	for _, text := range []string{"", "hello", "日本語 €\n\ttwo", strings.Repeat("long äöü 日本 ", 50_000)} {
		if err := d.SetClipboard(t.Context(), text); err != nil {
			t.Fatal(err)
		}
		for _, from := range []*Desktop{d, other} {
			if got, err := from.GetClipboard(t.Context()); got != text || err != nil {
				t.Errorf("%d bytes came back as %d, %v", len(text), len(got), err)
			}
		}
	}
	if err := d.SetClipboard(t.Context(), strings.Repeat("x", sandbox.MaxClipboard+1)); sandbox.CodeOf(err) != sandbox.CodeTooLarge {
		t.Errorf("too long a text: %v", err)
	}
	if err := d.SetClipboard(t.Context(), "\xff"); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("no text: %v", err)
	}

	// Another implementation, both ways.
	text := strings.Repeat("long äöü 日本 ", 20_000)
	if err := d.SetClipboard(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	for _, selection := range []string{"clipboard", "primary"} {
		out := filepath.Join(t.TempDir(), "out")
		if err := x.run(t, "sh", "-c", "xclip -selection "+selection+" -o -t UTF8_STRING > "+out).Wait(); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(out); string(b) != text || err != nil {
			t.Errorf("xclip read %d bytes of %s, %v", len(b), selection, err)
		}
	}
	in := filepath.Join(t.TempDir(), "in")
	put := func(content string, args ...string) {
		if err := os.WriteFile(in, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		x.run(t, "xclip", append([]string{"-quiet", "-selection", "clipboard", "-i", in}, args...)...)
	}
	put(text + "!")
	eventually(t, "the clipboard is xclip's", func() bool {
		got, err := d.GetClipboard(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return got == text+"!"
	})
	put("\x89PNG", "-t", "image/png")
	eventually(t, "what is no text is refused", func() bool {
		_, err := d.GetClipboard(t.Context())
		return sandbox.CodeOf(err) == sandbox.CodeConflict
	})
	put("text")
	eventually(t, "the clipboard is text again", func() bool {
		got, err := d.GetClipboard(t.Context())
		return err == nil && got == "text"
	})
	// Invalid UTF-8 becomes longer when converted.
	put(strings.Repeat("\xff ", sandbox.MaxClipboard/3))
	eventually(t, "what becomes too long is refused", func() bool {
		_, err := d.GetClipboard(t.Context())
		return sandbox.CodeOf(err) == sandbox.CodeTooLarge
	})
	put("text")
	eventually(t, "the clipboard is text once more", func() bool {
		got, err := d.GetClipboard(t.Context())
		return err == nil && got == "text"
	})
	put(strings.Repeat("x", sandbox.MaxClipboard+1))
	eventually(t, "what is too long is refused", func() bool {
		_, err := d.GetClipboard(t.Context())
		return sandbox.CodeOf(err) == sandbox.CodeTooLarge
	})
}

// TestPNG compares with the standard library, on pictures of all kinds and sizes
// that one encoder has one after the other, some with changes to the last.
func TestPNG(t *testing.T) {
	var e pngEncoder
	same := func(name string, img *image.RGBA) {
		t.Helper()
		back, err := png.Decode(bytes.NewReader(e.encode(img)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := image.NewRGBA(img.Rect)
		draw.Draw(got, got.Rect, back, image.Point{}, draw.Src)
		if back.Bounds() != img.Rect || !bytes.Equal(got.Pix, img.Pix) {
			t.Fatalf("%s: the picture is another", name)
		}
	}
	for _, c := range []struct {
		name    string
		width   int
		height  int
		colours uint32
	}{
		{"one pixel", 1, 1, 1}, {"plain", 50, 40, 1}, {"256 colours", 64, 64, 256}, {"257 colours", 64, 64, 257},
		{"noise", 33, 77, 1 << 24}, {"a line", 3000, 1, 1 << 24}, {"a column", 1, 3000, 1 << 24}, {"a strip", 40, stripLines, 1 << 24},
	} {
		img := image.NewRGBA(image.Rect(0, 0, c.width, c.height))
		for i := range c.width * c.height {
			n := uint32(i) % c.colours
			if c.colours == 1<<24 {
				n = rand.Uint32()
			}
			n *= 2654435761
			copy(img.Pix[4*i:], []byte{byte(n), byte(n >> 8), byte(n >> 16), 255})
		}
		same(c.name, img)
		// Lines that are the same as the one above, or half so.
		for y := 1; y < c.height; y += 2 {
			copy(img.Pix[y*img.Stride:][:4*(c.width-y%3*c.width/3)], img.Pix[(y-1)*img.Stride:])
		}
		same(c.name+", with lines alike", img)
		same(c.name+", again", img)
		img.Pix[4*(c.width*c.height-1)] ^= 1
		same(c.name+", with the last pixel changed", img)
	}
}

// FuzzText reads the texts that programs set, and key names.
func FuzzText(f *testing.F) {
	f.Add([]byte("title\x00Class"), byte(8), "ctrl+shift+t")
	f.Add([]byte{0xff, 0xfe, 0, 1}, byte(32), "U+1F600")
	f.Add([]byte{}, byte(0), "++")
	f.Fuzz(func(t *testing.T, value []byte, format byte, name string) {
		p := &x11.Property{Type: x11.AtomString, Format: format, Value: value, More: int(format)}
		for _, s := range []string{text(p), class(p)} {
			if strings.ToValidUTF8(s, "") != s || strings.Contains(s, "\x00") {
				t.Errorf("a title is %q", s)
			}
		}
		for _, e := range extents(p) {
			if e < 0 || e > maxExtent {
				t.Errorf("a frame is %d wide", e)
			}
		}
		if syms, err := parseKeys(name); err == nil && (len(syms) == 0 || slices.Contains(syms, symNone)) {
			t.Errorf("%q has the keys %v", name, syms)
		}
		if syms, err := planText(name); err == nil && slices.Contains(syms, symNone) {
			t.Errorf("%q is typed as %v", name, syms)
		}
	})
}
