package kernel

import (
	"bytes"
	"sync"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// pieceBytes bounds the output in one event.
	pieceBytes = 64 << 10
	// metaBytes bounds the metadata and paths of all outputs.
	metaBytes = 512 << 10
)

// Outbox holds what a run has produced until the caller takes it. It is bounded by how much
// of the streams is kept and by the limits of outputs, so a slow caller never holds up a
// kernel. Its methods are safe for concurrent use.
type Outbox struct {
	mu     sync.Mutex
	events []*agentv1.CodeEvent // guarded by mu
	// The rest is guarded by mu too. Index 0 is stdout, 1 stderr.
	total  [2]int64
	sent   [2]int64  // how much of it has been put into events
	held   [2][]byte // the first bytes of an incomplete character
	full   [2]bool   // no more is kept
	keep   int64
	rich   int // number of outputs
	bytes  int // size of their data
	meta   int // size of their metadata and paths
	closed bool
	wake   chan struct{} // has a value when there may be more
}

// NewOutbox makes an outbox that keeps this many bytes of each stream.
func NewOutbox(keep int64) *Outbox {
	return &Outbox{keep: keep, wake: make(chan struct{}, 1)}
}

// Wake returns a channel that has a value when there may be more for [Outbox.Take].
func (o *Outbox) Wake() <-chan struct{} { return o.wake }

// Take removes and returns all events. last is set if none will follow.
func (o *Outbox) Take() (events []*agentv1.CodeEvent, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	events, o.events = o.events, nil
	return events, o.closed
}

// Write adds output of a stream: 0 is stdout, 1 stderr. It does not split characters.
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
	if !o.full[stream] { // otherwise the rest of the character is not kept
		o.held[stream] = bytes.Clone(data[whole:])
	}
}

// Note adds a message for the reader to stderr, even if stderr is full.
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
			n = len(clip.Head(data, pieceBytes-len(last.GetData()))) // whole characters
		}
		if n <= 0 {
			last = &agentv1.Output{Stream: name, Offset: o.sent[stream]}
			o.events = append(o.events, &agentv1.CodeEvent{Event: &agentv1.CodeEvent_Output{Output: last}})
			n = len(clip.Head(data, pieceBytes))
		}
		last.Data = append(last.Data, data[:n]...)
		o.sent[stream] += int64(n)
		data = data[n:]
	}
	o.notify()
}

// Add adds a rich output and reports whether there was room for it.
func (o *Outbox) Add(out *agentv1.CodeOutput) bool {
	size, meta := 0, 0
	for _, data := range out.GetData() {
		size += len(data)
	}
	for _, data := range out.GetMetadata() {
		meta += len(data)
	}
	for _, path := range out.GetFiles() {
		meta += len(path)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.rich == sandbox.MaxOutputs || o.bytes+size > sandbox.MaxOutputsBytes || o.meta+meta > metaBytes {
		return false
	}
	o.rich++
	o.bytes += size
	o.meta += meta
	o.flush()
	o.events = append(o.events, &agentv1.CodeEvent{Event: &agentv1.CodeEvent_Rich{Rich: out}})
	o.notify()
	return true
}

// flush adds incomplete characters unchanged.
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
	o.notify()
}

// notify makes Wake ready.
//
// Preconditions: o.mu is held.
func (o *Outbox) notify() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}
