// Command demo does Cove's main job the way an MCP client does: it launches
// "cove mcp", makes a sandbox, writes a program into it, runs it on real input,
// reads the result back, and prints the conversation.
//
//	go run ./examples/demo bin/cove
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: demo PATH-TO-COVE")
		os.Exit(2)
	}
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// program counts words with tools that every Debian machine has.
const program = `#!/usr/bin/perl
use strict; use warnings;
my %n;
while (<STDIN>) { $n{lc $_}++ for /\w+/g }
open my $out, '>', 'counts.txt' or die $!;
printf $out "%-8s %d\n", $_, $n{$_} for (sort { $n{$b} <=> $n{$a} || $a cmp $b } keys %n)[0..4];
print "counted ", scalar(keys %n), " different words\n";
`

// run does the whole job; the sandbox is gone when it returns.
func run(ctx context.Context, cove string) error {
	client := mcp.NewClient(&mcp.Implementation{Name: "cove-demo", Version: "1"}, nil)
	cmd := exec.Command(cove, "mcp")
	cmd.Stderr = os.Stderr
	session, err := client.Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		return fmt.Errorf("connect to %s mcp: %w", cove, err)
	}
	defer session.Close()
	info := session.InitializeResult()
	fmt.Printf("connected to %s %s, MCP %s\n\n", info.ServerInfo.Name, info.ServerInfo.Version, info.ProtocolVersion)

	d := demo{session: session}
	created, err := d.call(ctx, "sandbox_create", map[string]any{"name": fmt.Sprintf("demo-%d", os.Getpid()), "lifetime_seconds": 300})
	if err != nil {
		return err
	}
	id, _ := created["id"].(string)
	if id == "" {
		return fmt.Errorf("sandbox_create gave no id: %v", created)
	}
	steps := []struct {
		tool string
		args map[string]any
	}{
		{"file_write", map[string]any{"sandbox": id, "path": "/workspace/count.pl", "content": program, "mode": "0755"}},
		{"sandbox_exec", map[string]any{"sandbox": id, "shell": "uname -a; ./count.pl < /usr/share/common-licenses/Apache-2.0", "workdir": "/workspace"}},
		{"file_read", map[string]any{"sandbox": id, "path": "/workspace/counts.txt"}},
		{"sandbox_list", map[string]any{}},
		{"sandbox_kill", map[string]any{"sandbox": id}},
	}
	for _, s := range steps {
		if _, err := d.call(ctx, s.tool, s.args); err != nil {
			return err
		}
	}
	return nil
}

type demo struct{ session *mcp.ClientSession }

// call calls a tool and prints the call, its time and its answer.
func (d demo) call(ctx context.Context, tool string, args map[string]any) (map[string]any, error) {
	shown, _ := json.Marshal(args)
	fmt.Printf("→ %s %s\n", tool, clip(string(shown), 160))
	began := time.Now()
	res, err := d.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool, err)
	}
	var text strings.Builder
	for _, c := range res.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			text.WriteString(t.Text)
		}
	}
	fmt.Printf("← %.0f ms\n%s\n\n", float64(time.Since(began).Microseconds())/1000, indent(clip(text.String(), 1200)))
	if res.IsError {
		return nil, fmt.Errorf("%s answered with an error", tool)
	}
	structured, _ := res.StructuredContent.(map[string]any)
	return structured, nil
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n  ")
}
