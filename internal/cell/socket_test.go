package cell

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSocketInLongPath uses a directory whose path is longer than a socket's address.
func TestSocketInLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long-directory-name/", 12))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(dir, "test.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "hello")
	}()
	conn, err := Dial(t.Context(), dir, "test.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != "hello" {
		t.Errorf("read %q, %v; want hello", got, err)
	}
	info, err := os.Stat(filepath.Join(dir, "test.sock"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v; want 0600", info.Mode(), err)
	}
	// A second listener replaces the socket that an earlier one left behind.
	again, err := Listen(dir, "test.sock")
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestDialWithoutListener(t *testing.T) {
	if _, err := Dial(t.Context(), t.TempDir(), "none.sock"); !os.IsNotExist(err) {
		if err == nil || !strings.Contains(err.Error(), "none.sock") {
			t.Errorf("Dial = %v, want an error that names the socket", err)
		}
	}
}
