package cli

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// A daemon that ends as soon as it is idle may take one connection and no
// more: the one that shows that it has started is the one to use.
func TestDialUsesTheFirstConnection(t *testing.T) {
	dir := t.TempDir()
	d := &daemon{stateDir: dir, socket: filepath.Join(dir, "cove.sock")}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	// Another process is about to start the daemon.
	lock, err := lockFile(ctx, filepath.Join(dir, "start.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	type dialled struct {
		conn net.Conn
		err  error
	}
	result := make(chan dialled, 1)
	go func() {
		conn, err := d.dial(ctx, "", "")
		result <- dialled{conn, err}
	}()
	time.Sleep(100 * time.Millisecond) // in which it finds no daemon, and waits
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return // the test has ended
		}
		defer conn.Close()
		_ = l.Close()
		_, _ = conn.Write([]byte("here"))
	}()
	_ = lock.Close()
	got := <-result
	if got.err != nil {
		t.Fatal(got.err)
	}
	defer got.conn.Close()
	_ = got.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	said := make([]byte, 4)
	if _, err := got.conn.Read(said); err != nil || string(said) != "here" {
		t.Errorf("the daemon said %q, %v", said, err)
	}
}
