package netlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, dir string, most int64) *Writer {
	t.Helper()
	w, err := NewWriter(WriterConfig{Dir: dir, MaxBytes: most})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func event(host string, port int) sandbox.NetworkEvent {
	return sandbox.NetworkEvent{SandboxID: "sbx_1", Kind: sandbox.NetworkConnection, Protocol: "tcp", Host: host, Port: port,
		Verdict: sandbox.NetworkAllowed, Match: sandbox.MatchDefault}
}

// write writes events without overflowing the queue.
func write(t *testing.T, dir string, most int64, from, to int) {
	t.Helper()
	for ; from < to; from += queueLength {
		w := open(t, dir, most)
		for port := from; port < min(to, from+queueLength); port++ {
			w.Record(event("example.com", port))
		}
		w.Close()
	}
}

func ports(events []sandbox.NetworkEvent) []int {
	var all []int
	for _, e := range events {
		all = append(all, e.Port)
	}
	return all
}

// readAll reads page by page.
func readAll(t *testing.T, dir string, req sandbox.NetworkLogRequest) []sandbox.NetworkEvent {
	t.Helper()
	var all []sandbox.NetworkEvent
	for {
		page, cursor, err := Read(t.Context(), dir, req)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, page...)
		if cursor == "" {
			return all
		}
		req.Cursor = cursor
	}
}

func TestReadPages(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 0, 1, 501)
	all := readAll(t, dir, sandbox.NetworkLogRequest{Page: sandbox.Page{Limit: 7}})
	want := make([]int, 500)
	for i := range want {
		want[i] = 500 - i
	}
	if got := ports(all); !slices.Equal(got, want) {
		t.Errorf("got ports %v, want 500 down to 1", got)
	}
	for i := 1; i < len(all); i++ {
		if all[i].ID >= all[i-1].ID {
			t.Fatalf("id %d comes after %d", all[i].ID, all[i-1].ID)
		}
	}
}

func TestMissingLogIsEmpty(t *testing.T) {
	events, cursor, err := Read(t.Context(), filepath.Join(t.TempDir(), "none"), sandbox.NetworkLogRequest{})
	if len(events) != 0 || cursor != "" || err != nil {
		t.Errorf("got %v, %q, %v, want nothing", events, cursor, err)
	}
}

func TestOldestSegmentsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	const most = 64 << 10
	for i := range 40 {
		write(t, dir, most, i*100, i*100+100)
	}
	all, err := segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, s := range all {
		size += s.size
	}
	if size > most+batchBytes {
		t.Errorf("the log takes %d bytes, want about %d at most", size, most)
	}
	page, _, err := Read(t.Context(), dir, sandbox.NetworkLogRequest{Page: sandbox.Page{Limit: 1}})
	if err != nil || len(page) != 1 || page[0].Port != 3999 {
		t.Errorf("got %v, %v, want the newest event", page, err)
	}
}

func TestIDsGrowAcrossWriters(t *testing.T) {
	dir := t.TempDir()
	// A clock that was ahead leaves behind ids in the future.
	ahead := nextID(time.Now().Add(time.Hour), 0, 0)
	line := fmt.Sprintf(`{"id":%d,"sandbox_id":"sbx_1","time":"2026-01-01T00:00:00Z","kind":"dns","protocol":"udp","verdict":"allowed","match":"default"}`+"\n", ahead)
	if err := os.WriteFile(filepath.Join(dir, segmentName(ahead)), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, dir, 0, 1, 2)
	all := readAll(t, dir, sandbox.NetworkLogRequest{})
	if len(all) != 2 || all[0].ID <= ahead {
		t.Errorf("got %+v, want the new event first, above %d", all, ahead)
	}
}

