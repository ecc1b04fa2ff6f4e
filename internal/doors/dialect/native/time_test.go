package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// The first 512 characters of the instructions, which is all that some clients keep,
// are complete sentences and say what the tools are for.
func TestInstructionsBegin(t *testing.T) {
	intro, _, found := strings.Cut(New().Server("1").Instructions, "\nMore:\n")
	if !found || len(intro) > 512 {
		t.Errorf("the introduction has %d bytes", len(intro))
	}
	for _, want := range []string{"sandbox_create", "sandbox_exec", "sandbox_kill", "sandbox_fork", "sandbox_try"} {
		if !strings.Contains(intro, want) {
			t.Errorf("the introduction lacks %s", want)
		}
	}
}

// huge is the most that a service may return of each verb, with names and
// output that grow when they are encoded.
type huge struct{ sandbox.Service }

const nasty = "\x1b<\"\u2028é"

// hugeDiff returns a diff with patches of this many lines.
func hugeDiff(lines int) *sandbox.Diff {
	d := &sandbox.Diff{Added: 100_000}
	for i := range 1000 {
		d.Changes = append(d.Changes, sandbox.Change{
			Path: fmt.Sprintf("/%s/%d", strings.Repeat(nasty, 30), i), Kind: sandbox.ChangeAdded, Type: sandbox.TypeFile,
			Patch: strings.Repeat("+"+nasty+"\n", lines),
		})
	}
	return d
}

func (huge) Diff(context.Context, string, sandbox.DiffRequest) (*sandbox.Diff, error) {
	return hugeDiff(1000), nil
}

func hugeMerge() *sandbox.MergeResult {
	m := &sandbox.MergeResult{Kind: sandbox.MergeFiles, Sandbox: &sandbox.Sandbox{ID: "s"}, Applied: hugeDiff(1000).Changes}
	for _, c := range m.Applied {
		m.Conflicts = append(m.Conflicts, sandbox.Conflict{Path: c.Path, Ours: sandbox.ChangeAdded, Theirs: sandbox.ChangeAdded})
	}
	return m
}

func (huge) Merge(context.Context, string, sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	return hugeMerge(), nil
}

func (huge) Try(_ context.Context, _ string, req sandbox.TryRequest, _ func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	picked := 0
	out := &sandbox.TryResult{Picked: &picked, Merge: hugeMerge()}
	for i := range max(req.Count, len(req.Commands)) {
		out.Attempts = append(out.Attempts, sandbox.Attempt{
			Index: i, Stdout: strings.Repeat(nasty, sandbox.MaxTryOutput/len(nasty)), Stderr: strings.Repeat("\x1b", sandbox.MaxTryOutput),
			OutputTruncated: true, Changes: hugeDiff(20), Error: strings.Repeat(nasty, 1000), EndCause: sandbox.EndTimeout,
		})
	}
	return out, nil
}

func (huge) ListSnapshots(_ context.Context, req sandbox.ListSnapshotsRequest) (*sandbox.List[sandbox.Snapshot], error) {
	out := &sandbox.List[sandbox.Snapshot]{NextCursor: "more"}
	for i := range req.Limit {
		out.Items = append(out.Items, sandbox.Snapshot{ID: fmt.Sprint(i), Automatic: true, Label: strings.Repeat(nasty, 10_000)})
	}
	return out, nil
}

