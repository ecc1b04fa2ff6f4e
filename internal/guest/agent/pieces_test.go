package agent

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

const testPiece = liveWindow

// flooded returns the output of a job that writes without end, in a bubble of synctest.
func flooded(t *testing.T) *output {
	t.Helper()
	o := &output{}
	o.init(1<<20, nil)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			o.write(0, make([]byte, 4096))
			select {
			case <-time.After(time.Millisecond): // time passes for a job that nothing holds up
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		o.drop()
		<-stopped
	})
	return o
}

func (o *output) written() int64 {
	stdout, _, _ := o.totals()
	return stdout
}

// readPiece reads a piece as [Agent.Attach] does, and returns where it begins and ends.
func readPiece(t *testing.T, o *output, at, last int64) (from, end int64) {
	t.Helper()
	f := o.followBy(at, 0, pieces{size: testPiece, last: last})
	defer o.leave(f)
	from = -1
	var buf [liveWindow]byte
	for !f.full() {
		off, n := o.next(f, 0, f.piece(buf[:]))
		if n == 0 {
			<-f.wake
			continue
		}
		if from < 0 {
			from = off
		}
		f.left -= int64(n)
		end = off + int64(n)
	}
	o.expect(f)
	return from, end
}

// TestPieces checks that a job is at most a window and one write ahead of a reader that
// takes pieces, for as long as the reader comes back in time.
func TestPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := flooded(t)
		at := int64(0)
		for range 50 {
			from, end := readPiece(t, o, at, 0)
			if from != at || end != at+testPiece {
				t.Fatalf("the piece at %d is of %d to %d", at, from, end)
			}
			at = end
			time.Sleep(returnLimit - time.Second) // the reader is at work
			if ahead := o.written() - at; ahead < testPiece || ahead > testPiece+4096 {
				t.Fatalf("the job is %d bytes ahead", ahead)
			}
		}
	})
}

// TestReaderStaysAway checks that a job waits for a reader that does not come back, but not
// for ever. A reader that returns late learns what it has missed, and the job waits again.
func TestReaderStaysAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := flooded(t)
		_, at := readPiece(t, o, 0, 0)
		held := o.written()
		time.Sleep(returnLimit - time.Second)
		if now := o.written(); now-at > testPiece+4096 || now < held {
			t.Fatalf("the job wrote %d bytes more", now-at)
		}
		// Between two writes of the job, which then writes nothing until time passes.
		time.Sleep(time.Minute + time.Millisecond/2)
		written := o.written()
		if written-at < 20*testPiece {
			t.Fatalf("the job has not gone on: it is %d bytes ahead", written-at)
		}
		from, end := readPiece(t, o, at, 3*testPiece)
		if from != written-3*testPiece {
			t.Errorf("of %d bytes those from %d on came", written, from)
		}
		for range 10 { // it catches up, since the job waits
			_, end = readPiece(t, o, end, 3*testPiece)
		}
		if ahead := o.written() - end; ahead > testPiece+4096 {
			t.Errorf("the job is %d bytes ahead of a reader that is back", ahead)
		}
	})
}

// TestSlowestReader checks that a job waits for the slowest reader that takes pieces. A
// reader that takes output as it comes loses nothing.
func TestSlowestReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := flooded(t)
		all := o.follow(0, 0)
		got := int64(0)
		go func() {
			var buf [liveWindow]byte
			for range all.wake {
				for {
					off, n := o.next(all, 0, buf[:])
					if n == 0 {
						break
					}
					if off != got {
						t.Errorf("a gap at %d: got %d", got, off)
					}
					got = off + int64(n)
				}
			}
		}()
		_, quick := readPiece(t, o, 0, 0)
		_, slow := readPiece(t, o, 0, 0)
		for range 9 {
			_, quick = readPiece(t, o, quick, 0)
			_, slow = readPiece(t, o, slow, 0)
		}
		if quick != slow {
			t.Fatalf("the readers are at %d and %d", quick, slow)
		}
		_, quick = readPiece(t, o, quick, 0)
		time.Sleep(time.Second)
		if ahead := o.written() - slow; ahead > testPiece+4096 {
			t.Errorf("the job is %d bytes ahead of the slow reader", ahead)
		}
		time.Sleep(returnLimit)
		if ahead := o.written() - quick; ahead < testPiece {
			t.Errorf("the job is only %d bytes ahead of a reader that may be", ahead)
		}
		synctest.Wait()
		if written := o.written(); got != written {
			t.Errorf("of %d bytes the other reader has %d", written, got)
		}
		close(all.wake)
		o.unfollow(all)
	})
}

// TestTooFarBehind checks that a job does not wait for a reader that is very far behind.
func TestTooFarBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o output
		o.init(1<<20, nil)
		for range 2 * maxAwaitedBytes / liveWindow {
			o.write(0, make([]byte, liveWindow))
		}
		readPiece(t, &o, 0, 0)
		begin := time.Now()
		for range 100 {
			o.write(0, make([]byte, liveWindow))
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("the job waited for %v", d)
		}
	})
}

