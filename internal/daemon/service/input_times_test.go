package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/sandbox"
)

// TestBadInputOfTimes gives the verbs of states wrong input, just over each
// bound. Each refusal names what is wrong, in one short sentence, and nothing
// changes.
func TestBadInputOfTimes(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	w.create(sandbox.CreateRequest{Name: "y"})
	w.snapshot("x", "s")
	ctx := asRed(t)
	many := map[string]string{}
	for i := range sandbox.MaxEnvPairs + 1 {
		many[fmt.Sprint("k", i)] = "v"
	}
	long := strings.Repeat("x", sandbox.MaxNameLength+1)
	deep := "/" + strings.Repeat("x", sandbox.MaxPathBytes)
	create := func(req sandbox.CreateRequest) func() error {
		return func() error { _, err := w.Create(ctx, req); return err }
	}
	update := func(req sandbox.UpdateRequest) func() error {
		return func() error { _, err := w.Update(ctx, "x", req); return err }
	}
	fork := func(req sandbox.ForkRequest) func() error {
		return func() error { _, err := w.Fork(ctx, "x", req); return err }
	}
	snapshot := func(req sandbox.CreateSnapshotRequest) func() error {
		return func() error { _, err := w.CreateSnapshot(ctx, "x", req); return err }
	}
	get := func(ref string) func() error {
		return func() error { _, err := w.GetSnapshot(ctx, ref); return err }
	}
	list := func(req sandbox.ListSnapshotsRequest) func() error {
		return func() error { _, err := w.ListSnapshots(ctx, req); return err }
	}
	restore := func(req sandbox.RestoreRequest) func() error {
		return func() error { _, err := w.RestoreSnapshot(ctx, "x", req); return err }
	}
	diff := func(req sandbox.DiffRequest) func() error {
		return func() error { _, err := w.Diff(ctx, "x", req); return err }
	}
	merge := func(req sandbox.MergeRequest) func() error {
		return func() error { _, err := w.Merge(ctx, "x", req); return err }
	}
	try := func(f func(*sandbox.TryRequest)) func() error {
		req := sandbox.TryRequest{Commands: []sandbox.TryCommand{{Shell: "true"}}}
		f(&req)
		return func() error { _, err := w.Try(ctx, "x", req, nil); return err }
	}
	command := func(c sandbox.TryCommand) func() error {
		return try(func(r *sandbox.TryRequest) { r.Commands[0] = c })
	}
	const invalid, notFound = sandbox.CodeInvalid, sandbox.CodeNotFound

	for _, c := range []struct {
		says string // what the message names
		code sandbox.Code
		call func() error
	}{
		{"history", invalid, create(sandbox.CreateRequest{History: -1})},
		{"history", invalid, create(sandbox.CreateRequest{History: sandbox.MaxHistory + 1})},
		{"snapshot", invalid, create(sandbox.CreateRequest{Snapshot: "s", Template: "host"})},
		{"resources", invalid, create(sandbox.CreateRequest{Snapshot: "s", Resources: sandbox.Resources{VCPUs: 1}})},
		{"resources", invalid, create(sandbox.CreateRequest{Snapshot: "s", Resources: sandbox.Resources{DiskMiB: 4096}})},
		{"there is no snapshot", notFound, create(sandbox.CreateRequest{Snapshot: "none"})},
		{"there is no snapshot", notFound, create(sandbox.CreateRequest{Snapshot: badUTF8})},
		{"there is no snapshot", notFound, create(sandbox.CreateRequest{Snapshot: long})},
		{"history", invalid, update(sandbox.UpdateRequest{History: ptr(-1)})},
		{"history", invalid, update(sandbox.UpdateRequest{History: ptr(sandbox.MaxHistory + 1)})},

		{"count", invalid, fork(sandbox.ForkRequest{Count: -1})},
		{"count", invalid, fork(sandbox.ForkRequest{Count: sandbox.MaxForks + 1})},
		{"name", invalid, fork(sandbox.ForkRequest{Name: "Upper"})},
		{"name", invalid, fork(sandbox.ForkRequest{Name: badUTF8})},
		{"name", invalid, fork(sandbox.ForkRequest{Name: long})},
		{"name", invalid, fork(sandbox.ForkRequest{Name: long[:sandbox.MaxNameLength-1], Count: 2})}, // with its index
		{"like an id", invalid, fork(sandbox.ForkRequest{Name: "sbx-mine"})},
		{"env", invalid, fork(sandbox.ForkRequest{Env: many})},
		{"env name", invalid, fork(sandbox.ForkRequest{Env: map[string]string{"A=B": "v"}})},
		{"metadata", invalid, fork(sandbox.ForkRequest{Metadata: many})},
		{"metadata value", invalid, fork(sandbox.ForkRequest{Metadata: map[string]string{"k": badUTF8}})},
		{"lifetime_seconds", invalid, fork(sandbox.ForkRequest{LifetimeSeconds: ptr(int64(-1))})},
		{"lifetime_seconds", invalid, fork(sandbox.ForkRequest{LifetimeSeconds: ptr(validate.MaxSeconds + 1)})},
		{"idle_timeout_seconds", invalid, fork(sandbox.ForkRequest{IdleTimeoutSeconds: ptr(int64(-1))})},
		{"idle_timeout_seconds", invalid, fork(sandbox.ForkRequest{IdleTimeoutSeconds: ptr(validate.MaxSeconds + 1)})},

		{"name", invalid, snapshot(sandbox.CreateSnapshotRequest{Name: "Upper"})},
		{"name", invalid, snapshot(sandbox.CreateSnapshotRequest{Name: long})},
		{"name", invalid, snapshot(sandbox.CreateSnapshotRequest{Name: badUTF8})},
		{"like an id", invalid, snapshot(sandbox.CreateSnapshotRequest{Name: "snap-mine"})},
		{"label", invalid, snapshot(sandbox.CreateSnapshotRequest{Label: strings.Repeat("x", sandbox.MaxSnapshotLabel+1)})},
		{"label", invalid, snapshot(sandbox.CreateSnapshotRequest{Label: badUTF8})},
		{"like an id", invalid, snapshot(sandbox.CreateSnapshotRequest{Name: "sbx-mine"})},
		{"taken", sandbox.CodeConflict, snapshot(sandbox.CreateSnapshotRequest{Name: "s"})},
		{"kind", invalid, snapshot(sandbox.CreateSnapshotRequest{Kind: "half"})},
		{"no snapshot", invalid, get("")},
		{"there is no snapshot", notFound, get("none")},
		{"there is no snapshot", notFound, get("snap-none")},
		{"there is no snapshot", notFound, get("' OR '1'='1")},
		{"there is no snapshot", notFound, get("x\x00")},
		{"there is no snapshot", notFound, get(badUTF8)},
		{"there is no snapshot", notFound, get(strings.Repeat("x", 1<<20))},
		{"there is no snapshot", notFound, func() error { _, err := w.DeleteSnapshot(ctx, "../s"); return err }},
		{"there is no sandbox", notFound, list(sandbox.ListSnapshotsRequest{Sandbox: "none"})},
		{"limit", invalid, list(sandbox.ListSnapshotsRequest{Page: sandbox.Page{Limit: -1}})},
		{"limit", invalid, list(sandbox.ListSnapshotsRequest{Page: sandbox.Page{Limit: sandbox.MaxPageSize + 1}})},
		{"cursor", invalid, list(sandbox.ListSnapshotsRequest{Page: sandbox.Page{Cursor: "!"}})},
		{"exactly one", invalid, restore(sandbox.RestoreRequest{})},
		{"exactly one", invalid, restore(sandbox.RestoreRequest{Snapshot: "s", Step: -1})},
		{"step", invalid, restore(sandbox.RestoreRequest{Step: 1})},
		{"no history", notFound, restore(sandbox.RestoreRequest{Step: -1})},
		{"no history", notFound, restore(sandbox.RestoreRequest{Step: -1 << 63})},
		{"there is no snapshot", notFound, restore(sandbox.RestoreRequest{Snapshot: "x"})},

		{"limit", invalid, diff(sandbox.DiffRequest{Limit: -1})},
		{"limit", invalid, diff(sandbox.DiffRequest{Limit: sandbox.MaxDiffLimit + 1})},
		{"paths", invalid, diff(sandbox.DiffRequest{Paths: make([]string, sandbox.MaxDiffPaths+1)})},
		{"paths", invalid, diff(sandbox.DiffRequest{Paths: []string{""}})},
		{"paths", invalid, diff(sandbox.DiffRequest{Paths: []string{deep}})},
		{"paths", invalid, diff(sandbox.DiffRequest{Paths: []string{"/" + badUTF8}})},
		{"paths", invalid, diff(sandbox.DiffRequest{Paths: []string{"/a\x00"}})},
		{"must be absolute", invalid, diff(sandbox.DiffRequest{Paths: []string{"/a", "b"}})},
		{"no sandbox or snapshot", notFound, diff(sandbox.DiffRequest{Against: "none"})},
		{"no sandbox or snapshot", notFound, diff(sandbox.DiffRequest{Against: badUTF8})},

		{"no sandbox", invalid, merge(sandbox.MergeRequest{})},
		{"kind", invalid, merge(sandbox.MergeRequest{Winner: "y", Kind: "half"})},
		{"policy", invalid, merge(sandbox.MergeRequest{Winner: "y", Kind: sandbox.MergeFiles, Policy: "mine"})},
		{"policy", invalid, merge(sandbox.MergeRequest{Winner: "y", Policy: sandbox.PolicyTheirs})},
		{"resolve", invalid, merge(sandbox.MergeRequest{Winner: "y", Resolve: map[string]sandbox.MergePolicy{"/a": sandbox.PolicyOurs}})},
		{"resolve has", invalid, merge(resolved("/a", "mine"))},
		{"resolve has", invalid, merge(resolved("/a", ""))},
		{"must be absolute", invalid, merge(resolved("a", sandbox.PolicyOurs))},
		{"resolve", invalid, merge(resolved("", sandbox.PolicyOurs))},
		{"not in the form", invalid, merge(resolved("/a/", sandbox.PolicyOurs))},
		{"not in the form", invalid, merge(resolved("/a/../b", sandbox.PolicyOurs))},
		{"resolve", invalid, merge(resolved("/"+strings.Repeat("a", sandbox.MaxPathBytes), sandbox.PolicyOurs))},
		{"resolve", invalid, merge(resolved("/a\x00", sandbox.PolicyOurs))},
		{"use at most", invalid, merge(manyResolved())},
		{"paths", invalid, merge(sandbox.MergeRequest{Winner: "y", Paths: []string{"/"}})},
		{"kill_winner", invalid, merge(sandbox.MergeRequest{Winner: "y", KillWinner: true})},
		{"paths", invalid, merge(sandbox.MergeRequest{Winner: "y", Kind: sandbox.MergeFiles, Paths: make([]string, sandbox.MaxDiffPaths+1)})},
		{"must be absolute", invalid, merge(sandbox.MergeRequest{Winner: "y", Kind: sandbox.MergeFiles, Paths: []string{"a"}})},

		{"command", invalid, try(func(r *sandbox.TryRequest) { r.Commands = nil })},
		{"count", invalid, try(func(r *sandbox.TryRequest) { r.Count = -1 })},
		{"count", invalid, try(func(r *sandbox.TryRequest) { r.Count = sandbox.MaxForks + 1 })},
		{"count", invalid, try(func(r *sandbox.TryRequest) { r.Commands = make([]sandbox.TryCommand, sandbox.MaxForks+1) })},
		{"2 commands are given for 3", invalid, try(func(r *sandbox.TryRequest) { r.Count, r.Commands = 3, append(r.Commands, r.Commands...) })},
		{"timeout_ms", invalid, try(func(r *sandbox.TryRequest) { r.TimeoutMS = -1 })},
		{"timeout_ms", invalid, try(func(r *sandbox.TryRequest) { r.TimeoutMS = sandbox.MaxExecTimeout.Milliseconds() + 1 })},
		{"pick", invalid, try(func(r *sandbox.TryRequest) { r.Pick = "best" })},
		{"pick", invalid, try(func(r *sandbox.TryRequest) { r.Pick = "-1" })},
		{"pick", invalid, try(func(r *sandbox.TryRequest) { r.Pick = "1" })}, // of one
		{"pick", invalid, try(func(r *sandbox.TryRequest) { r.Pick = strings.Repeat("9", 1<<20) })},
		{"keep", invalid, try(func(r *sandbox.TryRequest) { r.Keep = "some" })},
		{"merge", invalid, try(func(r *sandbox.TryRequest) { r.Merge = sandbox.MergeWhole })}, // of nothing
		{"policy", invalid, try(func(r *sandbox.TryRequest) { r.Policy = sandbox.PolicyOurs })},
		{"kind", invalid, try(func(r *sandbox.TryRequest) { r.Pick, r.Merge = "0", "half" })},
		{"policy", invalid, try(func(r *sandbox.TryRequest) { r.Pick, r.Policy = "0", sandbox.PolicyOurs })}, // of the whole
		{"exactly one", invalid, command(sandbox.TryCommand{})},
		{"exactly one", invalid, command(sandbox.TryCommand{Shell: "a", Command: []string{"b"}})},
		{"env name", invalid, command(sandbox.TryCommand{Shell: "a", Env: map[string]string{"": "v"}})},
		{"workdir", invalid, command(sandbox.TryCommand{Shell: "a", WorkDir: "a\x00"})},
		{"user", invalid, command(sandbox.TryCommand{Shell: "a", User: "a b"})},
	} {
		err := c.call()
		wantCode(t, err, c.code)
		m := err.Error()
		if !strings.Contains(m, c.says) || len(m) > 400 || strings.ContainsAny(m, "\n\x00") || strings.Contains(m, "\xff") {
			t.Errorf("message %q, want one short line that says %q", m, c.says)
		}
	}
	for _, name := range []string{"x", "y"} {
		if got := w.get(name); got.State != sandbox.StateRunning || got.History != 0 || got.Snapshot != "" {
			t.Errorf("changed to %+v", got)
		}
	}
	if n := len(w.kept()); n != 1 {
		t.Errorf("%d checkpoints are kept, want that of the snapshot", n)
	}
	w.agree()

	// What is just within the bounds is taken.
	for name, call := range map[string]func() error{
		"history":  create(sandbox.CreateRequest{History: sandbox.MaxHistory, Snapshot: "s"}),
		"update":   update(sandbox.UpdateRequest{History: ptr(sandbox.MaxHistory)}),
		"fork":     fork(sandbox.ForkRequest{Count: sandbox.MaxForks, Name: long[:sandbox.MaxNameLength-3], LifetimeSeconds: ptr(validate.MaxSeconds), IdleTimeoutSeconds: ptr(validate.MaxSeconds)}),
		"snapshot": snapshot(sandbox.CreateSnapshotRequest{Name: long[:sandbox.MaxNameLength]}),
		"list":     list(sandbox.ListSnapshotsRequest{Page: sandbox.Page{Limit: sandbox.MaxPageSize}}),
		"diff":     diff(sandbox.DiffRequest{Limit: sandbox.MaxDiffLimit, Paths: slices.Repeat([]string{"/a"}, sandbox.MaxDiffPaths)}),
		"path":     diff(sandbox.DiffRequest{Paths: []string{deep[:sandbox.MaxPathBytes]}}),
		"try":      try(func(r *sandbox.TryRequest) { r.TimeoutMS, r.Pick = sandbox.MaxExecTimeout.Milliseconds(), "0" }),
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.agree()
}

// resolved is a merge that says who wins at one path.
func resolved(path string, policy sandbox.MergePolicy) sandbox.MergeRequest {
	return sandbox.MergeRequest{Winner: "y", Kind: sandbox.MergeFiles, Resolve: map[string]sandbox.MergePolicy{path: policy}}
}

// manyResolved is a merge that says so of too many.
func manyResolved() sandbox.MergeRequest {
	req := resolved("/a", sandbox.PolicyOurs)
	for i := range sandbox.MaxResolved {
		req.Resolve[fmt.Sprintf("/%d", i)] = sandbox.PolicyOurs
	}
	return req
}