func call(t *testing.T, svc sandbox.Service, tool dialect.Tool, args string) *mcp.CallToolResult {
	t.Helper()
	res, err := dialect.Invoke(t.Context(), New(), tool, &dialect.Call{
		Service: svc, Args: json.RawMessage(args), Status: func(string) {}, Output: func(dialect.Output) {}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestResultsAreBounded(t *testing.T) {
	many := "6"
	if needs.Soak() {
		many = strconv.Itoa(sandbox.MaxForks)
	}
	tests := []struct {
		name string
		tool dialect.Tool
		args string
	}{
		{"diff", named("sandbox_diff"), `{"sandbox":"s","limit":1000}`},
		{"patches", named("sandbox_diff"), `{"sandbox":"s","patch":true}`},
		{"merge", named("sandbox_merge"), `{"sandbox":"s","winner":"w","kind":"files"}`},
		{"try one", named("sandbox_try"), `{"sandbox":"s","commands":["make"]}`},
		{"try many", named("sandbox_try"), `{"sandbox":"s","commands":["make"],"count":` + many + `}`},
		{"snapshots", named("snapshot_list"), `{"sandbox":"s","automatic":true,"limit":200}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := call(t, huge{}, tt.tool, tt.args)
			if res.IsError {
				t.Fatal(res.Content[0].(*mcp.TextContent).Text)
			}
			n, err := encodedSize(res.StructuredContent)
			if err != nil {
				t.Fatal(err)
			}
			text := len(res.Content[0].(*mcp.TextContent).Text)
			if n > maxResultBytes || text > maxResultBytes+4<<10 {
				t.Errorf("%d bytes, and %d of text", n, text)
			}
			if n < maxResultBytes/4 {
				t.Errorf("only %d bytes", n)
			}
		})
	}
}

func TestPatchesAreCutAtLines(t *testing.T) {
	d := &sandbox.Diff{Modified: 3}
	for i, patch := range []string{strings.Repeat("+aaaaaaa\n", 60), "+b\n", strings.Repeat("+c\n", 1000)} {
		d.Changes = append(d.Changes, sandbox.Change{Path: fmt.Sprint("/", i), Kind: sandbox.ChangeModified, Type: sandbox.TypeFile, Patch: patch})
	}
	v, err := viewDiff(d, 1500)
	if err != nil {
		t.Fatal(err)
	}
	if !v.Truncated || len(v.Changes) != 3 || v.Changes[0].Patch != d.Changes[0].Patch || v.Changes[1].Patch != "+b\n" || v.Changes[1].PatchTruncated {
		t.Errorf("%+v", v)
	}
	if last := v.Changes[2]; !last.PatchTruncated || last.Patch == "" || strings.Trim(last.Patch, "+c\n") != "" || !strings.HasSuffix(last.Patch, "+c\n") {
		t.Errorf("%+v", last)
	}
	if n, err := encodedSize(v); err != nil || n > 1500 {
		t.Errorf("%d bytes %v", n, err)
	}
}

func TestShare(t *testing.T) {
	tests := []struct {
		sizes []int
		total int
		want  int
	}{
		{[]int{10, 10}, 10, 5},
		{[]int{100, 1, 100}, 101, 50},
		{[]int{100, 100, 0, 0}, 60, 30},
		{[]int{7}, 3, 3},
	}
	for _, tt := range tests {
		if got := share(tt.sizes, tt.total); got != tt.want {
			t.Errorf("%v of %d: got %d, want %d", tt.sizes, tt.total, got, tt.want)
		}
	}
	if got := share([]int{1, 2}, 3); got < 2 {
		t.Errorf("what fits is cut to %d", got)
	}
}

// A merge that conflicts have stopped says how to continue: with the fork if it still
// exists, and otherwise with another try.
func TestTryConflict(t *testing.T) {
	picked := 1
	for kept, want := range map[bool]string{true: "merge again with policy", false: "try again with policy"} {
		v, err := viewTry(&sandbox.TryResult{
			Attempts: []sandbox.Attempt{{}, {Index: 1, SandboxID: "s", Kept: kept}}, Picked: &picked,
			Merge: &sandbox.MergeResult{Kind: sandbox.MergeFiles, Conflicts: []sandbox.Conflict{{Path: "/a", Ours: sandbox.ChangeAdded, Theirs: sandbox.ChangeRemoved}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		v.Hint = tryHint(&v, "1")
		text := v.text()
		for _, part := range []string{"Attempt 1 was picked. Not merged: both sides changed 1 path.", "conflict: /a (ours: added, theirs: removed)", "hint: " + want} {
			if !strings.Contains(text, part) {
				t.Errorf("%q lacks %q", text, part)
			}
		}
	}
}

// forking is a service whose tries last until they are cancelled.
type forking struct {
	sandbox.Service
	got   sandbox.TryRequest
	ended error
}

func (f *forking) Try(ctx context.Context, _ string, req sandbox.TryRequest, sink func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	f.got = req
	if err := sink(sandbox.TryEvent{Attempt: sandbox.Attempt{Index: 2, ExitCode: 1}, Done: 1, Total: 3}); err != nil {
		return nil, err
	}
	<-ctx.Done()
	f.ended = ctx.Err()
	return nil, ctx.Err()
}

// A try reports each attempt as it ends, and ends with its call.
func TestTryProgressAndCancel(t *testing.T) {
	svc := &forking{}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var status []string
	res, err := dialect.Invoke(ctx, New(), named("sandbox_try"), &dialect.Call{
		Service: svc, Args: json.RawMessage(`{"sandbox":"s","commands":["a","b"],"env":{"A":"1"},"workdir":"/w","user":"u"}`), Log: slog.New(slog.DiscardHandler),
		Status: func(s string) {
			if status = append(status, s); len(status) == 2 {
				cancel()
			}
		},
	})
	if err != nil || !res.IsError || !errors.Is(svc.ended, context.Canceled) {
		t.Errorf("%+v %v; the try ended with %v", res, err, svc.ended)
	}
	if diff := cmp.Diff([]string{"forking the sandbox and running the commands", "1 of 3 attempts have ended; the last is attempt 2: exit code 1"}, status); diff != "" {
		t.Error(diff)
	}
	want := sandbox.TryRequest{
		Commands: []sandbox.TryCommand{{Shell: "a", Env: map[string]string{"A": "1"}, WorkDir: "/w", User: "u"}, {Shell: "b", Env: map[string]string{"A": "1"}, WorkDir: "/w", User: "u"}}, TimeoutMS: 45_000,
		Pick: sandbox.PickNone, Keep: sandbox.KeepNone, // merge without pick is refused
	}
	if diff := cmp.Diff(want, svc.got); diff != "" {
		t.Error(diff)
	}
}
