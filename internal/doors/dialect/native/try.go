package native

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

type tryArgs struct {
	sandboxRef
	sandbox.TryRequest
	// Commands are shell lines with the same environment, directory and user.
	Commands []string          `json:"commands"`
	Env      map[string]string `json:"env,omitempty"`
	WorkDir  string            `json:"workdir,omitempty"`
	User     string            `json:"user,omitempty"`
}

// attemptView is an attempt in a result.
type attemptView struct {
	Index      int              `json:"index"`
	SandboxID  string           `json:"sandbox_id"`
	ExitCode   *int             `json:"exit_code,omitempty"`
	Signal     string           `json:"signal,omitempty"`
	EndCause   sandbox.EndCause `json:"end_cause,omitempty"`
	Error      string           `json:"error,omitempty"`
	DurationMS int64            `json:"duration_ms"`
	Stdout     string           `json:"stdout"`
	Stderr     string           `json:"stderr"`
	Truncated  bool             `json:"truncated"`
	Binary     bool             `json:"binary,omitempty"`
	Changes    *diffView        `json:"changes,omitempty"`
	Kept       bool             `json:"kept"`

	stdoutBytes, stderrBytes int64
}

type tryView struct {
	Attempts []attemptView `json:"attempts"`
	Picked   *int          `json:"picked,omitempty"`
	Merge    *mergeView    `json:"merge,omitempty"`
	Hint     string        `json:"hint,omitempty"`
}

func tryCommands(ctx context.Context, c *dialect.Call, in tryArgs) (*reply[tryView], error) {
	r := in.TryRequest
	for _, line := range in.Commands {
		r.Commands = append(r.Commands, sandbox.TryCommand{Shell: line, Env: in.Env, WorkDir: in.WorkDir, User: in.User})
	}
	c.Status("forking the sandbox and running the commands")
	res, err := c.Service.Try(ctx, in.Sandbox, r, func(e sandbox.TryEvent) error {
		c.Status(fmt.Sprintf("%d of %d attempts have ended; the last is attempt %d: %s", e.Done, e.Total, e.Attempt.Index, viewAttempt(&e.Attempt, 0).outcome()))
		return nil
	})
	if err != nil {
		return nil, err
	}
	v, err := viewTry(res)
	if err != nil {
		return nil, err
	}
	v.Hint = tryHint(&v, in.Pick)
	return answer(v.text(), v)
}

// viewTry returns as much of a try's result as fits into maxResultBytes of
// JSON.
func viewTry(res *sandbox.TryResult) (tryView, error) {
	// JSON escapes make a text longer than its bytes, so try smaller and smaller
	// budgets until the result fits.
	for budget := maxResultBytes; ; budget = budget * 3 / 4 {
		v, err := buildTry(res, budget)
		if err != nil {
			return tryView{}, err
		}
		n, err := encodedSize(v)
		if err != nil {
			return tryView{}, err
		}
		if n+hintRoom <= maxResultBytes || budget < 1<<10 {
			return v, nil
		}
	}
}

// hintRoom is for the hint, which is added last.
const hintRoom = 512

// buildTry divides a budget of bytes among streams, changes and merge.
func buildTry(res *sandbox.TryResult, budget int) (tryView, error) {
	v := tryView{Attempts: make([]attemptView, 0, len(res.Attempts)), Picked: res.Picked}
	var streams, diffs []int
	for i := range res.Attempts {
		a := &res.Attempts[i]
		streams = append(streams, len(a.Stdout), len(a.Stderr))
		if a.Changes != nil {
			n, err := encodedSize(a.Changes.Changes)
			if err != nil {
				return tryView{}, err
			}
			diffs = append(diffs, n+512)
		}
	}
	perStream, perDiff := min(share(streams, budget/2), maxStreamBytes), min(share(diffs, budget/4), maxResultBytes)
	for i := range res.Attempts {
		a := viewAttempt(&res.Attempts[i], perStream)
		if d := res.Attempts[i].Changes; d != nil {
			changes, err := viewDiff(d, perDiff)
			if err != nil {
				return tryView{}, err
			}
			a.Changes = &changes
		}
		v.Attempts = append(v.Attempts, a)
	}
	if res.Merge != nil {
		m, err := viewMerge(res.Merge, budget/8)
		if err != nil {
			return tryView{}, err
		}
		v.Merge = &m
	}
	return v, nil
}

