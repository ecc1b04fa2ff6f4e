// Package cgroup limits the memory, processor time and number of processes of one
// sandbox, and counts what its processes use.
//
// It uses the files of cgroup v1 (each controller in a separate hierarchy), of v2 (one
// hierarchy), or of both on machines that have both: each controller in the hierarchy
// that has it. A group's directories are cove/<name> below the cgroup of the process that
// creates the group if that is writable, so that limits set on Cove itself apply to all
// sandboxes together, and otherwise at the top of the hierarchy. [Open] and [List] find a
// group wherever it was made.
//
// Under v2, a cgroup with processes cannot enable controllers for its children. If the
// process is alone in its cgroup, [Create] therefore moves it into a child named
// cove-daemon first; otherwise the limits are reported as unavailable.
//
// What a machine cannot do is described in text and is not an error: see [Support] and
// [Group.Missing].
//
// v1 is tested against the kernel. v2 is tested against the kernel where no controller is
// needed (processes, killing, processor time); its limits are tested on a directory tree
// that imitates the kernel's.
//
// github.com/opencontainers/cgroups and github.com/containerd/cgroups would replace an
// eighth of this package: writing limits and reading counters. They leave the rest to
// their caller: finding a parent that this user may use, combining v1 and v2 on hybrid
// machines (they use only v1 there), reporting what is missing and why, finding groups
// made by an earlier process, and computing the room left above a group. The first reads
// the files of every controller for each count, the second depends on eBPF, and both
// depend on D-Bus, in a program that starts three times for each sandbox.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/lazyregexp"
)

// Limits are the limits of a group. Zero fields set no limit.
type Limits struct {
	MemoryBytes int64
	// CPUs is a number of processors, such as 1.5.
	CPUs float64
	// PIDs limits processes and threads as the host counts them, including gVisor's.
	PIDs int64
}

// Stats is what the processes of a group use. Values that the machine does not count are
// zero.
type Stats struct {
	CPUNanos    int64
	MemoryBytes int64
	// OOMKills counts processes that the kernel killed because memory ran out.
	OOMKills int64
	PIDs     int64
	// PIDDenials counts how often the kernel refused a process or thread.
	PIDDenials int64
}

// Support describes what this user can limit on this machine.
type Support struct {
	// Version is "v1", "v2", "hybrid" or "none".
	Version string `json:"version"`
	Memory  bool   `json:"memory"`
	CPU     bool   `json:"cpu"`
	PIDs    bool   `json:"pids"`
	// Swap is set if the memory limit includes swap.
	Swap bool `json:"swap"`
	// Missing describes what is not available, and why.
	Missing []string `json:"missing,omitempty"`
}

// The controllers used. The v1 controller freezer prevents forks during a kill.
const (
	memory  = "memory"
	cpu     = "cpu"
	cpuacct = "cpuacct"
	pids    = "pids"
	freezer = "freezer"
)

// limiting are the controllers that enforce limits.
var limiting = []string{memory, cpu, pids}

const (
	parentName = "cove"
	leafName   = "cove-daemon"
)

var validName = lazyregexp.New(`^[a-z0-9][a-z0-9_-]{0,127}$`)

// Group is one group. Its methods are safe for concurrent use.
type Group struct {
	name string
	h    *hierarchies
	// v1 maps a controller to the group's directory in its hierarchy; several
	// controllers may share one.
	v1 map[string]string
	// v2 is the directory in the unified hierarchy, or empty.
	v2 string
	// v2has are the controllers whose limits are set in v2.
	v2has   map[string]bool
	missing []string

	mu sync.Mutex // serialises Update
}

// Available reports what can be limited. It changes nothing.
func Available() Support { return detect("/").support() }

// Create makes a group and sets its limits. No group of that name may exist. Limits that
// cannot be set on this machine are in [Group.Missing]. After an error, nothing is left
// behind.
func Create(name string, l Limits) (*Group, error) { return detect("/").create(name, l) }

// Open finds an existing group. If there is none, the error is [fs.ErrNotExist].
func Open(name string) (*Group, error) { return detect("/").open(name) }

// List returns the names, sorted, of all groups that start with prefix.
func List(prefix string) ([]string, error) { return detect("/").list(prefix) }

// Name returns the group's name.
func (g *Group) Name() string { return g.name }

// Missing describes which of the limits passed to [Create] are not enforced.
func (g *Group) Missing() []string { return slices.Clone(g.missing) }

// dirs returns the group's directories, each once, in fixed order.
func (g *Group) dirs() []string {
	ds := slices.Collect(maps.Values(g.v1))
	if g.v2 != "" {
		ds = append(ds, g.v2)
	}
	slices.Sort(ds)
	return slices.Compact(ds)
}

