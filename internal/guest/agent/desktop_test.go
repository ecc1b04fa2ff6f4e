package agent

import (
	"bufio"
	"bytes"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1/agentv1connect"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// startScreen starts an X server, and returns its display.
func startScreen(t *testing.T) string {
	t.Helper()
	needs.Command(t, "Xvfb")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command("Xvfb", "-displayfd", "3", "-screen", "0", "1280x800x24", "-nolisten", "tcp", "-ac")
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it removes its files
		_ = cmd.Wait()
	})
	number, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return ":" + strings.TrimSpace(number)
}

func TestDesktop(t *testing.T) {
	display := startScreen(t)
	s := start(t)
	c := agentv1connect.NewDesktopClient(transport(t, true), "http://"+s.addr)
	ctx := t.Context()
	screen, err := c.GetScreen(ctx, connect.NewRequest(&agentv1.GetScreenRequest{Display: display}))
	if err != nil || screen.Msg.GetScreen().GetWidth() != 1280 {
		t.Fatalf("the screen is %v, %v", screen, err)
	}
	x, y := int32(33), int32(44)
	done, err := c.SendInput(ctx, connect.NewRequest(&agentv1.SendInputRequest{Display: display, Inputs: []*agentv1.Input{{Type: "move", X: &x, Y: &y}}}))
	if err != nil || done.Msg.GetScreen().GetCursorX() != 33 || done.Msg.GetScreen().GetCursorY() != 44 {
		t.Errorf("moved: %v, %v", done, err)
	}
	stream, err := c.Screenshot(ctx, connect.NewRequest(&agentv1.ScreenshotRequest{Display: display, Width: 320}))
	if err != nil {
		t.Fatal(err)
	}
	var header *agentv1.ScreenshotResponse_Header
	var data []byte
	for stream.Receive() {
		if header == nil {
			header = stream.Msg().GetHeader()
		}
		data = append(data, stream.Msg().GetData()...)
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil || stream.Err() != nil || img.Bounds().Dx() != 320 || header.GetHeight() != 200 || header.GetSize() != int64(len(data)) {
		t.Errorf("a picture of %v, %v, %v", header, err, stream.Err())
	}
	if _, err := c.SetClipboard(ctx, connect.NewRequest(&agentv1.SetClipboardRequest{Display: display, Text: "日本"})); err != nil {
		t.Error(err)
	}
	if got, err := c.GetClipboard(ctx, connect.NewRequest(&agentv1.GetClipboardRequest{Display: display})); err != nil || got.Msg.GetText() != "日本" {
		t.Errorf("the clipboard has %v, %v", got, err)
	}
	if list, err := c.ListWindows(ctx, connect.NewRequest(&agentv1.ListWindowsRequest{Display: display})); err != nil || len(list.Msg.GetWindows()) != 0 {
		t.Errorf("windows: %v, %v", list, err)
	}
	for code, err := range map[connect.Code]error{
		connect.CodeInvalidArgument: second(c.SendInput(ctx, connect.NewRequest(&agentv1.SendInputRequest{Display: display, Inputs: []*agentv1.Input{nil}}))),
		connect.CodeNotFound:        second(c.ControlWindow(ctx, connect.NewRequest(&agentv1.ControlWindowRequest{Display: display, Id: 77, Action: "focus"}))),
		connect.CodeUnavailable:     second(c.GetScreen(ctx, connect.NewRequest(&agentv1.GetScreenRequest{Display: ":987"}))),
	} {
		if connect.CodeOf(err) != code {
			t.Errorf("got %v, want %v", err, code)
		}
	}
	t.Run("open", func(t *testing.T) { testOpenURL(t, s, c, display) })
}

func second[T any](_ T, err error) error { return err }

func testOpenURL(t *testing.T, s *server, c agentv1connect.DesktopClient, display string) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	script := filepath.Join(dir, "browser")
	const browser = `#!/bin/sh
echo "$DISPLAY|$#|$*" >> "$OUT"
case $1 in
fail) echo no luck >&2; exit 3 ;;
blind) exec sleep 100 ;;
hand-over) exit 0 ;;
esac
sleep 1
exec xterm -T "$2" -e sleep 100
`
	needs.Command(t, "xterm")
	if err := os.WriteFile(script, []byte(browser), 0o755); err != nil {
		t.Fatal(err)
	}
	set := func(command string) {
		if _, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{Env: map[string]string{"COVE_BROWSER": command, "OUT": out}})); err != nil {
			t.Fatal(err)
		}
	}
	open := func(url string) error {
		_, err := c.OpenURL(t.Context(), connect.NewRequest(&agentv1.OpenURLRequest{Display: display, Url: url}))
		return err
	}
	set(script + " --flag")
	const url = "https://example.com/?a=$(id)&b=;'\"|x"
	if err := open(url); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(out); err != nil || string(b) != display+"|2|--flag "+url+"\n" {
		t.Errorf("the browser was started with %q, %v", b, err)
	}
	list, err := c.ListWindows(t.Context(), connect.NewRequest(&agentv1.ListWindowsRequest{Display: display}))
	if err != nil || len(list.Msg.GetWindows()) != 1 {
		t.Errorf("an address was opened and the windows are %v, %v", list, err)
	}
	set(script + " hand-over")
	if err := open("about:blank"); err != nil {
		t.Errorf("a browser that hands the address over: %v", err)
	}
	set(script + " fail")
	if err := open("about:blank"); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "no luck") {
		t.Errorf("a browser that fails: %v", err)
	}
	set(script + " blind")
	s.agent.browserWindow = 200 * time.Millisecond
	if err := open("about:blank"); connect.CodeOf(err) != connect.CodeDeadlineExceeded || !strings.Contains(err.Error(), "no window") {
		t.Errorf("a browser without a window: %v", err)
	}
	s.agent.browserWindow = patience
	for _, bad := range []string{"", "example.com", "--flag", "-https://x", "javascript:alert(1)", "http://", "http://a b", "ftp://x/y", "https://x/\ny", "file", "chrome://settings", strings.Repeat("http://x/", 2000)} {
		if err := open(bad); connect.CodeOf(err) != connect.CodeInvalidArgument && connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("%q: got %v", bad, err)
		}
	}
	set("/no/such/browser")
	if err := open("about:blank"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("no browser: %v", err)
	}
}