func TestTwoWritersAtOnce(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 0, 0, 1)
	a := open(t, dir, 0)
	a.Record(event("a.example", 0))
	for end := time.Now().Add(time.Minute); len(readAll(t, dir, sandbox.NetworkLogRequest{})) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the first event is not written")
		}
	}
	b := open(t, dir, 0)
	for i := range 200 {
		a.Record(event("a.example", 2*i))
		b.Record(event("b.example", 2*i+1))
		if i%10 == 0 {
			time.Sleep(time.Millisecond) // so that both write several batches
		}
	}
	a.Close()
	b.Close()
	all := readAll(t, dir, sandbox.NetworkLogRequest{Page: sandbox.Page{Limit: 9}})
	if len(all) != 402 {
		t.Errorf("got %d events, want 402", len(all))
	}
	if !slices.IsSortedFunc(all, func(x, y sandbox.NetworkEvent) int { return cmp.Compare(y.ID, x.ID) }) {
		t.Error("events are not in the order of their ids")
	}
}

func TestTornLastLine(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 0, 1, 4)
	all, _ := segments(dir)
	f, err := os.OpenFile(all[0].path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"id":9999999999999999,"kind":"dns","ver`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	write(t, dir, 0, 4, 6)
	if got, want := ports(readAll(t, dir, sandbox.NetworkLogRequest{})), []int{5, 4, 3, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("got ports %v, want %v", got, want)
	}
}

func TestFilters(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir, 0)
	base := time.Date(2026, 5, 1, 12, 0, 0, 0, time.FixedZone("", 3600))
	for i, e := range []sandbox.NetworkEvent{
		{Kind: sandbox.NetworkConnection, Host: "example.com", Verdict: sandbox.NetworkAllowed},
		{Kind: sandbox.NetworkDNS, Host: "a.example.com", Verdict: sandbox.NetworkBlocked},
		{Kind: sandbox.NetworkConnection, Host: "b.a.example.com", Verdict: sandbox.NetworkFailed},
		{Kind: sandbox.NetworkRequest, Host: "notexample.com", Verdict: sandbox.NetworkAllowed},
	} {
		e.Port, e.Time = i, base.Add(time.Duration(i)*time.Minute)
		w.Record(e)
	}
	w.Close()
	at := func(minutes int) *time.Time { u := base.Add(time.Duration(minutes) * time.Minute); return &u }
	for _, c := range []struct {
		name string
		req  sandbox.NetworkLogRequest
		want []int
	}{
		{"all", sandbox.NetworkLogRequest{}, []int{3, 2, 1, 0}},
		{"kind", sandbox.NetworkLogRequest{Kind: sandbox.NetworkConnection}, []int{2, 0}},
		{"verdict", sandbox.NetworkLogRequest{Verdict: sandbox.NetworkBlocked}, []int{1}},
		{"host", sandbox.NetworkLogRequest{Host: "Example.com."}, []int{0}},
		{"below", sandbox.NetworkLogRequest{Host: "*.example.com"}, []int{2, 1}},
		{"since", sandbox.NetworkLogRequest{Since: at(2)}, []int{3, 2}},
		{"until", sandbox.NetworkLogRequest{Until: at(2)}, []int{1, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := readAll(t, dir, c.req)
			if !slices.Equal(ports(got), c.want) {
				t.Errorf("got %v, want %v", ports(got), c.want)
			}
			for _, e := range got {
				if e.Time.Location() != time.UTC {
					t.Errorf("time %v is not UTC", e.Time)
				}
			}
		})
	}
}

func TestInvalidRequests(t *testing.T) {
	for _, req := range []sandbox.NetworkLogRequest{
		{Kind: "x"}, {Verdict: "x"}, {Host: "a.*.b"}, {Host: "*."}, {Page: sandbox.Page{Cursor: "!"}}, {Page: sandbox.Page{Cursor: "-1"}},
		{Page: sandbox.Page{Cursor: "+1"}}, {Page: sandbox.Page{Limit: -1}}, {Page: sandbox.Page{Limit: sandbox.MaxPageSize + 1}},
	} {
		if _, _, err := Read(t.Context(), t.TempDir(), req); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%+v: got %v, want invalid", req, err)
		}
	}
}

// stalled returns a writer whose disk accepts nothing.
func stalled() *Writer {
	return &Writer{queue: make(chan sandbox.NetworkEvent, 2), done: make(chan struct{})}
}