// TestEndedJobWaitsForNone ends a job that waits for a reader: its end is reported at once.
func TestEndedJobWaitsForNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := flooded(t)
		readPiece(t, o, 0, 0)
		connected := o.followBy(testPiece, 0, pieces{size: testPiece})
		time.Sleep(time.Second)
		held := o.written()
		o.release()
		time.Sleep(time.Second)
		if now := o.written(); now < held+testPiece {
			t.Errorf("after its end the job wrote %d bytes", now-held)
		}
		o.leave(connected)
		readPiece(t, o, 0, 0)
		o.mu.Lock()
		defer o.mu.Unlock()
		if n := len(o.followers); n != 0 {
			t.Errorf("an ended job has %d readers", n)
		}
	})
}

// TestReadersAwayAreBounded leaves more readers than are expected back.
func TestReadersAwayAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o output
		o.init(1<<20, nil)
		o.write(0, make([]byte, liveWindow))
		for range 3 * maxAway {
			f := o.followBy(0, 0, pieces{size: 1})
			o.next(f, 0, make([]byte, 1))
			o.expect(f)
		}
		count := func() int {
			o.mu.Lock()
			defer o.mu.Unlock()
			return len(o.followers)
		}
		if n := count(); n != maxAway {
			t.Errorf("%d readers are expected back", n)
		}
		time.Sleep(returnLimit + time.Second)
		synctest.Wait()
		if n := count(); n != 0 {
			t.Errorf("%d readers are still expected", n)
		}
	})
}

// pieceOf attaches to a job for one piece.
func (s *server) pieceOf(t *testing.T, id string, at int64) (*result, int64) {
	t.Helper()
	stream, err := s.Attach(t.Context(), connect.NewRequest(&agentv1.AttachRequest{JobId: id, StdoutOffset: at, MaxBytes: testPiece, LastBytes: 1 << 20}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	r, err := follow(stream, at)
	if err != nil || r.stdout.Len() > testPiece || r.gaps != 0 {
		t.Fatalf("a piece at %d has %d bytes and %d gaps: %v", at, r.stdout.Len(), r.gaps, err)
	}
	return r, at + int64(r.stdout.Len())
}

// TestTerminalFlood stops an endless program that waits for its reader with Ctrl-C: the
// program gets the signal although it cannot write, and its answer comes within a window.
func TestTerminalFlood(t *testing.T) {
	s := start(t)
	j := s.background(t, &agentv1.ExecRequest{
		Argv: []string{"sh"}, OpenStdin: true, KeepBytes: 1 << 20, Env: map[string]string{"PS1": "ready> ", "ENV": ""}, Terminal: &agentv1.TerminalSize{},
	})
	c := &session{t: t, s: s, id: j.GetJobId()}
	out := &s.agent.jobs.list()[0].out
	blocked := func() bool {
		out.mu.Lock()
		defer out.mu.Unlock()
		return out.room != nil
	}
	c.write("yes "+strings.Repeat("x", 200)+"\n", false)
	at := int64(0)
	for range 40 {
		before := out.written()
		_, at = s.pieceOf(t, j.GetJobId(), at)
		if ahead := before - at; ahead > testPiece+liveWindow {
			t.Fatalf("the program is %d bytes ahead", ahead)
		}
	}
	eventually(t, "the program waits", blocked)
	c.write("\x03", false)
	stream, err := s.Attach(t.Context(), connect.NewRequest(&agentv1.AttachRequest{JobId: j.GetJobId(), StdoutOffset: at, MaxBytes: 1 << 20}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	c.str = stream
	c.until("ready> ")
	if came := out.written() - at; came > testPiece+2*liveWindow {
		t.Errorf("after Ctrl-C there came %d bytes", came)
	}
}

// TestKillHeldJob kills a program that waits for its reader.
func TestKillHeldJob(t *testing.T) {
	s := start(t)
	j := s.background(t, &agentv1.ExecRequest{Argv: []string{"yes"}, Terminal: &agentv1.TerminalSize{}})
	_, at := s.pieceOf(t, j.GetJobId(), 0)
	if _, err := s.Signal(t.Context(), connect.NewRequest(&agentv1.SignalRequest{JobId: j.GetJobId(), Signal: 9})); err != nil {
		t.Fatal(err)
	}
	last := s.wait(t, j.GetJobId())
	for at < last.GetStdoutBytes() {
		_, at = s.pieceOf(t, j.GetJobId(), at)
	}
	r, _ := s.pieceOf(t, j.GetJobId(), at)
	if r.detached || r.last.GetSignal() != 9 || at != last.GetStdoutBytes() {
		t.Errorf("after %d of %d bytes the job is %v", at, last.GetStdoutBytes(), r.last)
	}
}

func TestPiecesRefused(t *testing.T) {
	s := start(t)
	j := s.background(t, &agentv1.ExecRequest{Argv: []string{"true"}})
	stream, err := s.Attach(t.Context(), connect.NewRequest(&agentv1.AttachRequest{JobId: j.GetJobId(), MaxBytes: -1}))
	if err == nil {
		defer stream.Close()
		_, err = follow(stream)
	}
	wantCode(t, err, connect.CodeInvalidArgument, "max_bytes")
}
