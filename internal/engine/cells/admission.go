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
	// growthShare is the part of its memory limit that a sandbox is expected to
	// take soon after its start, as one in so many, up to maxGrowth in bytes.
	growthShare = 4
	maxGrowth   = 128 << 20
	// growthTime is how long that is set aside for it.
	growthTime = 10 * time.Second
	// diskFloor is how much of the disk stays free of new sandboxes, in bytes; on
	// a small one it is a part, as one in diskShare.
	diskFloor = 64 << 20
	diskShare = 16
	// noRoomRetry is when a start that found no room may be tried again.
	noRoomRetry = 10 * time.Second
)

// admissions compares the starts of sandboxes with the memory that there is. All
// starts under way and those of a moment ago count, whether or not they have
// taken their memory yet.
type admissions struct {
	mu     sync.Mutex
	starts map[string]*start // by instance; guarded by mu
	// bounds are the machine's; tests have others.
	bounds func() []machine.Memory
	now    func() time.Time
}

// start is memory that is set aside for an instance.
type start struct {
	need int64
	// until is when what has not been taken is given back; zero while the
	// instance is being started. Used tells how much has been taken.
	until time.Time
	used  func() int64
}

func newAdmissions() *admissions {
	return &admissions{starts: map[string]*start{}, bounds: machine.MemoryBounds, now: time.Now}
}

// admit sets memory aside for an instance that needs so many bytes, or refuses.
// Spare is called, at most once, if there is too little: it gives memory back
// and reports whether that was any.
func (a *admissions) admit(id string, need int64, spare func() bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.check(1, need, spare); err != nil {
		return err
	}
	a.starts[id] = &start{need: need}
	return nil
}

// ask says whether n sandboxes fit that need so many bytes each.
func (a *admissions) ask(n int, need int64, spare func() bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.check(n, need, spare)
}

// check compares first without a look at what has been taken, which costs time.
//
// Preconditions: a.mu is held.
func (a *admissions) check(n int, need int64, spare func() bool) error {
	bounds := a.bounds()
	if fit(bounds, a.reserved(false), n, need) == nil {
		return nil
	}
	if fit(bounds, a.reserved(true), n, need) == nil {
		return nil
	}
	if spare() {
		bounds = a.bounds()
	}
	return fit(bounds, a.reserved(true), n, need)
}

// reserved is how much is set aside; exact leaves out what has been taken.
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

// started notes that an instance runs. It takes its memory soon, and used tells
// how much it has.
func (a *admissions) started(id string, used func() int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.starts[id]; s != nil {
		s.until, s.used = a.now().Add(growthTime), used
	}
}

// ended gives back what is set aside for an instance.
func (a *admissions) ended(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.starts, id)
}

// room is how many bytes new sandboxes may take now.
func (a *admissions) room() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	room := int64(1 << 62)
	for _, m := range a.bounds() {
		room = min(room, m.Room())
	}
	return room - a.reserved(false)
}

// fit is the arithmetic of admission: it refuses n sandboxes that need so many
// bytes each if one of the bounds has not enough, beside its floor and what is
// set aside.
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

// needOf is about how many bytes a sandbox takes at its start and soon after,
// given what of memory it continues with.
func needOf(r sandbox.Resources, kept int64) int64 {
	return standbyBytes + max(kept, min(r.MemoryMiB<<20/growthShare, maxGrowth))
}

// keptBytes is about how much memory a checkpoint holds.
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

// admit sets memory aside for an instance. An error in reading its checkpoint is
// left to the start, which explains it.
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

// memoryInUse is what the processes of a cell have, in bytes; 0 where there are
// no cgroups.
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

// giveBack ends all standbys that wait and reports whether there were any.
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

// admitDisk refuses when the disk is as good as full.
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
