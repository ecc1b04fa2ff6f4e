package cgroup_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/machine/cgroup"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// TestMain also implements the program that the tests limit.
func TestMain(m *testing.M) {
	switch os.Getenv("CGROUP_TEST_ROLE") {
	case "wait":
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	case "hog":
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		b := make([]byte, 512<<20)
		for i := range b {
			b[i] = byte(i)
		}
		fmt.Println("survived")
	case "":
		os.Exit(m.Run())
	}
}

func start(t *testing.T, role string) (*exec.Cmd, func(string)) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "CGROUP_TEST_ROLE="+role)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, func(s string) { fmt.Fprintln(in, s) }
}

func newGroup(t *testing.T, l cgroup.Limits) *cgroup.Group {
	t.Helper()
	name := "test-" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")) + fmt.Sprint(os.Getpid())
	g, err := cgroup.Create(name, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func TestGroupLifecycle(t *testing.T) {
	needs.Cgroups(t)
	g := newGroup(t, cgroup.Limits{MemoryBytes: 64 << 20, CPUs: 0.5, PIDs: 100})
	if len(g.Missing()) > 0 {
		t.Errorf("missing: %v", g.Missing())
	}
	if _, err := cgroup.Create(g.Name(), cgroup.Limits{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second Create: %v, want %v", err, fs.ErrExist)
	}
	cmd, _ := start(t, "wait")
	if err := g.Enter(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	s, err := g.Stats()
	if err != nil || s.PIDs < 1 {
		t.Errorf("stats %+v, %v; want at least one process", s, err)
	}
	if got := g.PIDs(); !slices.Equal(got, []int{cmd.Process.Pid}) {
		t.Errorf("PIDs = %v, want %d", got, cmd.Process.Pid)
	}
	for _, l := range []cgroup.Limits{{MemoryBytes: 128 << 20}, {MemoryBytes: 32 << 20, CPUs: 2, PIDs: 50}} {
		if err := g.Update(l); err != nil {
			t.Errorf("update %+v: %v", l, err)
		}
	}
	again, err := cgroup.Open(g.Name())
	if err != nil {
		t.Fatal(err)
	}
	if names, err := cgroup.List(g.Name()); err != nil || !slices.Equal(names, []string{g.Name()}) {
		t.Errorf("List = %v, %v", names, err)
	}
	if err := again.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process ended well, want it killed")
	}
	for range 2 {
		if err := again.Remove(); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if _, err := cgroup.Open(g.Name()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open after remove: %v, want %v", err, fs.ErrNotExist)
	}
}

func TestMemoryLimitIsEnforced(t *testing.T) {
	needs.Cgroups(t)
	g := newGroup(t, cgroup.Limits{MemoryBytes: 64 << 20})
	cmd, say := start(t, "hog")
	if err := g.Enter(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	say("go")
	if err := cmd.Wait(); err == nil {
		t.Fatal("a process used eight times its limit")
	}
	s, err := g.Stats()
	if err != nil || s.OOMKills == 0 {
		t.Errorf("stats %+v, %v; want an OOM kill", s, err)
	}
}

func TestPIDsLimitIsEnforced(t *testing.T) {
	needs.Cgroups(t)
	needs.Command(t, "sh")
	g := newGroup(t, cgroup.Limits{PIDs: 3})
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "read x; cat /dev/null | cat | cat | cat | cat | cat && echo fine")
	in, _ := cmd.StdinPipe()
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.Enter(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in)
	if err := cmd.Wait(); err == nil {
		t.Errorf("seven processes where three are allowed: %s", out.String())
	}
}

func TestBadNames(t *testing.T) {
	for _, name := range []string{"", "..", "a/b", "A", "a\x00", strings.Repeat("a", 200)} {
		if _, err := cgroup.Create(name, cgroup.Limits{}); err == nil {
			t.Errorf("Create(%q) succeeded", name)
		}
		if _, err := cgroup.Open(name); err == nil {
			t.Errorf("Open(%q) succeeded", name)
		}
	}
}
