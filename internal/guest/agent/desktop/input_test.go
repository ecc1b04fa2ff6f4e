package desktop

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

var somewhere = sandbox.Region{X: 200, Y: 150, Width: 600, Height: 400}

func TestPointer(t *testing.T) {
	x := shared.start(t)
	d := x.desktop(t)
	w := x.watch(t, "pointer", somewhere, 0, true)
	w.focus(d)

	for _, c := range []struct {
		name   string
		inputs []sandbox.Input
		want   []string
		cursor sandbox.Point
	}{
		{"move", []sandbox.Input{{Type: "move", X: at(300), Y: at(310)}}, []string{"motion 300,310 mask 0x0"}, sandbox.Point{X: 300, Y: 310}},
		{"click", []sandbox.Input{{Type: "click", X: at(400), Y: at(300)}},
			[]string{"motion 400,300 mask 0x0", "button 1 at 400,300 mask 0x0", "unbutton 1 at 400,300"}, sandbox.Point{X: 400, Y: 300}},
		{"double click where it is, with keys", []sandbox.Input{{Type: "click", Button: "right", Count: 2, Keys: []string{"ctrl+shift"}}},
			[]string{"press 0xffe3 0", "press 0xffe1 4", "button 3 at 400,300 mask 0x5", "unbutton 3 at 400,300", "button 3 at 400,300 mask 0x5", "unbutton 3 at 400,300", "release 0xffe1", "release 0xffe3"},
			sandbox.Point{X: 400, Y: 300}},
		{"buttons", []sandbox.Input{{Type: "click", Button: "middle"}, {Type: "click", Button: "back"}, {Type: "click", Button: "forward"}},
			[]string{"button 2 at 400,300 mask 0x0", "unbutton 2 at 400,300", "button 8 at 400,300 mask 0x0", "unbutton 8 at 400,300", "button 9 at 400,300 mask 0x0", "unbutton 9 at 400,300"},
			sandbox.Point{X: 400, Y: 300}},
		{"scroll", []sandbox.Input{{Type: "scroll", X: at(410), Y: at(300), DX: -1, DY: 2}},
			[]string{"motion 410,300 mask 0x0", "button 5 at 410,300 mask 0x0", "unbutton 5 at 410,300", "button 5 at 410,300 mask 0x0", "unbutton 5 at 410,300", "button 6 at 410,300 mask 0x0", "unbutton 6 at 410,300"},
			sandbox.Point{X: 410, Y: 300}},
		{"press, then more, then release", []sandbox.Input{{Type: "press"}, {Type: "move", X: at(420), Y: at(330)}, {Type: "release"}},
			[]string{"button 1 at 410,300 mask 0x0", "motion 420,330 mask 0x100", "unbutton 1 at 420,330"}, sandbox.Point{X: 420, Y: 330}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.clear()
			screen := do(t, d, c.inputs...)
			if got := (sandbox.Point{X: screen.CursorX, Y: screen.CursorY}); got != c.cursor || screen.Width != 1280 || screen.Height != 800 {
				t.Errorf("the screen is %+v, want the pointer at %v", screen, c.cursor)
			}
			eventually(t, "all events came", func() bool { return len(w.events()) >= len(c.want) })
			if diff := cmp.Diff(c.want, w.events()); diff != "" {
				t.Error(diff)
			}
		})
	}

	t.Run("drag", func(t *testing.T) {
		w.clear()
		do(t, d, sandbox.Input{Type: "drag", X: at(300), Y: at(300), Path: []sandbox.Point{{X: 400, Y: 300}, {X: 400, Y: 400}}, DurationMS: 100})
		eventually(t, "the button is released", func() bool { return slices.Contains(w.events(), "unbutton 1 at 400,400") })
		events := w.events()
		if events[1] != "button 1 at 300,300 mask 0x0" || !slices.Contains(events, "motion 400,300 mask 0x100") || len(events) < 5 {
			t.Errorf("a drag made %q", events)
		}
	})

	t.Run("cancel lets go", func(t *testing.T) {
		do(t, d, sandbox.Input{Type: "key_down", Keys: []string{"shift"}})
		w.clear()
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := d.SendInput(ctx, []sandbox.Input{{Type: "press"}, {Type: "key_down", Keys: []string{"a"}}, {Type: "wait", DurationMS: 60_000}})
			failed <- err
		}()
		eventually(t, "a is held", func() bool { return slices.Contains(w.events(), "press 0x41 1") })
		cancel()
		if err := <-failed; sandbox.CodeOf(err) != sandbox.CodeCancelled {
			t.Errorf("a call that was cancelled returned %v", err)
		}
		eventually(t, "all is let go of", func() bool {
			events := w.events("press", "motion")
			return len(events) == 4 && strings.HasPrefix(events[1], "unbutton 1") && events[3] == "release 0xffe1"
		})
		if err := d.SetClipboard(t.Context(), ""); err != nil {
			t.Error(err)
		}
	})
}

