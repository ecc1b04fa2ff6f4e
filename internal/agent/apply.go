package agent

import (
	"context"
	"errors"
	"io"
	"os"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/layer/apply"
	"github.com/cove-sh/cove/internal/wire/agentv1"
)

// Apply implements [agentv1connect.AgentHandler]. A stream that is not ended in
// order changes nothing. One stream is applied at a time.
func (a *Agent) Apply(ctx context.Context, s *connect.ClientStream[agentv1.ApplyRequest]) (*connect.Response[agentv1.ApplyResponse], error) {
	a.applyMu.Lock()
	defer a.applyMu.Unlock()
	root, err := os.Open("/")
	if err != nil {
		return nil, fileError("open", "/", err)
	}
	defer root.Close()
	if err := apply.Recover(root); err != nil {
		return nil, fileError("undo a merge that was cut off in", "/", err)
	}
	r := &applyReader{ctx: ctx, s: s}
	if err := apply.Apply(ctx, root, r); err != nil {
		if ctx.Err() != nil {
			return nil, cancelled(ctx)
		}
		return nil, fileError("merge files into", "/", err)
	}
	// A client that still sends would see its connection break instead of the
	// answer.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, err
	}
	return connect.NewResponse(&agentv1.ApplyResponse{}), nil
}

// applyReader reads the data of a stream.
type applyReader struct {
	ctx  context.Context
	s    *connect.ClientStream[agentv1.ApplyRequest]
	rest []byte
}

// Read implements [io.Reader].
func (r *applyReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if !r.s.Receive() {
			if err := r.s.Err(); err != nil && !errors.Is(err, io.EOF) {
				return 0, err
			}
			return 0, io.EOF
		}
		r.rest = r.s.Msg().GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
