package agent

import (
	"sync"
	"time"
)

const (
	// liveWindow is how far a follower may always lag behind a stream, in bytes, and
	// the most that a pump appends at once.
	liveWindow = 64 << 10
	// stallLimit is how long a follower that reads nothing may hold up a job.
	stallLimit = 30 * time.Second
)

// kept is one stream of a job's output: its first and last bytes.
type kept struct {
	headCap int
	tailCap int // how much of the ring is kept for later readers
	ringCap int // at least liveWindow, for followers
	head    []byte
	ring    []byte
	start   int // index in ring of its oldest byte
	total   int64
	eof     bool
	// spooled is the position up to which bytes after the head have been given to
	// the spool.
	spooled int64
}

func newKept(keep int) kept {
	head := keep - keep/2
	return kept{headCap: head, tailCap: keep - head, ringCap: max(keep-head, liveWindow)}
}

// append adds p to the stream.
func (k *kept) append(p []byte) {
	k.total += int64(len(p))
	if n := min(len(p), k.headCap-len(k.head)); n > 0 {
		k.head = append(k.head, p[:n]...)
		p = p[n:]
	}
	if len(p) > k.ringCap {
		p = p[len(p)-k.ringCap:]
	}
	if n := min(len(p), k.ringCap-len(k.ring)); n > 0 {
		k.grow(n)
		k.ring = append(k.ring, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 { // the ring is full and wraps
		n := copy(k.ring[k.start:], p)
		k.start = (k.start + n) % len(k.ring)
		p = p[n:]
	}
}

// grow makes room for n bytes in ring, up to ringCap.
func (k *kept) grow(n int) {
	need := len(k.ring) + n
	if need <= cap(k.ring) {
		return
	}
	ring := make([]byte, 0, min(k.ringCap, max(need, 2*cap(k.ring), 4096)))
	k.ring = append(ring, k.ring...)
}

// first is the position of the oldest readable byte after the head.
func (k *kept) first(live bool) int64 {
	tail := len(k.ring)
	if !live {
		tail = min(tail, k.tailCap)
	}
	return max(int64(len(k.head)), k.total-int64(tail))
}

// behind reports whether bytes after position off are no longer in memory.
func (k *kept) behind(off int64) bool {
	return k.first(true) > max(off, int64(len(k.head)))
}

// read copies bytes from position off on into p and returns their position, which
// is greater than off if bytes are missing. A short read does not mean the end. With
// live set it reads the whole ring rather than the part that is kept for later readers.
func (k *kept) read(off int64, p []byte, live bool) (int64, int) {
	if off < int64(len(k.head)) {
		return off, copy(p, k.head[off:])
	}
	off = max(off, k.first(live))
	if off >= k.total {
		return k.total, 0
	}
	skip := int(off - (k.total - int64(len(k.ring))))
	i := (k.start + skip) % len(k.ring)
	p = p[:min(len(p), len(k.ring)-skip)]
	n := copy(p, k.ring[i:])
	n += copy(p[n:], k.ring)
	return off, n
}

// output is what a job has written to stdout and stderr, and its followers.
type output struct {
	spool     *spool // has what is no longer in memory; nil: that is lost
	mu        sync.Mutex
	streams   [2]kept                // guarded by mu
	followers map[*follower]struct{} // guarded by mu
	room      chan struct{}          // guarded by mu; if not nil, closed when a follower moves
	free      bool                   // guarded by mu; the job has ended, and waits for no reader
	dropped   bool                   // guarded by mu; output is discarded
}

// follower reads a job's output while it is written. Bytes that it has not seen stay
// in memory: the job waits for the follower, unless that stalls, or is already behind
// what is in memory and reads from the spool.
type follower struct {
	wake chan struct{} // has a value when there may be more
	// The rest is guarded by output.mu.
	pos  [2]int64
	lost bool // it has stalled: the job does not wait for it until it moves again
	away bool // it has had its piece and is expected back, see [output.expect]

	window int64 // how far the job may be ahead of a reader that takes pieces, in bytes; 0: it does not
	left   int64 // how much of its piece is left; used by its own goroutine alone
}

func (o *output) init(keep int, spool *spool) {
	o.spool = spool
	o.streams = [2]kept{newKept(keep), newKept(keep)}
	o.followers = map[*follower]struct{}{}
}

// follow adds a reader that starts at the given positions.
func (o *output) follow(stdout, stderr int64) *follower {
	return o.followBy(stdout, stderr, pieces{})
}

// followBy is follow for a reader that may take pieces.
func (o *output) followBy(stdout, stderr int64, by pieces) *follower {
	f := &follower{wake: make(chan struct{}, 1), window: min(by.size, maxWindow), left: by.size}
	o.mu.Lock()
	defer o.mu.Unlock()
	f.pos = [2]int64{by.begin(&o.streams[0], stdout), by.begin(&o.streams[1], stderr)}
	o.returned(f)
	o.followers[f] = struct{}{}
	notify(f.wake)
	return f
}

func (o *output) unfollow(f *follower) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.followers, f)
	o.makeRoom()
}

// makeRoom wakes the pumps that wait for followers.
//
// Preconditions: o.mu is held.
func (o *output) makeRoom() {
	if o.room != nil {
		close(o.room)
		o.room = nil
	}
}

