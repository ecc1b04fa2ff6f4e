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
	// outputEvery is how often output is told as it comes, maxOutputOnce how
	// much of each stream at once, and maxOutputTold how much of both in all:
	// the result has the end of what is left out.
	outputEvery   = 200 * time.Millisecond
	maxOutputOnce = 8 << 10
	maxOutputTold = 256 << 10
)

// outputTeller tells what a call's work writes as it comes, a bounded part of
// it. What a program writes to its two streams between two looks is told in
// two pieces, one of each.
type outputTeller struct {
	send func(dialect.Output)
	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	begun   bool                       // guarded by mu
	streams map[sandbox.Stream]*untold // guarded by mu
	room    int                        // of maxOutputTold; guarded by mu
}

// untold is what of a stream has not been told yet.
type untold struct {
	before int64 // bytes that were left out before data
	data   []byte
	after  int64 // and after it
}

func newOutputTeller(ctx context.Context, send func(dialect.Output)) *outputTeller {
	t := &outputTeller{send: send, streams: make(map[sandbox.Stream]*untold), room: maxOutputTold}
	t.ctx, t.stop = context.WithCancel(ctx)
	return t
}

// write takes a part of a stream. A program that writes as fast as it can must
// not be held up: most of what it writes is only counted.
func (t *outputTeller) write(s sandbox.Stream, p []byte) {
	if len(p) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.streams[s]
	if u == nil {
		u = &untold{}
		t.streams[s] = u
	}
	n := 0
	if u.after == 0 {
		n = min(len(p), maxOutputOnce-len(u.data))
	}
	u.data = append(u.data, p[:n]...)
	u.after += int64(len(p) - n)
	if !t.begun {
		t.begun = true
		t.done.Go(t.run)
	}
}

func (t *outputTeller) run() {
	tick := time.NewTicker(outputEvery)
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

// end tells what is left, and how much will never be told.
func (t *outputTeller) end() {
	t.stop()
	t.done.Wait()
	t.flush(true)
}

func (t *outputTeller) flush(last bool) {
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

// next takes a piece of a stream that is to be told now. The last has what
// begins a character that never ended, and what was left out at the end.
func (t *outputTeller) next(s sandbox.Stream, last bool) (dialect.Output, bool) {
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
	told, rest := u.data, []byte(nil)
	if n := clip.PartialEnd(told); n > 0 && u.after > 0 {
		told, u.after = told[:len(told)-n], u.after+int64(n)
	} else if n > 0 && !last {
		told, rest = told[:len(told)-n], told[len(told)-n:]
	}
	if len(told) == 0 && !last {
		u.data, u.before, u.after = rest, u.before+u.after, 0
		return dialect.Output{}, false
	}
	o := dialect.Output{Stream: s, Omitted: u.before}
	o.Text, _ = clean(told)
	t.room -= len(told)
	u.data, u.before, u.after = append([]byte(nil), rest...), u.after, 0
	return o, len(told) > 0 || o.Omitted > 0
}
