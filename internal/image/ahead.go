package image

import (
	"context"
	"io"
)

// ahead reads a stream in a goroutine of its own, so that what makes it (a
// decompressor, a network) and what takes it work at the same time.
type ahead struct {
	stop   context.CancelFunc
	chunks chan chunk
	free   chan []byte
	now    chunk
	done   chan struct{}
}

type chunk struct {
	buf, rest []byte
	err       error
}

const (
	aheadChunks = 4
	aheadBytes  = 512 << 10
)

func newAhead(ctx context.Context, r io.Reader) *ahead {
	ctx, stop := context.WithCancel(ctx)
	// There is room for all buffers and one error: run never waits to tell.
	a := &ahead{stop: stop, chunks: make(chan chunk, aheadChunks+1), free: make(chan []byte, aheadChunks), done: make(chan struct{})}
	for range aheadChunks {
		a.free <- make([]byte, aheadBytes)
	}
	go a.run(ctx, r)
	return a
}

func (a *ahead) run(ctx context.Context, r io.Reader) {
	defer close(a.done)
	for {
		var buf []byte
		select {
		case buf = <-a.free:
		case <-ctx.Done():
			a.chunks <- chunk{err: context.Cause(ctx)}
			return
		}
		if err := ctx.Err(); err != nil {
			a.chunks <- chunk{err: context.Cause(ctx)}
			return
		}
		n, err := fill(r, buf)
		a.chunks <- chunk{buf: buf, rest: buf[:n], err: err}
		if err != nil {
			return
		}
	}
}

// fill reads until the buffer is full or the stream ends, as it says.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// Read implements [io.Reader].
func (a *ahead) Read(p []byte) (int, error) {
	for len(a.now.rest) == 0 {
		if a.now.err != nil {
			return 0, a.now.err
		}
		if a.now.buf != nil {
			a.free <- a.now.buf
		}
		a.now = <-a.chunks
	}
	n := copy(p, a.now.rest)
	a.now.rest = a.now.rest[n:]
	return n, nil
}

// close ends the goroutine and waits for it: the stream is the caller's again.
func (a *ahead) close() {
	a.stop()
	<-a.done
}
