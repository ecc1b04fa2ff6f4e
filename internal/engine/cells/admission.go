package cells

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// A sandbox is expected to use 1/growthShare of its memory limit soon after its start,
	// but at most maxGrowth bytes.
	growthShare = 4
	maxGrowth   = 128 << 20
	// A sandbox that loads on demand is expected to touch 1/touchedShare of the memory with
	// which it continues.
	touchedShare = 8
	// growthTime is how long this memory stays reserved for the sandbox.
	growthTime = 10 * time.Second
	// diskFloor is how many bytes of the disk must stay free for a sandbox to start; on a
	// small disk it is 1/diskShare of the disk.
	diskFloor = 64 << 20
	diskShare = 16
	// noRoomRetry is the delay after which a start without room may be tried again.
	noRoomRetry = 10 * time.Second
)

// admissions decides whether there is enough memory for new sandboxes. Memory stays
// reserved for starts in progress and recent ones, whether or not they already use it.
//
// A sandbox that loads its memory on demand needs the rest when its state is saved.
// Memory for the sandbox with the most left to load stays reserved for as long as it
// runs, so that sandboxes can always be saved one after another.
type admissions struct {
	mu       sync.Mutex
	starts   map[string]*start // by instance; guarded by mu
	unloaded map[string]int64  // bytes not loaded yet, by instance, once known; guarded by mu
	loads    map[string]int64  // bytes being loaded for a save; guarded by mu
	loaded   chan struct{}     // closed when an entry of loads ends; guarded by mu
	// bounds returns the machine's limits; tests replace it.
	bounds func() []machine.Memory
	now    func() time.Time
}

// start is memory reserved for an instance.
type start struct {
	need int64
	// until is when the reservation ends; zero while the instance is being started. used
	// returns how much memory the instance uses.
	until time.Time
	used  func() int64
}

func newAdmissions() *admissions {
	return &admissions{
		starts: map[string]*start{}, unloaded: map[string]int64{}, loads: map[string]int64{}, loaded: make(chan struct{}),
		bounds: machine.MemoryBounds, now: time.Now,
	}
}

// memoryNeed is the memory that a sandbox needs, in bytes.
type memoryNeed struct {
	// now is what it needs at its start and soon after, and later what it may load when its
	// state is saved.
	now, later int64
}

// admit reserves memory for an instance, or refuses. If there is too little, it calls
// spare at most once, which releases memory and reports whether it released any.
func (a *admissions) admit(id string, d memoryNeed, spare func() bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.check(1, d, spare); err != nil {
		return err
	}
	a.starts[id] = &start{need: d.now}
	if d.later > 0 {
		a.unloaded[id] = d.later
	}
	return nil
}

// ask checks whether there is room for n sandboxes.
func (a *admissions) ask(n int, each memoryNeed, spare func() bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.check(n, each, spare)
}

// check returns an error unless n sandboxes fit. The caller must hold a.mu.
func (a *admissions) check(n int, each memoryNeed, spare func() bool) error {
	what := fmt.Sprintf("this sandbox needs %d", mebibytes(each.now))
	if n > 1 {
		what = fmt.Sprintf("these %d sandboxes need %d", n, mebibytes(int64(n)*each.now))
	}
	return a.fits(int64(n)*each.now, max(each.later, a.later()), what, spare)
}

// later returns the most that an instance still has to load. Memory being loaded is
// reserved separately. The caller must hold a.mu.
func (a *admissions) later() (most int64) {
	for id, left := range a.unloaded {
		if _, loads := a.loads[id]; !loads {
			most = max(most, left)
		}
	}
	return most
}

// fits returns an error unless need fits in addition to what is reserved and to later. It
// first ignores how much reserved memory is in use already, which takes time to read. The
// caller must hold a.mu.
func (a *admissions) fits(need, later int64, what string, spare func() bool) error {
	bounds := a.bounds()
	if fit(bounds, a.reserved(false)+later, need, what) == nil || fit(bounds, a.reserved(true)+later, need, what) == nil {
		return nil
	}
	if spare() {
		bounds = a.bounds()
	}
	return fit(bounds, a.reserved(true)+later, need, what)
}

// left returns how much of its memory an instance has not loaded yet, if known.
func (a *admissions) left(id string) (bytes int64, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	bytes, known = a.unloaded[id]
	return bytes, known
}

// setLeft records how much of its memory a running instance has not loaded yet.
func (a *admissions) setLeft(id string, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unloaded[id] = bytes
}

