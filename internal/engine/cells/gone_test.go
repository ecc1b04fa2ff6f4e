package cells

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/sandbox"
)

// TestLimitsOfEndingCell checks that, if a cell ends while its limits are changed and
// resets the connection, the caller is told that the sandbox does not answer.
func TestLimitsOfEndingCell(t *testing.T) {
	dir := t.TempDir()
	l, err := cell.Listen(dir, cell.ControlSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			// Unread data makes the end a reset.
			one := make([]byte, 1)
			_, _ = conn.Read(one)
			_ = conn.Close()
		}
	}()
	i := &instance{control: cell.NewClient(dir, cell.Protocol, nil)}
	defer i.control.Close()
	if _, err := i.SetLimits(t.Context(), sandbox.Resources{MemoryMiB: 320}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("%v, want that the sandbox does not answer", err)
	}
}

// TestStopWithoutConnection checks that stop reports that a cell may still write a
// checkpoint for others, if its sandbox has ended or an earlier engine has stopped it.
func TestStopWithoutConnection(t *testing.T) {
	e := &Engine{cfg: Config{Dir: t.TempDir()}}
	if _, err := e.stop(t.Context(), "sbx-one"); err == nil {
		t.Error("a cell that does not exist was stopped")
	}
	dir := e.cellDir("sbx-one")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, originFile), []byte(fmt.Sprintf(`{"cell": %d}`, cell.Protocol)), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := cell.Listen(dir, cell.ControlSocket)
	if err != nil {
		t.Fatal(err)
	}
	asked := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"writing": %t}`, filepath.Base(r.URL.Path) == "Stop")
	})}
	defer asked.Close()
	go func() { _ = asked.Serve(l) }()
	if writing, err := e.stop(t.Context(), "sbx-one"); err != nil || !writing {
		t.Errorf("writing is %v, %v", writing, err)
	}
}
