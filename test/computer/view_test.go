package computer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/sandbox"
)

// peopleWatch opens the live views of two computers in a browser.
func peopleWatch(t *testing.T, c, fork *computer) {
	c.open("http://127.0.0.1:8000/again")
	c.await("the page, opened again", pageColor, screenWidth*screenHeight/2)
	watch, control := c.view(sandbox.ViewRequest{}), c.view(sandbox.ViewRequest{Control: true})
	b := startBrowser(t)

	// Each computer has a view of its own.
	b.visit(watch.URL)
	b.until("document.getElementById('state').textContent", "Live")
	b.until(pixel, rgb(pageColor))
	b.visit(fork.view(sandbox.ViewRequest{}).URL)
	b.until(pixel, rgb(doneColor))
	// If the X server has ended, the page says that there is no picture.
	if _, err := c.d.Client.Exec(t.Context(), fork.id, sandbox.ExecRequest{Command: []string{"sh", "-c", "kill $(cat /tmp/.X1-lock)"}}, nil); err != nil {
		t.Fatal(err)
	}
	b.until("document.getElementById('title').textContent", "No picture")

	// A visitor who may only watch presses keys in the page, and sends them with a
	// program of their own that ignores the page's rules.
	b.visit(watch.URL)
	b.until(pixel, rgb(pageColor))
	b.click()
	b.press("q")
	keyWithoutRight(t, c, watch.URL)

	// A visitor with control presses one too, and the page in the computer gets it, but
	// none of the keys before.
	b.visit(control.URL)
	b.until(pixel, rgb(pageColor))
	b.click()
	b.press("w")
	c.awaitLog("GET /key?w")
	if log := c.log(); strings.Contains(log, "/key?q") {
		t.Errorf("a watcher's key came through:\n%s", log)
	}

	// A paused computer is not woken by being watched, and shows when it is back.
	if _, err := c.d.Client.Pause(t.Context(), c.id); err != nil {
		t.Fatal(err)
	}
	b.until("document.getElementById('title').textContent", "Nothing to see")
	if sbx, err := c.d.Client.Get(t.Context(), c.id); err != nil || sbx.State != sandbox.StatePaused {
		t.Errorf("a watched computer is %+v, %v", sbx, err)
	}
	if _, err := c.d.Client.Resume(t.Context(), c.id, sandbox.ResumeRequest{}); err != nil {
		t.Fatal(err)
	}
	b.until(pixel, rgb(pageColor))

	// The end of the link is the end of the view.
	b.visit(c.view(sandbox.ViewRequest{TTLSeconds: 5}).URL)
	b.until("document.getElementById('title').textContent", "That does not open it")
	refused(t, strings.Replace(watch.URL, ".watch.", ".control.", 1))
	refused(t, strings.Replace(watch.URL, c.id, fork.id, 1))
}

// pixel is the colour of the live view in the page, in its middle.
const pixel = `(() => {
  const canvas = document.querySelector('#screen canvas');
  if (!canvas || !canvas.width) return '';
  return Array.from(canvas.getContext('2d').getImageData(canvas.width / 2, canvas.height * 2 / 3, 1, 1).data).slice(0, 3).join(',');
})()`

func rgb(c interface {
	RGBA() (r, g, b, a uint32)
}) string {
	r, g, b, _ := c.RGBA()
	return fmt.Sprintf("%d,%d,%d", r>>8, g>>8, b>>8)
}

func (c *computer) view(req sandbox.ViewRequest) *sandbox.ViewLink {
	c.t.Helper()
	link, err := c.d.Client.ViewComputer(c.ctx(), c.id, req)
	if err != nil {
		c.t.Fatal(err)
	}
	return link
}

// local resolves *.localhost as browsers do.
var local = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
}}}

func refused(t *testing.T, address string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := local.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("%s: %s", address, res.Status)
	}
}

// keyWithoutRight is a VNC client that presses a key though it may only watch,
// and clicks. It returns when the server has read that: it has answered what
// came after.
func keyWithoutRight(t *testing.T, c *computer, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Path, u.Scheme = "/screen", "ws"
	// The page of another site cannot even connect.
	_, res, err := websocket.Dial(ctx, u.String(), &websocket.DialOptions{HTTPClient: local, HTTPHeader: http.Header{"Origin": {"http://evil.test"}}})
	if err == nil || res == nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("from another origin: %v", err)
	}
	socket, _, err := websocket.Dial(ctx, u.String(), &websocket.DialOptions{HTTPClient: local})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.CloseNow() //nolint:errcheck // it is over
	socket.SetReadLimit(64 << 20)
	conn := websocket.NetConn(ctx, socket, websocket.MessageBinary)
	say := func(b []byte, answer int) []byte {
		t.Helper()
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, answer)
		if _, err := io.ReadFull(conn, got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	hello := make([]byte, 12)
	if _, err := io.ReadFull(conn, hello); err != nil {
		t.Fatal(err)
	}
	say(hello, 2)
	say([]byte{1}, 4)
	size := say([]byte{1}, 24) // shared; the screen's size and its format
	name := make([]byte, size[23])
	if _, err := io.ReadFull(conn, name); err != nil {
		t.Fatal(err)
	}
	if want := []byte{screenWidth >> 8, screenWidth & 0xff, screenHeight >> 8, screenHeight & 0xff}; !bytes.Equal(size[:4], want) {
		t.Errorf("the screen is %v, want %v", size[:4], want)
	}
	key := func(down byte) []byte { return []byte{4, down, 0, 0, 0, 0, 0, 'q'} }
	say(key(1), 0)
	say(key(0), 0)
	say([]byte{5, 1, 0, 100, 2, 0}, 0)
	say([]byte{5, 0, 0, 100, 2, 0}, 0)
	// A picture of one pixel, which is asked for last.
	onePixel := []byte{3, 0, 0, 0, 0, 0, 0, 1, 0, 1}
	say(onePixel, 20)
	// The clipboard of the computer's own user is not sent: there are only pictures.
	if err := c.d.Client.SetClipboard(ctx, c.id, "c0ve-copied"); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if got := say(onePixel, 20); got[0] != 0 {
			t.Fatalf("a watcher is told %q", got)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
