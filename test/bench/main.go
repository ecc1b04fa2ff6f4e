// Command bench measures what Cove promises, and prints it beside the targets of GOALS.md:
// the 50th, 95th and 99th percentile of each figure, on a daemon of its own with real
// sandboxes. The same run measures plain gVisor, by its command line, and bubblewrap, which
// has no kernel of its own.
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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/sandbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	runs := flag.Int("n", 30, "runs of each measurement")
	only := flag.String("only", "", "measure only these parts, of "+strings.Join(names(), ", ")+", with commas between")
	state := flag.String("state", "", "state `directory` to use and leave in place, whose built templates the part warm needs; a new one if empty")
	grow := growthConfig{memory: sizes{0, 50, 500, 2000, 4000}, files: sizes{300, 1000, 4000}, forks: sizes{1, 8, 32}}
	flag.Var(&grow.memory, "memory", "`megabytes` of memory in use, the rows of the part growth")
	flag.Var(&grow.files, "written", "`megabytes` of written files, further rows of it")
	flag.Var(&grow.forks, "forks", "numbers of `children` of one fork in it")
	flag.StringVar(&grow.others, "bin2", os.Getenv("COVE_BIN2"), "another `program`, or some with commas between, that the part growth measures in turn with the first; $COVE_BIN2 unless it is given")
	flag.StringVar(&grow.svg, "svg", "", "`file` to draw the first number of forks of the part growth to, for each load")
	flag.Parse()
	if len(grow.forks) == 0 {
		fmt.Fprintln(os.Stderr, "bench: -forks is empty; give numbers of children, such as 1,8")
		os.Exit(2)
	}
	world, code, err := internet.Enter()
	if err == nil && world == nil {
		os.Exit(code)
	}
	if err == nil {
		err = run(ctx, &bench{n: *runs, net: world, grow: grow}, *only, *state)
		world.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run of all measurements.
type bench struct {
	n    int
	d    *covetest.Daemon
	net  *internet.Internet // used by all measurements
	grow growthConfig
	rows []figures.Series
}

// part is a group of measurements.
type part struct {
	name string
	run  func(*bench, context.Context) error
}

var parts = []part{
	{"create", (*bench).create}, {"cold", (*bench).cold}, {"exec", (*bench).exec}, {"files", (*bench).files},
	{"time", (*bench).inTime}, {"merge", (*bench).merges}, {"objects", (*bench).objects}, {"growth", (*bench).growth}, {"warm", (*bench).warmKernels}, {"code", (*bench).code},
	{"memory", (*bench).memory}, {"templates", (*bench).templates}, {"builds", (*bench).builds}, {"computers", (*bench).computers}, {"network", (*bench).network}, {"tokens", (*bench).tokens}, {"e2b", (*bench).e2b}, {"others", (*bench).others},
}

func names() []string {
	var all []string
	for _, p := range parts {
		all = append(all, p.name)
	}
	return all
}

// selected returns the named parts, or all.
func selected(only string) ([]part, error) {
	if only == "" {
		return parts, nil
	}
	var out []part
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no part %q; use some of %v", name, names())
		}
		out = append(out, parts[i])
	}
	return out, nil
}

func run(ctx context.Context, b *bench, only, state string) (err error) {
	todo, err := selected(only)
	if err != nil {
		return err
	}
	d, err := covetest.Launch(ctx, covetest.Options{Dev: true, StateDir: state, Args: b.net.Args()})
	if err != nil {
		return err
	}
	defer func() {
		if serr := d.Shutdown(context.WithoutCancel(ctx)); err == nil {
			err = serr
		}
	}()
	b.d = d
	for _, p := range todo {
		if err := p.run(b, ctx); err != nil {
			return err
		}
	}
	if len(b.rows) == 0 {
		return nil // these parts have printed their own tables
	}
	return figures.Print(os.Stdout, b.rows)
}

// time adds a measurement to the table.
func (b *bench) time(ctx context.Context, name, target string, n int, do figures.Timed) error {
	s, err := figures.Measure(ctx, name, target, n, do)
	b.rows = append(b.rows, s)
	return err
}

// rate adds a measurement of throughput.
func (b *bench) rate(ctx context.Context, name, target string, n int, bytes int64, do figures.Timed) error {
	err := b.time(ctx, name, target, n, do)
	b.rows[len(b.rows)-1].Bytes = bytes
	return err
}

