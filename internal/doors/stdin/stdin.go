// Package stdin passes input that clients type to programs, which may read it late or
// never, while the client's connection is still being read.
package stdin

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Room is the default bound of the input that waits for a program, in bytes. A client that
// sends more must wait, so a slow program loses nothing.
const Room = 1 << 20

// Write gives input to a program, and waits until the program has taken it. End closes
// the program's input after that.
type Write func(ctx context.Context, data []byte, end bool) error

// Queue is the input of one program. One goroutine calls Run; one other, which reads the
// client's connection, calls Put.
type Queue struct {
	Waits // waiting for room
	write Write
	room  int
	// filled and emptied hold a value when there may be input to write, and when some was
	// taken or written.
	filled, emptied chan struct{}

	mu     sync.Mutex
	data   []byte // guarded by mu
	ended  bool   // whether End was called; guarded by mu
	closed bool   // whether the input of the program was closed; guarded by mu
	taken  bool   // whether input is being written; guarded by mu
}

// New returns an empty queue.
func New(write Write) *Queue { return NewSized(write, Room) }

// NewSized returns an empty queue with room for this many bytes.
func NewSized(write Write, room int) *Queue {
	return &Queue{write: write, room: room, filled: make(chan struct{}, 1), emptied: make(chan struct{}, 1)}
}

// Run writes the input until ctx ends. What a program does not take, because it has
// ended or has closed its input, is lost, as in a pipe.
func (q *Queue) Run(ctx context.Context) {
	for {
		if data, end := q.take(); len(data) > 0 || end {
			_ = q.write(ctx, data, end)
			q.written()
		}
		select {
		case <-q.filled:
		case <-ctx.Done():
			return
		}
	}
}

func (q *Queue) take() (data []byte, end bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	data, end = q.data, q.ended && !q.closed
	q.data, q.closed = nil, q.ended
	q.taken = len(data) > 0 || end
	notify(q.emptied)
	return data, end
}

func (q *Queue) written() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken = false
	notify(q.emptied)
}

// Drain waits until the program has taken all input, or until ctx ends. The goroutine that
// calls Put calls it after the last input.
func (q *Queue) Drain(ctx context.Context) {
	for !q.empty() {
		select {
		case <-q.emptied:
		case <-ctx.Done():
			return
		}
	}
}

func (q *Queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.taken && len(q.data) == 0 && q.ended == q.closed
}

// Put adds input, which it copies. It waits while there is no room, or until ctx ends.
func (q *Queue) Put(ctx context.Context, data []byte) {
	for {
		data = data[q.add(data):]
		if len(data) == 0 {
			return
		}
		select {
		case <-q.emptied:
		case <-ctx.Done():
			return
		}
	}
}

// add takes as much as there is room for, and returns how much it took.
func (q *Queue) add(data []byte) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return len(data) // lost, as it is after the end of a pipe
	}
	n := min(len(data), q.room-len(q.data))
	q.data = append(q.data, data[:n]...)
	q.Set(n < len(data))
	notify(q.filled)
	return n
}

// End closes the program's input after the input that waits.
func (q *Queue) End() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	notify(q.filled)
}

// Waits records when the reader of a client's connection waits for a program and therefore
// does not read answers to pings. In the zero value, it does not wait. It is safe for
// concurrent use.
type Waits struct {
	mu    sync.Mutex
	held  bool      // guarded by mu
	freed time.Time // when it last stopped waiting; guarded by mu
}

// Set notes whether the reader waits.
func (w *Waits) Set(held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held && !held {
		w.freed = time.Now()
	}
	w.held = held
}

// Answer returns the error of a ping that began at a time, or nil if the reader has waited
// since then and so could not read the answer.
func (w *Waits) Answer(began time.Time, err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if errors.Is(err, context.DeadlineExceeded) && (w.held || w.freed.After(began)) {
		return nil
	}
	return err
}

// Watch pings the client at an interval until ctx ends. If the client does not answer within
// the interval, Watch returns the ping's error.
func (w *Waits) Watch(ctx context.Context, every time.Duration, ping func(context.Context) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		began := time.Now()
		within, done := context.WithTimeout(ctx, every)
		err := w.Answer(began, ping(within))
		done()
		if err != nil {
			return err
		}
	}
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
