package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

type topOptions struct {
	jsonOption
	Interval time.Duration
	Once     bool
	Sort     string
}

// AddFlags adds the options' flags.
func (o *topOptions) AddFlags(f *pflag.FlagSet) {
	f.DurationVarP(&o.Interval, "interval", "i", 2*time.Second, "time between two looks")
	f.BoolVar(&o.Once, "once", false, "look once; so does cove when its output is no terminal")
	f.StringVar(&o.Sort, "sort", "cpu", "order: cpu, memory or name")
	o.jsonOption.AddFlags(f)
}

func (a *app) topCommand() *cobra.Command {
	var opts topOptions
	cmd := &cobra.Command{
		Use: "top [SANDBOX]", Short: "Watch what sandboxes use, or the processes of one",
		Long: "Watch what sandboxes use, or what the processes of one use. The keys c, m and n choose the order\n" +
			"(processor, memory, name), q ends.",
		Example: "  cove top\n  cove top work\n  cove top --once --json",
		Args:    argsBetween(0, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runTop(cmd, opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runTop(cmd *cobra.Command, opts topOptions, args []string) error {
	if !slices.Contains([]string{"cpu", "memory", "name"}, opts.Sort) {
		return usageError(cmd, fmt.Errorf("top: --sort is cpu, memory or name"))
	}
	if opts.Interval < 200*time.Millisecond {
		return usageError(cmd, fmt.Errorf("top: --interval is at least 200ms"))
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	t := &top{a: a, c: c, opts: opts}
	if len(args) == 1 {
		t.sandbox = args[0]
	}
	console, live := a.Stdout.(*os.File)
	if opts.JSON || opts.Once || !live || !isTerminal(a.Stdout) {
		return t.once(cmd.Context())
	}
	return t.live(cmd.Context(), console)
}

// top shows what sandboxes use, or the processes of one.
type top struct {
	a       *app
	c       *client.Client
	opts    topOptions
	sandbox string
}

func (t *top) once(ctx context.Context) error {
	stats, err := t.stats(ctx)
	if err != nil {
		return err
	}
	if t.opts.JSON {
		return t.a.printJSON(itemList[sandbox.SandboxStats]{stats})
	}
	text, err := t.screen(ctx, stats)
	if err != nil {
		return err
	}
	return t.a.print(text)
}

func (t *top) stats(ctx context.Context) ([]sandbox.SandboxStats, error) {
	return allStats(ctx, t.c, sandbox.StatsRequest{Sandbox: t.sandbox})
}

// allStats tells what all sandboxes use that a request selects.
func allStats(ctx context.Context, c *client.Client, req sandbox.StatsRequest) ([]sandbox.SandboxStats, error) {
	return sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.SandboxStats], error) {
		req.Page = p
		return c.ListStats(ctx, req)
	})
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
	if in, ok := t.a.Stdin.(*os.File); ok && isTerminal(in) {
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
	tick := time.NewTicker(t.opts.Interval)
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
		t.opts.Sort = "cpu"
	case 'm':
		t.opts.Sort = "memory"
	case 'n':
		t.opts.Sort = "name"
	}
	return false
}

func (t *top) draw(ctx context.Context, console *os.File) error {
	stats, err := t.stats(ctx)
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

// screen is all there is to show.
func (t *top) screen(ctx context.Context, stats []sandbox.SandboxStats) (string, error) {
	var b bytes.Buffer
	sortStats(stats, t.opts.Sort)
	fmt.Fprintln(&b, topSummary(stats))
	fmt.Fprintln(&b)
	if err := statsTable(&b, stats); err != nil {
		return "", err
	}
	if t.sandbox == "" || len(stats) != 1 || stats[0].State != sandbox.StateRunning {
		return b.String(), nil
	}
	err := t.processes(ctx, &b)
	return b.String(), err
}

// statsTable writes a line for each sandbox.
func statsTable(b *bytes.Buffer, items []sandbox.SandboxStats) error {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SANDBOX\tNAME\tSTATE\tCPU\tMEMORY\tOF\tDISK\tPROCESSES\tNET IN\tNET OUT")
	for i := range items {
		s := &items[i]
		row := []string{s.ID, s.Name, string(s.State), "-", "-", "-", "-", "-", "-", "-"}
		if u := s.Stats; u != nil {
			row = []string{
				s.ID, s.Name, string(s.State), fmt.Sprintf("%.1f%%", s.CPUPercent), bytesText(u.MemoryBytes), bytesText(u.MemoryMaxBytes),
				bytesText(u.DiskBytes), fmt.Sprint(u.Processes), bytesText(u.NetworkInBytes), bytesText(u.NetworkOutBytes),
			}
		}
		for i := range row {
			if row[i] = cleanLine(row[i]); row[i] == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

func (t *top) processes(ctx context.Context, b *bytes.Buffer) error {
	list, err := sandbox.All(ctx, sandbox.Of(t.sandbox, t.c.ListProcesses))
	if err != nil {
		return err
	}
	by := t.opts.Sort
	if by == "name" {
		by = "pid"
	}
	sortProcesses(list, by)
	fmt.Fprintln(b)
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PID\tPARENT\tUSER\tSTATE\tCPU\tMEMORY\tTIME\tOF\tCOMMAND")
	for i := range list {
		row := processRow(&list[i])
		for i := range row {
			row[i] = cleanLine(row[i])
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
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
	return fmt.Sprintf("%s  %d running, %d paused, %.1f%% of a processor, %s of memory", time.Now().Format(time.TimeOnly), running, paused, cpu, bytesText(memory))
}

func sortStats(items []sandbox.SandboxStats, by string) {
	memory := func(s *sandbox.SandboxStats) int64 {
		if s.Stats == nil {
			return -1
		}
		return s.Stats.MemoryBytes
	}
	slices.SortStableFunc(items, func(a, b sandbox.SandboxStats) int {
		switch {
		case by == "cpu" && a.CPUPercent != b.CPUPercent:
			if a.CPUPercent > b.CPUPercent {
				return -1
			}
			return 1
		case by == "memory" && memory(&a) != memory(&b):
			if memory(&a) > memory(&b) {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name+a.ID, b.Name+b.ID)
	})
}