func TestKeys(t *testing.T) {
	x := shared.start(t)
	d := x.desktop(t)
	w := x.watch(t, "keys", somewhere, 0, true)
	w.focus(d)

	for _, c := range []struct {
		keys []string
		want []string
	}{
		{[]string{"ctrl+shift+t"}, []string{"press 0xffe3 0", "press 0xffe1 4", "press 0x54 5", "release 0x54", "release 0xffe1", "release 0xffe3"}},
		{[]string{"Ctrl+C"}, []string{"press 0xffe3 0", "press 0x63 4", "release 0x63", "release 0xffe3"}},
		{[]string{"A"}, []string{"press 0xffe1 0", "press 0x41 1", "release 0x41", "release 0xffe1"}},
		{[]string{"ctrl++"}, []string{"press 0xffe3 0", "press 0xffe1 4", "press 0x2b 5", "release 0x2b", "release 0xffe1", "release 0xffe3"}},
		{[]string{"cmd+a", "Return"}, []string{"press 0xffeb 0", "press 0x61 64", "release 0x61", "release 0xffeb", "press 0xff0d 0", "release 0xff0d"}},
		{[]string{"F12", "pgdn", "Escape"}, []string{"press 0xffc9 0", "release 0xffc9", "press 0xff56 0", "release 0xff56", "press 0xff1b 0", "release 0xff1b"}},
		{[]string{"é"}, []string{"press 0xe9 0", "release 0xe9"}},
	} {
		t.Run(strings.Join(c.keys, " "), func(t *testing.T) {
			w.clear()
			do(t, d, sandbox.Input{Type: "key", Keys: c.keys})
			eventually(t, "all events came", func() bool { return len(w.events()) >= len(c.want) })
			if diff := cmp.Diff(c.want, w.events()); diff != "" {
				t.Error(diff)
			}
		})
	}

	t.Run("down and up", func(t *testing.T) {
		w.clear()
		do(t, d, sandbox.Input{Type: "key_down", Keys: []string{"shift"}})
		do(t, d, sandbox.Input{Type: "type", Text: "a!"})
		do(t, d, sandbox.Input{Type: "key_up", Keys: []string{"shift"}})
		do(t, d, sandbox.Input{Type: "type", Text: "a"})
		eventually(t, "all was typed", func() bool { return w.typed() == "A!a" })
	})
}

// texts are texts that no keyboard layout has completely.
var texts = []string{
	"Hello, World! (x+y)*2 = {z} <~`|\\> \"q\" 'p' #1 $2 %3 ^4 &5 @6",
	"äöüß ÄÖÜ éèê ñ ç € ½ “quoted” — …",
	"two\nlines\tand a tab",
	"日本語テキスト入力、漢字とかな。中文输入法测试：你好，世界！한국어 키보드 입력",
	"😀🎉👩‍👩‍👧🏽 𝄞 𠮷野家",
	"Привет, мир! ąęłżźćńó עברית العربية ไทย",
}

func TestTyping(t *testing.T) {
	x := shared.start(t)
	d := x.desktop(t)
	var w *witness
	late := d.waits.late
	d.waits.late = func(ctx context.Context) error { // the machine may be slower than a program
		err := late(ctx)
		w.catchUp()
		return err
	}
	for _, c := range []struct {
		name  string
		slow  time.Duration
		pings bool
	}{
		// The second is as far behind as a program can be that answers.
		{"a quick program", 0, true},
		{"a slow program", 30 * time.Millisecond, true},
		{"a program that does not answer", 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w = x.watch(t, "typing", somewhere, c.slow, c.pings)
			w.focus(d)
			for _, text := range texts {
				w.clear()
				do(t, d, sandbox.Input{Type: "type", Text: text})
				eventually(t, "all was typed", func() bool { return len([]rune(w.typed())) >= len([]rune(text)) })
				if got := w.typed(); got != text {
					t.Errorf("typed %q, want %q", got, text)
				}
			}
		})
	}

	w = x.watch(t, "more typing", somewhere, 0, true)
	w.focus(d)
	t.Run("caps lock", func(t *testing.T) {
		w.clear()
		do(t, d, sandbox.Input{Type: "key", Keys: []string{"caps"}}, sandbox.Input{Type: "type", Text: "aBc éÉ"}, sandbox.Input{Type: "key", Keys: []string{"caps"}})
		eventually(t, "all was typed", func() bool { return w.typed() == "aBc éÉ" })
	})
	t.Run("long", func(t *testing.T) {
		w.clear()
		text := strings.Repeat("The quick brown fox. 狐 ", 400)
		do(t, d, sandbox.Input{Type: "type", Text: text})
		eventually(t, "all was typed", func() bool { return len([]rune(w.typed())) >= len([]rune(text)) })
		if w.typed() != text {
			t.Error("a long text arrived changed")
		}
	})
	t.Run("another layout", func(t *testing.T) {
		needs.Command(t, "setxkbmap")
		if err := x.run(t, "setxkbmap", "ru").Wait(); err != nil {
			t.Fatal(err)
		}
		w.clear()
		do(t, d, sandbox.Input{Type: "type", Text: "Привет hello"}, sandbox.Input{Type: "key", Keys: []string{"ctrl+c"}})
		eventually(t, "all was typed", func() bool { return w.typed() == "Привет helloc" })
		if err := x.run(t, "setxkbmap", "us").Wait(); err != nil {
			t.Fatal(err)
		}
		w.clear()
		do(t, d, sandbox.Input{Type: "type", Text: "Привет hello"})
		eventually(t, "all was typed", func() bool { return w.typed() == "Привет hello" })
	})
}

