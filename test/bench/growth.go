package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/cove-sh/cove/internal/machine/cgroup"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/sandbox"
)

// sizes is a flag: whole numbers separated by commas.
type sizes []int64

// String implements flag.Value.
func (s *sizes) String() string {
	var out []string
	for _, n := range *s {
		out = append(out, strconv.FormatInt(n, 10))
	}
	return strings.Join(out, ",")
}

// Set implements flag.Value.
func (s *sizes) Set(text string) error {
	*s = nil
	for field := range strings.SplitSeq(text, ",") {
		if field == "" {
			continue
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("%q is not a whole number from 0", field)
		}
		*s = append(*s, n)
	}
	return nil
}

// growthConfig says which loads to measure the growth of forks with.
type growthConfig struct {
	memory, files sizes // megabytes
	forks         sizes // children per fork
	// others are programs, separated by commas, to measure in turn with the first.
	others string
	svg    string // file to draw the first number of forks to, unless empty
}

// load is the size of a sandbox's content, in bytes: objects of a Python interpreter, and a
// file that it has written.
type load struct {
	name          string
	memory, files int64
}

func (c *growthConfig) loads() []load {
	var all []load
	for _, mb := range c.memory {
		all = append(all, load{fmt.Sprintf("%d MB of memory", mb), mb * 1e6, 0})
	}
	for _, mb := range c.files {
		all = append(all, load{fmt.Sprintf("%d MB of written files", mb), 0, mb * 1e6})
	}
	return all
}

// The measurements of each load, in the order of the table's columns.
const (
	gStall  = "stall"
	gFirst  = "first child"
	gLast   = "last child"
	gTouch  = "first child's data"
	gMemory = "memory per child"
	gCPU    = "processor per child"
	gPause  = "pause"
	gResume = "resume"
	gBack   = "its data"
)

var growthColumns = []string{gStall, gFirst, gLast, gTouch, gMemory, gCPU, gPause, gResume, gBack}

// columns are the values of a row's columns.
type columns map[string][]float64

func (c columns) add(column string, v float64)        { c[column] = append(c[column], v) }
func (c columns) took(column string, d time.Duration) { c.add(column, float64(d.Microseconds())/1000) }
func (c columns) median(column string) (float64, bool) {
	values := slices.Sorted(slices.Values(c[column]))
	if len(values) == 0 {
		return 0, false
	}
	return values[len(values)/2], true
}

// growth measures how fork, pause and resume grow with what a sandbox holds and with the
// number of children. It measures one program, or several in turn.
func (b *bench) growth(ctx context.Context) error {
	daemons := []*covetest.Daemon{b.d}
	for path := range strings.SplitSeq(b.grow.others, ",") {
		if path == "" {
			continue
		}
		d, err := covetest.Launch(ctx, covetest.Options{Dev: true, Binary: path, Args: b.net.Args()})
		if err != nil {
			return err
		}
		defer func() { _ = d.Shutdown(context.WithoutCancel(ctx)) }()
		daemons = append(daemons, d)
	}
	gap, err := buildHelper(ctx, "gap")
	if err != nil {
		return err
	}
	defer os.Remove(gap)
	var programs []string
	for _, d := range daemons {
		programs = append(programs, d.Binary)
	}
	drawn := newPlot(programs)
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "holds\tforks\t%s\t\n", strings.Join(growthColumns, "\t"))
	for _, l := range b.grow.loads() {
		rows := make([]map[int64]columns, len(daemons))
		for i := range rows {
			rows[i] = map[int64]columns{0: {}}
			for _, n := range b.grow.forks {
				rows[i][n] = columns{}
			}
		}
		for round := range max(1, b.n/10) {
			for turn := range daemons {
				i := (round + turn) % len(daemons) // each is first and last equally often
				d := daemons[i]
				g := grower{bench: &bench{n: b.n, d: d}, load: l, gap: gap, rows: rows[i]}
				if err := g.measure(ctx, b.grow.forks); err != nil {
					return fmt.Errorf("%s, %s: %w", l.name, d.Binary, err)
				}
			}
		}
		for _, n := range append(slices.Clone(b.grow.forks), 0) {
			printGrowth(tw, l.name, n, rows)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
		var first []columns
		for _, r := range rows {
			first = append(first, r[b.grow.forks[0]])
		}
		drawn.add(l, first)
	}
	if b.grow.svg == "" {
		return nil
	}
	return drawn.write(b.grow.svg)
}

