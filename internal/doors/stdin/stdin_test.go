package stdin

import (
	"bytes"
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// program takes input only when the test says so.
type program struct {
	take chan struct{}
	got  []byte
	ends int
}

func (p *program) write(ctx context.Context, data []byte, end bool) error {
	select {
	case <-p.take:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.got = append(p.got, data...)
	if end {
		p.ends++
	}
	return nil
}

// A client continues while a program takes nothing, and waits when it has sent too much.
// Nothing is lost or mixed up.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{take: make(chan struct{})}
		q := New(p.write)
		ctx, cancel := context.WithCancel(t.Context())
		go q.Run(ctx)
		input := bytes.Repeat([]byte("0123456789"), Room/5) // as much as is written and waits, twice over
		q.Put(ctx, input[:1])
		synctest.Wait() // it is being written
		q.Put(ctx, input[1:1+Room])
		began := time.Now()
		late := q.Answer(began, context.DeadlineExceeded)
		if late == nil {
			t.Error("a client that does not wait is excused")
		}
		put := make(chan struct{})
		go func() { q.Put(ctx, input[1+Room:]); q.End(); q.Put(ctx, []byte("more")); close(put) }()
		synctest.Wait()
		select {
		case <-put:
			t.Fatal("there is no end of room")
		default:
		}
		if err := q.Answer(began, context.DeadlineExceeded); err != nil {
			t.Errorf("a client that waits is not excused: %v", err)
		}
		if q.Answer(began, net.ErrClosed) == nil {
			t.Error("a client that is gone is excused")
		}
		time.Sleep(time.Second)
		close(p.take)
		<-put
		synctest.Wait()
		if !bytes.Equal(p.got, input) || p.ends != 1 {
			t.Errorf("the program got %d bytes of %d and %d ends", len(p.got), len(input), p.ends)
		}
		if err := q.Answer(began, context.DeadlineExceeded); err != nil {
			t.Errorf("a client that has waited meanwhile is not excused: %v", err)
		}
		time.Sleep(time.Second)
		if q.Answer(time.Now(), context.DeadlineExceeded) == nil {
			t.Error("a client that has waited before is excused")
		}
		cancel()
	})
}

// With the connection all ends.
func TestQueueEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{take: make(chan struct{})}
		q := New(p.write)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go q.Run(ctx)
		q.Put(ctx, make([]byte, 3*Room))
		if ctx.Err() == nil {
			t.Error("there is room for all")
		}
	})
}

// After Drain, the program has all input. With a program that takes nothing, the wait ends.
func TestQueueDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{take: make(chan struct{})}
		q := New(p.write)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		q.Drain(ctx) // there is nothing
		go q.Run(ctx)
		q.Put(ctx, []byte("last"))
		synctest.Wait() // it is being written
		within, done := context.WithTimeout(ctx, time.Second)
		defer done()
		q.Drain(within)
		if within.Err() == nil {
			t.Error("the queue is empty while the program takes nothing")
		}
		close(p.take)
		q.End()
		q.Drain(ctx)
		if string(p.got) != "last" || p.ends != 1 {
			t.Errorf("the program got %q and %d ends", p.got, p.ends)
		}
	})
}

// A client is pinged until it does not answer.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, pings, began := New(nil), 0, time.Now()
		err := q.Watch(t.Context(), time.Second, func(ctx context.Context) error {
			if pings++; pings < 3 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if took := time.Since(began); err != context.DeadlineExceeded || pings != 3 || took != 4*time.Second {
			t.Errorf("%v after %d pings, %s", err, pings, took)
		}
	})
}

func TestSizedQueue(t *testing.T) {
	q := NewSized(nil, 10)
	if n := q.add(make([]byte, 8)) + q.add(make([]byte, 8)); n != 10 {
		t.Errorf("%d bytes wait", n)
	}
}
