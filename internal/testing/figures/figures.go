// Package figures measures how long things take, and prints the 50th, 95th and 99th
// percentile.
package figures

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Series holds the measurements of one thing.
type Series struct {
	Name string
	// Target is what GOALS.md promises, if it does.
	Target string
	Values []time.Duration
	// Bytes, if positive, were moved by each run: the rate is printed too.
	Bytes int64
	// Note replaces the figures.
	Note string
}

// Timed does something once, and returns how long the measured part took.
type Timed func(context.Context) (time.Duration, error)

// Whole measures all of do.
func Whole(do func(context.Context) error) Timed {
	return func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		err := do(ctx)
		return time.Since(began), err
	}
}

// Measure runs do n times, after a warm-up run that is not counted. With an error, the
// result has what was measured until then.
func Measure(ctx context.Context, name, target string, n int, do Timed) (Series, error) {
	s := Series{Name: name, Target: target}
	for i := range n + 1 {
		took, err := do(ctx)
		if err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		if i > 0 {
			s.Values = append(s.Values, took)
		}
	}
	return s, nil
}

// Rest waits as long as an agent might think between two calls, so that what is kept ready
// can be made anew.
func Rest(ctx context.Context) error { return Pause(ctx, 500*time.Millisecond) }

// Pause waits, or returns the error of a context that has ended.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Percentile returns the p-th percentile, by the nearest-rank method, or 0 if nothing was
// measured.
func (s Series) Percentile(p int) time.Duration {
	if len(s.Values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.Values))
	rank := (p*len(sorted) + 99) / 100
	return sorted[max(rank, 1)-1]
}

// Print writes a table of the rows.
func Print(w io.Writer, rows []Series) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "what\truns\tp50\tp95\tp99\trate\ttarget\t")
	for _, s := range rows {
		if s.Note != "" {
			fmt.Fprintf(tw, "%s\t\t%s\t\t\t\t%s\t\n", s.Name, s.Note, s.Target)
			continue
		}
		rate := ""
		if s.Bytes > 0 {
			rate = fmt.Sprintf("%.0f MB/s", float64(s.Bytes)/1e6/s.Percentile(50).Seconds())
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t\n", s.Name, len(s.Values),
			Millis(s.Percentile(50)), Millis(s.Percentile(95)), Millis(s.Percentile(99)), rate, s.Target)
	}
	return tw.Flush()
}

// Millis formats a time as milliseconds.
func Millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}