func (h *hierarchies) create(name string, l Limits) (_ *Group, err error) {
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("cgroup name %q is not valid", name)
	}
	parents := h.prepare()
	g := &Group{name: name, h: h, v1: map[string]string{}, v2has: map[string]bool{}}
	made := map[string]bool{}
	make1 := func(parent string) (string, error) {
		dir := filepath.Join(parent, parentName, name)
		if made[dir] {
			return dir, nil
		}
		if err := h.makeGroup(dir); err != nil {
			return "", err
		}
		made[dir] = true
		return dir, nil
	}
	defer func() {
		if err == nil {
			return
		}
		deadline := time.Now().Add(patience)
		for d := range made {
			_ = h.removeDir(d, deadline)
		}
	}()
	for _, c := range slices.Sorted(maps.Keys(parents.v1)) {
		if g.v1[c], err = make1(parents.v1[c]); err != nil {
			return nil, fmt.Errorf("create %s cgroup: %w", c, err)
		}
	}
	if parents.v2 != "" {
		if g.v2, err = make1(parents.v2); err != nil {
			return nil, fmt.Errorf("create cgroup: %w", err)
		}
		g.v2has = parents.v2has
	}
	if err := g.set(l); err != nil {
		return nil, err
	}
	if g.v2has[memory] {
		// If one process of a sandbox is killed, the others are of no use.
		_ = writeFile(filepath.Join(g.v2, "memory.oom.group"), "1")
	}
	g.missing = h.missingFor(l, parents)
	return g, nil
}

// makeGroup makes dir, and its parent if missing. The parent may be removed with another
// group at any moment.
func (h *hierarchies) makeGroup(dir string) error {
	parent := filepath.Dir(dir)
	for attempt := 0; ; attempt++ {
		if err := h.mkdir(parent); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := h.enableAll(parent); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		err := h.mkdir(dir)
		if errors.Is(err, fs.ErrNotExist) && attempt < 10 {
			continue
		}
		return err
	}
}

// Enter moves a process with all its threads into the group. Processes that it started
// earlier are not moved.
func (g *Group) Enter(pid int) error {
	for _, d := range g.dirs() {
		if err := writeFile(filepath.Join(d, "cgroup.procs"), fmt.Sprint(pid)); err != nil {
			return fmt.Errorf("move process %d into cgroup %s: %w", pid, g.name, err)
		}
	}
	return nil
}

// Update changes limits; zero fields change nothing. Memory in use above a lower limit is
// reclaimed if possible; otherwise the error is EBUSY, and no limit is changed.
func (g *Group) Update(l Limits) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.set(l)
}

// Kill ends all processes of the group and returns when they are gone.
func (g *Group) Kill() error {
	if g.v2 != "" {
		// Kernels before 5.14 have no cgroup.kill and need the loop below.
		_ = writeFile(filepath.Join(g.v2, "cgroup.kill"), "1")
	}
	if dir := g.v1[freezer]; dir != "" {
		state := filepath.Join(dir, "freezer.state")
		_ = writeFile(state, "FROZEN")
		_ = g.killAll()
		_ = writeFile(state, "THAWED")
	}
	return retry(time.Now().Add(patience), func() error {
		if n := g.killAll(); n > 0 {
			return fmt.Errorf("kill cgroup %s: %d processes are still there", g.name, n)
		}
		return nil
	})
}

// patience is how long the kernel gets to end killed processes, and to release their
// group.
const patience = 30 * time.Second

// retry calls try until it succeeds or the deadline has passed. The last attempt starts
// after the deadline, in case this process could not run for a while.
func retry(deadline time.Time, try func() error) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		last := time.Now().After(deadline)
		if err := try(); err == nil || last {
			return err
		}
		time.Sleep(wait)
	}
}

// Remove kills what is left in the group and removes its directories. It may be repeated.
func (g *Group) Remove() error {
	if err := g.Kill(); err != nil {
		return err
	}
	var errs []error
	deadline := time.Now().Add(patience)
	for _, d := range g.dirs() {
		errs = append(errs, g.h.removeDir(d, deadline))
	}
	return errors.Join(errs...)
}

// removeDir removes a group's directory, and its parent if it is then empty.
func (h *hierarchies) removeDir(dir string, deadline time.Time) error {
	// An ended process keeps the group busy for a moment.
	err := retry(deadline, func() error {
		if err := h.rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove cgroup: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	_ = h.rmdir(filepath.Dir(dir))
	return nil
}

func (h *hierarchies) open(name string) (*Group, error) {
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("cgroup name %q is not valid", name)
	}
	g := &Group{name: name, h: h, v1: map[string]string{}, v2has: map[string]bool{}}
	for _, m := range h.mounts {
		dir := h.findIn(m, name)
		if dir == "" {
			continue
		}
		if m.v2 {
			g.v2 = dir
			for _, c := range limiting {
				g.v2has[c] = exists(filepath.Join(dir, limitFile2[c]))
			}
			continue
		}
		for _, c := range m.controllers {
			g.v1[c] = dir
		}
	}
	if len(g.dirs()) == 0 {
		return nil, fmt.Errorf("cgroup %s: %w", name, fs.ErrNotExist)
	}
	return g, nil
}

// findIn returns the directory of the named group in a hierarchy, or "".
func (h *hierarchies) findIn(m mount, name string) string {
	for _, p := range h.parents(m) {
		if dir := filepath.Join(p, parentName, name); exists(dir) {
			return dir
		}
	}
	// A process in another cgroup may have made it, such as that of an earlier session.
	found := ""
	h.walk(m, func(parent string) bool {
		if dir := filepath.Join(parent, name); exists(dir) {
			found = dir
		}
		return found == ""
	})
	return found
}

func (h *hierarchies) list(prefix string) ([]string, error) {
	var names []string
	for _, m := range h.mounts {
		h.walk(m, func(parent string) bool {
			entries, _ := os.ReadDir(parent)
			for _, e := range entries {
				if e.IsDir() && strings.HasPrefix(e.Name(), prefix) && validName.MatchString(e.Name()) {
					names = append(names, e.Name())
				}
			}
			return true
		})
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
