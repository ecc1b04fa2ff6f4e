package covetest

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Traces lists what is left of sandboxes on this machine: processes, cgroups,
// and directories and mounts of the daemon's.
func (d *Daemon) Traces(ids ...string) []string {
	var found []string
	for pid, args := range processes() {
		for _, id := range ids {
			if slices.Contains(args, id) || isCellOf(pid, id) {
				found = append(found, fmt.Sprintf("process %d: %s", pid, strings.Join(args, " ")))
			}
		}
	}
	for _, id := range ids {
		for _, parent := range []string{"cells", "engine/cells"} {
			if dirs, err := os.ReadDir(filepath.Join(d.StateDir, parent, id)); err == nil {
				found = append(found, fmt.Sprintf("directory of %s with %d entries", id, len(dirs)))
			}
		}
	}
	found = append(found, cgroupTraces(ids)...)
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil && bytes.Contains(mounts, []byte(d.StateDir)) {
		found = append(found, "a mount below "+d.StateDir)
	}
	return found
}

// NoTraces waits a while for the traces of sandboxes to go, and fails the test
// if some stay.
func (d *Daemon) NoTraces(t testing.TB, ids ...string) {
	t.Helper()
	var left []string
	if !Eventually(DetectionLimit, func() bool { left = d.Traces(ids...); return len(left) == 0 }) {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// Eventually asks until the answer is yes or the time is over: often at first,
// and less so later, since to ask costs what is waited for processor time.
func Eventually(limit time.Duration, ok func() bool) bool {
	deadline := time.After(limit)
	for pause := 2 * time.Millisecond; ; pause = min(pause+pause/4+1, 50*time.Millisecond) {
		asked := time.Now()
		if ok() {
			return true
		}
		select {
		// Asking must not take the processors from what is awaited.
		case <-time.After(max(pause, time.Since(asked))):
		case <-deadline:
			return ok()
		}
	}
}

// numbers returns the ids of all processes of the machine. Patterns of file
// names would read the directory of each.
func numbers() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processes returns the arguments of all processes of the machine.
func processes() map[int][]string {
	list := map[int][]string{}
	for _, pid := range numbers() {
		if args := arguments(pid); len(args) > 0 {
			list[pid] = args
		}
	}
	return list
}

// arguments returns the arguments of a process, of which one that has ended has
// none.
func arguments(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(data) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
}

// ProcessOf returns the id of a process of a sandbox: the cell ("cove"),
// "runsc-sandbox" or "runsc-gofer".
//
// gVisor's processes do not name the sandbox; the cell is their ancestor.
func ProcessOf(id, name string) (int, bool) {
	all := processes()
	cell := 0
	for pid, args := range all {
		if args[0] == "cove" && isCellOf(pid, id) {
			cell = pid
		}
	}
	if cell == 0 || name == "cove" {
		return cell, cell != 0
	}
	up := parents{}
	for pid, args := range all {
		if args[0] == name && up.descend(pid, cell) {
			return pid, true
		}
	}
	return 0, false
}

// parents are the parents of processes, each of which is read once.
type parents map[int]int

// descend reports whether a process was started by another, or by what that
// has started.
func (p parents) descend(pid, ancestor int) bool {
	for range 16 {
		if pid == ancestor {
			return true
		}
		parent, known := p[pid]
		if !known {
			parent, _ = parentOf(pid)
			p[pid] = parent
		}
		if parent <= 1 {
			return false
		}
		pid = parent
	}
	return false
}

// isCellOf reports whether a process is a sandbox's cell, which shows by the
// file that its errors go to.
func isCellOf(pid int, id string) bool {
	log, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", pid))
	return err == nil && strings.HasSuffix(log, "/cells/"+id+"/cell.log")
}

func cgroupTraces(ids []string) []string {
	var found []string
	for _, dir := range groupDirs(ids) {
		found = append(found, "cgroup "+dir)
	}
	return found
}

// groupDirs returns the directories of sandboxes' cgroups.
func groupDirs(ids []string) []string {
	if len(ids) == 0 {
		return nil
	}
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // it went away, or is not for us to see
		}
		if e.IsDir() && slices.Contains(ids, e.Name()) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// OpenFiles returns how many descriptors the daemon has open.
func (d *Daemon) OpenFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