// share returns the largest limit for each of several sizes with which their sum is at
// most total: what small ones leave unused, the others get.
func share(sizes []int, total int) int {
	sizes = slices.Sorted(slices.Values(sizes))
	for i, size := range sizes {
		rest := len(sizes) - i
		if size > total/rest {
			return total / rest
		}
		total -= size
	}
	return math.MaxInt
}

// viewAttempt returns an attempt, without its changes, with at most limit
// bytes of each stream.
func viewAttempt(a *sandbox.Attempt, limit int) attemptView {
	v := project[attemptView](a)
	v.Error, v.DurationMS, v.Truncated = shorten([]string{a.Error}), max(0, a.DurationMS), a.OutputTruncated
	v.stdoutBytes, v.stderrBytes = int64(len(a.Stdout)), int64(len(a.Stderr))
	if a.Error == "" {
		v.ExitCode = &a.ExitCode
	}
	note := omission
	if a.OutputTruncated { // more is missing than can be counted here
		note = func(int64) string { return "\n[… output left out …]\n" }
	}
	for _, s := range []struct {
		from string
		to   *string
	}{{a.Stdout, &v.Stdout}, {a.Stderr, &v.Stderr}} {
		kept := newCapture(limit)
		kept.write([]byte(s.from))
		got := kept.result(note)
		*s.to = got.text
		v.Truncated, v.Binary = v.Truncated || got.truncated, v.Binary || got.binary
	}
	return v
}

// tryHint says what to do next, or nothing.
func tryHint(v *tryView, pick string) string {
	var hints []string
	if v.Merge != nil && !v.Merge.Merged {
		alive := v.Picked != nil && slices.ContainsFunc(v.Attempts, func(a attemptView) bool { return a.Index == *v.Picked && a.Kept })
		if !alive {
			v.Merge.Hint = `try again with policy "ours" or "theirs", or with merge "whole"`
		}
	}
	if pick == sandbox.PickFirstSuccess && v.Picked == nil {
		hints = append(hints, "no attempt succeeded, so nothing was merged")
	}
	if slices.ContainsFunc(v.Attempts, func(a attemptView) bool { return a.EndCause == sandbox.EndTimeout }) {
		hints = append(hints, "allow more time with timeout_ms, or use sandbox_fork and sandbox_exec for long work")
	}
	if slices.ContainsFunc(v.Attempts, func(a attemptView) bool { return a.Truncated }) {
		hints = append(hints, "output is left out; print less, or set keep and read it with job_list and job_get of the fork")
	}
	return strings.Join(hints, "; ")
}

// outcome describes how an attempt ended.
func (a attemptView) outcome() string {
	if a.ExitCode == nil {
		return a.Error
	}
	s := fmt.Sprintf("exit code %d", *a.ExitCode)
	switch {
	case a.Signal != "" && a.EndCause != "" && a.EndCause != sandbox.EndSignal:
		s += fmt.Sprintf(" (signal %s, %s)", a.Signal, a.EndCause)
	case a.Signal != "":
		s += fmt.Sprintf(" (signal %s)", a.Signal)
	}
	return s
}

func (v tryView) text() string {
	var b strings.Builder
	var good []string
	for _, a := range v.Attempts {
		if a.ExitCode != nil && *a.ExitCode == 0 {
			good = append(good, strconv.Itoa(a.Index))
		}
	}
	fmt.Fprintf(&b, "%s, exit code 0 in %d", plural(int64(len(v.Attempts)), "attempt"), len(good))
	if len(good) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(good, ", "))
	}
	b.WriteString("\n")
	if v.Picked != nil {
		fmt.Fprintf(&b, "Attempt %d was picked. ", *v.Picked)
	}
	if v.Merge != nil {
		b.WriteString(v.Merge.text())
	} else {
		b.WriteString("Nothing was merged back.\n")
	}
	for _, a := range v.Attempts {
		fmt.Fprintf(&b, "\nattempt %d: %s after %s", a.Index, a.outcome(), seconds(a.DurationMS))
		if a.Kept {
			fmt.Fprintf(&b, ", kept as %s", a.SandboxID)
		}
		b.WriteByte('\n')
		section(&b, "stdout", a.Stdout, a.stdoutBytes, "")
		section(&b, "stderr", a.Stderr, a.stderrBytes, "")
		if a.Changes != nil && a.Changes.Added+a.Changes.Removed+a.Changes.Modified > 0 {
			fmt.Fprintf(&b, "files: %s\n", a.Changes.counts())
			a.Changes.list(&b)
		}
	}
	field(&b, "\nhint: %s\n", v.Hint)
	return b.String()
}
