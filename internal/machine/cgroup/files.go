package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// period is the interval to which a quota of processor time applies, in microseconds. It
// is the kernel's default.
const period = 100_000

// limitFile2 maps each controller to a file that exists in a v2 group if the controller
// is enabled.
var limitFile2 = map[string]string{memory: "memory.max", cpu: "cpu.max", pids: "pids.max"}

// set writes the limits that are not zero and that have a controller.
func (g *Group) set(l Limits) error {
	if l.MemoryBytes < 0 || l.CPUs < 0 || l.PIDs < 0 || math.IsNaN(l.CPUs) || l.CPUs > 1e6 {
		return fmt.Errorf("cgroup %s: limits out of range", g.name)
	}
	if l.MemoryBytes > 0 {
		if err := g.setMemory(l.MemoryBytes); err != nil {
			return fmt.Errorf("limit memory of cgroup %s: %w", g.name, err)
		}
	}
	if l.CPUs > 0 {
		// The kernel refuses less than a millisecond per period.
		quota := max(int64(l.CPUs*period), 1000)
		var err error
		switch {
		case g.v1[cpu] != "":
			err = errors.Join(
				writeFile(filepath.Join(g.v1[cpu], "cpu.cfs_period_us"), fmt.Sprint(period)),
				writeFile(filepath.Join(g.v1[cpu], "cpu.cfs_quota_us"), fmt.Sprint(quota)))
		case g.v2has[cpu]:
			err = writeFile(filepath.Join(g.v2, "cpu.max"), fmt.Sprintf("%d %d", quota, period))
		}
		if err != nil {
			return fmt.Errorf("limit cpu of cgroup %s: %w", g.name, err)
		}
	}
	if dir := g.dirOf(pids); l.PIDs > 0 && dir != "" {
		if err := writeFile(filepath.Join(dir, "pids.max"), fmt.Sprint(l.PIDs)); err != nil {
			return fmt.Errorf("limit processes of cgroup %s: %w", g.name, err)
		}
	}
	return nil
}

// dirOf returns the directory of a controller's files, or "".
func (g *Group) dirOf(c string) string {
	if d := g.v1[c]; d != "" {
		return d
	}
	if g.v2has[c] {
		return g.v2
	}
	return ""
}

// unreclaimable returns how much memory of a version 2 group the kernel cannot reclaim.
// With a limit below that, the kernel would kill processes; version 1 refuses such a
// limit, and so does this package.
func (g *Group) unreclaimable() int64 {
	var sum int64
	for _, key := range []string{"anon", "shmem"} {
		if n, err := readKey(filepath.Join(g.v2, "memory.stat"), key); err == nil {
			sum += n
		}
	}
	return sum
}

func (g *Group) setMemory(bytes int64) error {
	if g.v2has[memory] {
		if g.unreclaimable() > bytes {
			return fmt.Errorf("more is in use: %w", unix.EBUSY)
		}
		if err := writeFile(filepath.Join(g.v2, "memory.max"), fmt.Sprint(bytes)); err != nil {
			return err
		}
		return ignoreMissing(writeFile(filepath.Join(g.v2, "memory.swap.max"), "0"))
	}
	dir := g.v1[memory]
	if dir == "" {
		return nil
	}
	limit := filepath.Join(dir, "memory.limit_in_bytes")
	both := filepath.Join(dir, "memory.memsw.limit_in_bytes")
	// The limit of memory with swap must never be below that of memory alone, so the
	// order depends on whether the limit is raised or lowered.
	order := []string{limit, both}
	if now, err := readInt(both); err == nil && now < bytes {
		order = []string{both, limit}
	}
	for _, f := range order {
		err := writeFile(f, fmt.Sprint(bytes))
		if f == both {
			err = ignoreMissing(err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Stats reads what the group's processes use.
func (g *Group) Stats() (Stats, error) {
	var s Stats
	var errs []error
	get := func(n int64, err error) int64 {
		errs = append(errs, ignoreMissing(err))
		return n
	}
	switch dir := g.v1[cpuacct]; {
	case dir != "":
		s.CPUNanos = get(readInt(filepath.Join(dir, "cpuacct.usage")))
	case g.v2 != "":
		s.CPUNanos = get(readKey(filepath.Join(g.v2, "cpu.stat"), "usage_usec")) * 1000
	}
	switch dir := g.v1[memory]; {
	case dir != "":
		s.MemoryBytes = get(readInt(filepath.Join(dir, "memory.usage_in_bytes")))
		s.OOMKills = get(readKey(filepath.Join(dir, "memory.oom_control"), "oom_kill"))
	case g.v2has[memory]:
		s.MemoryBytes = get(readInt(filepath.Join(g.v2, "memory.current")))
		s.OOMKills = get(readKey(filepath.Join(g.v2, "memory.events"), "oom_kill"))
	}
	if dir := g.dirOf(pids); dir != "" {
		s.PIDs = get(readInt(filepath.Join(dir, "pids.current")))
		s.PIDDenials = get(readKey(filepath.Join(dir, "pids.events"), "max"))
	}
	if err := errors.Join(errs...); err != nil {
		return s, fmt.Errorf("read cgroup %s: %w", g.name, err)
	}
	return s, nil
}

// PIDs returns the processes in the group, in no order.
func (g *Group) PIDs() []int {
	seen := map[int]bool{}
	var out []int
	for _, d := range g.dirs() {
		for _, f := range fields(filepath.Join(d, "cgroup.procs")) {
			// A process of another pid namespace appears as 0.
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 && !seen[pid] {
				seen[pid] = true
				out = append(out, pid)
			}
		}
	}
	return out
}

// killAll kills every process of the group except this one and returns how many it found.
func (g *Group) killAll() int {
	n := 0
	for _, pid := range g.PIDs() {
		if pid == os.Getpid() {
			continue
		}
		n++
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return n
}

// writeFile writes to a kernel file, in one write.
func writeFile(file, s string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s)
	return errors.Join(err, f.Close())
}

// readSmall reads a kernel file, up to 1 MiB.
func readSmall(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	return string(b), err
}

func readInt(file string) (int64, error) {
	s, err := readSmall(file)
	if err != nil {
		return 0, err
	}
	s = strings.TrimSpace(s)
	if s == "max" {
		return math.MaxInt64, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return math.MaxInt64, nil
	}
	return n, err
}

// readKey returns the value of a key in a file of lines "key value", or 0 if it has none.
func readKey(file, key string) (int64, error) {
	s, err := readSmall(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(s) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, nil
}

// fields returns the words in a file, or none if it cannot be read.
func fields(file string) []string {
	s, _ := readSmall(file)
	return strings.Fields(s)
}

func exists(p string) bool {
	_, err := os.Lstat(p)
	return err == nil
}

func writable(p string) bool { return unix.Access(p, unix.W_OK) == nil }

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// cause returns the innermost error, without a path.
func cause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
