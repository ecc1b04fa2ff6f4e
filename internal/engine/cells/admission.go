package cells

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// A sandbox is expected to take one part in growthShare of its memory limit soon after
	// its start, but at most maxGrowth bytes.
	growthShare = 4
	maxGrowth   = 128 << 20
	// growthTime is how long this memory stays reserved for the sandbox.
	growthTime = 10 * time.Second
	// diskFloor is how many bytes of the disk must stay free for a sandbox to start; on a
	// small disk it is one part in diskShare.
	diskFloor = 64 << 20
	diskShare = 16
	// noRoomRetry is after which time a start without room may be tried again.
	noRoomRetry = 10 * time.Second
)

// admissions decides whether there is enough memory for new sandboxes. Memory stays reserved
// for starts in progress and recent ones, whether or not they have taken it yet.
type admissions struct {
	mu     sync.Mutex
	starts map[string]*start // by instance; guarded by mu
	// bounds returns the machine's limits; tests have others.
	bounds func() []machine.Memory
	now    func() time.Time
}

// start is memory that is reserved for an instance.
type start struct {
	need int64
	// until is when the reservation ends; zero while the instance is being started. Used
	// returns how much memory the instance has taken.
	until time.Time
	used  func() int64
}

func newAdmissions() *admissions {
	return &admissions{starts: map[string]*start{}, bounds: machine.MemoryBounds, now: time.Now}
}

// admit reserves memory for an instance that needs so many bytes, or refuses. If there is
// too little, it calls spare, at most once, which releases memory and reports whether there
// was any.
func (a *admissions) admit(id string, need int64, spare func() bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.check(1, need, spare); err != nil {
		return err
	}
	a.starts[id] = &start{need: need}
	return nil
}

// ask checks whether there is room for n sandboxes that need so many bytes each.
func (a *admissions) ask(n int, need int64, spare func() bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.check(n, need, spare)
}

// check first ignores how much reserved memory has been taken already, which takes time to
// read.
//
// Preconditions: a.mu is held.
func (a *admissions) check(n int, need int64, spare func() bool) error {
	bounds := a.bounds()
	if fit(bounds, a.reserved(false), n, need) == nil || fit(bounds, a.reserved(true), n, need) == nil {
		return nil
	}
	if spare() {
		bounds = a.bounds()
	}
	return fit(bounds, a.reserved(true), n, need)
}

// reserved returns how much memory is reserved; exact leaves out what has been taken.
//
// Preconditions: a.mu is held.
func (a *admissions) reserved(exact bool) int64 {
	now, sum := a.now(), int64(0)
	for id, s := range a.starts {
		if !s.until.IsZero() && !s.until.After(now) {
			delete(a.starts, id)
			continue
		}
		left := s.need
		if exact && s.used != nil {
			left = max(0, left-s.used())
		}
		sum += left
	}
	return sum
}

// started records that an instance runs. It will soon take its memory; used returns how
// much it has taken.
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
}

// room returns how many bytes new sandboxes may take now.
func (a *admissions) room() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	room := int64(1 << 62)
	for _, m := range a.bounds() {
		room = min(room, m.Room())
	}
	return room - a.reserved(false)
}

// fit refuses n sandboxes that need so many bytes each if any limit has too little memory
// left, besides its floor and what is reserved.
func fit(bounds []machine.Memory, reserved int64, n int, need int64) error {
	for _, m := range bounds {
		if m.Room()-reserved >= int64(n)*need {
			continue
		}
		what := fmt.Sprintf("this sandbox needs %d", mebibytes(need))
		if n > 1 {
			what = fmt.Sprintf("these %d sandboxes need %d", n, mebibytes(int64(n)*need))
		}
		set := ""
		if reserved > 0 {
			set = fmt.Sprintf(" and %d are set aside for sandboxes that have just started", mebibytes(reserved))
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

// mebibytes rounds up.
func mebibytes(n int64) int64 { return (n + 1<<20 - 1) >> 20 }

// needOf returns about how many bytes a sandbox takes at its start and soon after. Kept is
// the memory with which it continues.
func needOf(r sandbox.Resources, kept int64) int64 {
	return standbyBytes + max(kept, min(r.MemoryMiB<<20/growthShare, maxGrowth))
}

// keptBytes returns about how much memory a checkpoint contains.
func (e *Engine) keptBytes(id string) (int64, error) {
	m, err := e.checkpoints.Manifest(id)
	if err != nil {
		return 0, err
	}
	kept := int64(0)
	for _, f := range m.Files {
		if f.Name == runsc.PagesFile {
			kept = f.Size
		}
	}
	if written, err := runsc.WrittenBytes(e.checkpoints.Path(id)); err == nil {
		kept = max(0, kept-written)
	}
	return kept, nil
}

// admit reserves memory for an instance. It ignores errors in reading the checkpoint, which
// the start will report.
func (e *Engine) admit(spec *engine.Spec) error {
	if err := e.admitDisk(); err != nil {
		return err
	}
	kept := int64(0)
	if spec.Checkpoint != "" && !spec.FilesOnly {
		kept, _ = e.keptBytes(spec.Checkpoint)
	}
	return e.admissions.admit(spec.ID, needOf(spec.Resources, kept), e.giveBack)
}

// Admit implements [engine.Admitter].
func (e *Engine) Admit(ctx context.Context, n int, of engine.Source, r sandbox.Resources) error {
	if err := e.admitDisk(); err != nil {
		return err
	}
	kept := int64(0)
	if of.Checkpoint != "" {
		kept, _ = e.keptBytes(of.Checkpoint)
	} else if inst, err := e.Open(ctx, of.Instance); err == nil {
		kept = max(0, inst.(*instance).memoryInUse()-standbyBytes)
	}
	return e.admissions.ask(n, needOf(r, kept), e.giveBack)
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

// giveBack ends all waiting standbys and reports whether there were any.
func (e *Engine) giveBack() bool {
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
