package cells

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/internal/machine/cgroup"
)

// stopTimeout is how long a cell may take to end before it is killed.
const stopTimeout = 3 * time.Second

// Destroy implements [engine.Engine].
func (e *Engine) Destroy(ctx context.Context, id string) error {
	if !validID.MatchString(id) {
		return nil
	}
	defer e.admissions.ended(id)
	writing, err := e.stop(ctx, id)
	written := true
	switch {
	case err == nil && writing:
		written = e.awaitWritten(ctx, id)
	case err != nil:
		written = e.awaitRest(ctx, id) // a slow cell must not take the memory of its children with it
	}
	if !written && ctx.Err() != nil { // the caller is gone, as when a node loses its server: the next call goes on
		return context.Cause(ctx)
	} // a cell that does not end is killed
	err = removeCell(ctx, e.cellDir(id))
	e.dropUnneeded()
	return err
}

// noteWriting counts the checkpoints of an instance from which others continue and which its
// cell has not completed.
func (e *Engine) noteWriting(id string, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.writing[id] += n; e.writing[id] <= 0 {
		delete(e.writing, id)
	}
}

// awaitRest waits, at most for writingTimeout, until a cell that has not said so itself has
// completed its checkpoints, as far as this engine asked for them. It reports whether it has.
func (e *Engine) awaitRest(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, writingTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		e.mu.Lock()
		writing := e.writing[id] > 0
		e.mu.Unlock()
		if !writing || !e.alive(id) {
			return true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}

// End implements [engine.Ender].
func (e *Engine) End(ctx context.Context, id string) error {
	if !validID.MatchString(id) {
		return nil
	}
	if _, err := e.stop(ctx, id); err != nil {
		if err := killCell(ctx, e.cellDir(id)); err != nil {
			return err
		}
	}
	e.admissions.ended(id) // its memory is free, although its directory still exists
	return nil
}

// writingTimeout limits how long a cell may write a checkpoint for others after its
// sandbox has ended. Callers give Destroy a minute.
const writingTimeout = 45 * time.Second

// awaitWritten waits until a cell that is still writing a checkpoint, from which others
// continue, has ended, and reports whether it has.
func (e *Engine) awaitWritten(ctx context.Context, id string) (ended bool) {
	ctx, cancel := context.WithTimeout(ctx, writingTimeout)
	defer cancel()
	began := time.Now()
	for !ended && ctx.Err() == nil {
		ended = waitForExit(ctx, e.cellDir(id), nil) == nil
	}
	if ended {
		e.cfg.Log.Info("a cell has written a checkpoint for others", "sandbox", id, "took", time.Since(began))
	} else {
		e.cfg.Log.Warn("a cell still writes a checkpoint for others", "sandbox", id, "waited", time.Since(began))
	}
	return ended
}

// stop asks a cell to end, and forgets the cell. When it returns nil, gVisor has been
// killed and the gateway is closed; writing is the result of [cell.Client.Stop].
func (e *Engine) stop(ctx context.Context, id string) (writing bool, err error) {
	e.mu.Lock()
	inst := e.live[id]
	delete(e.live, id)
	e.mu.Unlock()
	var control *cell.Client
	if inst != nil {
		inst.release()
		control = inst.control
	} else {
		// The cell may only be writing for others: its sandbox has ended, or an earlier engine
		// has stopped it.
		from, err := readOrigin(e.cellDir(id))
		if err != nil {
			return false, err
		}
		control = cell.NewClient(e.cellDir(id), from.Cell, nil)
	}
	defer control.Close()
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	return control.Stop(ctx, "destroyed")
}

// removeCell ends the cell of a directory, and removes what is left of it.
func removeCell(ctx context.Context, dir string) error {
	if err := killCell(ctx, dir); err != nil {
		return err
	}
	if err := removeGroup(groupName(dir)); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the cell's directory: %w", err)
	}
	return nil
}

// killCell kills the cell's process, if it is alive, and waits until it is gone. Since
// the process is the first of its process-id namespace, the kernel reports its end only
// when all others in the namespace have ended too.
func killCell(ctx context.Context, dir string) error {
	pid, err := cellProcess(dir)
	if pid == 0 || err != nil {
		return err
	}
	if err := sendKill(dir, pid); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill cell: %w", err)
	}
	return waitForExit(ctx, dir, nil)
}

