package cell

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/sandbox"
)

// A sandbox that continues before all of its memory and files are written to a checkpoint
// needs a copy of all that it writes to meanwhile. If there is little memory or disk
// space, less is left to write when it continues; if one runs short nevertheless, the
// sandbox is halted until all is written.

const (
	// copyShare is the fraction of free memory and disk space that copies may use, as
	// 1/copyShare: other sandboxes grow too.
	copyShare = 2
	// diskSlack is how much disk space must be free when the sandbox continues, and half of
	// it while it runs: gVisor ends when it finds none.
	diskSlack = 256 << 20
	// slackShare is the fraction of a sandbox's memory limit, as 1/slackShare and at most
	// maxSlack, that must be free when the sandbox continues, and half of it while it runs:
	// the agent ends programs at the limit.
	slackShare = 8
	maxSlack   = 128 << 20
	// shortPoll is the interval at which the sandbox's memory and the disk are checked; every
	// boundsPolls-th check includes the machine's memory. A sandbox copies some MiB meanwhile.
	shortPoll   = 2 * time.Millisecond
	boundsPolls = 10
)

// maxWriting limits the checkpoints that are written at the same time. What each lacks
// divides memory into up to 16,384 more mappings; see [runsc.Sandbox.CheckpointEarly].
const maxWriting = 3

// maxUnwritten limits what these checkpoints lack together: when the sandbox ends, all of it
// is written before its cell ends, or lost if that takes too long.
const maxUnwritten = 4 << 30

// beginWriting waits until a checkpoint can be written. The caller calls the returned
// function when it is.
func (c *cell) beginWriting(ctx context.Context, req *CheckpointRequest) (written func(), err error) {
	ctx, cancel := c.whileWanted(ctx)
	defer cancel()
	share := int64(maxWriting)
	if req.GoOn && !req.FilesOnly && c.hasRoomBeside(req.Dir) {
		share = 1
	}
	if c.writing.Acquire(ctx, share) != nil {
		return nil, context.Cause(ctx)
	}
	return func() { c.writing.Release(share) }, nil
}

// whileWanted returns a context that ends with ctx, or when the sandbox has gone.
func (c *cell) whileWanted(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-c.gone:
			cancel(errEnding)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// hasRoomBeside reports whether a checkpoint can be written beside others. There must be
// room for copies of all memory and files, however much of it is frozen several times:
// programs copy it once.
func (c *cell) hasRoomBeside(dir string) bool {
	room, memory, files := c.roomToCopy(dir), c.sb.MemoryFileBytes(), int64(0)
	if _, onDisk := c.sb.FreeDisk(); onDisk {
		files = c.sb.DiskBytes()
	}
	return c.unwritten.Load()+memory+files <= maxUnwritten && room.Memory >= memory && room.Disk >= files
}

// roomToCopy returns how much the sandbox may use for copies while a checkpoint is written
// to dir: nothing if dir itself is in memory. The copies of written files are not part of
// the sandbox's disk limit.
func (c *cell) roomToCopy(dir string) runsc.CopyRoom {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC {
		return runsc.CopyRoom{}
	}
	memory := c.sb.MemoryFileBytes()
	free, onDisk := c.sb.FreeDisk()
	r := runsc.CopyRoom{Memory: copyRoom(machine.MemoryBounds(), c.memoryLimit.Load(), memory)}
	if onDisk {
		r.Disk = copyDisk(free, memory+c.sb.DiskBytes())
	}
	return r
}

// copyDisk is the disk space for copies, of what is free, while a checkpoint of at most
// size bytes is written.
func copyDisk(free, size int64) int64 { return max(0, (free-size-diskSlack)/copyShare) }

// copyRoom is roomToCopy for a sandbox that uses inUse of its limit, which is 0 if it has
// none.
func copyRoom(bounds []machine.Memory, limit, inUse int64) int64 {
	room := int64(math.MaxInt64)
	for _, b := range bounds {
		room = min(room, b.Room()/copyShare)
	}
	if limit > 0 {
		room = min(room, limit-slack(limit)-inUse)
	}
	return max(0, room)
}

// isShort reports whether a sandbox that uses inUse of its limit, which is 0 if it has
// none, should use no more memory for copies.
func isShort(bounds []machine.Memory, limit, inUse int64) bool {
	for _, b := range bounds {
		if b.Available < b.Floor()/2 {
			return true
		}
	}
	return limit > 0 && inUse > limit-slack(limit)/2
}

func slack(limit int64) int64 { return min(limit/slackShare, maxSlack) }

// writeLeft writes what a checkpoint still lacks, while the sandbox runs. It continues if
// the sandbox ends.
func (c *cell) writeLeft(ctx context.Context, left *runsc.Deferred) error {
	began, bytes := time.Now(), left.Bytes()
	written := make(chan struct{})
	var goOn func()
	var watch sync.WaitGroup
	watch.Go(func() { goOn = c.haltIfShort(written, left.DiskBytes() > 0) })
	err := left.Write(ctx)
	close(written)
	watch.Wait()
	if cerr := left.Close(); cerr != nil {
		c.log.Debug("thaw what was written to a checkpoint", "error", cerr) // the next checkpoint thaws it
	}
	if goOn != nil {
		goOn()
	}
	c.log.Info("memory of a checkpoint is written", "bytes", bytes, "files", left.DiskBytes(), "took", time.Since(began), "halted", goOn != nil, "error", err)
	return err
}

// writeWhileWanted is writeLeft, but ends when the caller or the sandbox has gone.
func (c *cell) writeWhileWanted(ctx context.Context, left *runsc.Deferred) error {
	ctx, cancel := c.whileWanted(ctx)
	defer cancel()
	return c.writeLeft(ctx, left)
}

// maxAskers limits the cells that are served at the same time.
const maxAskers = 2 * sandbox.MaxForks

// writeForOthers is writeLeft for a caller that starts other cells from the checkpoint in
// dir once notify is called. These cells are served until all is written, even if the
// caller or the sandbox goes away.
func (c *cell) writeForOthers(dir string, left *runsc.Deferred, notify func()) error {
	c.needed.Add(1)
	defer c.needed.Add(-1)
	// The directory may be renamed.
	at, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return errors.Join(err, left.Close())
	}
	defer at.Close()
	l, err := Listen(dir, PagesSocket)
	if err != nil {
		return errors.Join(err, left.Close())
	}
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		AnswerEach(l, maxAskers, &c.answers, left.Answer)
	}()
	notify()
	err = c.writeLeft(context.Background(), left)
	if err == nil {
		// The checkpoint may have been removed.
		if err = unix.Unlinkat(int(at.Fd()), PagesSocket, 0); errors.Is(err, unix.ENOENT) {
			err = nil
		}
		awaitAccepted(l)
	}
	l.Close()
	<-accepting
	if errors.Is(err, runsc.ErrUnneeded) {
		return nil
	}
	return err
}

