package agent

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/testing/needs"
)

func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex                                  // guards what follows
		memory := map[int]int64{10: 100, 11: 300, 12: 200} // MiB by process
		used := func() (sum int64) {
			for _, n := range memory {
				sum += n << 20
			}
			return sum
		}
		var killed []int
		busy := false
		var released int64 // MiB that are no longer in use, but still count
		var files int64    // MiB of files on disk, which count as memory
		g := &guard{
			used: func() (int64, error) {
				mu.Lock()
				defer mu.Unlock()
				return used() + released<<20 + files<<20, nil
			},
			held: func() int64 {
				mu.Lock()
				defer mu.Unlock()
				return used() + files<<20
			},
			onDisk: func() int64 {
				mu.Lock()
				defer mu.Unlock()
				return files << 20
			},
			largest: func() (pid int) {
				mu.Lock()
				defer mu.Unlock()
				for p, n := range memory {
					if n > memory[pid] {
						pid = p
					}
				}
				return pid
			},
			kill: func(pid int) {
				mu.Lock()
				defer mu.Unlock()
				killed = append(killed, pid)
				delete(memory, pid)
			},
			gone: func(pid int) bool {
				mu.Lock()
				defer mu.Unlock()
				return memory[pid] == 0
			},
			report: func(int, int64) {},
		}
		g.start(func() bool {
			mu.Lock()
			defer mu.Unlock()
			return busy
		}, g.check)
		g.setLimit(250 << 20)
		step := func(change func(), wait time.Duration, want string) {
			t.Helper()
			mu.Lock()
			change()
			mu.Unlock()
			notify(g.wake)
			time.Sleep(wait)
			mu.Lock()
			defer mu.Unlock()
			if got := fmt.Sprint(killed); got != want {
				t.Errorf("killed %s, want %s", got, want)
			}
		}
		step(func() {}, time.Hour, "[]") // there is nothing to watch
		step(func() { busy = true }, time.Second, "[11 12]")
		step(func() { memory[13] = 1000 }, guardSlow, "[11 12 13]")
		step(func() { released = 1000 }, guardRelease/2, "[11 12 13]") // it will be free in a moment
		step(func() { released = 0 }, time.Second, "[11 12 13]")
		step(func() { files = 2000 }, guardRelease+guardFast, "[11 12 13]") // they take no memory
		step(func() { memory[14] = 400 }, guardSlow, "[11 12 13 14]")       // what else there is does
		step(func() { files = 0 }, time.Second, "[11 12 13 14]")
		step(func() { released = 1000 }, guardRelease+guardFast, "[11 12 13 14 10]") // it is not
		g.close()
	})
}

func TestPace(t *testing.T) {
	for _, tt := range []struct {
		left int64
		want time.Duration
	}{{0, guardFast}, {1 << 20, guardFast}, {1 << 30, 250 * time.Millisecond}, {1 << 40, guardSlow}} {
		if got := pace(tt.left); got != tt.want {
			t.Errorf("pace(%d) = %v, want %v", tt.left, got, tt.want)
		}
	}
}

func TestLargestProcessIsNotSelf(t *testing.T) {
	if pid := largestProcess(); pid == os.Getpid() || pid == 1 {
		t.Errorf("the largest process is %d", pid)
	}
}

// pidsCgroupDir makes a real cgroup, version 1, and returns its path in the
// hierarchy and in the file system.
func pidsCgroupDir(t *testing.T) (name, dir string) {
	t.Helper()
	needs.Root(t)
	name = fmt.Sprintf("/cove-agent-test-%d", os.Getpid())
	dir = "/sys/fs/cgroup/pids" + name
	if err := os.Mkdir(dir, 0o755); err != nil {
		needs.NoError(t, fmt.Errorf("a version 1 pids cgroup: %w", err))
	}
	t.Cleanup(func() {
		eventually(t, "the cgroups can be removed", func() bool {
			_ = os.Remove(dir + "/" + jobsCgroup)
			return os.Remove(dir) == nil
		})
	})
	return name, dir
}

