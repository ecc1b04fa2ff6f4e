package runsc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/runsc/boot"
)

// A checkpoint of a sandbox that continues may lack most of the memory and of the written
// files at that moment. A patched gVisor freezes these: programs that write to them get
// copies, while the original content is written to the checkpoint.

const (
	// leastDeferred is the least amount that is worth deferring: less is copied in about
	// 20 ms, and children need not request it.
	leastDeferred = 64 << 20
	// maxFreezable limits the ranges of a file that are frozen. The longest ranges go first.
	maxFreezable = 1 << 14
)

// CopyRoom is how much the programs of a sandbox may copy that goes on while a checkpoint
// is written, in bytes: for each byte that is written later, they may write another one.
type CopyRoom struct {
	// Memory is for the memory of programs, and for file systems in memory.
	Memory int64
	// Disk is for what the sandbox has written above its root.
	Disk int64
}

// freezes are the numbers by which gVisor knows what it has frozen. What has other numbers
// was left over by a thaw that failed.
type freezes struct {
	mu   sync.Mutex // held during calls that thaw
	last uint64     // guarded by mu
	live []uint64   // guarded by mu
}

func (f *freezes) begin() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	f.live = append(f.live, f.last)
	return f.last
}

// Deferred is what a checkpoint still lacks, and gVisor has frozen.
type Deferred struct {
	s  *Sandbox
	w  *writing
	id uint64
}

// Bytes is the size of all of it.
func (d *Deferred) Bytes() int64 { return d.w.b.bytes() }

// DiskBytes is the size of what of it the sandbox has written above its root.
func (d *Deferred) DiskBytes() (sum int64) {
	for _, f := range d.w.b.files[1:] {
		sum += d.w.b.bytesOf(f)
	}
	return sum
}

// Write writes it into the checkpoint, which is then complete. The sandbox may run, or
// end, meanwhile. Its error is [ErrUnneeded] if the checkpoint was removed and nobody needs
// the rest.
func (d *Deferred) Write(ctx context.Context) error { return d.w.run(ctx) }

// Answer lets another cell continue from the checkpoint before it is complete; see
// [Sandbox.Restore]. It returns when Write has returned or the connection ends.
func (d *Deferred) Answer(conn net.Conn) { d.w.serve(conn) }

// Close lets gVisor change it again, whether or not it was written. It may be called at any
// time. What other checkpoints lack stays frozen.
func (d *Deferred) Close() error { return errors.Join(d.w.b.close(), d.s.thaw(d.id)) }

// freezable and the following types belong to the patched gVisor's methods.
type freezable struct {
	Files []fileRanges `json:"files"`
}

type fileRanges struct {
	Device uint64   `json:"device"`
	Inode  uint64   `json:"inode"`
	Ranges []uint64 `json:"ranges"`
}

type freezableArgs struct {
	MaxRanges int `json:"max_ranges"`
}

type freezeArgs struct {
	ID    uint64       `json:"id"`
	Files []fileRanges `json:"files"`
}

type thawArgs struct {
	Keep []uint64 `json:"keep"`
}

type freezeResult struct {
	Whole bool `json:"whole"`
}

// control calls a method of gVisor.
func (s *Sandbox) control(method string, args, res any) error {
	conn, err := client.ConnectTo(s.c.Sandbox.GetControlSocketPath())
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	defer conn.Close()
	if err := conn.Call(method, args, res); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}

// PrepareCheckpoint does what takes time before the sandbox is paused for a checkpoint.
func (s *Sandbox) PrepareCheckpoint() error {
	if !Freezes() {
		return nil
	}
	return errors.Join(s.thaw(0), s.control("State.AccountMemory", nil, nil))
}

// CheckpointEarly is [Sandbox.Checkpoint], but leaves out up to most bytes, which it
// returns. The result is nil if it has left out nothing, as always where gVisor is not
// patched.
//
// The sandbox must be paused.
func (s *Sandbox) CheckpointEarly(dir string, most CopyRoom) (*Deferred, error) {
	if s.sharesWrites(dir) {
		most.Disk = 0 // sharing takes no time
	}
	b, err := s.backlog(most)
	if err != nil {
		return nil, err
	}
	if b == nil {
		return nil, s.Checkpoint(dir)
	}
	err = s.checkpointServed(dir, b)
	b.seal()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("checkpoint gVisor container: %w", err), b.close())
	}
	d := &Deferred{s: s, w: newWriting(b, s.writeTurn), id: s.freezes.begin()}
	frozen, err := s.freeze(d.id, b)
	if err == nil && frozen {
		return d, nil
	}
	if err == nil {
		d.w.turn = semaphore.NewWeighted(1) // the sandbox is paused, and does not wait for others
		err = d.Write(context.Background())
	}
	return nil, errors.Join(err, d.Close())
}

