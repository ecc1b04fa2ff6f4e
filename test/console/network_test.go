package console

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/network"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// wire leads to a server, and can be cut, or held up.
type wire struct {
	url string
	to  string

	mu    sync.Mutex
	cut   bool
	held  chan struct{} // closed when held answers continue
	conns map[net.Conn]bool
}

// startWire leads to a server's address from another one.
func startWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{url: "http://" + l.Addr().String(), to: strings.TrimPrefix(to, "http://"), conns: map[net.Conn]bool{}, held: make(chan struct{})}
	close(w.held)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.carry(c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		w.sever()
	})
	return w
}

func (w *wire) carry(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer to.Close()
	w.mu.Lock()
	w.conns[from], w.conns[to] = true, true
	cut := w.cut
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.conns, from)
		delete(w.conns, to)
	}()
	if cut {
		return
	}
	go func() {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := to.Read(buf)
		w.mu.Lock()
		held := w.held
		w.mu.Unlock()
		<-held
		if _, failed := from.Write(buf[:n]); failed != nil || err != nil {
			return
		}
	}
}

// sever ends all connections, and refuses new ones.
func (w *wire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for c := range w.conns {
		_ = c.Close()
	}
}

// mend allows new connections again.
func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
}

// hold keeps back all answers until the returned function is called.
func (w *wire) hold() (release func()) {
	held := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = held
	return sync.OnceFunc(func() { close(held) })
}

// jobOutput shows the output of a job that writes each line that it is given.
func jobOutput(p *tab, d *covetest.Daemon, id, name string) (writes func(line string)) {
	p.t.Helper()
	pipe := "/tmp/" + name
	d.Sh(p.t, id, "mkfifo "+pipe)
	shell := "exec cat <>" + pipe
	if _, err := d.Client.Exec(p.t.Context(), id, sandbox.ExecRequest{Shell: shell, Background: true}, nil); err != nil {
		p.t.Fatal(err)
	}
	p.visit("/s/" + id + "/jobs")
	p.click(shell)
	return func(line string) {
		p.t.Helper()
		d.Sh(p.t, id, "echo "+line+" >"+pipe)
	}
}

// outputIs is true when all that is shown of a job is text, and nothing is wrong.
func outputIs(text string) string {
	return `document.querySelector(".job-output pre").textContent === ` + quote(text) + ` && !document.querySelector(".job-output [role=alert]")`
}

// badNetwork uses the console over a slow connection, over one that stalls, and without
// one: the page says so, and recovers by itself, with what has happened meanwhile.
func badNetwork(t *testing.T, d *covetest.Daemon, chrome context.Context, id string) {
	w := startWire(t, d.URL)
	p := signInAt(t, d, chrome, w.url)
	p.waitFor(`document.querySelectorAll(".tree-row").length > 1`)
	const fine = `!document.querySelector(".trouble")`
	p.waitFor(fine)

	// Slow: each answer takes seconds, and then comes by and by.
	p.run(network.Enable(), network.EmulateNetworkConditions(false, 4000, 30_000, 30_000))
	p.click("Volumes")
	p.sees("The connection is slow")
	p.accessible("slow")
	p.sees("There is no volume")
	p.waitFor(fine)
	p.run(network.EmulateNetworkConditions(false, 0, -1, -1))

	// It stands still.
	p.click("Webhooks")
	p.waitFor(`!!document.querySelector("[aria-label='List again']") && !document.querySelector("main .loading")`)
	release := w.hold()
	defer release()
	p.click("List again")
	p.sees("The connection is slow")
	release()
	p.waitFor(fine)

	// The output of a job continues where the connection broke. A part of the page that
	// is first requested without a connection appears, with its styles, once there is a
	// connection.
	writes := jobOutput(p, d, id, "wire")
	writes("first")
	p.waitFor(outputIs("first\n"))
	w.sever()
	p.sees("Reconnecting")
	writes("second")
	w.mend()
	p.waitFor(fine)
	p.waitFor(outputIs("first\nsecond\n"))
	w.sever()
	p.sees("Reconnecting")
	p.click("Terminal")
	p.sees("could not be loaded")
	w.mend()
	p.waitFor(fine)
	p.sees("Connected")
	p.waitFor(`getComputedStyle(document.querySelector(".xterm")).position === "relative"`)
	lostCell(p, w, d, id)
	p.click("Webhooks")

	// There is none.
	w.sever()
	p.sees("Reconnecting. The server does not answer")
	p.accessible("no connection")
	p.look("light", 390, 844)
	p.waitFor(`document.querySelector(".trouble").checkVisibility()`)
	p.fits("no connection")
	p.look("light", 1440, 860)
	p.click("Volumes")
	p.sees("The console goes on by itself")
	p.click("New volume")
	p.fill("Name", "lost")
	p.click("Create")
	p.waitFor(`[...document.querySelectorAll(".toast")].some((e) => e.innerText.includes("does not answer"))`)
	p.click("Cancel")
	p.click("Server")
	p.waitFor(`!!document.querySelector("main [role=alert]")`)
	if _, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Name: "meanwhile"}); err != nil {
		t.Fatal(err)
	}
	w.mend()
	p.waitFor(fine)
	p.waitFor(`!document.querySelector("main [role=alert]") && !document.querySelector("main .loading")`)
	p.click("Sandboxes")
	p.sees("meanwhile")
}

// lostCell runs a cell whose connection breaks: the cell says so, keeps its output, and
// can be run again.
func lostCell(p *tab, w *wire, d *covetest.Daemon, id string) {
	p.click("Code")
	runCell(p, 0, `import os, time; print("it " + "began"); [time.sleep(0.05) for _ in iter(lambda: os.path.exists("/tmp/again"), True)]; print("it " + "ended")`)
	p.sees("it began")
	w.sever()
	p.sees("The connection was lost before the end, which interrupts the code")
	p.sees("it began")
	w.mend()
	p.waitFor(`!document.querySelector(".trouble")`)
	d.Sh(p.t, id, "touch /tmp/again")
	p.click("Run")
	p.sees("it ended")
	p.waitFor(`!document.querySelector(".cell.running, .cell [role=alert]")`)
}