// printGrowth writes a row, with the figures of all programs side by side. Zero forks means
// a pause and a resume.
func printGrowth(tw *tabwriter.Writer, name string, n int64, rows []map[int64]columns) {
	fmt.Fprintf(tw, "%s\t%d\t", name, n)
	for _, column := range growthColumns {
		var cells []string
		for _, r := range rows {
			if v, ok := r[n].median(column); ok {
				cells = append(cells, strconv.FormatFloat(v, 'f', 0, 64))
			} else if column == gFirst && n > 0 {
				cells = append(cells, "no room")
			}
		}
		unit := ""
		if len(cells) > 0 {
			unit = " ms"
			if column == gMemory {
				unit = " MB"
			}
		}
		fmt.Fprintf(tw, "%s%s\t", strings.Join(cells, " / "), unit)
	}
	fmt.Fprintln(tw)
}

// grower measures one sandbox.
type grower struct {
	*bench
	load load
	gap  string // the program
	rows map[int64]columns
	id   string
}

func (g *grower) measure(ctx context.Context, forks sizes) error {
	s, err := g.d.Client.Create(ctx, sandbox.CreateRequest{Resources: large})
	if err != nil {
		return err
	}
	g.id = s.ID
	defer g.d.Client.Kill(context.WithoutCancel(ctx), s.ID)
	fill := fmt.Sprintf("import os\nheap = [os.urandom(1000000) for _ in range(%d)]", g.load.memory/1e6)
	if g.load.files > 0 {
		fill += fmt.Sprintf("\nwith open('/workspace/load', 'wb') as f:\n  for _ in range(%d): f.write(os.urandom(1000000))", g.load.files/1e6)
	}
	if err := g.python(ctx, s.ID, fill); err != nil {
		return err
	}
	for _, n := range forks {
		if err := g.family(ctx, int(n)); err != nil {
			return fmt.Errorf("fork n=%d: %w", n, err)
		}
	}
	if err := figures.Rest(ctx); err != nil {
		return err
	}
	pause, resume, err := g.pauseAndResume(ctx, s.ID)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := g.touch(ctx, s.ID); err != nil {
		return err
	}
	row := g.rows[0]
	row.took(gPause, pause)
	row.took(gResume, resume)
	row.took(gBack, resume+time.Since(began))
	return nil
}

// python runs code, which must succeed.
func (g *grower) python(ctx context.Context, id, code string) error {
	r, err := g.d.Client.RunCode(ctx, id, sandbox.RunCodeRequest{Language: sandbox.Python, Code: code, TimeoutMS: 600_000}, nil)
	if err == nil && r.Error != nil {
		err = errors.New(r.Error.Message)
	}
	return err
}

// touch reads one byte in the middle of the sandbox's load.
func (g *grower) touch(ctx context.Context, id string) error {
	code := "pass"
	if g.load.memory > 0 {
		code = "heap[len(heap)//2][500000]"
	}
	if g.load.files > 0 {
		code += fmt.Sprintf("\nwith open('/workspace/load', 'rb') as f:\n  f.seek(%d)\n  f.read(1)", g.load.files/2)
	}
	return g.python(ctx, id, code)
}