// awaitAccepted waits until all connections to a listener have been accepted elsewhere,
// after its socket was removed so that no more can arrive. Closing the listener earlier
// would end the pending connections, whose clients would believe the memory lost.
func awaitAccepted(l net.Listener) {
	raw, err := l.(syscall.Conn).SyscallConn()
	for pending := true; pending && err == nil; runtime.Gosched() {
		err = raw.Control(func(fd uintptr) {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			pending = n > 0
		})
	}
}

// AnswerEach serves each connection to a listener until the listener is closed, and at most
// so many at the same time; others are closed.
func AnswerEach(l net.Listener, most int, answers *sync.WaitGroup, answer func(net.Conn)) {
	defer l.Close() // after an error, nothing else would accept
	free := make(chan struct{}, most)
	for {
		conn, err := machine.Accept(l)
		if err != nil {
			return
		}
		select {
		case free <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		answers.Go(func() {
			defer func() { <-free }()
			defer conn.Close()
			answer(conn)
		})
	}
}

// awaitWritten waits until no checkpoint is being written, since others may continue from
// it after the sandbox has ended. It does not wait when the machine shuts down. The
// engine ends a cell that takes too long.
func (c *cell) awaitWritten() {
	if c.writing.Acquire(c.ctx, maxWriting) != nil {
		return
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		c.answers.Wait() // what is being sent
	}()
	select {
	case <-received:
	case <-c.ctx.Done():
	}
}

// haltIfShort halts the sandbox if memory runs short before all is written, or, if files
// on the disk may be copied, disk space. It returns nil if it did not halt it, and
// otherwise a function that resumes it.
func (c *cell) haltIfShort(written <-chan struct{}, files bool) (goOn func()) {
	tick := time.NewTicker(shortPoll)
	defer tick.Stop()
	for polls := 1; ; polls++ {
		select {
		case <-written:
			return nil
		case <-tick.C:
		}
		var bounds []machine.Memory
		if polls%boundsPolls == 0 {
			bounds = machine.MemoryBounds()
		}
		short := isShort(bounds, c.memoryLimit.Load(), c.sb.MemoryFileBytes())
		if files && !short {
			free, onDisk := c.sb.FreeDisk()
			short = onDisk && free < diskSlack/2
		}
		if !short {
			continue
		}
		if err := c.sb.Halt(); err != nil {
			c.log.Warn("halt the sandbox while memory or disk space is short", "error", err)
			return nil
		}
		return c.halted(written)
	}
}

// halted makes probes wait, as during any other save, until the returned function resumes
// the sandbox.
func (c *cell) halted(written <-chan struct{}) (goOn func()) {
	release := func() {}
	select {
	case c.saving <- struct{}{}:
		release = func() { <-c.saving }
	case <-written:
	}
	return func() {
		defer release()
		if err := c.sb.Unhalt(); err != nil {
			c.log.Warn("resume the halted sandbox", "error", err)
		}
	}
}
