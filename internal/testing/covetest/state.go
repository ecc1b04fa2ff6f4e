package covetest

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// CellDirs returns the ids of the sandboxes that have a directory.
func (d *Daemon) CellDirs() []string {
	var ids []string
	for _, parent := range []string{"cells", "engine/cells"} {
		entries, _ := os.ReadDir(filepath.Join(d.StateDir, parent)) // the one that is there
		for _, e := range entries {
			ids = append(ids, e.Name())
		}
	}
	slices.Sort(ids)
	return ids
}

// Cells returns the cells of this daemon's sandboxes: process ids by the id of
// the sandbox. Those that wait ahead of need, and end with the daemon, are left
// out.
func (d *Daemon) Cells() map[string]int {
	return d.cells(func(name string) bool { return !isStandby(name) })
}

// Standbys returns the names and processes of cells that wait for a sandbox.
func (d *Daemon) Standbys() map[string]int { return d.cells(isStandby) }

// Spares returns the processes of cells that wait for a sandbox: those of standbys,
// and those that are to become one.
func (d *Daemon) Spares() []int {
	pids := slices.Collect(maps.Values(d.Standbys()))
	for _, pid := range numbers() {
		args := arguments(pid)
		if len(args) < 2 || args[0] != "cove" || args[1] != "cell" {
			continue
		}
		// A cell writes its errors to a file of its sandbox's.
		if parent, _ := parentOf(pid); parent != d.PID() {
			continue
		}
		if log, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", pid)); err == nil && filepath.Base(log) != "cell.log" {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isStandby(name string) bool { return strings.HasPrefix(name, "standby-") }

func (d *Daemon) cells(which func(name string) bool) map[string]int {
	cells := map[string]int{}
	for _, pid := range numbers() {
		log, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", pid))
		if err != nil || !strings.HasPrefix(log, d.StateDir+"/") || filepath.Base(log) != "cell.log" || len(arguments(pid)) == 0 {
			continue
		}
		if id := filepath.Base(filepath.Dir(log)); which(id) {
			cells[id] = pid
		}
	}
	return cells
}

// Living returns the ids of the sandboxes that have a cell, sorted.
func (d *Daemon) Living() []string { return slices.Sorted(maps.Keys(d.Cells())) }

// Use is what a daemon takes of the machine.
type Use struct {
	Descriptors int
	// Children are the daemon's processes that live, Zombies those that it has
	// not waited for.
	Children, Zombies int
	// Mounts are those that this process sees, Groups all cgroups named like a
	// sandbox of the daemon's.
	Mounts, Groups int
}

// Use counts what the daemon takes now. Cgroups are counted for the given
// sandboxes.
func (d *Daemon) Use(t testing.TB, ids ...string) Use {
	t.Helper()
	u := Use{Descriptors: d.OpenFiles(t), Groups: len(cgroupTraces(ids))}
	for _, state := range d.children(t) {
		if state == "Z" {
			u.Zombies++
		} else {
			u.Children++
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	u.Mounts = strings.Count(string(mounts), d.StateDir)
	return u
}

// children returns the states of the daemon's own processes, by their ids.
func (d *Daemon) children(t testing.TB) map[int]string {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.PID()))
	if err != nil {
		t.Fatal(err)
	}
	states := map[int]string{}
	for _, list := range lists {
		data, _ := os.ReadFile(list) // the thread may have ended
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			if state, ok := stateOf(pid); ok {
				states[pid] = state
			}
		}
	}
	return states
}

// stateOf returns the letter of a process's state.
func stateOf(pid int) (string, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	return fields[0], len(fields) > 0
}

// Goroutines ends the daemon with SIGQUIT and returns the stacks of its
// goroutines, one each, without those of the Go runtime.
func (d *Daemon) Goroutines(t testing.TB) []string {
	t.Helper()
	before := len(d.output.String())
	if err := d.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-d.exited
	var stacks []string
	lines := bufio.NewScanner(strings.NewReader(d.output.String()[before:]))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "goroutine ") && strings.HasSuffix(line, ":"):
			stacks = append(stacks, "")
		case line == "" || len(stacks) == 0:
		default:
			stacks[len(stacks)-1] += line + "\n"
		}
	}
	return stacks
}

// PIDs returns the ids of all processes of the machine that have not ended.
func PIDs() []int { return slices.Collect(maps.Keys(processes())) }

// GroupCPU returns the processor time in seconds that a sandbox's cgroup has
// counted, if it has one.
func GroupCPU(id string) (float64, bool) {
	for _, dir := range groupDirs([]string{id}) {
		if data, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage")); err == nil {
			ns, err := strconv.ParseFloat(strings.TrimSpace(string(data)), 64)
			return ns / 1e9, err == nil
		}
		data, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if us, ok := strings.CutPrefix(line, "usage_usec "); ok {
				n, err := strconv.ParseFloat(strings.TrimSpace(us), 64)
				return n / 1e6, err == nil
			}
		}
	}
	return 0, false
}

// ResidentMiB returns how much memory the daemon has.
func (d *Daemon) ResidentMiB(t testing.TB) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", d.PID()))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(data))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize() >> 20
}

// Tree lists the processes of the daemon: itself, and all that name its
// directory or were started by those that do.
func (d *Daemon) Tree() []int {
	all := processes()
	var roots []int
	for pid, args := range all {
		log, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", pid))
		if pid == d.PID() || pid != os.Getpid() && (strings.Contains(strings.Join(args, " "), d.StateDir) || strings.HasPrefix(log, d.StateDir+"/")) {
			roots = append(roots, pid)
		}
	}
	var tree []int
	up := parents{}
	for pid := range all {
		if slices.ContainsFunc(roots, func(root int) bool { return up.descend(pid, root) }) {
			tree = append(tree, pid)
		}
	}
	slices.Sort(tree)
	return tree
}
