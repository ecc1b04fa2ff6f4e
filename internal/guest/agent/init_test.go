package agent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1/agentv1connect"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// initMain runs an agent as PID 1 of its own namespaces, until its standard input ends.
// It does not see the machine's hosts file, and of the machine's cgroups at most the
// one that it enters. It can apply merges to a file system of 1 MiB.
func initMain() {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := serveInit(ctx); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("closed")
}

func serveInit(ctx context.Context) error {
	hosts, group, small := os.Getenv("COVE_AGENT_TEST_HOSTS"), os.Getenv("COVE_AGENT_TEST_CGROUP"), os.Getenv("COVE_AGENT_TEST_SMALL")
	if group != "" {
		if err := writeControl(group+"/cgroup.procs", "0"); err != nil {
			return err
		}
	}
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/sys/fs/cgroup", "tmpfs", 0},
		{hosts, "/etc/hosts", "", unix.MS_BIND},
		{"small", small, "tmpfs", 0},
	} {
		if m.target == "/sys/fs/cgroup" && group != "" || m.target == "" {
			continue
		}
		data := ""
		if m.source == "small" {
			data = "size=1m"
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	a, err := New(Config{Version: "init", Init: true, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	if small != "" {
		a.root = small
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	if err := a.Serve(ctx, l); err != nil {
		return err
	}
	return a.Close()
}

// startInit starts an agent that is PID 1, and returns how to stop it.
func startInit(t *testing.T) (s *server, stop func()) { return startInitIn(t, "") }

// startInitIn does so in the version 1 cgroup at the path group.
func startInitIn(t *testing.T, group string) (s *server, stop func()) {
	t.Helper()
	return startInitWith(t, "COVE_AGENT_TEST_CGROUP="+group)
}

func startInitWith(t *testing.T, env string) (s *server, stop func()) {
	t.Helper()
	needs.UserNS(t)
	hosts := t.TempDir() + "/hosts"
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(executablePath(t))
	cmd.Env = append(os.Environ(), childEnv+"=init", "COVE_AGENT_TEST_HOSTS="+hosts, env)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	lines.Scan()
	addr := lines.Text()
	stop = sync.OnceFunc(func() {
		_ = stdin.Close()
		lines.Scan()
		if lines.Text() != "closed" {
			t.Errorf("at the end it said %q", lines.Text())
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if strings.HasPrefix(addr, "error:") {
		_ = stdin.Close()
		_ = cmd.Wait()
		needs.NoError(t, fmt.Errorf("namespaces: %s", addr))
	}
	t.Cleanup(stop)
	s = &server{addr: addr, dir: "/"}
	s.AgentClient = agentv1connect.NewAgentClient(transport(t, true), "http://"+addr)
	return s, stop
}

func TestInit(t *testing.T) {
	s, stop := startInit(t)
	name, limit := "cove-box", int64(64)
	res, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{Hostname: &name, MaxPids: &limit}))
	if err != nil {
		t.Fatal(err)
	}
	if u := res.Msg.GetUnenforced(); len(u) != 1 || !strings.HasPrefix(u[0], "process limit: ") {
		t.Errorf("unenforced: %q", u)
	}
	if r := s.sh(t, "uname -n; echo $HOSTNAME; cat /etc/hosts"); r.stdout.String() != "cove-box\ncove-box\n127.0.0.1 localhost\n127.0.1.1 cove-box\n" {
		t.Errorf("host name: %q", r.stdout.String())
	}

	// Many jobs that end at once, each with its own status, and orphans.
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 10 {
				code := i*10 + k
				r, err := s.tryExec(t, &agentv1.ExecRequest{Shell: fmt.Sprintf("(exit 1 & exit 2 &); exit %d", code)})
				if err != nil || int(r.last.GetExitCode()) != code {
					t.Errorf("job %d: %v, %v", code, r, err)
					return
				}
			}
		})
	}
	wg.Wait()
	eventually(t, "there are no zombies", func() bool {
		r := s.sh(t, `cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true`)
		return strings.TrimSpace(r.stdout.String()) == "0"
	})

	// Killing everything in the sandbox does not kill the agent.
	victim := s.background(t, &agentv1.ExecRequest{Argv: []string{"sleep", "300"}})
	s.sh(t, "kill -9 -1")
	if j := s.wait(t, victim.GetJobId()); j.GetSignal() != 9 || j.GetEndCause() != agentv1.EndCause_END_CAUSE_UNSPECIFIED {
		t.Errorf("after kill -9 -1: %v", j)
	}

	// A daemon that left its job's session ends with the sandbox.
	s.sh(t, "setsid sleep 300 >/dev/null 2>&1 &")
	s.background(t, &agentv1.ExecRequest{Argv: []string{"sleep", "300"}})
	stop()
}

func TestInitMemoryGuard(t *testing.T) {
	s, _ := startInit(t)
	job := s.background(t, &agentv1.ExecRequest{Shell: "sleep 300; exit 1"})
	limit := int64(1) // anything is too much
	if _, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{MemoryLimit: &limit})); err != nil {
		t.Fatal(err)
	}
	if j := s.wait(t, job.GetJobId()); j.GetEndCause() != agentv1.EndCause_END_CAUSE_OUT_OF_MEMORY || j.GetExitCode() == 0 {
		t.Errorf("job: %v", j)
	}
	limit = 0
	if _, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{MemoryLimit: &limit})); err != nil {
		t.Fatal(err)
	}
	if r := s.sh(t, "sleep 0.1"); r.last.GetExitCode() != 0 {
		t.Errorf("without a limit: %v", r.last)
	}
	// Either of the job's two processes may have been the largest.
	eventually(t, "the agent is alone", func() bool {
		s.sh(t, "kill -9 -1")
		st, err := s.Stats(t.Context(), connect.NewRequest(&agentv1.StatsRequest{}))
		return err == nil && st.Msg.GetProcesses() == 1
	})
	st, err := s.Stats(t.Context(), connect.NewRequest(&agentv1.StatsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if m := st.Msg; m.GetMemoryTotal() < m.GetMemoryUsed() || m.GetMemoryUsed() <= 0 || m.GetDiskTotal() <= 0 || m.GetCpus() < 1 || m.GetRunningJobs() != 0 {
		t.Errorf("stats: %v", m)
	}
}

func TestHostsWith(t *testing.T) {
	for _, tt := range []struct{ name, old, host, before, want string }{
		{"empty", "", "a", "", "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 a\n"},
		{"added", "127.0.0.1 localhost\n", "a", "", "127.0.0.1 localhost\n127.0.1.1 a\n"},
		{"no newline", "127.0.0.1 localhost", "a", "", "127.0.0.1 localhost\n127.0.1.1 a\n"},
		{"there", "127.0.0.1 localhost a\n", "a", "", "127.0.0.1 localhost a\n"},
		{"a fork", "127.0.0.1 localhost\n127.0.1.1 a\n10.0.0.1 x\n", "b", "a", "127.0.0.1 localhost\n10.0.0.1 x\n127.0.1.1 b\n"},
		{"somebody's own line", "127.0.1.1 a mine\n", "b", "a", "127.0.1.1 a mine\n127.0.1.1 b\n"},
		{"again", "127.0.1.1 a\n", "a", "a", "127.0.1.1 a\n"},
	} {
		if got := string(hostsWith([]byte(tt.old), tt.host, tt.before)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
