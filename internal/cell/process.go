package cell

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/machine/procfs"
)

// maxOutputLog limits how much of the first process's output is logged: code in the
// sandbox can write to it.
const maxOutputLog = 1 << 20

// copyBounded copies the first limit bytes and discards the rest, so that the writer
// never blocks.
func copyBounded(w io.Writer, r io.Reader, limit int64) {
	_, _ = io.Copy(w, io.LimitReader(r, limit))
	_, _ = io.Copy(io.Discard, r)
}

// clockTicks is the number of ticks per second in /proc/PID/stat: USER_HZ, which is 100
// on every architecture that Go supports.
const clockTicks = 100

// processUse is what processes use. Of their memory, shmem is mapped from files in
// memory; own is private to one process and not mapped from such files.
type processUse struct {
	engine.Stats
	shmem, own int64
}

// processStats returns what the processes with these directories below /proc use.
func processStats(dirs []string) *processUse {
	st := &processUse{}
	for _, dir := range dirs {
		// A process may end between the two reads; its use is not counted then.
		if data, err := os.ReadFile(filepath.Join(dir, "stat")); err == nil {
			st.CPUNanos += cpuNanos(data)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "smaps_rollup")); err == nil {
			m := readRollup(data)
			st.MemoryBytes += m["Pss"]
			st.PrivateBytes += m["Private_Clean"] + m["Private_Dirty"]
			st.shmem += m["Pss_Shmem"]
			st.own += m["Private_Clean"] + m["Pss_Anon"]
		}
	}
	return st
}

// cpuNanos returns the user and system time in a /proc/PID/stat file, including that of
// reaped children. The command's name may contain anything, but ends at the last
// parenthesis.
func cpuNanos(stat []byte) int64 {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0
	}
	fields := strings.Fields(string(stat[end+1:]))
	const utime, cstime = 11, 14 // fields 14 to 17, counted from after the name
	if len(fields) <= cstime {
		return 0
	}
	var ticks int64
	for _, f := range fields[utime : cstime+1] {
		n, _ := strconv.ParseInt(f, 10, 64)
		ticks += n
	}
	return ticks * (1e9 / clockTicks)
}

// readRollup returns the fields of a /proc/PID/smaps_rollup file, in bytes.
func readRollup(rollup []byte) map[string]int64 {
	fields := map[string]int64{}
	sc := bufio.NewScanner(bytes.NewReader(rollup))
	for sc.Scan() {
		name, rest, ok := strings.Cut(sc.Text(), ":")
		if !ok {
			continue
		}
		if kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err == nil {
			fields[name] = kib << 10
		}
	}
	return fields
}

// pinCPUs pins all processes of the cell's process-id namespace to n of the given
// processors. It picks them at random, so that sandboxes are spread over the processors.
func pinCPUs(cpus []int, n int) error {
	var set unix.CPUSet
	for _, i := range rand.Perm(len(cpus))[:min(n, len(cpus))] {
		set.Set(cpus[i])
	}
	return eachThread(procfs.Threads, func(tid int) error {
		if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("set processor affinity: %w", err)
		}
		return nil
	})
}

// eachThread does something to all threads, also to those that others start before it was done
// to them: a program that one of those starts later would inherit that.
func eachThread(list func() ([]int, error), do func(tid int) error) error {
	for done := map[int]bool{}; ; {
		threads, err := list()
		if err != nil {
			return err
		}
		before := len(done)
		for _, tid := range threads {
			if done[tid] {
				continue
			}
			if err := do(tid); err != nil {
				return err
			}
			done[tid] = true
		}
		if len(done) == before {
			return nil
		}
	}
}

// allowedCPUs lists the processors that this process may use.
func allowedCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read processor affinity: %w", err)
	}
	var cpus []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus, nil
}
