package agent

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// maxUnsized bounds what is read of a file that reports no size, such as one in /proc.
const maxUnsized = 64 << 20

// Read implements [agentv1connect.AgentHandler].
func (a *Agent) Read(ctx context.Context, req *connect.Request[agentv1.ReadRequest], s *connect.ServerStream[agentv1.ReadResponse]) error {
	path, err := a.path(req.Msg.GetPath())
	if err != nil {
		return err
	}
	off, limit := req.Msg.GetOffset(), req.Msg.GetLimit()
	if off < 0 || limit < 0 {
		return invalid("offset and limit cannot be negative; use 0 for the start and the end")
	}
	f, info, err := openRegular(unix.AT_FDCWD, path, path, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// Otherwise a file that grows as fast as it is read would never end.
	left := max(0, info.GetSize()-off)
	if info.GetSize() == 0 {
		left = maxUnsized
	}
	if limit > 0 {
		left = min(left, limit)
	}
	size := chunkBytes
	if info.GetSize() > 0 {
		size = int(min(left, chunkBytes))
	}
	buf := make([]byte, size)
	for first := true; first || left > 0; first = false {
		n, err := f.ReadAt(buf[:min(left, int64(len(buf)))], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return fileError("read", path, err)
		}
		if n == 0 && !first {
			return nil
		}
		m := &agentv1.ReadResponse{Data: buf[:n]}
		if first {
			m.Info = a.complete(info)
		}
		if err := s.Send(m); err != nil {
			return err
		}
		if err != nil { // the end
			return nil
		}
		if ctx.Err() != nil {
			return cancelled(ctx)
		}
		off += int64(n)
		left -= int64(n)
	}
	return nil
}