func (b *bench) note(name, target, format string, args ...any) {
	b.rows = append(b.rows, figures.Series{Name: name, Target: target, Note: fmt.Sprintf(format, args...)})
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

// create measures creating sandboxes from the pool, and killing them.
func (b *bench) create(ctx context.Context) error {
	kills := figures.Series{Name: "kill"}
	first := figures.Series{Name: "create from the pool, then first exec"}
	err := b.time(ctx, "create from the pool", "< 15 ms", b.n, func(ctx context.Context) (time.Duration, error) {
		// An agent does not create sandboxes without pauses; give the pool time to fill.
		if err := figures.Rest(ctx); err != nil {
			return 0, err
		}
		took, whole, kill, err := lifetime(ctx, b.d)
		first.Values, kills.Values = append(first.Values, whole), append(kills.Values, kill)
		return took, err
	})
	b.rows = append(b.rows, first, kills)
	return err
}

// cold measures creations on a daemon without standby sandboxes.
func (b *bench) cold(ctx context.Context) error {
	d, err := covetest.Launch(ctx, covetest.Options{Dev: true, Args: []string{"--warm=0"}})
	if err != nil {
		return err
	}
	defer func() { _ = d.Shutdown(context.WithoutCancel(ctx)) }()
	return b.time(ctx, "create without pool, then first exec", "< 100 ms", b.n, func(ctx context.Context) (time.Duration, error) {
		_, took, _, err := lifetime(ctx, d)
		return took, err
	})
}

// lifetime measures a creation, the time to the end of the first command, and the kill.
func lifetime(ctx context.Context, d *covetest.Daemon) (create, used, kill time.Duration, err error) {
	began := time.Now()
	s, err := d.Client.Create(ctx, sandbox.CreateRequest{})
	if err != nil {
		return 0, 0, 0, err
	}
	create = time.Since(began)
	job, err := d.Client.Exec(ctx, s.ID, sandbox.ExecRequest{Command: []string{"/bin/true"}}, nil)
	used = time.Since(began)
	if err == nil && job.ExitCode != 0 {
		err = fmt.Errorf("true: exit code %d", job.ExitCode)
	}
	began = time.Now()
	_, kerr := d.Client.Kill(ctx, s.ID)
	return create, used, time.Since(began), errors.Join(err, kerr)
}

func (b *bench) execTrue(ctx context.Context, id string) error {
	job, err := b.d.Client.Exec(ctx, id, sandbox.ExecRequest{Command: []string{"/bin/true"}}, nil)
	if err == nil && job.ExitCode != 0 {
		err = fmt.Errorf("true: exit code %d", job.ExitCode)
	}
	return err
}

// exec measures the start of a program: directly inside the sandbox, and through every
// door.
func (b *bench) exec(ctx context.Context) error {
	return b.withSandbox(ctx, func(id string) error {
		floor, err := b.floor(ctx, id)
		if err != nil {
			return err
		}
		b.rows = append(b.rows, floor)
		target := "≤ 1.3 × floor: " + figures.Millis(floor.Percentile(50)*13/10)
		if err := b.time(ctx, "exec true, Go client, unix socket", target, 3*b.n, figures.Whole(func(ctx context.Context) error {
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

// floor measures, from inside, how long starting a program takes.
func (b *bench) floor(ctx context.Context, id string) (figures.Series, error) {
	s := figures.Series{Name: "floor: vfork, execve, wait of true, inside"}
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
		s.Values = append(s.Values, time.Duration(n))
	}
	return s, nil
}

func buildSpawn(ctx context.Context) (string, error) { return buildHelper(ctx, "spawn") }

// buildHelper builds a program to run inside.
func buildHelper(ctx context.Context, name string) (string, error) {
	f, err := os.CreateTemp("", name+"-")
	if err != nil {
		return "", err
	}
	f.Close()
	cmd := exec.CommandContext(ctx, "go", "build", "-o", f.Name(), "./test/bench/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return f.Name(), nil
}

func (b *bench) stdio() mcp.Transport {
	return &mcp.CommandTransport{Command: b.d.Command(context.Background(), "mcp")}
}

// mcpExec returns a call of sandbox_exec over a session that stays open.
func (b *bench) mcpExec(ctx context.Context, id string, transport mcp.Transport) figures.Timed {
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	session, err := client.Connect(ctx, transport, nil)
	return figures.Whole(func(ctx context.Context) error {
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
