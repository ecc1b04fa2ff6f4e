// Package script tests the command line and the daemon with scripts: each file in this
// directory shows what a user does and sees. The daemon is the real one, with the fake
// engine in memory.
package script

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/doors/cli"
	"github.com/cove-sh/cove/internal/testing/servertest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"cove": cove})
}

// cove is the program, with an engine in memory.
func cove() {
	ctx, stop := cli.SignalContext(context.Background())
	code := cli.Run(ctx, cli.Program{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Version: "1.2.3", Assembly: servertest.Assembly(),
	})
	stop()
	os.Exit(code)
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 ".",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"daemon": daemon,
			"until":  until,
			"gone":   gone,
		},
	})
}

func setup(env *testscript.Env) error {
	state := filepath.Join(env.WorkDir, ".s")
	env.Setenv("COVE_STATE_DIR", state)
	env.Setenv("COVE_DRAIN_TIMEOUT", "2s")
	env.Setenv("HOME", env.WorkDir)
	env.Setenv("TMPDIR", env.WorkDir)
	env.Defer(func() {
		if err := stopDaemon(state); err != nil {
			env.T().Fatal(err)
		}
	})
	return nil
}

// stopDaemon ends the daemon of a state directory, if there is one.
func stopDaemon(state string) error {
	data, err := os.ReadFile(filepath.Join(state, "serve.lock"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil || !holdsLock(state) {
		return err
	}
	holder, _, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	pid, err := strconv.Atoi(holder)
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGTERM)
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end the daemon: %w", err)
	}
	return awaitUnlock(state)
}

// holdsLock reports whether a daemon uses a state directory.
func holdsLock(state string) bool {
	f, err := os.Open(filepath.Join(state, "serve.lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

func awaitUnlock(state string) error {
	for deadline := time.Now().Add(time.Minute); holdsLock(state); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("the daemon of %s does not end", state)
		}
	}
	return nil
}

var address = regexp.MustCompile(`listening on (http://\S+)`)

// daemon starts "cove serve" with the arguments in the background, waits until
// it listens on TCP, and puts its address into $URL.
func daemon(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("unsupported: ! daemon")
	}
	path, err := exec.LookPath("cove")
	ts.Check(err)
	cmd := exec.Command(path, append([]string{"serve"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for _, name := range []string{"COVE_STATE_DIR", "COVE_DRAIN_TIMEOUT", "HOME", "TMPDIR"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	stderr, err := cmd.StderrPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	ts.Defer(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	var said strings.Builder
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		fmt.Fprintln(&said, lines.Text())
		if m := address.FindStringSubmatch(lines.Text()); m != nil {
			ts.Setenv("URL", m[1])
			go func() {
				for lines.Scan() {
				}
			}()
			return
		}
	}
	ts.Fatalf("the daemon does not listen:\n%s", said.String())
}

// until runs a command until its output matches a pattern.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN COMMAND...")
	}
	want := regexp.MustCompile(args[0])
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_ = ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout")
		if want.MatchString(out) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("never matched %s; the last output is:\n%s", want, out)
		}
	}
}

// gone waits until no daemon runs.
func gone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: gone")
	}
	ts.Check(awaitUnlock(ts.Getenv("COVE_STATE_DIR")))
}
