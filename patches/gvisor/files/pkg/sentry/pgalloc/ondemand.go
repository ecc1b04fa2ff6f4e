package pgalloc

import (
	"math"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sync"
)

// Loading on demand: pages of a restored MemoryFile are read as they are
// needed, and reads that nobody waits for are bounded, down to none.

const (
	// unboundedBackground lets reads that nobody waits for fill the queue.
	unboundedBackground = math.MaxInt64

	// onDemandUnit is how much is loaded around what is waited for, if reads in
	// the background are bounded.
	onDemandUnit = 256 << 10

	// backgroundUnit is the same if they are not.
	backgroundUnit = 32 << 20
)

// BackgroundReader may be implemented by a stateio.AsyncReader.
type BackgroundReader interface {
	// BackgroundReads returns how many reads that nobody waits for may be in
	// flight, and true; or false if there is no bound.
	BackgroundReads() (int, bool)
}

// loads are the page loads of this process that have not ended, or have failed.
var loads struct {
	mu  sync.Mutex
	all map[*AsyncPagesFileLoad]struct{} // guarded by mu
}

// startBackground is called before apfl's goroutine is started.
func (apfl *AsyncPagesFileLoad) startBackground() {
	apfl.background.Store(unboundedBackground)
	if r, ok := apfl.ar.(BackgroundReader); ok {
		if n, bounded := r.BackgroundReads(); bounded {
			apfl.background.Store(int64(n))
		}
	}
	loads.mu.Lock()
	defer loads.mu.Unlock()
	if loads.all == nil {
		loads.all = make(map[*AsyncPagesFileLoad]struct{})
	}
	loads.all[apfl] = struct{}{}
}

// endBackground is called when apfl's goroutine ends.
func (apfl *AsyncPagesFileLoad) endBackground() {
	if apfl.err() != nil {
		return // LoadInBackground goes on to say so
	}
	loads.mu.Lock()
	defer loads.mu.Unlock()
	delete(loads.all, apfl)
}

// canBackground returns true if one more read that nobody waits for may be
// enqueued. It is exclusive to the async page loader goroutine.
func (apfl *AsyncPagesFileLoad) canBackground() bool {
	return int64(apfl.backgroundReads) < apfl.background.Load()
}

// settle ends the loading of MemoryFiles of which nothing is left to load, and
// returns true if there are others.
func (apfl *AsyncPagesFileLoad) settle() bool {
	apfl.amflsMu.Lock()
	defer apfl.amflsMu.Unlock()
	apfl.mu.Lock()
	defer apfl.mu.Unlock()
	left := false
	for amfl := apfl.amfls.Front(); amfl != nil; {
		next := amfl.Next()
		if !amfl.unloaded.IsEmpty() {
			left = true
		} else if amfl.lfDone {
			amfl.finishLocked()
		}
		amfl = next
	}
	return left
}

// finishLocked ends the loading of a MemoryFile.
//
// Preconditions: amfl.pf.amflsMu and amfl.pf.mu must be locked. amfl is in
// amfl.pf.amfls, amfl.unloaded is empty, and amfl.lfDone is true.
func (amfl *asyncMemoryFileLoad) finishLocked() {
	amfl.minUnloaded.Store(math.MaxUint64)
	amfl.pf.amfls.Remove(amfl)
	amfl.f.asyncPageLoad.Store(nil)
	amfl.timeline.End()
	if amfl.doneCallback != nil {
		amfl.doneCallback(nil)
		amfl.doneCallback = nil
	}
}

// putBackLocked lets pages be read again of which a read has failed, and fails
// only those who wait for them: what they need may be there later. Reads that
// nobody waits for end until LoadInBackground asks for them again. It returns
// false, and does nothing, if such reads are not bounded: they would fail for
// ever.
//
// Preconditions: apfl.amflsMu and apfl.mu must be locked. It is exclusive to the
// async page loader goroutine.
func (apfl *AsyncPagesFileLoad) putBackLocked(op *aplOp, wakeups *[]*aplWaiter) bool {
	if apfl.background.Load() == unboundedBackground {
		return false
	}
	apfl.background.Store(0)
	apfl.failures++
	amfl := op.amfl
	for _, fr := range op.frs {
		// As for a read that has succeeded, segments are split around fr.
		for ulseg := amfl.unloaded.FindSegment(fr.Start); ulseg.Ok() && ulseg.Start() < fr.End; ulseg = ulseg.NextSegment() {
			ul := ulseg.ValuePtr()
			for _, w := range ul.waiters {
				w.err = linuxerr.EIO
				w.pending -= ulseg.Range().Length()
				if w.pending == 0 {
					*wakeups = append(*wakeups, w)
					apfl.numWaiters--
					if apfl.numWaiters == 0 {
						apfl.timeStartWaiters = math.MaxInt64
					}
				}
			}
			ul.started = false
			ul.waiters = nil
		}
		amfl.minUnstarted = min(amfl.minUnstarted, fr.Start)
	}
	return true
}

