package pgalloc

import (
	"runtime"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
)

// loadOf returns the load of a file of which fr is to be loaded, and its loader, which
// does not run.
func loadOf(fr memmap.FileRange) *asyncMemoryFileLoad {
	apfl := &AsyncPagesFileLoad{}
	apfl.lfStatus.Init()
	amfl := &asyncMemoryFileLoad{f: &MemoryFile{}, pf: apfl}
	amfl.f.asyncPageLoad.Store(amfl)
	amfl.unloaded.InsertRange(fr, aplUnloadedInfo{})
	return amfl
}

var somePages = memmap.FileRange{Start: 0, End: 4 * hostarch.PageSize}

// await waits until ok returns true.
func await(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("in vain")
		}
	}
}

// What is discarded while it is being read stays discarded if that read fails.
func TestOnDemandDiscardOutlivesFailedRead(t *testing.T) {
	amfl := loadOf(somePages)
	apfl := amfl.pf
	amfl.unloaded.FirstSegment().ValuePtr().started = true
	done := make(chan struct{})
	go func() {
		defer close(done)
		amfl.f.discardUnloaded(somePages)
	}()
	waits := func() bool {
		apfl.mu.Lock()
		defer apfl.mu.Unlock()
		return apfl.numWaiters == 1
	}
	await(t, waits)
	var wakeups []*aplWaiter
	apfl.mu.Lock()
	put := apfl.putBackLocked(&aplOp{amfl: amfl, frs: []memmap.FileRange{somePages}}, &wakeups)
	apfl.mu.Unlock()
	if !put || len(wakeups) != 1 {
		t.Fatalf("put back %v, and %d wait", put, len(wakeups))
	}
	wakeups[0].wakeup.Notify(1)
	<-done
	if !amfl.unloaded.IsEmpty() {
		t.Error("discarded pages will be loaded")
	}
}

// reader counts reads, which never end.
type reader struct {
	stateio.AsyncReader
	closed chan struct{}
}

func (*reader) MaxReadBytes() uint64         { return hostarch.PageSize }
func (*reader) MaxRanges() int               { return 1 }
func (*reader) MaxParallel() int             { return 1 }
func (*reader) BackgroundReads() (int, bool) { return 0, true }
func (r *reader) Close() error               { close(r.closed); return nil }

// Pages that were asked for and put back are not read while nobody holds them.
func TestOnDemandPutBackIsNotRead(t *testing.T) {
	r := &reader{closed: make(chan struct{})}
	apfl, err := StartAsyncPagesFileLoad(r, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	amfl := loadOf(somePages)
	amfl.pf, amfl.lfDone = apfl, true
	apfl.amflsMu.Lock()
	apfl.mu.Lock()
	apfl.amfls.PushBack(amfl)
	apfl.priority.PushBack(aplFileRange{amfl, somePages})
	apfl.mu.Unlock()
	apfl.amflsMu.Unlock()
	apfl.lfStatus.Notify(aplLFPending)
	await(t, func() bool {
		apfl.mu.Lock()
		defer apfl.mu.Unlock()
		return apfl.priority.Empty()
	})
	go func() {
		amfl.f.discardUnloaded(somePages) // which waits if they are being read
		apfl.MemoryFilesDone()
	}()
	select {
	case <-r.closed:
	case <-time.After(10 * time.Second):
		t.Error("they are being read")
	}
}

// What has ended with an error is not taken for loaded.
func TestOnDemandFailedLoadIsTold(t *testing.T) {
	apfl := loadOf(somePages).pf
	apfl.ar = &reader{}
	apfl.startBackground()
	apfl.errVal.Store(linuxerr.EIO)
	apfl.endBackground()
	if _, err := LoadInBackground(-1, nil, false); err == nil {
		t.Error("a load that has failed is over without an error")
	}
}
