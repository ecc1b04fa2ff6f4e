package agent

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

func testSpooler(t *testing.T) (*spooler, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := newSpooler(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s, dir
}

// pattern returns output in which every position is different.
func pattern(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	p := make([]byte, n)
	_, _ = r.Read(p)
	return p
}

// feed writes all to a stream in pieces as a pump does.
func feed(o *output, stream int, all []byte) {
	for size := 1; len(all) > 0; size = size*7%liveWindow + 1 {
		n := min(size, len(all))
		o.write(stream, all[:n])
		all = all[n:]
	}
	o.end(stream)
}

// readAll reads a stream in ranges, and returns what it got and how much is missing.
func readAll(t *testing.T, o *output, stream int, limit int) (got []byte, missing int64) {
	t.Helper()
	var pos int64
	for {
		at, data, total := o.read(stream, pos, limit)
		if at < pos || at > total {
			t.Fatalf("asked for %d, got bytes at %d of %d", pos, at, total)
		}
		missing += at - pos
		got = append(got, make([]byte, at-pos)...)
		got = append(got, data...)
		pos = at + int64(len(data))
		if len(data) == 0 {
			return got, missing
		}
	}
}

// TestSpooledOutput reads long output of both streams completely, in ranges and while
// it is written.
func TestSpooledOutput(t *testing.T) {
	s, dir := testSpooler(t)
	var o output
	o.init(100_000, s.newSpool())
	all := [2][]byte{pattern(9_000_000), pattern(3_000_001)}
	f := o.follow(0, 0) // from the beginning: it sees all as it comes
	var wg sync.WaitGroup
	wg.Go(func() { feed(&o, 0, all[0]) })
	wg.Go(func() { feed(&o, 1, all[1]) })
	follow := func(f *follower, pos [2]int64) {
		var buf [liveWindow]byte
		for !o.passed(f, [2]int64{int64(len(all[0])), int64(len(all[1]))}) {
			<-f.wake
			for i := range all {
				for {
					off, n := o.next(f, i, buf[:])
					if off != pos[i] || !bytes.Equal(buf[:n], all[i][off:int(off)+n]) {
						t.Errorf("stream %d: got %d bytes at %d, want those at %d", i, n, off, pos[i])
						return
					}
					pos[i] += int64(n)
					if n == 0 {
						break
					}
				}
			}
		}
	}
	follow(f, [2]int64{})
	o.unfollow(f)
	wg.Wait()
	for i, want := range all {
		for _, limit := range []int{sandbox.MaxOutputRead, 333_333} {
			if got, missing := readAll(t, &o, i, limit); missing > 0 || !bytes.Equal(got, want) {
				t.Errorf("stream %d by %d: read %d bytes, %d are missing", i, limit, len(got), missing)
			}
		}
	}
	late := o.follow(77, 0)
	follow(late, [2]int64{77, 0})
	o.unfollow(late)
	if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
		t.Errorf("files with names: %v, %v", names, err)
	}
	o.drop()
	if s.used != 0 || len(s.spools) != 0 {
		t.Errorf("a spool that was dropped holds %d bytes", s.used)
	}
	if got, _ := readAll(t, &o, 0, 1000); len(bytes.Trim(got, "\x00")) > 0 {
		t.Error("output can be read that was dropped")
	}
}

// TestSpoolRotates writes more than a spool may hold.
func TestSpoolRotates(t *testing.T) {
	s, _ := testSpooler(t)
	job, all, segment := s.limits()
	if segment == 0 {
		t.Fatalf("no spool on the disk of %s", t.TempDir())
	}
	if job > sandbox.MaxJobOutputBytes || all < job || segment > maxSegment {
		t.Fatalf("limits: %d, %d, %d", job, all, segment)
	}
	sp := s.newSpool()
	piece := pattern(liveWindow)
	var pos int64
	for pos < job+10*segment {
		sp.write(0, pos, piece)
		pos += liveWindow
		if sp.used > job || s.used != sp.used {
			t.Fatalf("after %d bytes the spool holds %d of %d, all %d", pos, sp.used, job, s.used)
		}
	}
	var buf [liveWindow]byte
	at, n := sp.read(0, 0, buf[:])
	if at < pos-job || at > pos-job+2*segment || n != liveWindow || !bytes.Equal(buf[:], piece) {
		t.Errorf("the oldest %d bytes are at %d of %d", n, at, pos)
	}
	if at, n := sp.read(0, pos-10, buf[:]); at != pos-10 || n != 10 {
		t.Errorf("the newest: %d bytes at %d", n, at)
	}
	// Another job's output replaces that of the job with the most, not that of small
	// ones.
	other := s.newSpool()
	other.write(1, 5, []byte("small"))
	s.mu.Lock()
	for s.used > segment && s.largest().dropOldest(nil) {
	}
	s.mu.Unlock()
	if at, n := other.read(1, 0, buf[:]); at != 5 || string(buf[:n]) != "small" {
		t.Errorf("of the small one: %q at %d", buf[:n], at)
	}
	sp.close()
	other.close()
	sp.write(0, pos, piece)
	if s.used != 0 || sp.used != 0 {
		t.Errorf("closed spools hold %d bytes", s.used)
	}
}

// TestSpoolHostile damages a spool as root in a sandbox can.
func TestSpoolHostile(t *testing.T) {
	s, dir := testSpooler(t)
	var o output
	o.init(1, s.newSpool())
	all := pattern(12 << 20)
	feed(&o, 0, all)
	segments := o.spool.streams[0]
	if len(segments) < 3 {
		t.Fatalf("%d segments", len(segments))
	}
	for _, err := range []error{segments[0].file.Truncate(0), segments[1].file.Truncate(1000)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, missing := readAll(t, &o, 0, sandbox.MaxOutputRead)
	if len(got) != len(all) || missing == 0 || !bytes.Equal(got[len(got)-liveWindow:], all[len(all)-liveWindow:]) {
		t.Errorf("read %d bytes, %d missing", len(got), missing)
	}
	for i := range got {
		if got[i] != 0 && got[i] != all[i] {
			t.Fatalf("a wrong byte at %d", i)
		}
	}
	// The directory is gone: the newest output is still in memory.
	gone := filepath.Join(dir, "gone")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	s2, err := newSpooler(gone)
	if err == nil {
		err = os.Remove(gone)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s2.close()
	var lost output
	lost.init(1000, s2.newSpool())
	feed(&lost, 0, all)
	if got, missing := readAll(t, &lost, 0, sandbox.MaxOutputRead); missing == 0 || !bytes.Equal(got[:500], all[:500]) || !bytes.Equal(got[len(got)-1000:], all[len(all)-1000:]) {
		t.Errorf("without a disk: %d bytes, %d missing", len(got), missing)
	}
	if len(s2.spools) != 0 || s2.used != 0 {
		t.Errorf("without a disk %d bytes are held", s2.used)
	}
}