// TestTypingIntoXterm reads back what a real program received.
func TestTypingIntoXterm(t *testing.T) {
	x := shared.start(t)
	d := x.desktop(t)
	file := filepath.Join(t.TempDir(), "typed")
	cmd := x.run(t, "xterm", "-u8", "-e", "sh", "-c", fmt.Sprintf("stty -echo -icanon; cat > %s; sleep 100", file))
	read := func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	late := d.waits.late
	d.waits.late = func(ctx context.Context) error { // the machine may be slower than the terminal
		err := late(ctx)
		eventually(t, "the terminal has read all keys that were given", func() bool {
			given := 0
			for _, r := range read() {
				if r > unicode.MaxASCII {
					given++
				}
			}
			return int64(given) >= d.keys.tick
		})
		return err
	}
	var id int64
	eventually(t, "the terminal is there", func() bool {
		list, err := d.ListWindows(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range list {
			if w.PID == cmd.Process.Pid && w.Class == "XTerm" {
				id = w.ID
			}
		}
		_, err = os.Stat(file)
		return id != 0 && err == nil
	})
	if _, err := d.ControlWindow(t.Context(), &sandbox.WindowRequest{ID: id, Action: sandbox.WindowFocus}); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, text := range texts {
		text = strings.ReplaceAll(text, "\t", " ")
		want.WriteString(text + "\n")
		do(t, d, sandbox.Input{Type: "type", Text: text + "\n"})
	}
	eventually(t, "the terminal has all", func() bool { return strings.Count(read(), "\n") >= strings.Count(want.String(), "\n") })
	if diff := cmp.Diff(want.String(), read()); diff != "" {
		t.Error(diff)
	}
}

func TestInputsAreChecked(t *testing.T) {
	x := shared.start(t)
	d := x.desktop(t)
	w := x.watch(t, "checked", somewhere, 0, true)
	w.focus(d)
	w.clear()
	good := sandbox.Input{Type: "type", Text: "x"}
	for name, in := range map[string]sandbox.Input{
		"no type":          {},
		"unknown type":     {Type: "dance"},
		"no place":         {Type: "move"},
		"half a place":     {Type: "click", X: at(1)},
		"off the screen":   {Type: "click", X: at(1280), Y: at(0)},
		"negative":         {Type: "move", X: at(-1), Y: at(0)},
		"path off":         {Type: "drag", Path: []sandbox.Point{{X: 5000, Y: 1}}},
		"no path":          {Type: "drag", X: at(1), Y: at(1)},
		"unknown button":   {Type: "click", Button: "nose"},
		"too often":        {Type: "click", Count: 1000},
		"too far":          {Type: "scroll", DY: 100000},
		"unknown key":      {Type: "key", Keys: []string{"ctrl+banana"}},
		"empty key":        {Type: "key", Keys: []string{""}},
		"no keys":          {Type: "key"},
		"no text":          {Type: "type"},
		"control":          {Type: "type", Text: "a\x01"},
		"not UTF-8":        {Type: "type", Text: "\xff"},
		"too long a wait":  {Type: "wait", DurationMS: 61_000},
		"negative wait":    {Type: "wait", DurationMS: -1},
		"too long in all":  {Type: "type", Text: strings.Repeat("x", 100), DurationMS: 1000},
		"too long a text":  {Type: "type", Text: strings.Repeat("x", sandbox.MaxTypedBytes)},
		"a foreign field":  {Type: "wait", Text: "x"},
		"a foreign field2": {Type: "move", X: at(1), Y: at(1), Keys: []string{"a"}},
	} {
		_, err := d.SendInput(t.Context(), []sandbox.Input{good, in})
		code := sandbox.CodeOf(err)
		if code != sandbox.CodeInvalid && code != sandbox.CodeTooLarge {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, n := range []int{0, sandbox.MaxInputs + 1} {
		if _, err := d.SendInput(t.Context(), make([]sandbox.Input, n)); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%d inputs: got %v", n, err)
		}
	}
	do(t, d, sandbox.Input{Type: "type", Text: "end"})
	eventually(t, "what is in order was typed", func() bool { return w.typed() != "" && strings.HasSuffix(w.typed(), "end") })
	if w.typed() != "end" {
		t.Errorf("a call that was refused typed %q", w.typed())
	}
}

// TestTypingIntoChromium reads back what the browser received. The browser reads a new
// keyboard mapping late, and identifies keys by more than their symbol.
func TestTypingIntoChromium(t *testing.T) {
	x := shared.start(t)
	d := x.desktop(t)
	page := `<title>typing</title><body style="margin:0"><textarea autofocus id=t style="width:100%;height:90vh"></textarea>
<script>const say = body => fetch('/', {method: 'POST', body})
t.oninput = () => say('t' + t.value)
const wait = setInterval(() => { if (document.hasFocus() && document.activeElement === t) { clearInterval(wait); say('ready') } }, 10)</script>`
	posts := make(chan string, 1000)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			b, _ := io.ReadAll(r.Body)
			posts <- string(b)
		case r.URL.Path == "/":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = io.WriteString(w, page)
		default:
			http.NotFound(w, r)
		}
	}))
	defer srv.Close()
	// This is not the test's own directory: a late process may still write here.
	profile, err := os.MkdirTemp("", "cove-chromium")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(profile) })
	args := []string{"--no-first-run", "--disable-gpu", "--window-size=900,600", "--user-data-dir=" + profile, srv.URL}
	if os.Geteuid() == 0 {
		args = append([]string{"--no-sandbox"}, args...)
	}
	cmd := x.run(t, "chromium", args...)
	t.Cleanup(func() {
		// End it in order, so that no process remains that writes to its files.
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	// The requests for quick inputs may arrive in any order.
	await := func(what string) {
		t.Helper()
		last := ""
		for end := time.After(patience); ; {
			select {
			case last = <-posts:
				if last == what {
					return
				}
			case <-end:
				t.Fatalf("the page has %q, want %q", last, what)
			}
		}
	}
	var region sandbox.Region
	eventually(t, "the browser has the keyboard", func() bool {
		list, err := d.ListWindows(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(w sandbox.Window) bool { return strings.HasPrefix(w.Title, "typing") })
		if i < 0 {
			return false
		}
		if _, err := d.ControlWindow(t.Context(), &sandbox.WindowRequest{ID: list[i].ID, Action: sandbox.WindowFocus}); err != nil {
			t.Fatal(err)
		}
		region = list[i].Region
		return list[i].Focused
	})
	await("ready")
	// While the browser starts, it moves its focus, so typed text may be lost until the
	// page has received some.
	eventually(t, "the page takes what is typed", func() bool {
		do(t, d, sandbox.Input{Type: "click", X: at(region.X + region.Width/2), Y: at(region.Y + region.Height*2/3)}, sandbox.Input{Type: "type", Text: "x"})
		select {
		case <-posts:
			return true
		case <-time.After(time.Second):
			return false
		}
	})
	// The browser now often finds several X events between its own, as on a busy machine.
	go stutter(t.Context(), cmd.Process)
	// Type symbols that no key has yet, each at a different moment.
	do(t, d, sandbox.Input{Type: "key", Keys: []string{"ctrl+a", "Delete"}})
	all := ""
	for _, symbol := range "ԱԲԳԴԵԶԷԸԹԺԻԼԽԾԿ" {
		all += string(symbol)
		do(t, d, sandbox.Input{Type: "type", Text: string(symbol)})
	}
	await("t" + all)
	for _, text := range texts {
		text = strings.ReplaceAll(text, "\t", " ") // goes to the next field
		do(t, d, sandbox.Input{Type: "key", Keys: []string{"ctrl+a", "Delete"}}, sandbox.Input{Type: "type", Text: text})
		await("t" + text)
	}
}

// stutter stops a process for short moments until the context ends.
func stutter(ctx context.Context, p *os.Process) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
		_ = p.Signal(syscall.SIGSTOP)
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
		_ = p.Signal(syscall.SIGCONT)
	}
}