// family measures a fork into n children.
func (g *grower) family(ctx context.Context, n int) error {
	for range min(n, 4) { // standbys for the next children are made meanwhile
		if err := figures.Rest(ctx); err != nil {
			return err
		}
	}
	probe, err := g.probe(ctx)
	if err != nil {
		return err
	}
	defer probe.end(context.WithoutCancel(ctx))
	began := time.Now()
	list, err := g.d.Client.Fork(ctx, g.id, sandbox.ForkRequest{Count: n})
	if sandbox.CodeOf(err) == sandbox.CodeQuotaExceeded {
		return nil // the row shows that
	}
	if err != nil {
		return err
	}
	defer g.killAll(context.WithoutCancel(ctx), list.Items)
	answered := make([]time.Duration, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	var stall time.Duration
	var probed error
	// Do it at once: later the probe also sees the time lost to the children.
	wg.Go(func() { stall, probed = probe.longest(ctx) })
	for i, c := range list.Items {
		wg.Go(func() {
			errs[i] = g.execTrue(ctx, c.ID)
			answered[i] = time.Since(began)
		})
	}
	wg.Wait()
	if err := errors.Join(append(errs, probed)...); err != nil {
		return err
	}
	row := g.rows[int64(n)]
	row.took(gStall, stall)
	row.took(gFirst, slices.Min(answered))
	row.took(gLast, slices.Max(answered))
	if err := g.touch(ctx, list.Items[0].ID); err != nil {
		return err
	}
	row.took(gTouch, time.Since(began))
	for range 2 {
		if err := figures.Rest(ctx); err != nil {
			return err
		}
	}
	for _, c := range list.Items {
		used := charged(g.d, c.ID)
		if used.MemoryBytes > 0 {
			row.add(gMemory, float64(used.MemoryBytes)/1e6)
		}
		if used.CPUNanos > 0 {
			row.took(gCPU, time.Duration(used.CPUNanos))
		}
	}
	return nil
}

func (g *grower) killAll(ctx context.Context, children []sandbox.Sandbox) {
	var wg sync.WaitGroup
	for _, c := range children {
		wg.Go(func() { _, _ = g.d.Client.Kill(ctx, c.ID) })
	}
	wg.Wait()
}

// charged returns the usage charged to a sandbox's cgroup, including its time as a standby;
// zero if there is no cgroup.
func charged(d *covetest.Daemon, id string) cgroup.Stats {
	data, err := os.ReadFile(filepath.Join(d.StateDir, "engine", "cells", id, "origin.json"))
	if err != nil {
		return cgroup.Stats{}
	}
	var origin struct {
		Group string `json:"group"`
	}
	if json.Unmarshal(data, &origin) != nil {
		return cgroup.Stats{}
	}
	group, err := cgroup.Open(origin.Group)
	if err != nil {
		return cgroup.Stats{}
	}
	st, _ := group.Stats()
	return st
}

// probe is the program gap running in a sandbox.
type probe struct {
	g    *grower
	job  string
	seen int64
}

// probe starts a probe.
func (g *grower) probe(ctx context.Context) (*probe, error) {
	f, err := os.Open(g.gap)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := g.d.Client.WriteFile(ctx, g.id, sandbox.WriteFileRequest{Path: "/workspace/gap", Mode: "0755"}, f); err != nil {
		return nil, err
	}
	job, err := g.d.Client.Exec(ctx, g.id, sandbox.ExecRequest{Command: []string{"/workspace/gap"}, Background: true, TimeoutMS: -1}, nil)
	if err != nil {
		return nil, err
	}
	p := &probe{g: g, job: job.ID}
	if err := figures.Rest(ctx); err != nil {
		return nil, err
	}
	_, err = p.longest(ctx)
	return p, err
}

// longest returns the longest stall since the last call.
func (p *probe) longest(ctx context.Context) (time.Duration, error) {
	next, longest, err := p.g.gaps(ctx, p.g.id, p.job, p.seen)
	p.seen = next
	return longest, err
}

func (p *probe) end(ctx context.Context) {
	_, _ = p.g.d.Client.SignalJob(ctx, p.g.id, p.job, "KILL", 0)
}
