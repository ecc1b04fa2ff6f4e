package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/template/layer/apply"
)

// maxApplyRest bounds what a client may still send after the end of a merge, in bytes.
const maxApplyRest = 1 << 20

// recoverMerge undoes a merge that was under way when a snapshot of the files was taken.
func (a *Agent) recoverMerge() {
	root, err := os.Open(a.root)
	if err == nil {
		err = apply.Recover(root)
		_ = root.Close()
	}
	if err != nil {
		a.log.Warn("undo a merge that was cut off", "error", err)
	}
}

// Apply implements [agentv1connect.AgentHandler]. A stream that breaks off changes
// nothing. One stream is applied at a time and others are refused: if they waited,
// their data would fill the connection that all calls share.
func (a *Agent) Apply(ctx context.Context, s *connect.ClientStream[agentv1.ApplyRequest]) (*connect.Response[agentv1.ApplyResponse], error) {
	if !a.applyMu.TryLock() {
		return nil, fail(connect.CodeAborted, "another merge into this sandbox is under way; try again when it is done")
	}
	defer a.applyMu.Unlock()
	root, err := os.Open(a.root)
	if err != nil {
		return nil, fileError("open", "/", err)
	}
	defer root.Close()
	if err := apply.Recover(root); err != nil {
		return nil, fileError("undo a merge that was cut off in", "/", err)
	}
	r := &applyReader{s: s}
	if err := apply.Apply(ctx, root, r); err != nil {
		return nil, applyError(ctx, err)
	}
	// A client that is still sending would see a broken connection instead of the
	// answer. The merge is done, whatever follows.
	_, _ = io.CopyN(io.Discard, r, maxApplyRest)
	return connect.NewResponse(&agentv1.ApplyResponse{}), nil
}

// applyError describes why a merge was not applied.
func applyError(ctx context.Context, err error) *connect.Error {
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	switch {
	case errors.Is(err, apply.ErrStuck):
		return fail(connect.CodeInternal, "a part of the merge was done and could not be undone: %s", text)
	case ctx.Err() != nil:
		return cancelled(ctx)
	case errors.Is(err, apply.ErrStream):
		return invalid("nothing was merged: %s; ask for the merge again", text)
	}
	errno, _ := errors.AsType[unix.Errno](err)
	switch errno {
	case unix.ENOTDIR, unix.EISDIR, unix.ENOENT, unix.EEXIST, unix.ELOOP, unix.ENOTEMPTY, unix.EXDEV:
		return fail(connect.CodeAborted, "nothing was merged, since files are not as they were when the merge was planned: %s; ask for the merge again", text)
	}
	return fileError("merge files into", "/", err)
}

// applyReader reads the data in the messages of a stream.
type applyReader struct {
	s    *connect.ClientStream[agentv1.ApplyRequest]
	rest []byte
}

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
