package procfs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/machine/procfs"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// inside makes the test's program the first process of a process-id namespace that has
// the /proc of the test's.
const inside = "COVE_PROCFS_INSIDE"

func TestMain(m *testing.M) {
	if os.Getenv(inside) == "" {
		os.Exit(m.Run())
	}
	if err := translate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestOwn(t *testing.T) {
	if own, err := procfs.Own(); err != nil || !own {
		t.Fatalf("/proc is not this process's own: %v, %v", own, err)
	}
	self := os.Getpid()
	dir, err := procfs.Dir(self)
	if err != nil || dir != filepath.Join("/proc", strconv.Itoa(self)) {
		t.Errorf("Dir(%d) = %q, %v", self, dir, err)
	}
	dirs, err := procfs.Processes()
	if err != nil || !slices.Contains(dirs, dir) {
		t.Errorf("Processes() = %v, %v, without %s", dirs, err, dir)
	}
	threads, err := procfs.Threads()
	if err != nil || !slices.Contains(threads, self) {
		t.Errorf("Threads() = %v, %v, without %d", threads, err, self)
	}
}

func TestForeign(t *testing.T) {
	needs.UserNS(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// translate finds this process, its child, their child and its threads in a /proc that has
// other ids for them.
func translate() error {
	if own, err := procfs.Own(); err != nil || own || os.Getpid() != 1 {
		return fmt.Errorf("process %d has its own /proc: %v, %w", os.Getpid(), own, err)
	}
	// The shell's child has an id that is not known here.
	cmd := exec.Command("sh", "-c", "sleep 1000 & echo ready; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Process.Kill() //nolint:errcheck // all end with this process
	if _, err := out.Read(make([]byte, 6)); err != nil {
		return err
	}
	done := make(chan struct{})
	defer close(done)
	tid := otherThread(done)
	for id, comm := range map[int]string{1: "procfs.test", cmd.Process.Pid: "sh"} {
		if err := leadsTo(id, comm); err != nil {
			return err
		}
	}
	if dir, err := procfs.Dir(30000); err == nil || !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("a process that does not exist is at %s: %w", dir, err)
	}
	return lists(cmd.Process.Pid, tid)
}

// otherThread returns the id of a thread that is not the first of this process, and lives
// until done is closed.
func otherThread(done chan struct{}) int {
	ids := make(chan int)
	for {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ids <- unix.Gettid()
			<-done
		}()
		if id := <-ids; id != os.Getpid() {
			return id
		}
	}
}

// leadsTo checks that an id's directory is that of the process with this id here.
func leadsTo(id int, comm string) error {
	dir, err := procfs.Dir(id)
	if err != nil {
		return err
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return err
	}
	if dir == fmt.Sprint("/proc/", id) || !strings.Contains(string(status), "Name:\t"+comm+"\n") || !strings.Contains(string(status), fmt.Sprintf("\t%d\n", id)) {
		return fmt.Errorf("%d is not at %s:\n%s", id, dir, status)
	}
	return nil
}

// lists checks the lists of processes and threads of this namespace.
func lists(child, thread int) error {
	dirs, err := procfs.Processes()
	if err != nil || len(dirs) != 3 {
		return fmt.Errorf("the processes are %v: %w", dirs, err)
	}
	threads, err := procfs.Threads()
	if err != nil {
		return err
	}
	for _, id := range []int{1, child, thread} {
		if !slices.Contains(threads, id) {
			return fmt.Errorf("thread %d is not among %v", id, threads)
		}
	}
	return nil
}