// backlog returns an empty backlog for up to most bytes, or nil if it would be of no use.
func (s *Sandbox) backlog(most CopyRoom) (*backlog, error) {
	if max(most.Memory, most.Disk) < leastDeferred || !Freezes() {
		return nil, nil
	}
	var can freezable
	if err := s.control("State.Freezable", &freezableArgs{MaxRanges: maxFreezable}, &can); err != nil {
		return nil, err
	}
	if len(can.Files) == 0 || len(can.Files) > maxMemoryFiles {
		return nil, fmt.Errorf("gVisor returned %d files", len(can.Files))
	}
	b := &backlog{}
	all := int64(0)
	for i, r := range can.Files {
		f, err := newFrozenFile(r)
		if err != nil {
			return nil, err
		}
		if f.room = &most.Disk; i == 0 {
			f.room = &most.Memory
		}
		all += min(*f.room, f.freezable())
		b.files = append(b.files, f)
	}
	if all < leastDeferred {
		return nil, nil
	}
	return b, nil
}

// newFrozenFile checks what gVisor says about a file.
func newFrozenFile(r fileRanges) (*frozenFile, error) {
	if len(r.Ranges)%2 != 0 || len(r.Ranges) > 2*maxFreezable {
		return nil, fmt.Errorf("gVisor returned %d ends of ranges", len(r.Ranges))
	}
	f := &frozenFile{dev: r.Device, ino: r.Inode}
	end := uint64(0)
	for ends := r.Ranges; len(ends) > 0; ends = ends[2:] {
		fr := memmap.FileRange{Start: ends[0], End: ends[1]}
		if fr.Start >= fr.End || fr.Start < end || int64(fr.End) < 0 || (fr.Start|fr.End)%pageSize != 0 {
			return nil, fmt.Errorf("gVisor returned the range %v", fr)
		}
		end = fr.End
		f.ranges = append(f.ranges, fr)
	}
	return f, nil
}

// freezable is the size of all ranges.
func (f *frozenFile) freezable() (sum int64) {
	for _, fr := range f.ranges {
		sum += int64(fr.Length())
	}
	return sum
}

// freeze freezes the backlog. frozen is false if some of it cannot be frozen; the rest
// may then be frozen or not.
func (s *Sandbox) freeze(id uint64, b *backlog) (frozen bool, err error) {
	if b.size == 0 { // there is always some memory of gVisor's own
		return false, errors.New("gVisor has not written the files of a checkpoint")
	}
	// The part written last may be of the backlog.
	if err := b.pages.Truncate(b.size); err != nil {
		return false, fmt.Errorf("write a checkpoint: %w", err)
	}
	if len(b.parts) == 0 {
		return false, nil
	}
	// Detect a full disk before the sandbox continues, where the file system can tell.
	first, last := b.parts[0], b.parts[len(b.parts)-1]
	if err := unix.Fallocate(int(b.pages.Fd()), unix.FALLOC_FL_KEEP_SIZE, first.off, last.off+last.n-first.off); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return false, fmt.Errorf("reserve disk space for a checkpoint: %w", err)
	}
	var res freezeResult
	err = s.control("State.Freeze", &freezeArgs{ID: id, Files: b.taken()}, &res)
	return res.Whole, err
}

// thaw ends a freeze, if there is one with this number, and those that have been left over.
func (s *Sandbox) thaw(id uint64) error {
	s.freezes.mu.Lock()
	defer s.freezes.mu.Unlock()
	s.freezes.live = slices.DeleteFunc(s.freezes.live, func(live uint64) bool { return live == id })
	return s.control("State.Thaw", &thawArgs{Keep: s.freezes.live}, nil)
}

// Halt stops the sandbox's processes until [Sandbox.Unhalt], independently of a pause:
// they continue when both have ended. Both methods may be called at any time.
func (s *Sandbox) Halt() error { return s.control(boot.ContMgrPause, nil, nil) }

// Unhalt ends [Sandbox.Halt].
func (s *Sandbox) Unhalt() error { return s.control(boot.ContMgrResume, nil, nil) }
