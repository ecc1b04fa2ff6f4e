package kernel

import (
	"bytes"
	"sync"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// pieceBytes is how much output one event carries at most.
const pieceBytes = 64 << 10

// aroundBytes is what metadata and paths may take that come with outputs,
// besides what these may.
const aroundBytes = 512 << 10

// Outbox holds what a run has produced until its caller takes it. It is
// bounded by what is kept of the streams and the limits of outputs, so that a
// slow caller never holds up a kernel. Its methods are safe for concurrent use.
type Outbox struct {
	mu     sync.Mutex
	events []*agentv1.CodeEvent // guarded by mu
	// The rest is guarded by mu too. Index 0 is stdout, 1 stderr.
	total  [2]int64
	sent   [2]int64  // how much of it is in events, now or before
	held   [2][]byte // the beginning of a character
	full   [2]bool   // nothing more is kept
	keep   int64
	rich   int
	bytes  int
	around int // metadata and paths
	closed bool
	wake   chan struct{} // has a value when there may be more
}

// NewOutbox makes an outbox that keeps so many bytes of each stream.
func NewOutbox(keep int64) *Outbox {
	return &Outbox{keep: keep, wake: make(chan struct{}, 1)}
}

// Wake has a value when there may be more to [Outbox.Take].
func (o *Outbox) Wake() <-chan struct{} { return o.wake }

// Take removes and returns all events, and whether none will follow.
func (o *Outbox) Take() (events []*agentv1.CodeEvent, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	events, o.events = o.events, nil
	return events, o.closed
}

// Write adds output of a stream: 0 is stdout, 1 stderr. Characters stay whole.
func (o *Outbox) Write(stream int, data []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.total[stream] += int64(len(data))
	if o.full[stream] {
		return
	}
	room := o.keep - o.sent[stream] - int64(len(o.held[stream]))
	o.full[stream] = int64(len(data)) > room
	data = append(o.held[stream], data[:min(room, int64(len(data)))]...)
	whole := len(clip.TrimEnd(data))
	o.add(stream, data[:whole])
	o.held[stream] = nil
	if !o.full[stream] { // otherwise its end is not kept
		o.held[stream] = bytes.Clone(data[whole:])
	}
}

// Note adds a line for the reader to stderr, however much is there.
func (o *Outbox) Note(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.flush()
	o.total[1] += int64(len(text))
	o.add(1, []byte(text))
}

// add appends to the events.
//
// Preconditions: o.mu is held.
func (o *Outbox) add(stream int, data []byte) {
	name := agentv1.Stream_STREAM_STDOUT + agentv1.Stream(stream)
	var last *agentv1.Output
	if n := len(o.events); n > 0 {
		last = o.events[n-1].GetOutput()
	}
	for len(data) > 0 {
		n := 0
		if last != nil && last.GetStream() == name {
			n = pieceOf(data, pieceBytes-len(last.GetData()))
		}
		if n <= 0 {
			last = &agentv1.Output{Stream: name, Offset: o.sent[stream]}
			o.events = append(o.events, &agentv1.CodeEvent{Event: &agentv1.CodeEvent_Output{Output: last}})
			n = pieceOf(data, pieceBytes)
		}
		last.Data = append(last.Data, data[:n]...)
		o.sent[stream] += int64(n)
		data = data[n:]
	}
	o.poke()
}

// pieceOf returns how many bytes of data to take when there is room for so
// many: no part of a character, unless all that is there is one.
func pieceOf(data []byte, room int) int {
	return len(clip.Head(data, room))
}

// Add adds a rich output and reports whether there was room for it.
func (o *Outbox) Add(out *agentv1.CodeOutput) bool {
	size, around := 0, 0
	for _, data := range out.GetData() {
		size += len(data)
	}
	for _, data := range out.GetMetadata() {
		around += len(data)
	}
	for _, path := range out.GetFiles() {
		around += len(path)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.rich == sandbox.MaxOutputs || o.bytes+size > sandbox.MaxOutputsBytes || o.around+around > aroundBytes {
		return false
	}
	o.rich++
	o.bytes += size
	o.around += around
	o.flush()
	o.events = append(o.events, &agentv1.CodeEvent{Event: &agentv1.CodeEvent_Rich{Rich: out}})
	o.poke()
	return true
}

// flush gives up on the ends of characters.
//
// Preconditions: o.mu is held.
func (o *Outbox) flush() {
	for i := range o.held {
		held := o.held[i]
		o.held[i] = nil
		o.add(i, held)
	}
}

// Close adds the result, which is the last event.
func (o *Outbox) Close(result *agentv1.CodeResult) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.flush()
	result.StdoutBytes, result.StderrBytes = o.total[0], o.total[1]
	o.events = append(o.events, &agentv1.CodeEvent{Event: &agentv1.CodeEvent_Result{Result: result}})
	o.closed = true
	o.poke()
}

// Preconditions: o.mu is held.
func (o *Outbox) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}
