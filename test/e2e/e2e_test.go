// Package e2e tests the built program as a whole, with real sandboxes: as root
// and as an ordinary user.
package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

func TestMainJob(t *testing.T) {
	covetest.SharedEachUser(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Name: "main-job", Env: map[string]string{"GREETING": "hello"}})
		if s.State != sandbox.StateRunning {
			t.Fatalf("state %s, want running", s.State)
		}
		program := "#!/bin/sh\nread name\necho \"$GREETING $name\" | tee out.txt\necho oops >&2\nexit 3\n"
		_, err := d.Client.WriteFile(t.Context(), s.ID, sandbox.WriteFileRequest{Path: "/workspace/p/greet.sh", Mode: "0755", MakeParents: true}, strings.NewReader(program))
		if err != nil {
			t.Fatal(err)
		}
		res, err := d.Exec(t.Context(), "main-job", sandbox.ExecRequest{Command: []string{"./greet.sh"}, WorkDir: "/workspace/p", Stdin: []byte("world\n")})
		if err != nil {
			t.Fatal(err)
		}
		if res.Stdout != "hello world\n" || res.Stderr != "oops\n" || res.Job.ExitCode != 3 {
			t.Errorf("stdout %q, stderr %q, exit code %d; want %q, %q, 3", res.Stdout, res.Stderr, res.Job.ExitCode, "hello world\n", "oops\n")
		}
		if got := d.Sh(t, s.ID, "cat /workspace/p/out.txt"); got != "hello world\n" {
			t.Errorf("out.txt is %q", got)
		}
		list, err := d.Client.List(t.Context(), sandbox.ListRequest{})
		if err != nil || len(list.Items) != 1 || list.Items[0].ID != s.ID {
			t.Errorf("list = %v, %v; want the one sandbox", list, err)
		}
		killed, err := d.Client.Kill(t.Context(), s.ID)
		if err != nil || killed.State != sandbox.StateKilled {
			t.Fatalf("kill: %v, %v", killed, err)
		}
		d.NoTraces(t, s.ID)
	})
}

// It is gVisor's kernel that answers, not the host's.
func TestKernelIsGVisor(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{})
		if got := d.Sh(t, s.ID, "cat /proc/version"); !strings.Contains(got, "gvisor") {
			t.Errorf("/proc/version is %q, want gVisor's", got)
		}
		host, _ := os.ReadFile("/proc/version")
		if got := d.Sh(t, s.ID, "cat /proc/version"); got == string(host) {
			t.Errorf("the sandbox shows the host's kernel: %s", got)
		}
	})
}