// TestPIDLimiter limits jobs through a real cgroup, version 1.
func TestPIDLimiter(t *testing.T) {
	parent, _ := pidsCgroupDir(t)
	list := filepath.Join(t.TempDir(), "cgroup")
	if err := os.WriteFile(list, []byte("9:cpu:/x\n8:pids:"+parent+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := newPIDLimiter("/sys/fs/cgroup", list)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.setMax(20); err != nil {
		t.Fatal(err)
	}
	s := start(t)
	s.agent.mu.Lock()
	s.agent.pids = l
	s.agent.mu.Unlock()
	r := s.exec(t, &agentv1.ExecRequest{
		JobId: "bomb", Shell: "for i in $(seq 50); do sleep 300 & done; grep pids /proc/self/cgroup; wait", DetachAfterMs: 3000,
	})
	if !strings.Contains(r.stderr.String()+r.stdout.String(), "fork") {
		t.Errorf("nothing stopped it: %q %q", r.stdout.String(), r.stderr.String())
	}
	_, err = s.tryExec(t, &agentv1.ExecRequest{Argv: []string{"true"}})
	wantCode(t, err, connect.CodeResourceExhausted, "processes")
	if _, err := s.Signal(t.Context(), connect.NewRequest(&agentv1.SignalRequest{JobId: "bomb", Signal: 9})); err != nil {
		t.Error(err)
	}
	eventually(t, "there is room again", func() bool {
		r, err := s.tryExec(t, &agentv1.ExecRequest{Shell: "cat /proc/self/cgroup"})
		return err == nil && strings.Contains(r.stdout.String(), ":pids:"+parent+"/"+jobsCgroup)
	})
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil || strings.Contains(string(own), parent) {
		t.Errorf("the agent is in the cgroup of its jobs: %s, %v", own, err)
	}
}

func TestPIDLimiterMissing(t *testing.T) {
	root := t.TempDir()
	if _, err := newPIDLimiter(root, "/proc/self/cgroup"); err == nil || !strings.Contains(err.Error(), "no pids cgroup") {
		t.Errorf("got %v", err)
	}
}

func FuzzPIDsCgroup(f *testing.F) {
	f.Add("9:cpu,pids:/a/b\n0::/\n")
	f.Add("8:pids:/../x")
	f.Fuzz(func(t *testing.T, list string) {
		if got := pidsCgroup(list); got != "" && (got[0] != '/' || strings.Contains(got, "..")) {
			t.Errorf("pidsCgroup(%q) = %q", list, got)
		}
	})
}

// gVisor's total does not change when the limit is raised.
func TestMeminfoBeyondTheTotal(t *testing.T) {
	used, total, err := parseMeminfo([]byte("MemTotal: 100 kB\nMemAvailable: 0 kB\nAnonPages: 150 kB\nMapped: 7 kB\n"))
	if err != nil || used != 157<<10 || total != 100<<10 {
		t.Errorf("parseMeminfo = %d, %d, %v; want %d, %d", used, total, err, 157<<10, 100<<10)
	}
}

func FuzzMeminfo(f *testing.F) {
	f.Add([]byte("MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable: 40 kB\n"))
	f.Add([]byte("MemTotal:  100 kB\nMemAvailable: 0 kB\nAnonPages: 150 kB\nMapped: 7 kB\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		used, total, err := parseMeminfo(data)
		if err == nil && (used < 0 || total <= 0) {
			t.Errorf("parseMeminfo(%q) = %d, %d", data, used, total)
		}
		if parseStatm(data) < 0 {
			t.Errorf("parseStatm(%q) is negative", data)
		}
	})
}

// TestNotInit checks that an agent that is an ordinary process applies no limits and no
// host name.
func TestNotInit(t *testing.T) {
	s := start(t)
	before, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	name, limit := "cove-must-not-be", int64(1)
	res, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{Hostname: &name, MemoryLimit: &limit, MaxPids: &limit}))
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Msg.GetUnenforced()) != 3 {
		t.Errorf("unenforced: %q", res.Msg.GetUnenforced())
	}
	if after, _ := os.Hostname(); after != before {
		t.Errorf("the machine is now called %s", after)
	}
}

func TestConfigureRefused(t *testing.T) {
	s := start(t)
	str := func(s string) *string { return &s }
	minus := int64(-1)
	for _, req := range []*agentv1.ConfigureRequest{
		{Hostname: str("")},
		{Hostname: str("a b")},
		{Hostname: str(strings.Repeat("x", 65))},
		{Hostname: str("a\nb")},
		{Env: map[string]string{"LEAK": "1", "": "x"}},
		{Env: map[string]string{"A": "\x00"}},
		{User: str("no-such-user")},
		{Workdir: str("relative")},
		{Workdir: str("/a/../b")},
		{MemoryLimit: &minus},
		{MaxPids: &minus},
	} {
		_, err := s.Configure(t.Context(), connect.NewRequest(req))
		wantCode(t, err, connect.CodeInvalidArgument, "")
	}
	if r := s.sh(t, "echo $LEAK"); r.stdout.String() != "\n" {
		t.Error("a refused request took effect")
	}
}

func TestHealth(t *testing.T) {
	s := start(t)
	res, err := s.Health(t.Context(), connect.NewRequest(&agentv1.HealthRequest{}))
	if err != nil || res.Msg.GetVersion() != "test" || res.Msg.GetStartedUnixNano() == 0 {
		t.Errorf("got %v, %v", res, err)
	}
}

func TestAllowFrom(t *testing.T) {
	s := startWith(t, Config{AllowFrom: func(addr net.Addr) bool {
		return netip.MustParseAddrPort(addr.String()).Addr() == netip.MustParseAddr("127.0.0.1")
	}}, true)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	c, err := d.DialContext(t.Context(), "tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("a peer that is not allowed was not cut off")
	}
}

func TestMessageTooLarge(t *testing.T) {
	s := start(t)
	_, err := s.tryExec(t, &agentv1.ExecRequest{Argv: []string{"cat"}, Stdin: make([]byte, maxMessage+1)})
	wantCode(t, err, connect.CodeResourceExhausted, "")
}
