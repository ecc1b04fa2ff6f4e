package cell

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/wire/cellv1"
	"github.com/cove-sh/cove/internal/wire/cellv1/cellv1connect"
)

// Who watches is told why the sandbox has ended, however busy the machine is.
func TestLastStatusIsTold(t *testing.T) {
	dir := t.TempDir()
	c := &cell{spec: Spec{Dir: dir}, status: &cellv1.Status{Phase: cellv1.Phase_PHASE_RUNNING}, changed: make(chan struct{})}
	srv, err := c.serve()
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return Dial(ctx, dir, ControlSocket) }}
	defer tr.CloseIdleConnections()
	stream, err := cellv1connect.NewCellClient(&http.Client{Transport: tr}, "http://cell").Watch(t.Context(), connect.NewRequest(&cellv1.WatchRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() || stream.Msg().Phase != cellv1.Phase_PHASE_RUNNING {
		t.Fatalf("at first: %v, %v", stream.Msg(), stream.Err())
	}
	c.mu.Lock()
	c.status = &cellv1.Status{Phase: cellv1.Phase_PHASE_FAILED, Reason: "why"}
	close(c.changed)
	time.AfterFunc(1500*time.Millisecond, c.mu.Unlock) // who tells comes late
	srv.close()
	if !stream.Receive() || stream.Msg().Reason != "why" {
		t.Errorf("at the end: %v, %v", stream.Msg(), stream.Err())
	}
}
