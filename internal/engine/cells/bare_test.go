package cells_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// bareRoot returns a root without a shell, libraries and accounts: mount points and one
// static program.
func bareRoot(t *testing.T) engine.Root {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{".cove", "dev", "proc", "sys", "tmp", "data"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "alone"), "./testdata/alone")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return engine.Root{Digest: "bare", Dir: dir}
}

// TestImageWithoutShellAndLibraries runs an image that contains only one program:
// commands, signals, files and the reaping of orphans work; only a shell line fails, and
// says why.
func TestImageWithoutShellAndLibraries(t *testing.T) {
	needs.GVisor(t)
	e := open(t, t.TempDir())
	defer e.Close()
	const id = "bare"
	inst, err := e.Create(t.Context(), engine.Spec{
		ID: id, Root: bareRoot(t), Hostname: "bare", WorkDir: "/data",
		Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 128, DiskMiB: 32, MaxPIDs: 64},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Destroy(t.Context(), id); err != nil {
			t.Error(err)
		}
	}()
	c := agentclient.New(id, inst.Dial)
	defer c.Close()
	n := 0
	run := func(req sandbox.ExecRequest, each func(job string)) (*sandbox.Job, string, error) {
		n++
		name := fmt.Sprintf("job-%d", n)
		var out strings.Builder
		req.TimeoutMS, req.KeepBytes = 30_000, 1<<10
		job, err := c.Exec(t.Context(), name, &req, func(ev sandbox.JobEvent) error {
			out.Write(ev.Data)
			if each != nil && len(ev.Data) > 0 {
				each(name)
			}
			return nil
		})
		return job, out.String(), err
	}

	t.Run("command", func(t *testing.T) {
		for _, program := range []string{"/alone", "../alone"} {
			job, out, err := run(sandbox.ExecRequest{Command: []string{program, "echo", "a b", ""}, User: "12:34", Env: map[string]string{"X": "y"}}, nil)
			if err != nil || job.ExitCode != 7 || !strings.Contains(out, "a b| 12 y\n") || !strings.Contains(out, "and an error\n") {
				t.Errorf("%s: %+v, %v, %q", program, job, err, out)
			}
		}
		if _, out, err := run(sandbox.ExecRequest{Command: []string{"/alone", "cat"}, Stdin: []byte("through")}, nil); err != nil || out != "through" {
			t.Errorf("cat: %q, %v", out, err)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		_, out, err := run(sandbox.ExecRequest{Command: []string{"/alone", "echo", "tty"}, Terminal: &sandbox.TerminalSize{Cols: 80, Rows: 24}}, nil)
		if err != nil || !strings.Contains(out, "tty") {
			t.Errorf("%q, %v", out, err)
		}
	})
	t.Run("shell", func(t *testing.T) {
		_, _, err := run(sandbox.ExecRequest{Shell: "echo hello"}, nil)
		if sandbox.CodeOf(err) == sandbox.CodeInternal || err == nil || !strings.Contains(err.Error(), "shell") {
			t.Errorf("a shell line: %v (%s); want to be told that there is no shell", err, sandbox.CodeOf(err))
		}
		t.Log(err)
	})
	t.Run("signal", func(t *testing.T) {
		job, out, err := run(sandbox.ExecRequest{Command: []string{"/alone", "wait"}}, func(job string) {
			_ = c.Signal(t.Context(), job, syscall.SIGTERM, 0)
		})
		if err != nil || job.ExitCode != 0 || out != "ready\ngot terminated\n" {
			t.Errorf("%+v, %v, %q", job, err, out)
		}
	})
	t.Run("files", func(t *testing.T) { bareFiles(t, c) })
	t.Run("orphans", func(t *testing.T) {
		for range 5 {
			if job, out, err := run(sandbox.ExecRequest{Command: []string{"/alone", "orphan"}}, nil); err != nil || job.ExitCode != 0 {
				t.Fatalf("%+v, %v, %q", job, err, out)
			}
		}
		var out string
		reaped := func() bool {
			_, out, err = run(sandbox.ExecRequest{Command: []string{"/alone", "zombies"}}, nil)
			return err == nil && out == "0\n"
		}
		if !covetest.Eventually(time.Minute, reaped) {
			t.Errorf("%s zombies, %v", out, err)
		}
	})
}

func bareFiles(t *testing.T, c *agentclient.Client) {
	if _, err := c.WriteFile(t.Context(), &sandbox.WriteFileRequest{Path: "new/f", MakeParents: true}, 0o640, strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.MoveFile(t.Context(), &sandbox.MoveFileRequest{From: "new/f", To: "/tmp/g"}); err != nil {
		t.Fatal(err)
	}
	r, err := c.ReadFile(t.Context(), &sandbox.ReadFileRequest{Path: "/tmp/g", Offset: 3})
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil || string(data) != "tent" {
		t.Errorf("read %q, %v", data, err)
	}
	list, _, err := c.ListFiles(t.Context(), "/", 1, 100, "")
	if err != nil || len(list) < 6 {
		t.Errorf("list: %v, %v", list, err)
	}
	if err := c.DeleteFile(t.Context(), "/tmp/g", false); err != nil {
		t.Error(err)
	}
	zip, err := c.ArchiveDir(t.Context(), "/data", 0)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, zip); errors.Join(err, zip.Close()) != nil || n == 0 {
		t.Errorf("archive of %d bytes: %v", n, err)
	}
}
