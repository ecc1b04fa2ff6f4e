package runsc

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/runsc/boot"
)

// A checkpoint of a sandbox that continues may lack most of the memory at that moment. A
// patched gVisor freezes this memory: programs that write to it get copies, while the
// original content is written to the checkpoint.

const (
	// leastDeferred is the least amount of memory that is worth deferring: less is copied in
	// about 20 ms, and children need not request it.
	leastDeferred = 64 << 20
	// maxFreezable limits the ranges of memory that are frozen. The longest ranges go first.
	maxFreezable = 1 << 14
)

// Deferred is memory that a checkpoint still lacks and that gVisor has frozen.
type Deferred struct {
	s *Sandbox
	w *writing
}

// Bytes is the size of this memory.
func (d *Deferred) Bytes() int64 { return d.w.b.bytes() }

// Write writes the memory into the checkpoint, which is then complete. The sandbox may
// run, or end, meanwhile.
func (d *Deferred) Write(ctx context.Context) error { return d.w.run(ctx) }

// Answer lets another cell continue from the checkpoint before it is complete; see
// [Sandbox.Restore]. It returns when Write has returned or the connection ends.
func (d *Deferred) Answer(conn net.Conn) { d.w.serve(conn) }

// Close returns the memory to gVisor, whether or not it was written. It may be called at
// any time.
func (d *Deferred) Close() error { return errors.Join(d.w.b.close(), d.s.thaw()) }

// freezable and the following types belong to the patched gVisor's methods.
type freezable struct {
	Device uint64   `json:"device"`
	Inode  uint64   `json:"inode"`
	Ranges []uint64 `json:"ranges"`
}

type freezableArgs struct {
	MaxRanges int `json:"max_ranges"`
}

type freezeArgs struct {
	Ranges []uint64 `json:"ranges"`
}

type freezeResult struct {
	Left []uint64 `json:"left"`
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
// It also makes sure that nothing is frozen, since frozen memory would be saved too.
func (s *Sandbox) PrepareCheckpoint() error {
	if !Freezes() {
		return nil
	}
	return errors.Join(s.thaw(), s.control("State.AccountMemory", nil, nil))
}

// CheckpointEarly is [Sandbox.Checkpoint], but leaves out up to most bytes of memory,
// which it returns. The result is nil if it has left out nothing, as always where gVisor
// is not patched.
//
// The sandbox must be paused, and none of its memory frozen.
func (s *Sandbox) CheckpointEarly(dir string, most int64) (*Deferred, error) {
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
	d := &Deferred{s: s, w: newWriting(b)}
	frozen, err := s.freeze(b)
	if err == nil && frozen {
		return d, nil
	}
	if err == nil {
		err = d.Write(context.Background()) // while the sandbox is paused
	}
	return nil, errors.Join(err, d.Close())
}

// backlog returns an empty backlog for up to most bytes, or nil if it would be of no use.
func (s *Sandbox) backlog(most int64) (*backlog, error) {
	if most < leastDeferred || !Freezes() {
		return nil, nil
	}
	var can freezable
	if err := s.control("State.Freezable", &freezableArgs{MaxRanges: maxFreezable}, &can); err != nil {
		return nil, err
	}
	if len(can.Ranges)%2 != 0 || len(can.Ranges) > 2*maxFreezable {
		return nil, fmt.Errorf("gVisor returned %d ends of ranges", len(can.Ranges))
	}
	b := &backlog{dev: can.Device, ino: can.Inode, room: most}
	all, end := uint64(0), uint64(0)
	for r := can.Ranges; len(r) > 0; r = r[2:] {
		fr := memmap.FileRange{Start: r[0], End: r[1]}
		if fr.Start >= fr.End || fr.Start < end || int64(fr.End) < 0 || (fr.Start|fr.End)%pageSize != 0 {
			return nil, fmt.Errorf("gVisor returned the range %v", fr)
		}
		end = fr.End
		all += fr.Length()
		b.ranges = append(b.ranges, fr)
	}
	if all < leastDeferred {
		return nil, nil
	}
	return b, nil
}

// freeze freezes the backlog's memory. frozen is false if some of it cannot be frozen;
// the rest may then be frozen or not.
func (s *Sandbox) freeze(b *backlog) (frozen bool, err error) {
	if b.size == 0 { // there is always some memory of gVisor's own
		return false, errors.New("gVisor has not written the files of a checkpoint")
	}
	// The part written last may be this memory.
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
	err = s.control("State.Freeze", &freezeArgs{Ranges: b.taken()}, &res)
	return len(res.Left) == 0, err
}

// thaw ends freeze.
func (s *Sandbox) thaw() error { return s.control("State.Thaw", nil, nil) }

// Halt stops the sandbox's processes until [Sandbox.Unhalt], independently of a pause:
// they continue when both have ended. Both methods may be called at any time.
func (s *Sandbox) Halt() error { return s.control(boot.ContMgrPause, nil, nil) }

// Unhalt ends [Sandbox.Halt].
func (s *Sandbox) Unhalt() error { return s.control(boot.ContMgrResume, nil, nil) }
