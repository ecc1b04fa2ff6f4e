package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
`

// process is a server on standard input and output.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr bytes.Buffer
}

// startProcess starts a server and ends it with the test.
func startProcess(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd}
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr = &p.stderr
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 64<<20)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return p
}

// send writes a line.
func (p *process) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatalf("%v; standard error: %s", err, &p.stderr)
	}
}

// next reads a line, which must be a message.
func (p *process) next() string {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("the output has ended: %v; standard error: %s", p.out.Err(), &p.stderr)
	}
	var m struct {
		JSONRPC string `json:"jsonrpc"`
	}
	if err := json.Unmarshal(p.out.Bytes(), &m); err != nil || m.JSONRPC != "2.0" {
		p.t.Fatalf("not a message: %q", p.out.Text())
	}
	return p.out.Text()
}

func (p *process) hello() {
	p.t.Helper()
	p.send(strings.TrimSuffix(hello, "\n"))
	p.next()
}

// call calls a tool and returns the answer.
func (p *process) call(id, tool, args string) string {
	p.t.Helper()
	p.begin(id, tool, args)
	return p.next()
}

func (p *process) begin(id, tool, args string) {
	p.t.Helper()
	p.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `}}`)
}

// terminate asks the process to end.
func (p *process) terminate() { _ = p.cmd.Process.Signal(syscall.SIGTERM) }

// wait reads the remaining output and returns how the process ended.
func (p *process) wait() error {
	p.t.Helper()
	for p.out.Scan() {
		if !json.Valid(p.out.Bytes()) {
			p.t.Errorf("not a message: %q", p.out.Text())
		}
	}
	return p.cmd.Wait()
}

// Standard output carries messages and nothing else, and the process ends
// with its input and on SIGTERM, even while a command runs.
func TestStdioProcess(t *testing.T) {
	t.Parallel() // most of it is the time for answers that are due at the end of input
	testStdioProcess(t, func(*testing.T) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), stdioVar+"=1")
		return cmd
	})
}

// The same of the real program, which also logs when it is told to. In "make test",
// TestStdioProcess stands for it.
func TestRealMoreStdioProcess(t *testing.T) {
	t.Parallel()
	d := daemon(t, covetest.Options{Args: []string{"--listen", "off"}})
	testStdioProcess(t, func(t *testing.T) *exec.Cmd {
		t.Cleanup(func() {
			if _, err := d.Client.Kill(context.WithoutCancel(t.Context()), "box"); err != nil {
				t.Error(err)
			}
		})
		return coveMCP(d, "--verbose")
	})
}

func testStdioProcess(t *testing.T, command func(t *testing.T) *exec.Cmd) {
	for name, end := range map[string]func(p *process){
		"end of input": func(p *process) { _ = p.in.Close() },
		"SIGTERM":      (*process).terminate,
	} {
		if name == "end of input" && !needs.More() {
			continue // it waits for ten seconds; TestStdioEnds of package mcpserver has it in fake time
		}
		t.Run(name, func(t *testing.T) {
			p := startProcess(t, command(t))
			p.hello()
			if m := p.call("2", "sandbox_create", `{"name":"box"}`); !strings.Contains(m, `"state":"running"`) {
				t.Fatal(m)
			}
			if m := p.call("3", "sandbox_exec", `{"sandbox":"box","shell":"echo out; echo err >&2"}`); !strings.Contains(m, `"stdout":"out\n"`) {
				t.Fatal(m)
			}
			p.begin("4", "sandbox_exec", `{"sandbox":"box","shell":"sleep 302"}`)
			end(p)
			if err := p.wait(); err != nil {
				t.Errorf("the process ended with %v; standard error: %s", err, &p.stderr)
			}
		})
	}
}
