package agent

import "time"

// Flow control of a job by a reader. Without it, a terminal shows what a program wrote
// long before: between the program and a browser lie the buffers of several connections,
// megabytes that count as read, and a browser cannot say how far it is. So a reader may
// take output in pieces. Its stream ends after so many bytes, and once it has processed
// them, it attaches again where the stream ended, which acknowledges them. Until then the
// job may be ahead by a window, and then blocks, as it does on a full pipe. At most a piece
// and a window are on the way, whatever the connections hold.
//
// Of several readers, the slowest counts, but none for long. A reader that does not come
// back is forgotten after [returnLimit], one that is connected and reads nothing after
// [stallLimit], and the job never waits for one that is [maxAwaitedBytes] behind. No output
// is lost by that: it is in memory and in the spool, and is read from there.

const (
	// maxWindow bounds how far a job may be ahead of a reader that takes pieces, in bytes.
	maxWindow = 1 << 20
	// maxAwaitedBytes is how far behind a reader may be for the job to wait for it. It would
	// have to read all of that before the job continues.
	maxAwaitedBytes = 4 << 20
	// returnLimit is how long a reader is expected back after a piece.
	returnLimit = 10 * time.Second
	// maxAway bounds the readers of one job that are expected back.
	maxAway = 16
)

// pieces is how a reader wants output. The zero value is all of it, as it comes.
type pieces struct {
	size int64 // how many bytes at a time
	last int64 // how many of the bytes of each stream that are there already; 0: all
}

// begin returns where a reader that asks for position off begins.
func (p pieces) begin(k *kept, off int64) int64 {
	if p.last > 0 {
		off = max(off, k.total-p.last)
	}
	return min(off, k.total)
}

// piece returns the part of buf that f may still fill.
func (f *follower) piece(buf []byte) []byte {
	if f.window == 0 {
		return buf
	}
	return buf[:min(int64(len(buf)), f.left)]
}

// full reports whether f has had its piece.
func (f *follower) full() bool { return f.window > 0 && f.left <= 0 }

// tooFar reports whether the job is so far ahead of f, which takes pieces, that it waits.
func (f *follower) tooFar(k *kept, s int) bool {
	unread := k.total - f.pos[s]
	return f.window > 0 && unread >= f.window && unread <= maxAwaitedBytes
}

// expect keeps the place of f, which has had its piece, for when it comes back.
func (o *output) expect(f *follower) {
	o.mu.Lock()
	defer o.mu.Unlock()
	away := 0
	for other := range o.followers {
		if other.away {
			away++
		}
	}
	if o.free || away >= maxAway {
		delete(o.followers, f)
		o.makeRoom()
		return
	}
	f.away = true
	time.AfterFunc(returnLimit, func() { o.unfollow(f) })
}

// leave is unfollow for a reader that may be expected back.
func (o *output) leave(f *follower) {
	o.mu.Lock()
	away := f.away
	o.mu.Unlock()
	if !away {
		o.unfollow(f)
	}
}

// returned forgets the reader that f continues.
//
// Preconditions: o.mu is held.
func (o *output) returned(f *follower) {
	if f.window == 0 {
		return
	}
	for other := range o.followers {
		if other.away && other.pos == f.pos {
			delete(o.followers, other)
			return
		}
	}
}

// release ends the flow control of a job that has ended: its end is reported once its last
// output has been taken.
func (o *output) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.free = true
	for f := range o.followers {
		if f.away {
			delete(o.followers, f)
		}
	}
	o.makeRoom()
}
