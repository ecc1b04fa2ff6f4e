package native

import (
	"context"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// outputInterval is the interval at which output is sent, maxOutputPiece the most
	// of each stream at once, and maxOutputSent the most of both in all: the result
	// has the end of what is omitted.
	outputInterval = 200 * time.Millisecond
	maxOutputPiece = 8 << 10
	maxOutputSent  = 256 << 10
)

// outputStreamer sends a bounded part of what a call's work writes while it runs. In
// each interval it sends at most one piece of each stream, so the order of writes to
// different streams within an interval is lost.
type outputStreamer struct {
	send func(dialect.Output)
	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	begun   bool                       // guarded by mu
	streams map[sandbox.Stream]*unsent // guarded by mu
	room    int                        // of maxOutputSent; guarded by mu
}

// unsent is the part of a stream that has not been sent yet.
type unsent struct {
	before int64 // bytes omitted before data
	data   []byte
	after  int64 // bytes omitted after data
}

func newOutputStreamer(ctx context.Context, send func(dialect.Output)) *outputStreamer {
	t := &outputStreamer{send: send, streams: make(map[sandbox.Stream]*unsent), room: maxOutputSent}
	t.ctx, t.stop = context.WithCancel(ctx)
	return t
}

// write adds to a stream. It never blocks a fast program: beyond maxOutputPiece it only
// counts bytes.
func (t *outputStreamer) write(s sandbox.Stream, p []byte) {
	if len(p) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.streams[s]
	if u == nil {
		u = &unsent{}
		t.streams[s] = u
	}
	n := 0
	if u.after == 0 {
		n = min(len(p), maxOutputPiece-len(u.data))
	}
	u.data = append(u.data, p[:n]...)
	u.after += int64(len(p) - n)
	if !t.begun {
		t.begun = true
		t.done.Go(t.run)
	}
}

func (t *outputStreamer) run() {
	tick := time.NewTicker(outputInterval)
	defer tick.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
			t.flush(false)
		}
	}
}

// end sends the rest, and how much was omitted.
func (t *outputStreamer) end() {
	t.stop()
	t.done.Wait()
	t.flush(true)
}

func (t *outputStreamer) flush(last bool) {
	for _, s := range []sandbox.Stream{sandbox.Stdout, sandbox.Stderr} {
		for {
			o, ok := t.next(s, last)
			if !ok {
				break
			}
			t.send(o)
			if !last {
				break
			}
		}
	}
}

// next returns the next piece of a stream to send. The last piece includes an
// incomplete character, and the bytes omitted at the end.
func (t *outputStreamer) next(s sandbox.Stream, last bool) (dialect.Output, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.streams[s]
	if u == nil {
		return dialect.Output{}, false
	}
	if n := len(u.data) - t.room; n > 0 {
		u.data, u.after = u.data[:t.room], u.after+int64(n)
	}
	if u.before > 0 {
		n := clip.PartialStart(u.data)
		u.data, u.before = u.data[n:], u.before+int64(n)
	}
	piece, rest := u.data, []byte(nil)
	if n := clip.PartialEnd(piece); n > 0 && u.after > 0 {
		piece, u.after = piece[:len(piece)-n], u.after+int64(n)
	} else if n > 0 && !last {
		piece, rest = piece[:len(piece)-n], piece[len(piece)-n:]
	}
	if len(piece) == 0 && !last {
		u.data, u.before, u.after = rest, u.before+u.after, 0
		return dialect.Output{}, false
	}
	o := dialect.Output{Stream: s, Omitted: u.before}
	o.Text, _ = clean(piece)
	t.room -= len(piece)
	u.data, u.before, u.after = append([]byte(nil), rest...), u.after, 0
	return o, len(piece) > 0 || o.Omitted > 0
}