// load reserves memory for what an instance loads so that its state can be saved. The
// caller must then call done. If there is too little memory and other instances are
// loading, it returns a channel that is closed when one of them is done.
func (a *admissions) load(id string, need int64, spare func() bool) (done func(), others <-chan struct{}, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	what := fmt.Sprintf("saving this sandbox's state takes %d, since it has yet to load them", mebibytes(need))
	if s := a.starts[id]; s != nil {
		need = max(0, need-s.left(a.now(), true)) // which has been reserved since its start
	}
	if err := a.fits(need, 0, what, spare); err != nil {
		if len(a.loads) > 0 {
			others = a.loaded
		}
		return nil, others, err
	}
	a.loads[id] += need
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.loads[id] -= need; a.loads[id] <= 0 {
			delete(a.loads, id)
		}
		close(a.loaded)
		a.loaded = make(chan struct{})
	}, nil, nil
}

// reserved returns how much memory is reserved. With exact, it excludes what is in use
// already. The caller must hold a.mu.
func (a *admissions) reserved(exact bool) int64 {
	now, sum := a.now(), int64(0)
	for _, bytes := range a.loads {
		sum += bytes
	}
	for id, s := range a.starts {
		if s.over(now) {
			delete(a.starts, id)
			continue
		}
		sum += s.left(now, exact)
	}
	return sum
}

func (s *start) over(now time.Time) bool { return !s.until.IsZero() && !s.until.After(now) }

// left returns how much memory is reserved for the start. With exact, it excludes what is
// in use already.
func (s *start) left(now time.Time, exact bool) int64 {
	switch {
	case s.over(now):
		return 0
	case exact && s.used != nil:
		return max(0, s.need-s.used())
	}
	return s.need
}

// started records that an instance runs. It will soon use its memory; used returns how
// much it uses.
func (a *admissions) started(id string, used func() int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.starts[id]; s != nil {
		s.until, s.used = a.now().Add(growthTime), used
	}
}

// ended releases the memory that is reserved for an instance.
func (a *admissions) ended(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.starts, id)
	delete(a.unloaded, id)
}

// room returns how many bytes new sandboxes may use now.
func (a *admissions) room() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	room := int64(1 << 62)
	for _, m := range a.bounds() {
		room = min(room, m.Room())
	}
	return room - a.reserved(false) - a.later()
}

// fit returns an error if a limit has less than need bytes left, after its floor and what
// is reserved.
func fit(bounds []machine.Memory, reserved, need int64, what string) error {
	for _, m := range bounds {
		if m.Room()-reserved >= need {
			continue
		}
		set := ""
		if reserved > 0 {
			set = fmt.Sprintf(" and %d are set aside for sandboxes that have just started or have memory to load", mebibytes(reserved))
		}
		return noRoom(sandbox.CodeQuotaExceeded, "%s; %d MiB stay free%s, and %s: kill or pause sandboxes that are no longer needed, or retry later", m, mebibytes(m.Floor()), set, what)
	}
	return nil
}

func noRoom(code sandbox.Code, format string, args ...any) error {
	err := sandbox.Wrap(code, engine.ErrNoRoom, fmt.Sprintf(format, args...))
	err.RetryAfter = noRoomRetry
	return err
}

// mebibytes converts bytes to MiB, rounded up.
func mebibytes(n int64) int64 { return (n + 1<<20 - 1) >> 20 }

// needOf estimates how much memory a sandbox needs. kept is the memory with which it
// continues, of which it uses only what it touches if it loads on demand.
func needOf(r sandbox.Resources, kept int64, onDemand bool) memoryNeed {
	grows := min(r.MemoryMiB<<20/growthShare, maxGrowth)
	if onDemand {
		return memoryNeed{now: standbyBytes + max(kept/touchedShare, grows), later: kept}
	}
	return memoryNeed{now: standbyBytes + max(kept, grows)}
}

// onDemand reports whether this number of children of a fork, which run program, load
// only what they touch; see [cell.Spec].
func (e *Engine) onDemand(program string, children int) bool {
	return children > 1 && runsc.Patched() && program == filepath.Base(e.program)
}

// keptBytes estimates how much memory a checkpoint contains, and returns the program that
// continues from it.
func (e *Engine) keptBytes(id string) (kept int64, program string, err error) {
	m, err := e.checkpoints.Manifest(id)
	if err != nil {
		return 0, "", err
	}
	for _, f := range m.Files {
		if f.Name == runsc.PagesFile {
			kept = f.Size
		}
	}
	if written, err := runsc.WrittenBytes(e.checkpoints.Path(id)); err == nil {
		kept = max(0, kept-written)
	}
	return kept, m.Program, nil
}