// BackgroundLoad is how far the page loads of this process are.
type BackgroundLoad struct {
	// LeftBytes are to be loaded yet, MainBytes of them in the main MemoryFile.
	LeftBytes, MainBytes uint64
	// Failures is how many reads have failed.
	Failures uint64
}

// LoadInBackground sets how many reads that nobody waits for may be in flight
// in all page loads of this process; a negative n changes nothing. With skipMain
// there are none of them for the main MemoryFile. It returns how much is left to
// load, and the error that ended a load.
func LoadInBackground(n int, main *MemoryFile, skipMain bool) (left BackgroundLoad, err error) {
	loads.mu.Lock()
	defer loads.mu.Unlock()
	for apfl := range loads.all {
		if n >= 0 {
			var except *MemoryFile
			if skipMain {
				except = main
			}
			apfl.except.Store(except)
			apfl.background.Store(int64(n))
			apfl.lfStatus.Notify(aplLFPending)
		}
		apfl.amflsMu.Lock()
		apfl.mu.Lock()
		for amfl := apfl.amfls.Front(); amfl != nil; amfl = amfl.Next() {
			span := amfl.unloaded.Span()
			left.LeftBytes += span
			if amfl.f == main {
				left.MainBytes += span
			}
		}
		left.Failures += apfl.failures
		if apfl.err() != nil {
			err = apfl.err()
		}
		apfl.mu.Unlock()
		apfl.amflsMu.Unlock()
	}
	return left, err
}

// AwaitLoad blocks until data has been loaded for all pages in fr.
//
// Preconditions: At least one reference must be held on all pages in fr.
func (f *MemoryFile) AwaitLoad(fr memmap.FileRange) error {
	if amfl := f.asyncPageLoad.Load(); amfl != nil {
		return amfl.awaitLoad(fr)
	}
	return nil
}

// discardUnloaded makes sure that no data is loaded for pages in fr any more:
// it waits for reads that have begun, and forgets about the others.
//
// Preconditions: At least one reference must be held on all pages in fr. fr is
// page-aligned.
func (f *MemoryFile) discardUnloaded(fr memmap.FileRange) {
	amfl := f.asyncPageLoad.Load()
	if amfl == nil || fr.End <= amfl.minUnloaded.Load() {
		return
	}
	for {
		amfl.forgetUnloaded(fr)
		// Pages whose read has failed may have been put back, and are forgotten now;
		// after an error that ended the load, nothing is loaded any more.
		if err := amfl.awaitLoad(fr); err == nil || amfl.pf.err() != nil {
			return
		}
	}
}

// forgetUnloaded forgets about pages in fr of which no read has begun, and for which
// nobody waits.
func (amfl *asyncMemoryFileLoad) forgetUnloaded(fr memmap.FileRange) {
	amfl.pf.mu.Lock()
	defer amfl.pf.mu.Unlock()
	for ulseg := amfl.unloaded.LowerBoundSegment(fr.Start); ulseg.Ok() && ulseg.Start() < fr.End; {
		if ul := ulseg.ValuePtr(); ul.started || len(ul.waiters) != 0 {
			ulseg = ulseg.NextSegment()
			continue
		}
		ulseg = amfl.unloaded.Isolate(ulseg, fr)
		ulseg = amfl.unloaded.Remove(ulseg).NextSegment()
	}
	if amfl.unloaded.IsEmpty() {
		amfl.pf.lfStatus.Notify(aplLFPending)
	}
}

// IsLoaded returns true if data has been loaded for all pages in fr.
func (f *MemoryFile) IsLoaded(fr memmap.FileRange) bool {
	amfl := f.asyncPageLoad.Load()
	if amfl == nil || fr.End <= amfl.minUnloaded.Load() {
		return true
	}
	fr.Start = hostarch.PageRoundDown(fr.Start)
	fr.End = hostarch.MustPageRoundUp(fr.End)
	amfl.pf.mu.Lock()
	defer amfl.pf.mu.Unlock()
	return amfl.unloaded.IsEmptyRange(fr)
}

// LoadUnit returns how much should be loaded at once, a power of two.
//
// Preconditions: f.IsAsyncLoading() has returned true.
func (f *MemoryFile) LoadUnit() uint64 {
	if amfl := f.asyncPageLoad.Load(); amfl != nil && amfl.pf.background.Load() != unboundedBackground {
		return onDemandUnit
	}
	return backgroundUnit
}

// MapInternalUnloaded is as MapInternal, but does not wait for data to be
// loaded: the caller has to, by AwaitLoad, before it looks at any of it.
func (f *MemoryFile) MapInternalUnloaded(fr memmap.FileRange) safemem.BlockSeq {
	var blocks []safemem.Block
	f.forEachMappingSlice(fr, func(bs []byte) {
		blocks = append(blocks, safemem.BlockFromSafeSlice(bs))
	})
	return safemem.BlockSeqFromSlice(blocks)
}
