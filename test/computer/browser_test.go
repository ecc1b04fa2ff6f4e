package computer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

// browser is a headless Chromium on this machine, driven by its own protocol.
type browser struct {
	t    *testing.T
	conn *websocket.Conn
	next int
}

// startBrowser starts a browser that ends with the test.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--window-size=1100,900",
		"--remote-debugging-port=0", "--user-data-dir="+dir, "about:blank")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	var port string
	if !covetest.Eventually(patience, func() bool {
		data, err := os.ReadFile(filepath.Join(dir, "DevToolsActivePort"))
		port, _, _ = strings.Cut(string(data), "\n")
		return err == nil && port != ""
	}) {
		t.Fatal("the browser does not start")
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://127.0.0.1:"+port+"/json/new?about:blank", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var page struct {
		URL string `json:"webSocketDebuggerUrl"`
	}
	body, err := io.ReadAll(res.Body)
	if err == nil {
		err = json.Unmarshal(body, &page)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	conn, _, err := websocket.Dial(t.Context(), page.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(64 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &browser{t: t, conn: conn}
}

// call calls a method of the protocol.
func (b *browser) call(method string, params any) json.RawMessage {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	b.next++
	if err := wsjson.Write(ctx, b.conn, map[string]any{"id": b.next, "method": method, "params": params}); err != nil {
		b.t.Fatal(err)
	}
	for {
		var msg struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  json.RawMessage `json:"error"`
		}
		if err := wsjson.Read(ctx, b.conn, &msg); err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
		if msg.ID != b.next {
			continue // an event
		}
		if msg.Error != nil {
			b.t.Fatalf("%s: %s", method, msg.Error)
		}
		return msg.Result
	}
}

func (b *browser) visit(address string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": address})
}

// eval returns the value of an expression in the page, as text.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var result struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
	}
	if err := json.Unmarshal(b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}), &result); err != nil {
		b.t.Fatal(err)
	}
	return fmt.Sprint(result.Result.Value)
}

// until waits until an expression of the page is as wanted.
func (b *browser) until(expression, want string) {
	b.t.Helper()
	var got string
	if !covetest.Eventually(patience, func() bool { got = b.eval(expression); return got == want }) {
		b.t.Fatalf("%s is %q, want %q; the page says: %s", expression, got, want, b.eval("document.body ? document.body.innerText : ''"))
	}
}

// press types a letter into the page.
func (b *browser) press(letter string) {
	b.t.Helper()
	code := "Key" + strings.ToUpper(letter)
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": letter, "code": code, "text": letter, "windowsVirtualKeyCode": int(strings.ToUpper(letter)[0])})
	}
}

// click clicks into the middle of the page.
func (b *browser) click() {
	b.t.Helper()
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		b.call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": 550, "y": 500, "button": "left", "clickCount": 1})
	}
}
