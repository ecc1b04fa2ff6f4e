package cells

import (
	"testing"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/sandbox"
)

// A cell that ends while its limits are changed resets the connection, which is
// for the caller that the sandbox does not answer.
func TestLimitsOfACellThatEnds(t *testing.T) {
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
			// What was not read of it makes the end a reset.
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
