package agent

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// model keeps a whole stream.
type model struct {
	kept
	all []byte
}

// check compares every position against the model.
func (m *model) check(t *testing.T) {
	t.Helper()
	if m.total != int64(len(m.all)) {
		t.Fatalf("total: got %d, want %d", m.total, len(m.all))
	}
	for _, live := range []bool{false, true} {
		tail := m.tailCap
		if live {
			tail = m.ringCap
		}
		head := min(m.headCap, len(m.all))
		first := max(head, len(m.all)-tail)
		for off := 0; off <= len(m.all); off++ {
			want, end := off, len(m.all)
			if off < head {
				end = head
			} else if off < first {
				want = first
			}
			var buf [16]byte
			pos, n := m.read(int64(off), buf[:], live)
			if int(pos) != want || n != min(16, end-want) || !bytes.Equal(buf[:n], m.all[want:want+n]) {
				t.Fatalf("live=%v read at %d of %d: got %d bytes at %d, want those at %d", live, off, len(m.all), n, pos, want)
			}
		}
	}
}

func TestKept(t *testing.T) {
	for _, keep := range []int{1, 2, 3, 7, 64} {
		k := newKept(keep)
		k.ringCap = max(k.tailCap, 5) // a small window, to see it wrap
		m := &model{kept: k}
		for i := range 40 {
			p := bytes.Repeat([]byte{byte(i)}, i%9)
			m.append(p)
			m.all = append(m.all, p...)
			m.check(t)
		}
	}
}

// FuzzKept drives kept with writes whose lengths are the bytes of the input.
func FuzzKept(f *testing.F) {
	f.Add(uint16(4), uint8(3), []byte{1, 2, 3, 200, 0, 5})
	f.Add(uint16(1), uint8(1), []byte{255, 255, 1})
	f.Fuzz(func(t *testing.T, keep uint16, window uint8, writes []byte) {
		if keep == 0 || len(writes) > 20 {
			return
		}
		k := newKept(int(keep))
		k.ringCap = max(k.tailCap, int(window)+1)
		m := &model{kept: k}
		next := byte(0)
		for _, n := range writes {
			p := make([]byte, n)
			for i := range p {
				p[i] = next
				next++
			}
			m.append(p)
			m.all = append(m.all, p...)
		}
		m.check(t)
		if cap(m.ring) > m.ringCap {
			t.Errorf("the ring holds %d bytes, more than %d", cap(m.ring), m.ringCap)
		}
	})
}

// TestStalledFollower checks that a slow reader holds up a job, but not for ever.
func TestStalledFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o output
		o.init(10, nil)
		f := o.follow(0, 0)
		wrote := make(chan int, 100)
		go func() {
			defer close(wrote)
			for range 4 {
				o.write(0, make([]byte, liveWindow))
				wrote <- 1
			}
		}()
		synctest.Wait()
		if n := len(wrote); n != 1 {
			t.Fatalf("%d writes went by a follower that has read nothing", n)
		}
		var buf [liveWindow]byte
		for total := 0; total < 2*liveWindow; { // the follower is slow
			time.Sleep(stallLimit - time.Second)
			off, n := o.next(f, 0, buf[:])
			if int(off) != total {
				t.Fatalf("a gap at %d: got %d", total, off)
			}
			total += n
			synctest.Wait()
		}
		if n := len(wrote); n != 3 {
			t.Fatalf("%d writes, want 3", n)
		}
		time.Sleep(stallLimit + time.Second) // the follower has stalled
		synctest.Wait()
		if n := len(wrote); n != 4 {
			t.Fatalf("%d writes, want 4", n)
		}
		if off, _ := o.next(f, 0, buf[:]); off != 3*liveWindow {
			t.Errorf("after the gap: got position %d, want %d", off, 3*liveWindow)
		}
		o.unfollow(f)
		o.write(0, buf[:])
	})
}

// TestFollowerLeaves checks that a job no longer waits for a reader that has gone away.
func TestFollowerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o output
		o.init(10, nil)
		f := o.follow(0, 0)
		begin := time.Now()
		go func() {
			time.Sleep(time.Second)
			o.unfollow(f)
		}()
		for range 10 {
			o.write(1, make([]byte, liveWindow))
		}
		if d := time.Since(begin); d != time.Second {
			t.Errorf("the job waited for %v", d)
		}
	})
}

func TestEndedOutputIsBounded(t *testing.T) {
	table := newJobTable()
	for i := range 10 {
		j := &job{id: string(rune('a' + i)), done: make(chan struct{})}
		j.out.init(16<<20, nil)
		j.out.write(0, make([]byte, liveWindow))
		for range 12 << 20 / liveWindow {
			j.out.write(0, make([]byte, liveWindow))
		}
		j.out.end(0)
		j.out.end(1)
		close(j.done)
		if _, err := table.reserve(j.id); err != nil {
			t.Fatal(err)
		}
		table.add(j)
	}
	size := 0
	for _, j := range table.list() {
		_, _, n := j.out.totals()
		size += n
	}
	if size > maxEndedBytes || len(table.list()) == 0 || table.list()[len(table.list())-1].id != "j" {
		t.Errorf("%d ended jobs hold %d bytes", len(table.list()), size)
	}
}