// admit reserves memory for an instance. It ignores errors in reading the checkpoint,
// which the start will report.
func (e *Engine) admit(spec *engine.Spec) error {
	if err := e.admitDisk(); err != nil {
		return err
	}
	kept, program := int64(0), ""
	if spec.Checkpoint != "" && !spec.FilesOnly {
		kept, program, _ = e.keptBytes(spec.Checkpoint)
	}
	onDemand := spec.Fork != nil && e.onDemand(program, spec.Fork.Count)
	err := e.admissions.admit(spec.ID, needOf(spec.Resources, kept, onDemand), e.endWaiting)
	if err == nil && kept == 0 {
		e.admissions.setLeft(spec.ID, 0) // Stats need not be called before its state is saved
	}
	return err
}

// Admit implements [engine.Admitter].
func (e *Engine) Admit(ctx context.Context, n int, of engine.Source, spec *engine.Spec) error {
	if err := e.admitDisk(); err != nil {
		return err
	}
	kept, program := int64(0), ""
	if of.Checkpoint != "" {
		kept, program, _ = e.keptBytes(of.Checkpoint)
	} else if i, err := e.Open(ctx, of.Instance); err == nil {
		inst := i.(*instance)
		kept = max(0, inst.memoryInUse()-standbyBytes)
		left, _ := e.admissions.left(inst.id)
		kept += left
		if from, err := readOrigin(inst.dir); err == nil {
			program = from.Program
		}
	}
	return e.admissions.ask(n, needOf(spec.Resources, kept, e.onDemand(program, n)), e.endWaiting)
}

// setLeft records how much of its memory an instance has not loaded yet, unless it has ended.
func (e *Engine) setLeft(inst *instance, bytes int64) {
	e.admissions.setLeft(inst.id, bytes)
	e.mu.Lock()
	live := e.live[inst.id] == inst
	e.mu.Unlock()
	if !live {
		e.admissions.ended(inst.id)
	}
}

// loadWait is how long saving the state of a sandbox waits while there is too little
// memory because others are being loaded.
const loadWait = 2 * time.Minute

// admitLoad reserves memory for what an instance has to load before its state can be
// saved, or refuses. The caller must call done when it is saved. It ignores other errors,
// which the checkpoint will report.
func (e *Engine) admitLoad(ctx context.Context, inst *instance) (done func(), err error) {
	if left, known := e.admissions.left(inst.id); known && left == 0 {
		return func() {}, nil
	}
	st, err := inst.Stats(ctx)
	if err != nil || st.UnloadedBytes == 0 {
		return func() {}, nil
	}
	timeout := time.NewTimer(loadWait)
	defer timeout.Stop()
	for {
		done, others, err := e.admissions.load(inst.id, st.UnloadedBytes, e.endWaiting)
		if err == nil || others == nil {
			return done, err
		}
		select {
		case <-others:
		case <-timeout.C:
			return nil, err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

var _ engine.Admitter = (*Engine)(nil)

// memoryInUse returns the memory of a cell's processes, in bytes; 0 without cgroups.
func (i *instance) memoryInUse() int64 {
	if i.group == nil {
		return 0
	}
	st, err := i.group.Stats()
	if err != nil {
		return 0
	}
	return st.MemoryBytes
}

// endWaiting ends all waiting standbys and reports whether there were any.
func (e *Engine) endWaiting() bool {
	e.mu.Lock()
	var all []*standby
	for _, p := range e.pools {
		all, p.ready = append(all, p.ready...), nil
	}
	e.mu.Unlock()
	var wg sync.WaitGroup
	for _, sb := range all {
		wg.Go(func() { e.abandon(sb) })
	}
	wg.Wait()
	return len(all) > 0
}

// admitDisk refuses sandboxes if the disk is almost full.
func (e *Engine) admitDisk() error {
	var st unix.Statfs_t
	if unix.Statfs(e.cfg.Dir, &st) != nil {
		return nil
	}
	free, total := int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
	if floor := min(diskFloor, total/diskShare); free < floor {
		return noRoom(sandbox.CodeUnavailable, "the server's disk is full: %d MiB are free, and %d MiB stay free of new sandboxes; delete snapshots or sandboxes and try again", free>>20, mebibytes(floor))
	}
	return nil
}
