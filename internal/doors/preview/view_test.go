package preview

import (
	"context"
	"encoding/json"
	"errors"
	"html"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// pcs are live views of one computer, whose links are "watch" and "control".
type pcs struct {
	name  string
	until time.Time
	hello string // what its VNC server says first
	// screen is what the server does with a viewer; nil listens.
	screen func(net.Conn)
	dials  atomic.Int32
}

func (v *pcs) HasView(_ context.Context, id string) bool { return id == "sbx-pc" }

func (v *pcs) VisitView(_ context.Context, visit sandbox.ViewVisit) (*sandbox.View, error) {
	if visit.SandboxID != "sbx-pc" || visit.Link != "watch" && visit.Link != "control" || !time.Now().Before(v.until) {
		return nil, sandbox.Errorf(sandbox.CodeForbidden, "this link opens no live view")
	}
	return &sandbox.View{SandboxID: visit.SandboxID, Name: v.name, Control: visit.Link == "control", ExpiresAt: v.until}, nil
}

func (v *pcs) DialView(context.Context, sandbox.ViewVisit) (net.Conn, func(), error) {
	v.dials.Add(1)
	here, there := net.Pipe()
	go func() {
		defer there.Close()
		var hello [12]byte
		_, _ = io.WriteString(there, v.hello)
		if _, err := io.ReadFull(there, hello[:]); err != nil {
			return
		}
		_, _ = there.Write([]byte{1, 1})
		_, _ = io.ReadFull(there, hello[:1])
		_, _ = there.Write(make([]byte, 4))
		if v.screen != nil {
			v.screen(there)
			return
		}
		_, _ = io.Copy(io.Discard, there)
	}()
	return here, func() {}, nil
}

const pc = "http://view-sbx-pc.localhost"

// withViewer is a program with noVNC.
var withViewer = fstest.MapFS{viewerFile: {Data: []byte("export default class {}")}}

func TestViewPage(t *testing.T) {
	views := &pcs{name: `</title><script>alert("1")</script>'"`, until: time.Now().Add(time.Hour), hello: "RFB 003.008\n"}
	front := serve(t, &harness{}, func(p *Proxy) { p.views, p.files = views, withViewer })
	c := browser(t, front)
	page := get(t, c, pc+"/?cove_view=watch")
	if page.status != 200 || strings.Contains(page.body, "<script>") || !strings.Contains(html.UnescapeString(page.body), views.name) {
		t.Errorf("the page of a name with tags is %d: %s", page.status, page.body)
	}
	if policy := page.header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("its policy is %q", policy)
	}
	if page.header.Get("Referrer-Policy") != "no-referrer" || page.header.Get("Set-Cookie") != "" || page.header.Get("Cache-Control") != "no-store" {
		t.Errorf("its header is %v", page.header)
	}
	for _, target := range []string{
		pc + "/", pc + "/?cove_view=", pc + "/?cove_view=other", pc + "/screen?cove_view=other", "http://view-sbx-other.localhost/?cove_view=watch",
		pc + "/?cove_view=watch" + strings.Repeat("x", maxCredential),
	} {
		if got := get(t, c, target); got.status != http.StatusForbidden {
			t.Errorf("%.80s: %d", target, got.status)
		}
	}
	if got := send(t, c, "POST", pc+"/?cove_view=control", ""); got.status != http.StatusMethodNotAllowed {
		t.Errorf("a POST: %d", got.status)
	}
	for _, host := range []string{"http://view-SBX-pc.localhost.", "http://view-sbx-pc.evil.localhost", "http://view-.localhost"} {
		if got := get(t, c, host+"/?cove_view=watch"); got.status == 200 && strings.Contains(got.body, "screen") {
			t.Errorf("%s shows it", host)
		}
	}
}

// A program made by plain go build tells admitted visitors that it has no viewer; other
// programs can still show the screen.
func TestViewWithoutViewer(t *testing.T) {
	views := &pcs{name: "pc", until: time.Now().Add(time.Hour), hello: "RFB 003.008\n"}
	front := serve(t, &harness{}, func(p *Proxy) { p.views, p.files = views, fstest.MapFS{} })
	c := browser(t, front)
	for target, want := range map[string]int{"/?cove_view=watch": http.StatusNotImplemented, "/novnc.js": http.StatusNotImplemented, "/?cove_view=other": http.StatusForbidden} {
		page := get(t, c, pc+target)
		if page.status != want || strings.Contains(page.body, "make build") != (want == http.StatusNotImplemented) || strings.Contains(page.body, "<script") {
			t.Errorf("%s: %d %s", target, page.status, page.body)
		}
	}
	if conn, status := watcher(t, c, pc); conn == nil {
		t.Errorf("a viewer: %d", status)
	}
}

