package remote

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// The kinds of frames.
const (
	frameMessage byte = 'm' // JSON
	frameError   byte = 'e' // JSON of a [failure]; nothing follows
	frameData    byte = 'd' // bytes of a stream
	frameEnd     byte = 'x' // the sender sends no more bytes
	frameSecret  byte = 's' // the value of the placeholder in the message before
	framePart    byte = 'p' // an offset, and bytes of a file from there on
)

const (
	// maxMessage bounds a message, in bytes. The longest are lists of instances with their
	// labels.
	maxMessage = 32 << 20
	// maxData bounds the bytes in one frame of a stream or a secret.
	maxData = 64 << 10
)

// errFrame marks what no honest peer sends.
var errFrame = errors.New("the peer does not follow the protocol")

// bound returns how long a frame of a kind may be.
func bound(kind byte) (int, error) {
	switch kind {
	case frameMessage, frameError:
		return maxMessage, nil
	case frameData, frameSecret, framePart:
		return maxData, nil
	case frameEnd:
		return 0, nil
	}
	return 0, fmt.Errorf("%w: unknown frame %q", errFrame, kind)
}

// frames reads and writes the frames of one stream. One goroutine may read while others
// write.
type frames struct {
	r *bufio.Reader

	mu    sync.Mutex // held to write
	w     io.Writer
	flush func() error // or nil
	head  [5]byte      // guarded by mu
	over  bool         // guarded by mu; see stop
}

func newFrames(r io.Reader, w io.Writer, flush func() error) *frames {
	return &frames{r: bufio.NewReaderSize(r, 16<<10), w: w, flush: flush}
}

// write writes one frame, which must be within its bound.
func (f *frames) write(kind byte, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return net.ErrClosed
	}
	f.head[0] = kind
	binary.BigEndian.PutUint32(f.head[1:], uint32(len(data)))
	if _, err := f.w.Write(f.head[:]); err != nil {
		return err
	}
	if len(data) > 0 {
		if _, err := f.w.Write(data); err != nil {
			return err
		}
	}
	if f.flush == nil {
		return nil
	}
	return f.flush()
}

// stop waits for a write in progress and refuses later ones.
func (f *frames) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
}

// next reads the head of the next frame.
func (f *frames) next() (kind byte, size int, err error) {
	var head [5]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return 0, 0, err
	}
	most, err := bound(head[0])
	if err != nil {
		return 0, 0, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if uint64(n) > uint64(most) {
		return 0, 0, fmt.Errorf("%w: a frame of %d bytes", errFrame, n)
	}
	return head[0], int(n), nil
}

// body reads the content of a frame. Memory grows with what arrives, not with what was
// announced.
func (f *frames) body(size int) ([]byte, error) {
	if size <= maxData {
		data := make([]byte, size)
		_, err := io.ReadFull(f.r, data)
		return data, whole(err)
	}
	data, err := io.ReadAll(io.LimitReader(f.r, int64(size)))
	if err == nil && len(data) < size {
		err = io.ErrUnexpectedEOF
	}
	return data, err
}

// whole makes the end of a stream within a frame an error.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// send writes a message.
func (f *frames) send(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(data) > maxMessage {
		return fmt.Errorf("a message of %d bytes is longer than %d", len(data), maxMessage)
	}
	return f.write(frameMessage, data)
}

// receive reads a message into v. An error that the peer sends in its place is returned.
func (f *frames) receive(v any) error {
	kind, size, err := f.next()
	if err != nil {
		return whole(err)
	}
	if kind != frameMessage && kind != frameError {
		return fmt.Errorf("%w: frame %q in place of a message", errFrame, kind)
	}
	data, err := f.body(size)
	if err != nil {
		return err
	}
	if kind == frameError {
		var failed failure
		if err := json.Unmarshal(data, &failed); err != nil {
			return fmt.Errorf("%w: %w", errFrame, err)
		}
		return failed.error()
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	return nil
}

// secret reads a value, which the caller must wipe.
func (f *frames) secret() ([]byte, error) {
	kind, size, err := f.next()
	if err == nil && kind != frameSecret {
		err = fmt.Errorf("%w: frame %q in place of a value", errFrame, kind)
	}
	if err != nil {
		return nil, whole(err)
	}
	value, err := f.body(size)
	if err != nil {
		clear(value)
		return nil, err
	}
	return value, nil
}
