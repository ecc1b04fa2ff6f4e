package agent

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

const (
	// guardFast and guardSlow bound the time between two checks of memory.
	guardFast = 20 * time.Millisecond
	guardSlow = 500 * time.Millisecond
	// guardRate is the highest expected rate at which programs allocate memory, in
	// bytes a second; the guard checks again before they could reach the limit.
	guardRate = 4 << 30
	// guardPatience is how long a killed process may take to release its memory before
	// the guard kills another.
	guardPatience = 500 * time.Millisecond
	// guardRelease is how long the guard then waits for that memory to be reported as
	// free: gVisor frees it in the background.
	guardRelease = 250 * time.Millisecond
)

// guard kills the largest process of a sandbox when its memory is used up, as a kernel
// does: the job at fault ends with a clear cause, and not the whole sandbox. It may only
// run where all processes belong to the sandbox.
type guard struct {
	monitor
	used    func() (int64, error)     // bytes in use
	held    func() int64              // bytes of processes and files in memory
	largest func() int                // the process to kill; 0: none
	kill    func(pid int)             // kills it, and records why in its job
	gone    func(pid int) bool        // whether it has released its memory
	report  func(pid int, used int64) // for the log
	// onDisk is how many of the used and held bytes are in fact on disk.
	onDisk func() int64

	// doubt is for how long more memory has been in use than anything holds: gVisor is
	// freeing that of ended processes. doubted is when that was last so, or zero. Only
	// check uses them.
	doubt   time.Duration
	doubted time.Time
}

func newGuard(a *Agent) *guard {
	m := &meminfo{path: "/proc/meminfo"}
	return &guard{
		used:    m.used,
		held:    func() int64 { return residentBytes() + m.shmem() },
		onDisk:  func() int64 { return onDisk(m.shmem(), "/", "/proc/self/mounts") },
		largest: largestProcess,
		kill:    a.killForMemory,
		gone:    func(pid int) bool { return residentPages(pid) == 0 },
		report: func(pid int, used int64) {
			a.log.Warn("killed a process: out of memory", "pid", pid, "used", used)
		},
	}
}

// check kills a process if it must and returns when to check again.
func (g *guard) check(limit int64) time.Duration {
	used, err := g.used()
	if err != nil {
		return guardSlow
	}
	disk := int64(0)
	if used >= limit {
		disk = g.onDisk()
		used -= disk
	}
	if used < limit {
		g.doubted = time.Time{}
		return pace(limit - used)
	}
	// Files on disk take no memory from processes.
	limit += disk
	if g.doubtful(limit) {
		return guardFast / 4
	}
	pid := g.largest()
	if pid == 0 {
		return guardFast
	}
	g.kill(pid)
	g.report(pid, used)
	g.await(guardPatience, func() bool { return g.gone(pid) })
	// The wait ends as soon as usage grows: other processes still allocate.
	last := used
	g.await(guardRelease, func() bool {
		now, err := g.used()
		grows := now > last
		last = now
		return err != nil || now < limit || grows
	})
	return guardFast
}

// doubtful reports whether to wait before killing, since the memory above the limit may
// be free in a moment.
func (g *guard) doubtful(limit int64) bool {
	if g.held() >= limit {
		g.doubted = time.Time{}
		return false
	}
	now := time.Now()
	if g.doubted.IsZero() {
		g.doubt = 0
	} else { // bounded, so that a pause of the sandbox hardly counts
		g.doubt += min(now.Sub(g.doubted), guardRelease/4)
	}
	g.doubted = now
	return g.doubt < guardRelease
}

// await waits until done returns true, for limit at most, or until the guard is closed.
// A pause of the sandbox hardly counts.
func (g *guard) await(limit time.Duration, done func() bool) {
	last := time.Now()
	for waited := time.Duration(0); waited < limit && !done(); {
		if !g.pause(guardFast / 4) {
			return
		}
		now := time.Now()
		waited += min(now.Sub(last), limit/4)
		last = now
	}
}

// pace is how long no check is needed while so many bytes are left.
func pace(left int64) time.Duration {
	d := time.Duration(float64(left) / guardRate * float64(time.Second))
	return min(max(d, guardFast), guardSlow)
}