// A program that was built with noVNC has all of it, with its licences.
func TestViewFiles(t *testing.T) {
	if !HasViewer() {
		needs.NoError(t, errors.New("noVNC: make build"))
	}
	front := serve(t, &harness{}, func(p *Proxy) { p.views = &pcs{} })
	c := browser(t, front)
	for name, says := range map[string]string{
		"/view.js": "import RFB from '/novnc.js'", "/view.css": "#screen", "/novnc.js": " as default", "/novnc-LICENSE.txt": "Mozilla Public License Version 2.0",
	} {
		got := get(t, c, pc+name)
		if got.status != http.StatusOK || !strings.Contains(got.body, says) || got.header.Get("Content-Type") != viewAssets[name] {
			t.Errorf("%s: %d %q, without %q", name, got.status, got.header.Get("Content-Type"), says)
		}
	}
}

// watcher opens a view as a program does.
func watcher(t *testing.T, c *http.Client, origin string) (*websocket.Conn, int) {
	t.Helper()
	return viewer(t, c, origin, "watch")
}

// viewer opens a view with a link.
func viewer(t *testing.T, c *http.Client, origin, link string) (*websocket.Conn, int) {
	t.Helper()
	header := http.Header{}
	if origin != "" {
		header.Set("Origin", origin)
	}
	conn, res, err := websocket.Dial(t.Context(), pc+"/screen?cove_view="+link, &websocket.DialOptions{HTTPClient: c, HTTPHeader: header})
	if err != nil {
		if res == nil {
			t.Fatal(err)
		}
		return nil, res.StatusCode
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return conn, 101
}

func TestViewers(t *testing.T) {
	views := &pcs{until: time.Now().Add(time.Hour), hello: "RFB 003.008\n"}
	front := serve(t, &harness{}, func(p *Proxy) { p.views, p.viewers.most = views, 2 })
	c := browser(t, front)
	state := func() string {
		var s struct{ Code string }
		if err := json.Unmarshal([]byte(get(t, c, pc+"/state?cove_view=watch").body), &s); err != nil {
			t.Fatal(err)
		}
		return s.Code
	}
	for _, origin := range []string{"http://evil.test", "http://3000-sbx-pc.localhost", "null", "http://view-sbx-pc.localhost.evil.test"} {
		if _, status := watcher(t, c, origin); status != http.StatusForbidden {
			t.Errorf("from %s: %d", origin, status)
		}
	}
	var open []*websocket.Conn
	for range 2 {
		conn, status := watcher(t, c, pc)
		if conn == nil {
			t.Fatalf("a viewer: %d", status)
		}
		open = append(open, conn)
	}
	if _, status := watcher(t, c, pc); status != http.StatusServiceUnavailable {
		t.Errorf("a viewer too many: %d", status)
	}
	// The page would retry at once if the state said that there is a picture.
	if got := state(); got != string(sandbox.CodeQuotaExceeded) {
		t.Errorf("the page of a viewer too many is told %q", got)
	}
	// Visitors who only watch do not keep out those with control.
	if _, status := viewer(t, c, pc, "control"); status != 101 {
		t.Errorf("a viewer with control, beside as many watchers as may be: %d", status)
	}
	_ = open[0].CloseNow()
	for end := time.Now().Add(time.Minute); state() != "live"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a place that was left is not free")
		}
	}
}

func TestViewOfNoVNC(t *testing.T) {
	views := &pcs{until: time.Now().Add(time.Hour), hello: "SSH-2.0-OpenSSH_9\n"}
	front := serve(t, &harness{}, func(p *Proxy) { p.views = views })
	if _, status := watcher(t, browser(t, front), pc); status != http.StatusBadGateway {
		t.Errorf("another program's port: %d", status)
	}
}

