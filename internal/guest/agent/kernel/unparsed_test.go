package kernel

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// realProcess is a program on this machine.
type realProcess struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (p *realProcess) PID() int              { return p.cmd.Process.Pid }
func (p *realProcess) Interrupt()            { _ = syscall.Kill(-p.PID(), syscall.SIGINT) }
func (p *realProcess) Kill()                 { _ = syscall.Kill(-p.PID(), syscall.SIGKILL) }
func (p *realProcess) Done() <-chan struct{} { return p.done }
func (p *realProcess) End() End              { return End{Code: p.cmd.ProcessState.ExitCode()} }

func spawnReal(names, args []string, files []*os.File) (Process, error) {
	p := &realProcess{cmd: exec.Command(names[0], args...), done: make(chan struct{})} //nolint:noctx // it ends with its connection
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles = files[0], files[1], files[2], files[3:]
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	return p, nil
}

// TestJavaScriptWithoutParser checks that a plain go build, without the parser, runs
// JavaScript as a script, shows its value, and explains what it lacks.
func TestJavaScriptWithoutParser(t *testing.T) {
	needs.Command(t, "node")
	files := fstest.MapFS{}
	for _, name := range []string{"drivers/node.js", "drivers/node_run.js"} {
		data, err := drivers.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: data}
	}
	k, err := Start(t.Context(), Config{Language: sandbox.JavaScript, Spawn: spawnReal, Env: map[string]string{}, files: files})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Quiet)
	t.Cleanup(k.Kill)
	const hint = "make build"
	for i, tt := range []struct{ code, value, fails string }{
		{"const a = 2; let b = 3; function f() { return a + b }", "", ""},
		{"f() + a", "7", ""},
		{"{ a: 1 }", "{ a: 1 }", ""},
		{"require('path').sep", "'/'", ""},
		{"(async () => { await null; globalThis.waited = await Promise.resolve(8); return waited })()", "8", ""},
		{"await null; 1", "", hint},
		{"await (f())", "", hint},
		{"const w = await f()", "", hint},
		{"import fs from 'fs'", "", hint},
		{"export const q = 1", "", hint},
		{"const a = 4", "", hint},
		{"let = = 1", "", "Unexpected token"},
		{"JSON.parse('await')", "", "Unexpected token"},
		{"throw 5", "", "Uncaught 5"},
		{"a + waited", "10", ""},
	} {
		box := NewOutbox(1 << 10)
		k.Prepare()
		out, err := k.Run(&Run{Count: i + 1, Code: tt.code, Env: map[string]string{}}, box)
		if err != nil {
			t.Fatal(err)
		}
		events, _ := box.Take()
		value := ""
		for _, e := range events {
			value += string(e.GetRich().GetData()["text/plain"])
		}
		said, trace := out.Error.GetMessage(), out.Error.GetTraceback()
		if value != tt.value || (tt.fails == "") != (out.Exit == 0) || !strings.Contains(trace, tt.fails) ||
			strings.Contains(said, hint) != (tt.fails == hint) || strings.Contains(trace, hint) != (tt.fails == hint) {
			t.Errorf("%s: value %q, exit %d, message %q, traceback %q; want %q, %q", tt.code, value, out.Exit, said, trace, tt.value, tt.fails)
		}
	}
}

// TestParserHasLicence checks that a program built with the parser includes its licence.
func TestParserHasLicence(t *testing.T) {
	if !HasParser() {
		needs.NoError(t, errors.New("the parser of JavaScript: make build"))
	}
	licence, err := drivers.ReadFile("drivers/acorn/LICENSE")
	if err != nil || !strings.Contains(string(licence), "Permission is hereby granted") {
		t.Errorf("acorn's licence: %q, %v", licence, err)
	}
}