// killForMemory kills pid and records that its job ends for lack of memory.
func (a *Agent) killForMemory(pid int) {
	if sid, err := unix.Getsid(pid); err == nil {
		if j := a.jobs.bySession(sid); j != nil {
			j.blame(agentv1.EndCause_END_CAUSE_OUT_OF_MEMORY)
		}
		if p := a.code.bySession(sid); p != nil && p.pid == pid {
			p.blameFor("the sandbox is out of memory, and the interpreter had the most")
		}
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

// largestProcess returns the process with the most memory, other than the agent.
func largestProcess() (pid int) {
	self := os.Getpid()
	var most int64
	_ = processes(func(p int) {
		if p == self || p == 1 {
			return
		}
		if n := residentPages(p); n > most {
			pid, most = p, n
		}
	})
	return pid
}

// residentBytes is the memory of all processes; shared memory counts for each of them.
func residentBytes() (sum int64) {
	_ = processes(func(p int) { sum += residentPages(p) })
	return sum * int64(os.Getpagesize())
}

// residentPages is the memory of a process in pages; 0 when it is gone.
func residentPages(pid int) int64 {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	return parseStatm(data)
}

// parseStatm returns the second field of /proc/<pid>/statm.
func parseStatm(data []byte) int64 {
	f := bytes.Fields(data)
	if len(f) < 2 {
		return 0
	}
	n, err := strconv.ParseInt(string(f[1]), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// meminfo reads the memory in use from /proc/meminfo. It keeps the file open, since it
// reads it many times a second. It is for one goroutine.
type meminfo struct {
	path string
	file *os.File
}

func (m *meminfo) used() (int64, error) {
	used, _, err := m.read()
	return used, err
}

// shmem returns the bytes of files in memory; 0 if that is not known.
func (m *meminfo) shmem() int64 {
	data, err := m.content()
	if err != nil {
		return 0
	}
	_, after, _ := bytes.Cut(data, []byte("\nShmem:"))
	n, _ := parseKiB(after)
	return n
}

// onDisk returns how many of the shmem bytes that are reported as files in memory are in
// files on disk: gVisor counts all files there that have been in a checkpoint. It is
// the part that no file system in memory has. Files in memory without a file system,
// and file systems in other mount namespaces, may be taken for files on disk; the
// host's limit holds for them.
func onDisk(shmem int64, root, mounts string) int64 {
	written := usedBytes(root)
	if written == 0 || shmem == 0 {
		return 0
	}
	data, err := os.ReadFile(mounts)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		if f := bytes.Fields(line); len(f) > 2 && string(f[2]) == "tmpfs" {
			shmem -= usedBytes(string(f[1]))
		}
	}
	return max(0, min(written, shmem))
}

// usedBytes returns the used space of a file system, or 0 if that is not known.
func usedBytes(path string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil || st.Bfree > st.Blocks {
		return 0
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

func (m *meminfo) read() (used, total int64, err error) {
	data, err := m.content()
	if err != nil {
		return 0, 0, err
	}
	return parseMeminfo(data)
}

func (m *meminfo) content() (_ []byte, err error) {
	if m.file == nil {
		if m.file, err = os.Open(m.path); err != nil {
			return nil, err
		}
	}
	buf := make([]byte, 4096)
	n, err := m.file.ReadAt(buf, 0)
	if n == 0 && err != nil {
		return nil, err
	}
	return buf[:n], nil
}

var errMeminfo = errors.New("no MemTotal and MemAvailable in meminfo")

// parseMeminfo returns the memory in use and the total, in bytes. Usually total less
// available is in use. But gVisor's total never changes: if the limit was raised since
// the start, the sum of the parts is larger.
func parseMeminfo(data []byte) (used, total int64, err error) {
	available := int64(-1)
	var anonymous, mapped int64 // with tmpfs; with the page cache
	values := map[string]*int64{"MemTotal": &total, "MemAvailable": &available, "AnonPages": &anonymous, "Mapped": &mapped}
	for line := range bytes.Lines(data) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if to := values[string(name)]; to != nil {
			if *to, err = parseKiB(value); err != nil {
				return 0, 0, err
			}
		}
	}
	if total <= 0 || available < 0 {
		return 0, 0, errMeminfo
	}
	return max(0, total-available, anonymous+mapped), total, nil
}

// parseKiB parses the first word of text, a number of KiB, and returns bytes.
func parseKiB(text []byte) (int64, error) {
	f := bytes.Fields(text)
	if len(f) == 0 {
		return 0, errMeminfo
	}
	kib, err := strconv.ParseInt(string(f[0]), 10, 64)
	if err != nil || kib < 0 || kib > 1<<50 {
		return 0, errMeminfo
	}
	return kib << 10, nil
}