// sendKill kills a cell's process, and never another process that has reused its id.
func sendKill(dir string, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // an old kernel, or a container that forbids it
		return unix.Kill(pid, unix.SIGKILL)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// Now that the descriptor is open, check that it is the cell's.
	switch still, err := cellProcess(dir); {
	case err != nil:
		return err
	case still == 0:
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// waitForExit waits until the cell's process is gone, or exited is closed.
func waitForExit(ctx context.Context, dir string, exited <-chan struct{}) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for {
		if pid, err := cellProcess(dir); pid == 0 && err == nil {
			return nil
		}
		select {
		case <-exited:
			return nil
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("the processes of %s do not end", filepath.Base(dir))
		}
	}
}

func removeGroup(id string) error {
	group, err := cgroup.Open(id)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open cgroup: %w", err)
	}
	if err := group.Kill(); err != nil {
		return fmt.Errorf("kill what is left in the cgroup: %w", err)
	}
	if err := group.Remove(); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

// processFile contains "pid starttime bootid" of a cell.
const processFile = "process"

func recordProcess(dir string, pid int) error {
	start, err := startTime(pid)
	if err != nil {
		return fmt.Errorf("read the cell's start time: %w", err)
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, processFile), []byte(strconv.Itoa(pid)+" "+start+" "+boot), 0o600)
}

// cellProcess returns the process id of a cell, or 0 if that process has ended. An error
// says that neither is known, for example for lack of file descriptors.
func cellProcess(dir string) (pid int, err error) {
	data, err := os.ReadFile(filepath.Join(dir, processFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find the cell's process: %w", err)
	}
	boot, err := bootID()
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data))
	if len(fields) != 3 || fields[2] != boot {
		return 0, nil
	}
	if pid, err = strconv.Atoi(fields[0]); err != nil {
		return 0, nil //nolint:nilerr // not written by recordProcess: no process is known
	}
	switch start, err := startTime(pid); {
	case errors.Is(err, os.ErrProcessDone), err == nil && start != fields[1]:
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read the cell's start time: %w", err)
	}
	return pid, nil
}

// alive reports whether a cell holds its lock. If that cannot be found out, for example for
// lack of file descriptors, alive reports true: a running cell must not pass for one that
// has ended, which would be destroyed.
func (e *Engine) alive(id string) bool {
	f, err := os.Open(filepath.Join(e.cellDir(id), cell.LockFile))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// startTime returns when a process was started, in the kernel's notation, or
// [os.ErrProcessDone] if it no longer runs.
func startTime(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return "", os.ErrProcessDone
	}
	if err != nil {
		return "", err
	}
	// The command's name ends at the last parenthesis, followed by field 3, the state. Field
	// 20 is the number of threads, field 22 the start time.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return "", os.ErrProcessDone
	}
	state, threads := fields[0], fields[17]
	// The main thread may be a zombie while other threads of the process still run.
	if state == "X" || state == "Z" && (threads == "0" || threads == "1") {
		return "", os.ErrProcessDone
	}
	return fields[19], nil
}

// bootID returns what the kernel calls this time of running, or "" where it does not say so.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil && !machine.Scarce(err) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}

// logTail returns the end of the cell's log, and the start of gVisor's output if it
// crashed, which contains the reason.
func (e *Engine) logTail(id string) string {
	const limit = 2 << 10
	out := readPart(filepath.Join(e.cellDir(id), cell.LogFile), limit, true)
	out = append(out, readPart(filepath.Join(e.cellDir(id), cell.PanicFile), limit, false)...)
	return string(bytes.ToValidUTF8(out, []byte("?")))
}

// readPart returns up to n bytes from the end or the beginning of a file.
func readPart(path string, n int64, end bool) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && end && info.Size() > n {
		_, _ = f.Seek(-n, io.SeekEnd)
	}
	data, _ := io.ReadAll(io.LimitReader(f, n))
	return data
}
