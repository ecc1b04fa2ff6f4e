package agent

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

const (
	// maxProcesses bounds a list of processes, and maxCmdline a command line, in bytes.
	maxProcesses = 4096
	maxCmdline   = 8 << 10
	// clockTicks is the unit of times in /proc, per second.
	clockTicks = 100
)

// usageLog has the processor time of each process at the last call of percent.
type usageLog struct {
	mu   sync.Mutex
	at   time.Time                // guarded by mu
	seen map[procID]time.Duration // guarded by mu
}

// procID identifies a process; a pid alone may be reused.
type procID struct {
	pid   int
	start uint64
}

// percent sets how much of a processor each process has used since the last call, or
// since the process started.
func (l *usageLog) percent(all []*process, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := make(map[procID]time.Duration, len(all))
	for _, p := range all {
		id := procID{p.pid, p.start}
		seen[id] = p.cpu
		used, span := p.cpu, now.Sub(p.started)
		if before, ok := l.seen[id]; ok && now.After(l.at) {
			used, span = p.cpu-before, now.Sub(l.at)
		}
		if span > 0 && used > 0 {
			p.percent = 100 * used.Seconds() / max(span, time.Second/clockTicks).Seconds()
		}
	}
	l.at, l.seen = now, seen
}

// process is what /proc says about a process.
type process struct {
	pid, parent, session int
	state                string
	name                 string
	command              []string
	threads              int
	memory               int64
	cpu                  time.Duration
	start                uint64 // in clock ticks since the boot
	started              time.Time
	uid                  uint32
	percent              float64
}

// ListProcesses implements [agentv1connect.AgentHandler].
func (a *Agent) ListProcesses(context.Context, *connect.Request[agentv1.ListProcessesRequest]) (*connect.Response[agentv1.ListProcessesResponse], error) {
	now := time.Now()
	boot := bootTime(now)
	var all []*process
	_ = processes(func(pid int) {
		if len(all) == maxProcesses {
			return
		}
		if p := readProcess(pid, boot); p != nil {
			all = append(all, p)
		}
	})
	slices.SortFunc(all, func(x, y *process) int { return x.pid - y.pid })
	a.usage.percent(all, now)
	users := a.users.names().users
	m := &agentv1.ListProcessesResponse{}
	for _, p := range all {
		m.Processes = append(m.Processes, &agentv1.Process{
			Pid: int32(p.pid), Parent: int32(p.parent), User: nameOf(users, p.uid), State: p.state, Name: p.name,
			Command: p.command, CpuNanos: int64(p.cpu), CpuPercent: p.percent, MemoryBytes: p.memory,
			Threads: int32(p.threads), StartedUnixNano: p.started.UnixNano(),
		})
	}
	a.attribute(m.Processes, all, a.code.sessions())
	return connect.NewResponse(m), nil
}

// attribute sets the job or context that each process belongs to: that of its session,
// or of the nearest ancestor whose session has one.
func (a *Agent) attribute(out []*agentv1.Process, all []*process, contexts map[int]string) {
	byPID := make(map[int]*process, len(all))
	for _, p := range all {
		byPID[p.pid] = p
	}
	jobs := map[int]string{}
	for _, j := range a.jobs.list() {
		// The pid of a job that has ended may have been reused.
		if j.running() || byPID[j.pid] == nil {
			jobs[j.pid] = j.id
		}
	}
	for i, p := range all {
		for depth := 0; p != nil && depth < 64; depth++ {
			if id, ok := jobs[p.session]; ok {
				out[i].JobId = id
				break
			}
			if name, ok := contexts[p.session]; ok {
				out[i].Context = name
				break
			}
			p = byPID[p.parent]
		}
	}
}

// bootTime is the time from which the starts of processes are counted.
func bootTime(now time.Time) time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return now
	}
	return now.Add(-time.Duration(ts.Nano()))
}

// readProcess returns nil for a process that is gone.
func readProcess(pid int, boot time.Time) *process {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return nil
	}
	p := parseStat(stat)
	if p == nil || p.pid != pid {
		return nil
	}
	p.started = boot.Add(time.Duration(p.start) * (time.Second / clockTicks))
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err == nil {
		p.uid = st.Uid
	}
	p.command = cmdline(dir + "/cmdline")
	return p
}

// parseStat parses /proc/<pid>/stat. The name in it may have any characters.
func parseStat(data []byte) *process {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return nil
	}
	f := strings.Fields(string(data[end+1:]))
	if len(f) < 22 {
		return nil
	}
	number := func(i int) int64 { // the field after the name is the third
		n, err := strconv.ParseInt(f[i-3], 10, 64)
		if err != nil || n < 0 {
			return 0
		}
		return n
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data[:open])))
	if err != nil {
		return nil
	}
	const tick = time.Second / clockTicks
	return &process{
		pid: pid, parent: int(number(4)), session: int(number(6)),
		state:   clip.Valid(f[0], 64),
		name:    strings.ToValidUTF8(string(data[open+1:end]), "\uFFFD"),
		threads: int(number(20)),
		cpu:     time.Duration(min(number(14), 1<<40)+min(number(15), 1<<40)) * tick,
		start:   uint64(min(number(22), 1<<40)),
		memory:  number(24) * int64(os.Getpagesize()),
	}
}

// cmdline reads the arguments of a process, cut to what is displayed.
func cmdline(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	buf := make([]byte, maxCmdline)
	n, _ := f.Read(buf)
	text := strings.TrimRight(string(buf[:n]), "\x00")
	if text == "" {
		return nil
	}
	return shorten(strings.Split(strings.ToValidUTF8(text, "\uFFFD"), "\x00"))
}

// SignalProcess implements [agentv1connect.AgentHandler].
func (a *Agent) SignalProcess(_ context.Context, req *connect.Request[agentv1.SignalProcessRequest]) (*connect.Response[agentv1.SignalProcessResponse], error) {
	pid, sig := int(req.Msg.GetPid()), req.Msg.GetSignal()
	if sig < 1 || sig > 64 {
		return nil, invalid("%d is not a signal; use 1 to 64, such as 15 to ask the process to end", sig)
	}
	if pid < 1 {
		return nil, invalid("%d is not a process; list the processes to see their numbers", pid)
	}
	if pid == 1 && a.cfg.Init || pid == os.Getpid() {
		return nil, fail(connect.CodePermissionDenied, "process %d is the sandbox itself; kill the sandbox instead", pid)
	}
	switch err := unix.Kill(pid, unix.Signal(sig)); {
	case errors.Is(err, unix.ESRCH):
		return nil, fail(connect.CodeNotFound, "there is no process %d; list the processes to see which exist", pid)
	case errors.Is(err, unix.EPERM):
		return nil, fail(connect.CodePermissionDenied, "the sandbox may not signal process %d", pid)
	case err != nil:
		return nil, fail(connect.CodeInternal, "signal process %d: %v", pid, err)
	}
	return connect.NewResponse(&agentv1.SignalProcessResponse{}), nil
}
