package agentclient

import (
	"cmp"
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// ReadFile opens a range of a file. The caller closes the reader, which ends with ctx and
// whose errors are [sandbox.Error] values too.
func (c *Client) ReadFile(ctx context.Context, req *sandbox.ReadFileRequest) (*sandbox.FileReader, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.rpc.Read(ctx, connect.NewRequest(&agentv1.ReadRequest{Path: req.Path, Offset: req.Offset, Limit: req.Limit}))
	if err != nil {
		defer cancel()
		return nil, mapError(ctx, err)
	}
	r := &contentReader{ctx: ctx, cancel: cancel, stop: stream.Close, left: req.Limit, bounded: req.Limit > 0}
	r.receive = func() ([]byte, error) {
		if !stream.Receive() {
			return nil, cmp.Or(stream.Err(), io.EOF)
		}
		return stream.Msg().GetData(), nil
	}
	if err := r.fill(); err != nil && (err != io.EOF || stream.Msg() == nil) {
		_ = r.Close() // the first error says more
		if err == io.EOF {
			err = errProtocol("a file without a description")
		}
		return nil, err
	}
	info, err := fileInfo(stream.Msg().GetInfo())
	if err != nil {
		_ = r.Close() // the first error says more
		return nil, err
	}
	return &sandbox.FileReader{Info: *info, ReadCloser: r}, nil
}

// ArchiveDir opens a directory as a ZIP file of at most maxBytes; 0 is no limit. The
// reader is like that of [Client.ReadFile].
func (c *Client) ArchiveDir(ctx context.Context, p string, maxBytes int64) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.rpc.Archive(ctx, connect.NewRequest(&agentv1.ArchiveRequest{Path: p, MaxBytes: maxBytes}))
	if err != nil {
		defer cancel()
		return nil, mapError(ctx, err)
	}
	ended := false
	r := &contentReader{ctx: ctx, cancel: cancel, stop: stream.Close, left: maxBytes, bounded: maxBytes > 0}
	r.receive = func() ([]byte, error) {
		if !stream.Receive() {
			if err := stream.Err(); err != nil || ended {
				return nil, cmp.Or(err, io.EOF)
			}
			return nil, errProtocol("an archive without its end")
		}
		ended = stream.Msg().GetEnd()
		return stream.Msg().GetData(), nil
	}
	// The first message shows whether the directory exists.
	if err := r.fill(); err != nil && err != io.EOF {
		_ = r.Close() // the first error says more
		return nil, err
	}
	return r, nil
}

// contentReader reads the data of a stream of messages.
type contentReader struct {
	ctx     context.Context // of the call
	cancel  context.CancelFunc
	stop    func() error
	receive func() (data []byte, err error) // io.EOF: the end
	data    []byte
	err     error
	left    int64 // how many more bytes may come, if bounded
	bounded bool
}

func (r *contentReader) Read(p []byte) (int, error) {
	for len(r.data) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		if len(p) == 0 {
			return 0, nil
		}
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

// fill receives the next message. It records an error in r.err.
func (r *contentReader) fill() error {
	data, err := r.receive()
	switch {
	case err != nil:
		r.err = err
		if _, ok := errors.AsType[*sandbox.Error](err); !ok && err != io.EOF {
			r.err = mapError(r.ctx, err)
		}
	case r.bounded && int64(len(data)) > r.left:
		r.err = errProtocol("more content than asked for")
	default:
		r.left -= int64(len(data))
		r.data = data
		return nil
	}
	return r.err
}

// Close does not wait for the rest of the stream.
func (r *contentReader) Close() error {
	r.cancel()
	_ = r.stop() // Read has reported its error
	if r.err == nil {
		r.err = io.ErrClosedPipe
	}
	r.data = nil
	return nil
}
