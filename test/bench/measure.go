package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// series holds the measurements of one thing.
type series struct {
	name   string
	target string
	values []time.Duration
	// bytes, if positive, were moved by each run: the rate is printed too.
	bytes int64
	// note replaces the figures.
	note string
}

// timed does something once, and returns how long the measured part took.
type timed func(context.Context) (time.Duration, error)

// whole measures all of do.
func whole(do func(context.Context) error) timed {
	return func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		err := do(ctx)
		return time.Since(began), err
	}
}

// measure runs do n times, after a warm-up run that is not counted.
func measure(ctx context.Context, name, target string, n int, do timed) (series, error) {
	s := series{name: name, target: target}
	for i := range n + 1 {
		took, err := do(ctx)
		if err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		if i > 0 {
			s.values = append(s.values, took)
		}
	}
	return s, nil
}

// percentile returns the p-th percentile, by the nearest-rank method.
func (s series) percentile(p int) time.Duration {
	if len(s.values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.values))
	rank := (p*len(sorted) + 99) / 100
	return sorted[max(rank, 1)-1]
}

// report prints the table.
func report(w io.Writer, rows []series) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "what\truns\tp50\tp95\tp99\trate\ttarget\t")
	for _, s := range rows {
		if s.note != "" {
			fmt.Fprintf(tw, "%s\t\t%s\t\t\t\t%s\t\n", s.name, s.note, s.target)
			continue
		}
		rate := ""
		if s.bytes > 0 {
			rate = fmt.Sprintf("%.0f MB/s", float64(s.bytes)/1e6/s.percentile(50).Seconds())
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t\n", s.name, len(s.values),
			ms(s.percentile(50)), ms(s.percentile(95)), ms(s.percentile(99)), rate, s.target)
	}
	return tw.Flush()
}

func ms(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}
