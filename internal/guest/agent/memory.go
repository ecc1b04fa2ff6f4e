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
	// guardFast and guardSlow bound the time between two looks at memory.
	guardFast = 20 * time.Millisecond
	guardSlow = 500 * time.Millisecond
	// guardRate is how fast programs are expected to take memory at most, in
	// bytes a second; the guard looks again before they could reach the limit.
	guardRate = 4 << 30
	// guardPatience is how long the guard waits for a process it has killed to
	// give back its memory before it kills another.
	guardPatience = 500 * time.Millisecond
	// guardRelease is how long it waits after that for the memory to be seen as
	// free: gVisor gives it back in the background.
	guardRelease = 250 * time.Millisecond
)

// guard kills the largest process of a sandbox when its memory is used up, as
// a kernel does: the job that is to blame ends with a clear cause, rather than
// the whole sandbox. It may only run where every process is the sandbox's.
type guard struct {
	monitor
	used    func() (int64, error)     // bytes in use
	held    func() int64              // bytes that processes and files in memory have
	largest func() int                // process to kill; 0: none
	kill    func(pid int)             // kills it, and tells its job why
	gone    func(pid int) bool        // whether it has released its memory
	report  func(pid int, used int64) // for the log
	// onDisk is how much of what is used and held is on disk indeed.
	onDisk func() int64

	// doubt is for how long more has been in use than anything has: gVisor is
	// giving back the memory of what has ended. looked is when that was seen
	// last, or zero. They are for check only.
	doubt  time.Duration
	looked time.Time
}

func newGuard(a *Agent) *guard {
	inMemory := &meminfo{path: "/proc/meminfo"}
	return &guard{
		used:    (&meminfo{path: "/proc/meminfo"}).used,
		held:    func() int64 { return residentBytes() + inMemory.shmem() },
		onDisk:  func() int64 { return onDisk(inMemory.shmem(), "/", "/proc/self/mounts") },
		largest: largestProcess,
		kill:    a.killForMemory,
		gone:    func(pid int) bool { return residentPages(pid) == 0 },
		report: func(pid int, used int64) {
			a.log.Warn("killed a process: out of memory", "pid", pid, "used", used)
		},
	}
}

// check kills a process if it must and returns when to look again.
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
		g.looked = time.Time{}
		return pace(limit - used)
	}
	// What is in files is not in the way of processes.
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
	// It ends at once when memory does not get less: others still take it.
	last := used
	g.await(guardRelease, func() bool {
		now, err := g.used()
		grows := now > last
		last = now
		return err != nil || now < limit || grows
	})
	return guardFast
}

// doubtful reports whether to wait before killing, since what is in use above
// the limit may be free in a moment.
func (g *guard) doubtful(limit int64) bool {
	if g.held() >= limit {
		g.looked = time.Time{}
		return false
	}
	now := time.Now()
	if g.looked.IsZero() {
		g.doubt = 0
	} else { // a pause of the sandbox counts as little
		g.doubt += min(now.Sub(g.looked), guardRelease/4)
	}
	g.looked = now
	return g.doubt < guardRelease
}

// await asks for a time until the answer is yes or the guard is told to stop. A
// pause of the sandbox counts as little.
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

// pace is how long it is safe not to look with so many bytes left.
func pace(left int64) time.Duration {
	d := time.Duration(float64(left) / guardRate * float64(time.Second))
	return min(max(d, guardFast), guardSlow)
}

// killForMemory kills pid and blames the lack of memory for the end of its job.
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

// largestProcess returns the process, but this one, that has the most memory.
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

// residentBytes is the memory of all processes together; what they share counts
// for each.
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

// meminfo reads the memory in use from /proc/meminfo. It keeps the file open:
// it is read many times a second. It is for one goroutine.
type meminfo struct {
	path string
	file *os.File
}

func (m *meminfo) used() (int64, error) {
	used, _, err := m.read()
	return used, err
}

// shmem returns the bytes of files in memory; 0 when it cannot tell.
func (m *meminfo) shmem() int64 {
	data, err := m.content()
	if err != nil {
		return 0
	}
	_, after, _ := bytes.Cut(data, []byte("\nShmem:"))
	f := bytes.Fields(after)
	if len(f) == 0 {
		return 0
	}
	kib, err := strconv.ParseInt(string(f[0]), 10, 64)
	if err != nil || kib < 0 || kib > 1<<50 {
		return 0
	}
	return kib << 10
}

// onDisk returns how many bytes of the files on disk are counted as files in
// memory, of which there are shmem bytes: gVisor does so with all that have been
// in a checkpoint. They are what no file system in memory has. Files in memory
// without a file system, and file systems in other mount namespaces, may pass
// for files on disk; the host's limit holds for them.
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

// usedBytes returns what is used of a file system, or 0.
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

// parseMeminfo returns the memory in use, and the total, in bytes. What is in
// use is total less available; gVisor's total stays what it was at the start,
// so when the limit was raised since, the parts tell more.
func parseMeminfo(data []byte) (used, total int64, err error) {
	available := int64(-1)
	var anonymous, mapped int64
	for line := range bytes.Lines(data) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		var to *int64
		switch string(name) {
		case "MemTotal":
			to = &total
		case "MemAvailable":
			to = &available
		case "AnonPages":
			to = &anonymous // with what is in tmpfs
		case "Mapped":
			to = &mapped // with the page cache
		default:
			continue
		}
		f := bytes.Fields(value)
		if len(f) == 0 {
			return 0, 0, errMeminfo
		}
		kib, err := strconv.ParseInt(string(f[0]), 10, 64)
		if err != nil || kib < 0 || kib > 1<<50 {
			return 0, 0, errMeminfo
		}
		*to = kib << 10
	}
	if total <= 0 || available < 0 {
		return 0, 0, errMeminfo
	}
	return max(0, total-available, anonymous+mapped), total, nil
}
