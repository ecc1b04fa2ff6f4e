package costs

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/machine"
)

var update = flag.Bool("update", false, "write the computed part of docs/costs.md")

// figures are measured ones of GOALS.md. Memory and disk are in MB, times in ms.
type figures struct {
	idle, server, pausedIdle, paused100, program, exec, run float64
}

// rows of GOALS.md are found by how they begin, and figures by an expression in them.
func read(t *testing.T) (f figures) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "GOALS.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		begin, figure string
		to            *float64
	}{
		{"| private memory of an idle sandbox", `([\d.]+) MB \|$`, &f.idle},
		{"| an idle server:", `\| ([\d.]+) MiB, one process`, &f.server},
		{"| disk for a paused sandbox:", `\| ([\d.]+) MB;`, &f.pausedIdle},
		{"| disk for a paused sandbox:", `; ([\d.]+) MB \|$`, &f.paused100},
		{"| object store for a build's program", `([\d.]+) MB \|$`, &f.program},
		{"| exec of `true`, Go client, one at a time |", `([\d.]+) \|$`, &f.exec},
		{"| `print(6*7)`, four contexts at once |", `([\d.]+) \|$`, &f.run},
	} {
		found := false
		for line := range strings.Lines(string(data)) {
			line = strings.TrimSpace(line)
			if !strings.HasPrefix(line, r.begin) {
				continue
			}
			m := regexp.MustCompile(r.figure).FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("GOALS.md has no figure %s in %q", r.figure, line)
			}
			if *r.to, err = strconv.ParseFloat(m[1], 64); err != nil {
				t.Fatal(err)
			}
			found = true
		}
		if !found {
			t.Fatalf("GOALS.md has no row that begins with %q", r.begin)
		}
	}
	return f
}

const (
	many, busy = 1000, 100
	// programs is the memory of what runs in a busy sandbox, in MB: an assumption.
	programs = 500.0
	// target is what the autoscaler keeps in use of a Pod's memory.
	target = 0.7
	mb     = 1e6
)

// room is what sandboxes can have of a Pod with a limit in GiB, in MB.
func room(gib int64) float64 {
	limit := gib << 30
	return (target*float64(limit) - float64(machine.Memory{Total: limit}.Floor())) / mb
}

func pods(gib int64, each, n float64) string {
	in := math.Floor(room(gib) / each)
	return fmt.Sprintf("%.0f Pods, %.0f each", math.Ceil(n/in), in)
}

// gb writes MB as GB.
func gb(v float64) string { return strconv.FormatFloat(math.Round(v/100)/10, 'f', -1, 64) + " GB" }

func text(f figures) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	work := f.idle + programs
	line("| | Memory | Processors | Disk | Object store |")
	line("|---|---|---|---|---|")
	line("| %d idle | %d × %.1f MB = **%s** | %d × less than 0.05 %% = less than %.1f | what they write | none |", many, many, f.idle, gb(many*f.idle), many, many*0.0005)
	line("| %d paused, idle | none | none | %d × %.1f MB = **%s** | the same at most, and %.0f MB for each build of Cove |", many, many, f.pausedIdle, gb(many*f.pausedIdle), f.program)
	line("| %d paused, 100 MiB in use | none | none | %d × %.0f MB = **%s** | the same at most, and %.0f MB for each build of Cove |", many, many, f.paused100, gb(many*f.paused100), f.program)
	line("| %d busy, %.0f MB in use | %d × (%.1f + %.0f) MB = **%s** | for a command each second: %d × %.1f ms = **%.1f**; for a run of code: %d × %.1f ms = **%.1f**; and what the programs need | what they write | none |",
		busy, programs, busy, f.idle, programs, gb(busy*work), busy, f.exec, busy*f.exec/1000, busy, f.run, busy*f.run/1000)
	line("| the server | %.0f MiB when idle and without sandboxes; not measured with many | | records and templates | |", f.server)
	line("")
	line("In Kubernetes, sandboxes can have %.0f %% of the memory limit of a Pod, which the [autoscaler](kubernetes.md#scale-by-free-room) keeps", 100*target)
	line("in use, less the [floor](server.md#capacity). The last two columns give the number of Pods, and how many sandboxes each holds:")
	line("")
	line("| Limit of a Pod | Room | %d idle | %d busy |", many, busy)
	line("|---|---|---|---|")
	for _, gib := range []int64{8, 32, 64} {
		floor := float64(machine.Memory{Total: gib << 30}.Floor()) / mb
		line("| %d GiB | %.1f × %.0f MB − %.0f MB = %.0f MB | %s | %s |", gib, target, float64(gib<<30)/mb, floor, room(gib), pods(gib, f.idle, many), pods(gib, work, busy))
	}
	return b.String()
}

// TestCosts compares the page with what follows from GOALS.md.
func TestCosts(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "costs.md")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "## What they need\n\n", "\n## "
	before, rest, found := strings.Cut(string(data), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no section %q with another after it", path, strings.TrimSpace(begin))
	}
	want := before + begin + text(read(t)) + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(data) {
		t.Errorf("docs/costs.md is not what follows from GOALS.md; run go test ./test/costs -update:\n%s", cmp.Diff(string(data), want))
	}
}