func TestRecordNeverBlocks(t *testing.T) {
	w := stalled()
	w.cfg.Dir, w.cfg.MaxBytes = t.TempDir(), 1<<20
	for i := range 10 {
		w.Record(event("example.com", i))
	}
	go w.run()
	w.Close()
	all := readAll(t, w.cfg.Dir, sandbox.NetworkLogRequest{})
	if len(all) != 3 || all[2].Match != sandbox.MatchLimit || all[2].Reason == "" {
		t.Fatalf("got %+v, want two events and a note about 8 before them", all)
	}
}

func TestFollow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan int, 10_000)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		err := Follow(ctx, dir, sandbox.NetworkLogRequest{Host: "example.com"}, func(e sandbox.NetworkEvent) error {
			got <- e.Port
			return nil
		})
		if err != nil {
			t.Errorf("follow: %v", err)
		}
	})
	const most = 1 << 20
	w := open(t, dir, most)
	const before = -2
	begun := func() bool { // it may start with the events present already, or not: both are correct
		w.Record(event("example.com", before))
		select {
		case <-got:
			return true
		case <-time.After(10 * time.Millisecond):
			return false
		}
	}
	for !begun() {
	}
	want := 0
	for range 20 {
		for range 300 { // several segments in all
			w.Record(event("example.com", want))
			w.Record(event("other.example", -1))
			want++
		}
		for n := want - 300; n < want; n++ {
			port := <-got
			for port == before {
				port = <-got
			}
			if port != n {
				t.Fatalf("got event %d, want %d", port, n)
			}
		}
	}
}

func TestFollowReturnsSinkError(t *testing.T) {
	dir := t.TempDir()
	mine := errors.New("mine")
	done := make(chan error, 1)
	go func() {
		done <- Follow(t.Context(), dir, sandbox.NetworkLogRequest{}, func(sandbox.NetworkEvent) error { return mine })
	}()
	w := open(t, dir, 0)
	for {
		w.Record(event("example.com", 1))
		select {
		case err := <-done:
			if !errors.Is(err, mine) {
				t.Errorf("got %v, want the sink's error", err)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// FuzzRead reads arbitrary segments: a segment is written by a process that can be killed
// at any byte, on a disk that can be full.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"id":5,"kind":"dns","time":"2026-01-01T00:00:00Z","verdict":"allowed"}`+"\n"), "", 10)
	f.Add([]byte("{\"id\":5,\"kind\":\"dns\"}\n{\"id\":4,\"kind\":\"dns\"}\n{\"id\":-1}\n\x00\xff\n{"), "5", 1)
	f.Fuzz(func(t *testing.T, data []byte, cursor string, limit int) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, segmentName(1)), data, 0o600); err != nil {
			t.Fatal(err)
		}
		req := sandbox.NetworkLogRequest{Page: sandbox.Page{Limit: limit, Cursor: cursor}}
		events, next, err := Read(t.Context(), dir, req)
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Fatalf("got %v, want an invalid request or none", err)
			}
			return
		}
		if next != "" {
			if _, err := parseCursor(next); err != nil {
				t.Fatalf("its own cursor %q is refused: %v", next, err)
			}
		}
		for i := 1; i < len(events); i++ {
			if events[i].ID > events[i-1].ID {
				t.Fatalf("ids %d, %d are not newest first", events[i-1].ID, events[i].ID)
			}
		}
		w, err := NewWriter(WriterConfig{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
	})
}

// TestFullDiskLeavesNoFiles makes every write fail, as on a full disk, and checks that
// the attempts leave no files behind.
func TestFullDiskLeavesNoFiles(t *testing.T) {
	dir := t.TempDir()
	w := &Writer{cfg: WriterConfig{Dir: dir, MaxBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler)}}
	for range 10 {
		event := sandbox.NetworkEvent{SandboxID: "sbx-a", Kind: sandbox.NetworkConnection}
		w.encode(event)
		if err := w.open(); err != nil {
			t.Fatal(err)
		}
		w.file.Close() // which makes the write fail
		w.flush()
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}
