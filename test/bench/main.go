// Command bench measures what Cove promises and prints it beside the targets
// of GOALS.md: the 50th, 95th and 99th percentile of each figure, on a daemon
// of its own with real sandboxes. Plain gVisor by its command line and
// bubblewrap, which has no kernel between, are measured in the same run.
//
//	make bench
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/covetest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	runs := flag.Int("n", 30, "runs of each measurement")
	flag.Parse()
	if err := run(ctx, *runs); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run of all measurements.
type bench struct {
	n    int
	d    *covetest.Daemon
	rows []series
}

func run(ctx context.Context, n int) (err error) {
	d, err := covetest.Launch(ctx, covetest.Options{Dev: true})
	if err != nil {
		return err
	}
	defer func() {
		if serr := d.Shutdown(context.WithoutCancel(ctx)); err == nil {
			err = serr
		}
	}()
	b := &bench{n: n, d: d}
	for _, part := range []func(context.Context) error{b.create, b.exec, b.files, b.memory, b.others} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return report(os.Stdout, b.rows)
}

// time adds a measurement to the table.
func (b *bench) time(ctx context.Context, name, target string, n int, do timed) error {
	s, err := measure(ctx, name, target, n, do)
	b.rows = append(b.rows, s)
	return err
}

// rate adds a measurement of moving bytes.
func (b *bench) rate(ctx context.Context, name, target string, n int, bytes int64, do timed) error {
	err := b.time(ctx, name, target, n, do)
	b.rows[len(b.rows)-1].bytes = bytes
	return err
}

func (b *bench) note(name, target, format string, args ...any) {
	b.rows = append(b.rows, series{name: name, target: target, note: fmt.Sprintf(format, args...)})
}

// withSandbox runs do with a sandbox and kills it afterwards.
func (b *bench) withSandbox(ctx context.Context, do func(id string) error) error {
	s, err := b.d.Client.Create(ctx, sandbox.CreateRequest{})
	if err != nil {
		return err
	}
	defer b.d.Client.Kill(context.WithoutCancel(ctx), s.ID)
	return do(s.ID)
}

// create measures a sandbox from nothing to the end of its first command, and
// its end.
func (b *bench) create(ctx context.Context) error {
	kills := series{name: "kill"}
	err := b.time(ctx, "create, then first exec, cold", "< 100 ms", b.n, func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		s, err := b.d.Client.Create(ctx, sandbox.CreateRequest{})
		if err != nil {
			return 0, err
		}
		err = b.execTrue(ctx, s.ID)
		took := time.Since(began)
		began = time.Now()
		_, kerr := b.d.Client.Kill(ctx, s.ID)
		kills.values = append(kills.values, time.Since(began))
		return took, errors.Join(err, kerr)
	})
	b.rows = append(b.rows, kills)
	return err
}

func (b *bench) execTrue(ctx context.Context, id string) error {
	job, err := b.d.Client.Exec(ctx, id, sandbox.ExecRequest{Command: []string{"/bin/true"}}, nil)
	if err == nil && job.ExitCode != 0 {
		err = fmt.Errorf("true: exit code %d", job.ExitCode)
	}
	return err
}

// exec measures the start of a program: bare inside the sandbox, and through
// every door.
func (b *bench) exec(ctx context.Context) error {
	return b.withSandbox(ctx, func(id string) error {
		floor, err := b.floor(ctx, id)
		if err != nil {
			return err
		}
		b.rows = append(b.rows, floor)
		target := "≤ 1.3 × floor: " + ms(floor.percentile(50)*13/10)
		if err := b.time(ctx, "exec true, Go client, unix socket", target, 3*b.n, whole(func(ctx context.Context) error {
			return b.execTrue(ctx, id)
		})); err != nil {
			return err
		}
		if err := b.time(ctx, "sandbox_exec true, MCP stdio", "", 3*b.n, b.mcpExec(ctx, id, b.stdio())); err != nil {
			return err
		}
		return b.time(ctx, "sandbox_exec true, MCP HTTP", "", 3*b.n, b.mcpExec(ctx, id, &mcp.StreamableClientTransport{Endpoint: b.d.URL + "/mcp"}))
	})
}

// floor measures how long a program's start takes inside, by a program inside.
func (b *bench) floor(ctx context.Context, id string) (series, error) {
	s := series{name: "floor: vfork, execve, wait of true, inside"}
	spawn, err := buildSpawn(ctx)
	if err != nil {
		return s, err
	}
	defer os.Remove(spawn)
	f, err := os.Open(spawn)
	if err != nil {
		return s, err
	}
	defer f.Close()
	if _, err := b.d.Client.WriteFile(ctx, id, sandbox.WriteFileRequest{Path: "/tmp/spawn", Mode: "0755"}, f); err != nil {
		return s, err
	}
	res, err := b.d.Exec(ctx, id, sandbox.ExecRequest{Command: []string{"/tmp/spawn", strconv.Itoa(3 * b.n), "/bin/true"}})
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(res.Stdout) {
		n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			return s, fmt.Errorf("spawn said %q: %w", res.Stdout+res.Stderr, err)
		}
		s.values = append(s.values, time.Duration(n))
	}
	return s, nil
}

func buildSpawn(ctx context.Context) (string, error) {
	f, err := os.CreateTemp("", "spawn-")
	if err != nil {
		return "", err
	}
	f.Close()
	cmd := exec.CommandContext(ctx, "go", "build", "-o", f.Name(), "./test/bench/spawn")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build spawn: %w\n%s", err, out)
	}
	return f.Name(), nil
}

func (b *bench) stdio() mcp.Transport {
	return &mcp.CommandTransport{Command: b.d.Command(context.Background(), "mcp")}
}

// mcpExec returns a call of sandbox_exec through a session that stays open.
func (b *bench) mcpExec(ctx context.Context, id string, transport mcp.Transport) timed {
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	session, err := client.Connect(ctx, transport, nil)
	return whole(func(ctx context.Context) error {
		if err != nil {
			return err
		}
		res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "sandbox_exec", Arguments: map[string]any{"sandbox": id, "command": []string{"/bin/true"}}})
		if err == nil && res.IsError {
			err = fmt.Errorf("sandbox_exec: %v", res.StructuredContent)
		}
		return err
	})
}
