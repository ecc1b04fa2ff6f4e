package cells_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/cells"
	"github.com/cove-sh/cove/internal/engine/enginetest"
	"github.com/cove-sh/cove/internal/guest/agentbin"
	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// hostDir is where the tests make the template of this machine.
var hostDir string

func TestMain(m *testing.M) {
	var err error
	if hostDir, err = os.MkdirTemp("", "cells-host-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(hostDir)
		os.Exit(code)
	}))
}

// host returns the provider of the template of this machine. Making the template examines
// all of the machine's programs, so the tests share one.
var host = sync.OnceValues(func() (*image.Provider, error) { return image.New(image.Config{Dir: hostDir}) })

// TestEngine runs the contract of all engines with real sandboxes.
func TestEngine(t *testing.T) {
	needs.GVisor(t)
	enginetest.Run(t, subject)
}

// TestCheckpoints runs the contract of engines with checkpoints.
func TestCheckpoints(t *testing.T) {
	needs.GVisor(t)
	enginetest.RunCheckpoints(t, subject)
}

func subject(t *testing.T) enginetest.Subject {
	dir := t.TempDir()
	d := &covetest.Daemon{StateDir: dir}
	return enginetest.Subject{
		Open: func(t *testing.T) engine.Engine { return open(t, dir) },
		Spec: hostSpec,
		Fail: func(t *testing.T, id string) { killCell(t, dir, id) },
		Traces: func(_ *testing.T, id string) []string {
			return d.Traces(id)
		},
	}
}

// open returns an engine whose cells run the built program: the race detector needs cgo,
// and a program with cgo cannot run gVisor.
func open(t *testing.T, dir string) *cells.Engine {
	t.Helper()
	binary, err := covetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	agent, err := agentbin.Binary()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := agentbin.Digest()
	if err != nil {
		t.Fatal(err)
	}
	e, err := cells.New(cells.Config{
		FirstUserID: 1 << 19, UserIDs: 1 << 28,
		Dir: dir, Agent: agent, AgentDigest: digest, Executable: binary,
		Log: slog.New(slog.NewTextHandler(logWriter{t}, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// logWriter sends log lines to a test.
type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(string(bytes.TrimRight(p, "\n")))
	return len(p), nil
}

func hostSpec(t *testing.T) engine.Spec {
	t.Helper()
	p, err := host()
	if err != nil {
		t.Fatal(err)
	}
	root, tmpl, err := p.Root(t.Context(), "host")
	if err != nil {
		t.Fatal(err)
	}
	return engine.Spec{
		Root: root, Hostname: "cove", User: tmpl.User, WorkDir: tmpl.WorkDir, Env: tmpl.Env,
		Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 256, DiskMiB: 64, MaxPIDs: 64},
	}
}

// killCell kills the cell of a sandbox, which it finds by the cell's own record, and
// waits until its lock is released.
func killCell(t *testing.T, dir, id string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "cells", id, "process"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.Fields(string(data))[0])
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(filepath.Join(dir, "cells", id, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
}
