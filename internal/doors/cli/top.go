package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) topCommand() *cobra.Command {
	var t top
	once := false
	return a.make(command{
		Use: "top [SANDBOX]", Short: "Watch the resource usage of sandboxes",
		Long: "Watch the resource usage of all sandboxes, or of one sandbox and its processes. Press c, m or n to sort by\n" +
			"CPU, memory or name, and q to quit.",
		Example: "  cove top\n  cove top work\n  cove top --once --json",
		Flags: func(f *pflag.FlagSet) {
			f.DurationVarP(&t.interval, "interval", "i", 2*time.Second, "Refresh interval")
			f.BoolVar(&once, "once", false, "Print once and exit; this is the default if the output is not a terminal")
			f.StringVar(&t.sort, "sort", "cpu", "Sort order: cpu, memory or name")
		},
		Do: action{json: true, run: func(ctx context.Context, c *call) error {
			if !slices.Contains([]string{"cpu", "memory", "name"}, t.sort) {
				return c.misuse("top: --sort must be cpu, memory or name")
			}
			if t.interval < 200*time.Millisecond {
				return c.misuse("top: --interval must be at least 200ms")
			}
			t.call, t.sandbox = c, c.arg(0)
			console, live := c.Stdout.(*os.File)
			if c.json || once || !live || !isTerminal(c.Stdout) {
				return list(t.print, t.stats).run(ctx, c)
			}
			return t.live(ctx, console)
		}},
	})
}

// top shows what sandboxes use, or the processes of one.
type top struct {
	*call
	sort     string
	interval time.Duration
	sandbox  string
}

func (t *top) print(c *call, stats []sandbox.SandboxStats) error {
	text, err := t.screen(c.cmd.Context(), stats)
	if err != nil {
		return err
	}
	return c.print(text)
}

func (t *top) stats(ctx context.Context, _ *call) ([]sandbox.SandboxStats, error) {
	return allStats(ctx, t.client, sandbox.StatsRequest{Sandbox: t.sandbox})
}

// allStats returns what all sandboxes of a request use.
func allStats(ctx context.Context, c *client.Client, req sandbox.StatsRequest) ([]sandbox.SandboxStats, error) {
	return sandbox.All(ctx, paged(&req, &req.Page, c.ListStats))
}

const (
	altScreen  = "\x1b[?1049h\x1b[?25l"
	mainScreen = "\x1b[?25h\x1b[?1049l"
	goHome     = "\x1b[H"
	clearLine  = "\x1b[K"
	clearRest  = "\x1b[J"
)

// live redraws the screen until q is pressed or ctx ends.
func (t *top) live(ctx context.Context, console *os.File) error {
	keys := make(chan byte, 8)
	if in, ok := t.Stdin.(*os.File); ok && isTerminal(in) {
		restore, err := rawMode(in)
		if err != nil {
			return err
		}
		defer restore()
		// Reading a terminal cannot be interrupted: the goroutine ends with the
		// program at the latest.
		go readKeys(in, keys)
	}
	fmt.Fprint(console, altScreen)
	defer fmt.Fprint(console, mainScreen)
	tick := time.NewTicker(t.interval)
	defer tick.Stop()
	for {
		if err := t.draw(ctx, console); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case k, ok := <-keys:
			if !ok {
				keys = nil
				continue
			}
			if t.key(k) {
				return nil
			}
		}
	}
}

func readKeys(in *os.File, keys chan<- byte) {
	defer close(keys)
	var b [16]byte
	for {
		n, err := in.Read(b[:])
		for _, k := range b[:n] {
			keys <- k
		}
		if err != nil {
			return
		}
	}
}

// key reports whether a key ends the view.
func (t *top) key(k byte) bool {
	switch k {
	case 'q', 'Q', 3, 4: // ^C and ^D
		return true
	case 'c':
		t.sort = "cpu"
	case 'm':
		t.sort = "memory"
	case 'n':
		t.sort = "name"
	}
	return false
}

func (t *top) draw(ctx context.Context, console *os.File) error {
	stats, err := t.stats(ctx, t.call)
	if err != nil {
		return err
	}
	text, err := t.screen(ctx, stats)
	if err != nil {
		return err
	}
	width, height, err := term.GetSize(int(console.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > height-1 {
		lines = lines[:height-1]
	}
	var b strings.Builder
	b.WriteString(goHome)
	for _, line := range lines {
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width])
		}
		b.WriteString(line + clearLine + "\r\n")
	}
	b.WriteString(clearRest)
	_, err = console.WriteString(b.String())
	return err
}

// screen returns the whole text to show.
func (t *top) screen(ctx context.Context, stats []sandbox.SandboxStats) (string, error) {
	sortStats(stats, t.sort)
	text, err := tableText(statsHeadings, cells(stats, statsRow), 0)
	if err != nil {
		return "", err
	}
	text = topSummary(stats) + "\n\n" + text
	if t.sandbox == "" || len(stats) != 1 || stats[0].State != sandbox.StateRunning {
		return text, nil
	}
	processes, err := sandbox.All(ctx, sandbox.Of(t.sandbox, t.client.ListProcesses))
	if err != nil {
		return "", err
	}
	sortProcesses(processes, t.sort) // by name is by number
	table, err := tableText(processHeadings, cells(processes, processRow), 0)
	return text + "\n" + table, err
}

func topSummary(items []sandbox.SandboxStats) string {
	running, paused, cpu, memory := 0, 0, 0.0, int64(0)
	for i := range items {
		switch items[i].State {
		case sandbox.StateRunning:
			running++
		case sandbox.StatePaused:
			paused++
		}
		if u := items[i].Stats; u != nil {
			cpu += items[i].CPUPercent
			memory += u.MemoryBytes
		}
	}
	return fmt.Sprintf("%s  %d running, %d paused, CPU %.1f%%, memory %s", time.Now().Format(time.TimeOnly), running, paused, cpu, bytesText(memory))
}

func sortStats(items []sandbox.SandboxStats, by string) {
	memory := func(s *sandbox.SandboxStats) int64 {
		if s.Stats == nil {
			return -1
		}
		return s.Stats.MemoryBytes
	}
	slices.SortStableFunc(items, func(a, b sandbox.SandboxStats) int {
		order := 0
		switch by {
		case "cpu":
			order = cmp.Compare(b.CPUPercent, a.CPUPercent)
		case "memory":
			order = cmp.Compare(memory(&b), memory(&a))
		}
		return cmp.Or(order, strings.Compare(a.Name+a.ID, b.Name+b.ID))
	})
}
