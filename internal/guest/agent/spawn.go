package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// fork starts a process, in the cgroup of jobs if there is one. It calls
// syscall.ForkExec because os.StartProcess also opens a pidfd, which costs time and is
// not needed: the agent reaps by pid.
func (a *Agent) fork(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	a.mu.RLock()
	pids := a.pids
	a.mu.RUnlock()
	if pids == nil {
		return syscall.ForkExec(path, argv, attr)
	}
	return pids.fork(path, argv, attr)
}

// pidLimiter keeps jobs in a cgroup whose pids controller limits them. It implements
// [processGroup]. The agent stays outside, so that a fork bomb cannot stop it.
type pidLimiter struct {
	dir string

	mu     sync.Mutex
	max    string // pids.max while not frozen; guarded by mu
	frozen bool   // guarded by mu

	// Kept open, since every system call may be slow during a fork bomb. They are for
	// one goroutine.
	current, events, procs controlFile

	fd *os.File // the cgroup, version 2
	// starts passes work to the thread that is in the cgroup, version 1: there a child
	// starts in the cgroup of its parent thread.
	starts chan func()
}

const jobsCgroup = "cove-jobs"

// newPIDLimiter makes a cgroup for jobs in the cgroup file system at root. cgroups is
// the path of this process's list of cgroups.
func newPIDLimiter(root, cgroups string) (*pidLimiter, error) {
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		return newPIDLimiterV2(root)
	}
	return newPIDLimiterV1(root, cgroups)
}

func newPIDLimiterV2(root string) (*pidLimiter, error) {
	if err := writeControl(root+"/cgroup.subtree_control", "+pids"); err != nil {
		return nil, fmt.Errorf("enable the pids controller: %w", err)
	}
	dir := root + "/" + jobsCgroup
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	fd, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the cgroup: %w", err)
	}
	return &pidLimiter{dir: dir, fd: fd}, nil
}

func newPIDLimiterV1(root, cgroups string) (*pidLimiter, error) {
	list, err := os.ReadFile(cgroups)
	if err != nil {
		return nil, fmt.Errorf("read own cgroups: %w", err)
	}
	base := root + "/pids"
	if own := pidsCgroup(string(list)); own != "" {
		if _, err := os.Stat(base + own + "/tasks"); err == nil {
			base += own
		}
	}
	if _, err := os.Stat(base + "/tasks"); err != nil {
		return nil, errors.New("the sandbox has no pids cgroup")
	}
	dir := base + "/" + jobsCgroup
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	l := &pidLimiter{dir: dir, starts: make(chan func())}
	joined := make(chan error)
	go l.run(joined)
	if err := <-joined; err != nil {
		return nil, fmt.Errorf("join the cgroup: %w", err)
	}
	return l, nil
}

// pidsCgroup finds the path of the pids hierarchy in /proc/self/cgroup.
func pidsCgroup(list string) string {
	for line := range strings.Lines(list) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || strings.Contains(f[2], "..") || !strings.HasPrefix(f[2], "/") {
			continue
		}
		if slices.Contains(strings.Split(f[1], ","), "pids") {
			return strings.TrimSuffix(f[2], "/")
		}
	}
	return ""
}

// run forks on a thread of its own that is in the cgroup.
func (l *pidLimiter) run(joined chan<- error) {
	// Never unlocked: the thread ends with the goroutine, so that no other work of the
	// agent runs in the cgroup.
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The first thread would never end, and its cgroup is reported as that of the
		// whole process. While it is locked here, another goroutine gets another thread.
		defer runtime.UnlockOSThread()
		chosen := make(chan struct{})
		go func() {
			defer close(chosen)
			l.run(joined)
		}()
		<-chosen
		return
	}
	err := writeControl(l.dir+"/tasks", strconv.Itoa(unix.Gettid()))
	joined <- err
	if err != nil {
		return
	}
	for start := range l.starts {
		start()
	}
}

// setMax limits the processes and threads of all jobs; 0 is no limit.
func (l *pidLimiter) setMax(limit int64) error {
	value := "max"
	if limit > 0 {
		value = strconv.FormatInt(limit+l.overhead(), 10)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.frozen {
		if err := l.writeMax(value); err != nil {
			return err
		}
	}
	l.max = value
	return nil
}

// overhead is how many threads of the agent are in the cgroup.
func (l *pidLimiter) overhead() int64 {
	if l.starts != nil {
		return 1 // the thread that forks
	}
	return 0
}

// writeMax sets pids.max and checks that it took effect.
func (l *pidLimiter) writeMax(value string) error {
	file := l.dir + "/pids.max"
	if err := writeControl(file, value); err != nil {
		return fmt.Errorf("set pids.max: %w", err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read pids.max: %w", err)
	}
	if strings.TrimSpace(string(got)) != value {
		return fmt.Errorf("pids.max is %q after setting it to %s", strings.TrimSpace(string(got)), value)
	}
	return nil
}

func (l *pidLimiter) freeze() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = true
	return writeControl(l.dir+"/pids.max", "0")
}

func (l *pidLimiter) thaw() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = false
	return l.writeMax(l.max)
}

func (l *pidLimiter) usage() (current, refused int64, err error) {
	data, err := l.current.read(l.dir + "/pids.current")
	if err != nil {
		return 0, 0, err
	}
	if current, err = strconv.ParseInt(strings.TrimSpace(data), 10, 64); err != nil {
		return 0, 0, err
	}
	// Not every kernel has that file.
	data, _ = l.events.read(l.dir + "/pids.events")
	return current - l.overhead(), refusedForks(data), nil
}

// controlFile is a file of a cgroup, opened on the first read.
type controlFile struct {
	file *os.File
	buf  []byte
}

// maxControl bounds what is read of a control file, in bytes.
const maxControl = 1 << 20

func (c *controlFile) read(path string) (string, error) {
	if c.file == nil {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		c.file, c.buf = f, make([]byte, 4096)
	}
	for {
		n, err := c.file.ReadAt(c.buf, 0)
		switch {
		case n == len(c.buf) && n < maxControl:
			c.buf = make([]byte, 4*n)
		case n == 0 && err != nil && err != io.EOF:
			return "", err
		default:
			return string(c.buf[:n]), nil
		}
	}
}

func (c *controlFile) close() {
	if c.file != nil {
		_ = c.file.Close()
		c.file = nil
	}
}

// refusedForks parses pids.events; -1 if it has no number of refused forks.
func refusedForks(events string) int64 {
	for line := range strings.Lines(events) {
		if value, ok := strings.CutPrefix(line, "max "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); err == nil && n >= 0 {
				return n
			}
		}
	}
	return -1
}

func (l *pidLimiter) members() (pids []int) {
	data, err := l.procs.read(l.dir + "/cgroup.procs")
	if l.fd == nil {
		l.procs.close() // in version 1 an open file always shows the same list
	}
	if err != nil {
		return nil
	}
	for line := range strings.Lines(data) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (l *pidLimiter) fork(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	if l.fd != nil {
		attr.Sys.UseCgroupFD = true
		attr.Sys.CgroupFD = int(l.fd.Fd())
		return syscall.ForkExec(path, argv, attr)
	}
	done := make(chan struct{})
	l.starts <- func() {
		defer close(done)
		pid, err = syscall.ForkExec(path, argv, attr)
	}
	<-done
	return pid, err
}

// close ends the forking thread. No fork may run or follow.
func (l *pidLimiter) close() {
	if l.starts != nil {
		close(l.starts)
	}
	if l.fd != nil {
		_ = l.fd.Close()
	}
	l.current.close()
	l.events.close()
	l.procs.close()
}

func writeControl(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
