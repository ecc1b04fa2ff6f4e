package cells

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/cove-sh/cove/internal/wire/cellv1/cellv1connect"
	"github.com/cove-sh/cove/sandbox"
)

// A cell that ends while its limits are changed resets the connection, which is
// for the caller that the sandbox does not answer.
func TestLimitsOfACellThatEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cell.sock")
	l, err := net.Listen("unix", path)
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
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer tr.CloseIdleConnections()
	i := &instance{control: cellv1connect.NewCellClient(&http.Client{Transport: tr}, "http://cell")}
	if _, err := i.SetLimits(t.Context(), sandbox.Resources{MemoryMiB: 320}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("%v, want that the sandbox does not answer", err)
	}
}