// welcomed does a viewer's part of the handshake.
func welcomed(t *testing.T, socket *websocket.Conn) net.Conn {
	t.Helper()
	c := websocket.NetConn(t.Context(), socket, websocket.MessageBinary)
	answer := make([]byte, 12)
	for _, step := range []struct {
		hear int
		say  string
	}{{12, "RFB 003.008\n"}, {2, "\x01"}, {4, "\x01"}} {
		if _, err := io.ReadFull(c, answer[:step.hear]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, step.say); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// Attack: a VNC server in the sandbox floods a viewer that reads nothing. The data
// waits in the sandbox and not in the daemon, and the connection ends with the viewer.
func TestFloodedViewer(t *testing.T) {
	var sent atomic.Int64
	ended := make(chan struct{})
	views := &pcs{until: time.Now().Add(time.Hour), hello: "RFB 003.008\n", screen: func(c net.Conn) {
		defer close(ended)
		go io.Copy(io.Discard, c) //nolint:errcheck // it ends with the connection
		block := make([]byte, 64<<10)
		for {
			n, err := c.Write(block)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}}
	front := serve(t, &harness{}, func(p *Proxy) { p.views = views })
	socket, status := watcher(t, browser(t, front), pc)
	if socket == nil {
		t.Fatalf("a viewer: %d", status)
	}
	socket.SetReadLimit(-1)
	welcomed(t, socket)
	for before := int64(-1); sent.Load() != before; time.Sleep(200 * time.Millisecond) {
		if before = sent.Load(); before > 64<<20 {
			t.Fatalf("%d bytes went towards a viewer who reads nothing", before)
		}
	}
	_ = socket.CloseNow()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the server's connection outlives the viewer")
	}
}

// Attack: a viewer sends invalid VNC, too much at once, or text. The view ends, also at
// the server, which gets none of it.
func TestMalformedViewers(t *testing.T) {
	for name, say := range map[string]func(*websocket.Conn) error{
		"an unknown message": func(c *websocket.Conn) error {
			return c.Write(t.Context(), websocket.MessageBinary, []byte{99, 1, 2, 3})
		},
		"a long clipboard": func(c *websocket.Conn) error {
			return c.Write(t.Context(), websocket.MessageBinary, []byte("\x06\x00\x00\x00\x7f\xff\xff\xff"))
		},
		"a negative one": func(c *websocket.Conn) error {
			return c.Write(t.Context(), websocket.MessageBinary, []byte("\x06\x00\x00\x00\x80\x00\x00\x00"))
		},
		"65535 encodings": func(c *websocket.Conn) error {
			return c.Write(t.Context(), websocket.MessageBinary, []byte("\x02\x00\xff\xff"))
		},
		"a message of 3 MiB": func(c *websocket.Conn) error {
			return c.Write(t.Context(), websocket.MessageBinary, make([]byte, 3<<20))
		},
		"text": func(c *websocket.Conn) error {
			return c.Write(t.Context(), websocket.MessageText, []byte{4, 1, 0, 0, 0, 0, 0, 'q'})
		},
		"half of a handshake": nil,
	} {
		heard := make(chan string, 1)
		views := &pcs{until: time.Now().Add(time.Hour), hello: "RFB 003.008\n", screen: func(c net.Conn) {
			all, _ := io.ReadAll(c)
			heard <- string(all)
		}}
		front := serve(t, &harness{}, func(p *Proxy) { p.views = views })
		socket, status := viewer(t, browser(t, front), pc, "control")
		if socket == nil {
			t.Fatalf("%s: a viewer: %d", name, status)
		}
		want := ""
		if say == nil {
			_ = socket.Write(t.Context(), websocket.MessageBinary, []byte("RFB 003.003\n"))
		} else {
			welcomed(t, socket)
			want = "\x01" // shared
			_ = say(socket)
		}
		go func() { // takes the other side's farewell
			for err := error(nil); err == nil; {
				_, _, err = socket.Read(t.Context())
			}
		}()
		select {
		case got := <-heard:
			if strings.Trim(got, "\x00") != want { // a setPixelFormat of zeros is one
				t.Errorf("%s: the server heard %q", name, got)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: the view goes on", name)
		}
	}
}

func TestViewEndsWithTheLink(t *testing.T) {
	views := &pcs{until: time.Now().Add(2 * time.Second), hello: "RFB 003.008\n"}
	front := serve(t, &harness{}, func(p *Proxy) { p.views = views })
	conn, status := watcher(t, browser(t, front), pc)
	if conn == nil {
		if time.Now().Before(views.until) {
			t.Fatalf("a viewer: %d", status)
		}
		return // so slow a machine
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if _, _, err := conn.Read(ctx); err != nil {
			if ctx.Err() != nil {
				t.Error("the view did not end with its link")
			}
			return
		}
	}
}
