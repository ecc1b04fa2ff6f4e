package mcp

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
`

func stdioProcess(t *testing.T) (*exec.Cmd, io.WriteCloser, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), stdioVar+"=1")
	cmd.WaitDelay = 10 * time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, in, bufio.NewScanner(out)
}

// Standard output carries messages and nothing else, and the process ends
// with its input and on SIGTERM, even while a command runs.
func TestStdioProcess(t *testing.T) {
	for name, end := range map[string]func(*exec.Cmd, io.Closer) error{
		"end of input": func(_ *exec.Cmd, in io.Closer) error { return in.Close() },
		"SIGTERM":      func(cmd *exec.Cmd, _ io.Closer) error { return cmd.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			cmd, in, out := stdioProcess(t)
			call := func(id, tool, args string) {
				t.Helper()
				if _, err := io.WriteString(in, `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"`+tool+`","arguments":`+args+"}}\n"); err != nil {
					t.Fatal(err)
				}
			}
			next := func() string {
				t.Helper()
				if !out.Scan() {
					t.Fatalf("the output has ended: %v", out.Err())
				}
				var m struct {
					JSONRPC string `json:"jsonrpc"`
				}
				if err := json.Unmarshal(out.Bytes(), &m); err != nil || m.JSONRPC != "2.0" {
					t.Fatalf("not a message: %q", out.Text())
				}
				return out.Text()
			}
			if _, err := io.WriteString(in, hello); err != nil {
				t.Fatal(err)
			}
			next()
			call("2", "sandbox_create", `{"name":"box"}`)
			if m := next(); !strings.Contains(m, `"state":"running"`) {
				t.Fatal(m)
			}
			call("3", "sandbox_exec", `{"sandbox":"box","shell":"echo out; echo err >&2"}`)
			if m := next(); !strings.Contains(m, `"stdout":"out\n"`) {
				t.Fatal(m)
			}
			call("4", "sandbox_exec", `{"sandbox":"box","shell":"sleep 302"}`)
			if err := end(cmd, in); err != nil {
				t.Fatal(err)
			}
			for out.Scan() {
				if !json.Valid(out.Bytes()) {
					t.Errorf("not a message: %q", out.Text())
				}
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("the process ended with %v", err)
			}
		})
	}
}

// server.json is what the MCP registry is told; it checks these rules.
func TestRegistryEntry(t *testing.T) {
	data, err := os.ReadFile("../../server.json")
	if err != nil {
		t.Fatal(err)
	}
	var entry struct {
		Schema      string `json:"$schema"`
		Name        string
		Title       string
		Description string
		Version     string
		Repository  struct{ URL, Source string }
		Packages    []struct {
			RegistryType, Identifier string
			Transport                struct{ Type string }
		}
	}
	if err := json.Unmarshal(data, &entry); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$`).MatchString(entry.Name) || !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(entry.Version) ||
		len(entry.Description) > 100 || entry.Description == "" || len(entry.Title) > 100 || entry.Repository.Source != "github" ||
		!strings.HasPrefix(entry.Schema, "https://static.modelcontextprotocol.io/schemas/") {
		t.Errorf("%+v", entry)
	}
	for _, p := range entry.Packages {
		if p.RegistryType != "mcpb" || !strings.Contains(p.Identifier, "/v"+entry.Version+"/") || p.Transport.Type != "stdio" {
			t.Errorf("%+v", p)
		}
	}
}