// next copies what f has not seen of stream s into p.
func (o *output) next(f *follower, s int, p []byte) (off int64, n int) {
	o.mu.Lock()
	from := f.pos[s] // only this goroutine moves it
	o.mu.Unlock()
	off, n = o.piece(s, from, p, true)
	o.mu.Lock()
	defer o.mu.Unlock()
	if end := off + int64(n); end != f.pos[s] {
		f.pos[s] = end
		f.lost = false
		o.makeRoom()
	}
	return off, n
}

// passed reports whether f has read both streams up to the positions end.
func (o *output) passed(f *follower, end [2]int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return f.pos[0] >= end[0] && f.pos[1] >= end[1]
}

// piece copies bytes of stream s from position off on into p, from memory or
// from the spool, as [kept.read] does.
func (o *output) piece(s int, off int64, p []byte, live bool) (int64, int) {
	o.mu.Lock()
	k := &o.streams[s]
	if o.spool != nil && off >= int64(len(k.head)) && k.behind(off) {
		o.mu.Unlock()
		if at, n := o.spool.read(s, off, p); n > 0 {
			return at, n
		}
		o.mu.Lock()
	}
	defer o.mu.Unlock()
	return k.read(off, p, live || o.spool != nil)
}

// write appends at most liveWindow bytes to stream s, as soon as no follower would
// lose unread bytes. A stream has one writer.
func (o *output) write(s int, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.blocked(s, len(p)) {
		if o.room == nil {
			o.room = make(chan struct{})
		}
		room := o.room
		o.mu.Unlock()
		select {
		case <-room:
			o.mu.Lock()
		case <-time.After(stallLimit):
			o.mu.Lock()
			o.giveUp(s, len(p))
		}
	}
	o.spill(s, len(p))
	if o.dropped {
		o.streams[s].total += int64(len(p))
		return
	}
	o.streams[s].append(p)
	o.wakeAll()
}

// spill writes to the spool, a buffer at a time, what appending n bytes to stream s
// would remove from memory. All of it stays readable meanwhile.
//
// Preconditions: o.mu is held; it is released while the disk is written to.
func (o *output) spill(s, n int) {
	if o.spool == nil {
		return
	}
	k := &o.streams[s]
	for !o.dropped {
		k.spooled = max(k.spooled, int64(k.headCap))
		if k.total+int64(n)-int64(k.ringCap) <= k.spooled {
			return
		}
		buf := buffers.Get().(*[liveWindow]byte)
		at, m := k.read(k.spooled, buf[:], true)
		k.spooled = at + int64(m)
		o.mu.Unlock()
		o.spool.write(s, at, buf[:m])
		buffers.Put(buf)
		o.mu.Lock()
	}
}

// blocked reports whether a follower would lose bytes if n were appended.
//
// Preconditions: o.mu is held.
func (o *output) blocked(s, n int) bool {
	if o.dropped {
		return false
	}
	for f := range o.followers {
		if !f.lost && o.awaited(f, s, n) {
			return true
		}
	}
	return false
}

// awaited reports whether the job waits for f before it appends n bytes.
//
// Preconditions: o.mu is held.
func (o *output) awaited(f *follower, s, n int) bool {
	k := &o.streams[s]
	return f.wouldLose(k, s, n) || !o.free && f.tooFar(k, s)
}

func (f *follower) wouldLose(k *kept, s, n int) bool {
	first := k.total + int64(n) - int64(k.ringCap)
	return first > int64(k.headCap) && f.pos[s] < first && !k.behind(f.pos[s])
}

// giveUp stops waiting for the followers that block stream s.
//
// Preconditions: o.mu is held.
func (o *output) giveUp(s, n int) {
	for f := range o.followers {
		if o.awaited(f, s, n) {
			f.lost = true
		}
	}
}

// Preconditions: o.mu is held.
func (o *output) wakeAll() {
	for f := range o.followers {
		notify(f.wake)
	}
}

// end marks the end of stream s.
func (o *output) end(s int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.streams[s].eof = true
	o.wakeAll()
}

// ended reports whether both streams have ended.
func (o *output) ended() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.streams[0].eof && o.streams[1].eof
}

// read copies up to limit kept bytes of stream s from position off on.
func (o *output) read(s int, off int64, limit int) (pos int64, data []byte, total int64) {
	o.mu.Lock()
	total = o.streams[s].total
	o.mu.Unlock()
	pos = off
	data = make([]byte, min(int64(limit), max(0, total-off)))
	n := 0
	for n < len(data) {
		at, m := o.piece(s, pos+int64(n), data[n:], false)
		if n == 0 {
			pos = at
		}
		if m == 0 || at != pos+int64(n) {
			break // the end, or a gap after what is there
		}
		n += m
	}
	return min(pos, total), data[:n], total
}

// totals returns how much was written to each stream, and the memory in use.
func (o *output) totals() (stdout, stderr int64, size int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.streams {
		size += cap(o.streams[i].head) + cap(o.streams[i].ring)
	}
	return o.streams[0].total, o.streams[1].total, size
}

// drop frees all output and discards what is still to come.
func (o *output) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropped = true
	for i := range o.streams {
		k := &o.streams[i]
		k.head, k.ring, k.start, k.headCap = nil, nil, 0, 0
	}
	o.spool.close()
	o.wakeAll()
	o.makeRoom()
}
