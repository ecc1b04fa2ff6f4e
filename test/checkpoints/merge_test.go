package checkpoints

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// forkOf makes one fork of a sandbox.
func forkOf(t *testing.T, d *covetest.Daemon, id, name string) string {
	t.Helper()
	list, err := d.Client.Fork(t.Context(), id, sandbox.ForkRequest{Name: name})
	if err != nil {
		t.Fatalf("fork %s: %v", id, err)
	}
	return list.Items[0].ID
}

// counter is a program that keeps a number in memory: it adds the numbers that it reads
// and prints the sum.
const counter = `perl -e '$| = 1; while (<>) { $sum += $_; print "$sum\n" }'`

// A winner's whole instance, with its memory, continues under the parent's id and name.
func TestMergeWhole(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		req := sandbox.CreateRequest{Name: "base", Env: map[string]string{"WHOSE": "base"}, Metadata: map[string]string{"of": "base"}}
		parent := d.Create(t, req)
		job, err := d.Client.Exec(t.Context(), parent.ID, sandbox.ExecRequest{Shell: counter, Background: true, OpenStdin: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		add := func(id, n string) {
			t.Helper()
			if err := d.Client.WriteInput(t.Context(), id, job.ID, []byte(n+"\n"), false); err != nil {
				t.Fatalf("write to %s: %v", id, err)
			}
		}
		sums := func(id, want string) {
			t.Helper()
			var got string
			said := func() bool {
				out, err := d.Client.ReadOutput(t.Context(), id, job.ID, sandbox.OutputRequest{Stream: sandbox.Stdout})
				got = string(out.Data)
				return err == nil && got == want
			}
			if !covetest.Eventually(30*time.Second, said) {
				t.Errorf("the counter in %s says %q, want %q", id, got, want)
			}
		}
		add(parent.ID, "1")
		sums(parent.ID, "1\n")
		winner, other := forkOf(t, d, parent.ID, "winner"), forkOf(t, d, parent.ID, "other")
		add(winner, "10")
		add(parent.ID, "100")
		sums(winner, "1\n11\n")
		d.Sh(t, winner, "echo winner > file; echo winner > /tmp/file")
		d.Sh(t, parent.ID, "echo parent > file; echo parent > only")
		res, err := d.Client.Merge(t.Context(), "base", sandbox.MergeRequest{Winner: "winner"})
		if err != nil || !res.Merged || res.Kind != sandbox.MergeWhole || res.Sandbox.ID != parent.ID {
			t.Fatalf("merge: %+v, %v", res, err)
		}
		add(parent.ID, "1000")
		sums(parent.ID, "1\n11\n1011\n")
		sums(other, "1\n")
		if got := d.Sh(t, parent.ID, "cat file /tmp/file; ls only 2>&1 | wc -l; hostname; echo $HOSTNAME $WHOSE"); got != "winner\nwinner\n1\nbase\nbase base\n" {
			t.Errorf("the merged parent says %q", got)
		}
		if got := d.Sh(t, parent.ID, "ls only 2>/dev/null || echo none"); got != "none\n" {
			t.Errorf("a file that only the parent had: %q", got)
		}
		got, err := d.Client.Get(t.Context(), parent.ID)
		if err != nil || got.Name != "base" || got.State != sandbox.StateRunning || got.ForkedFrom != "" {
			t.Errorf("the parent is %+v, %v", got, err)
		}
		if diff := cmp.Diff(req.Metadata, got.Metadata); diff != "" {
			t.Errorf("its metadata (-want +got):\n%s", diff)
		}
		if !got.CreatedAt.Equal(parent.CreatedAt) {
			t.Errorf("it was made at %v, and at %v before", got.CreatedAt, parent.CreatedAt)
		}
		defunct(t, d, winner, parent.ID)
		if out := d.Sh(t, other, "hostname"); out != "other\n" {
			t.Errorf("the other fork says %q", out)
		}
		// A paused winner merges into a paused parent too.
		pause(t, d, parent.ID, other)
		if res, err := d.Client.Merge(t.Context(), parent.ID, sandbox.MergeRequest{Winner: other}); err != nil || !res.Merged {
			t.Fatalf("merge paused ones: %+v, %v", res, err)
		}
		add(parent.ID, "5")
		sums(parent.ID, "1\n6\n")
		defunct(t, d, other, parent.ID)
	})
}

// A fork that was merged as a whole is no longer a fork.
func TestMergedParentIsNoFork(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		parent := d.Create(t, sandbox.CreateRequest{Name: "base"})
		winner := forkOf(t, d, parent.ID, "winner")
		if _, err := d.Client.Merge(t.Context(), parent.ID, sandbox.MergeRequest{Winner: winner}); err != nil {
			t.Fatal(err)
		}
		if got := d.Sh(t, parent.ID, "env | grep COVE_FORK; cat /run/cove/fork.json 2>/dev/null; true"); got != "" {
			t.Errorf("the merged parent is told that it is a fork: %q", got)
		}
	})
}

// defunct checks that a winner's id ended with the merge, and nothing of it is
// left.
func defunct(t *testing.T, d *covetest.Daemon, winner, parent string) {
	t.Helper()
	got, err := d.Client.Get(t.Context(), winner)
	if err != nil || got.State != sandbox.StateKilled || !strings.Contains(got.Reason, parent) {
		t.Errorf("the winner is %+v, %v; want it killed, merged into %s", got, err, parent)
	}
	_, err = d.Client.Exec(t.Context(), winner, sandbox.ExecRequest{Shell: "true"}, nil)
	if code := sandbox.CodeOf(err); code == "" || code == sandbox.CodeInternal {
		t.Errorf("a command in the winner: %v", err)
	}
}

// divided makes a parent and a fork that have both gone on: in conflict about
// the files clash, gone and kind, and apart from each other elsewhere.
func divided(t *testing.T, d *covetest.Daemon) (parent, winner string) {
	t.Helper()
	parent = d.Create(t, sandbox.CreateRequest{}).ID
	d.Sh(t, parent, "for f in clash gone kind ours theirs both same run; do echo base > $f; done; mkdir -p dir/sub; echo base > dir/sub/f; chmod 644 run")
	winner = forkOf(t, d, parent, "")
	d.Sh(t, parent, "echo parent > clash; echo parent > gone; rm kind; mkdir kind; echo parent > ours; echo same > same; rm both; echo parent > new-ours; sleep 1000 > /dev/null 2>&1 &")
	d.Sh(t, winner, "echo winner > clash; rm gone; echo winner > kind; echo winner > theirs; echo same > same; rm both; chmod 755 run; rm -r dir; mkdir new; echo winner > new/f; ln -s f new/l")
	asRoot(t, d, winner, "echo winner > /etc/winner; chown 77:88 /etc/winner; echo tmp > /tmp/winner")
	return parent, winner
}

var dividedConflicts = []sandbox.Conflict{
	{Path: "/workspace/clash", Ours: sandbox.ChangeModified, Theirs: sandbox.ChangeModified},
	{Path: "/workspace/gone", Ours: sandbox.ChangeModified, Theirs: sandbox.ChangeRemoved},
	{Path: "/workspace/kind", Ours: sandbox.ChangeModified, Theirs: sandbox.ChangeModified},
}

// dividedState returns the state of the files of [divided] in a sandbox.
func dividedState(t *testing.T, d *covetest.Daemon, id string) string {
	t.Helper()
	line := `for f in clash gone kind ours theirs both same run dir/sub/f dir new-ours new/f /etc/winner /tmp/winner; do
		if [ -d $f ]; then echo $f: directory; elif [ -e $f ]; then echo "$f: $(cat $f) $(stat -c %a,%u $f)"; else echo $f: none; fi; done; readlink new/l; pgrep -c sleep`
	res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Shell: line})
	if err != nil {
		t.Fatal(err)
	}
	return res.Stdout
}

// mergedDivided is [dividedState] after a merge, without the conflicts.
const mergedDivided = `ours: parent 644,1000
theirs: winner 644,1000
both: none
same: same 644,1000
run: base 755,1000
dir/sub/f: none
dir: none
new-ours: parent 644,1000
new/f: winner 644,1000
/etc/winner: winner 644,77
/tmp/winner: none
f
1
`

// The files that a fork has changed are merged into its running parent. If there are
// conflicts and no policy, no file is.
func TestMergeFiles(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		parent, winner := divided(t, d)
		before := dividedState(t, d, parent)
		res, err := d.Client.Merge(t.Context(), parent, sandbox.MergeRequest{Winner: winner, Kind: sandbox.MergeFiles})
		if err != nil || res.Merged || len(res.Applied) != 0 {
			t.Fatalf("merge with conflicts: %+v, %v", res, err)
		}
		wantConflicts(t, res)
		if got := dividedState(t, d, parent); got != before {
			t.Errorf("a merge that conflicts stopped has changed the parent:\n%s\nwas\n%s", got, before)
		}
		// The same once for each policy, in forks of the fork and the parent.
		for policy, clash := range map[sandbox.MergePolicy]string{
			sandbox.PolicyOurs:   "clash: parent 644,1000\ngone: parent 644,1000\nkind: directory\n",
			sandbox.PolicyTheirs: "clash: winner 644,1000\ngone: none\nkind: winner 644,1000\n",
		} {
			t.Run(string(policy), func(t *testing.T) {
				parent, winner := divided(t, d)
				res, err := d.Client.Merge(t.Context(), parent, sandbox.MergeRequest{Winner: winner, Kind: sandbox.MergeFiles, Policy: policy, KillWinner: true})
				if err != nil || !res.Merged || res.Sandbox.ID != parent {
					t.Fatalf("merge: %+v, %v", res, err)
				}
				if diff := cmp.Diff(clash+mergedDivided, dividedState(t, d, parent)); diff != "" {
					t.Errorf("the parent (-want +got):\n%s", diff)
				}
				defunct(t, d, winner, parent)
				d.NoTraces(t, winner)
			})
		}
		t.Run("paths", func(t *testing.T) {
			req := sandbox.MergeRequest{Winner: winner, Kind: sandbox.MergeFiles, Paths: []string{"/workspace/new", "/workspace/dir", "/etc"}}
			res, err := d.Client.Merge(t.Context(), parent, req)
			if err != nil || !res.Merged {
				t.Fatalf("merge: %+v, %v", res, err)
			}
			wantChanges(t, "applied", lines(res.Applied), "added file /etc/winner", "added directory /workspace/new", "added file /workspace/new/f",
				"added symlink /workspace/new/l", "removed directory /workspace/dir")
			want := strings.NewReplacer("dir/sub/f: base 644,1000\ndir: directory", "dir/sub/f: none\ndir: none",
				"new/f: none\n/etc/winner: none\n/tmp/winner: none\n", "new/f: winner 644,1000\n/etc/winner: winner 644,77\n/tmp/winner: none\nf\n").Replace(before)
			if diff := cmp.Diff(want, dividedState(t, d, parent)); diff != "" {
				t.Errorf("the parent (-want +got):\n%s", diff)
			}
			// The winner still exists, and the merged files no longer differ.
			wantChanges(t, "still to be merged", changesOf(t, d, winner, parent, "/workspace/new", "/workspace/dir", "/etc"))
		})
		t.Run("paused", func(t *testing.T) {
			parent, winner := divided(t, d)
			pause(t, d, parent, winner)
			res, err := d.Client.Merge(t.Context(), parent, sandbox.MergeRequest{Winner: winner, Kind: sandbox.MergeFiles})
			if err != nil || res.Merged {
				t.Fatalf("merge: %+v, %v", res, err)
			}
			wantConflicts(t, res)
		})
		t.Run("strangers", func(t *testing.T) {
			stranger := d.Create(t, sandbox.CreateRequest{})
			_, err := d.Client.Merge(t.Context(), parent, sandbox.MergeRequest{Winner: stranger.ID, Kind: sandbox.MergeFiles})
			if sandbox.CodeOf(err) != sandbox.CodeConflict {
				t.Errorf("merge a sandbox that is no fork: %v", err)
			}
		})
	})
}

func wantConflicts(t *testing.T, res *sandbox.MergeResult) {
	t.Helper()
	got := slices.Clone(res.Conflicts)
	slices.SortFunc(got, func(a, b sandbox.Conflict) int { return strings.Compare(a.Path, b.Path) })
	if diff := cmp.Diff(dividedConflicts, got); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
}

// onlyThese checks that of all sandboxes only these live.
func onlyThese(t *testing.T, d *covetest.Daemon, ids ...string) {
	t.Helper()
	var got []string
	ids = slices.Sorted(slices.Values(ids))
	// A machine that was merged is called as the winner was.
	if !covetest.Eventually(30*time.Second, func() bool {
		list, err := d.Client.List(t.Context(), sandbox.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, s := range list.Items {
			got = append(got, s.ID)
		}
		slices.Sort(got)
		return slices.Equal(got, ids) && len(d.Living()) == len(ids) && len(d.CellDirs()) == len(ids)
	}) {
		t.Errorf("the sandboxes that live are %v, with cells of %v and directories of %v, want %v", got, d.Living(), d.CellDirs(), ids)
	}
}

// Several attempts at once: what each did, which one is merged, and which are kept.
func TestTry(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Name: "base"})
		d.Sh(t, s.ID, "echo base > file")
		commands := []sandbox.TryCommand{
			{Shell: "echo $COVE_FORK_INDEX of $COVE_FORK_COUNT; echo broken >&2; rm file; exit 3"},
			{Shell: "sleep 0.3; echo slow > file; exit 0"},
			{Command: []string{"sh", "-c", "echo $X > file"}, Env: map[string]string{"X": "quick"}, WorkDir: "/workspace"},
		}
		var events []sandbox.TryEvent
		try := func(t *testing.T, req sandbox.TryRequest) *sandbox.TryResult {
			t.Helper()
			events = nil
			req.Commands = commands
			res, err := d.Client.Try(t.Context(), s.ID, req, func(e sandbox.TryEvent) error { events = append(events, e); return nil })
			if err != nil || len(res.Attempts) != 3 {
				t.Fatalf("try: %+v, %v", res, err)
			}
			return res
		}
		content := func(want string) {
			t.Helper()
			if got := d.Sh(t, s.ID, "cat file"); got != want+"\n" {
				t.Errorf("the file is %q, want %s", got, want)
			}
		}
		t.Run("keep none", func(t *testing.T) {
			res := try(t, sandbox.TryRequest{})
			first := res.Attempts[0]
			if first.ExitCode != 3 || first.Stdout != "0 of 3\n" || first.Stderr != "broken\n" || first.Error != "" || first.Index != 0 || first.DurationMS <= 0 {
				t.Errorf("the first attempt: %+v", first)
			}
			wantChanges(t, "the first", lines(first.Changes.Changes), "removed file /workspace/file")
			wantChanges(t, "the second", lines(res.Attempts[1].Changes.Changes), "modified file /workspace/file content 5 to 5")
			if res.Attempts[1].ExitCode != 0 || res.Attempts[1].DurationMS < 300 || res.Picked != nil || res.Merge != nil {
				t.Errorf("the second attempt: %+v", res.Attempts[1])
			}
			told := map[int]bool{} // in the order in which they end, which is the machine's
			for i, e := range events {
				told[e.Attempt.Index] = e.Done == i+1 && e.Total == 3
			}
			if len(events) != 3 || !told[0] || !told[1] || !told[2] {
				t.Errorf("events: %+v", events)
			}
			content("base")
			onlyThese(t, d, s.ID)
		})
		t.Run("first success, files", func(t *testing.T) {
			res := try(t, sandbox.TryRequest{Pick: sandbox.PickFirstSuccess, Merge: sandbox.MergeFiles})
			if res.Picked == nil || *res.Picked != 1 || !res.Merge.Merged {
				t.Fatalf("picked %v: %+v", res.Picked, res.Merge)
			}
			wantChanges(t, "applied", lines(res.Merge.Applied), "modified file /workspace/file content 5 to 5")
			content("slow")
			onlyThese(t, d, s.ID)
		})
		t.Run("an index, whole, winners live", func(t *testing.T) {
			res := try(t, sandbox.TryRequest{Pick: "2", Keep: sandbox.KeepWinners, NoDiff: true})
			if res.Picked == nil || *res.Picked != 2 || res.Merge.Sandbox.ID != s.ID || res.Attempts[0].Changes != nil {
				t.Fatalf("picked %v: %+v", res.Picked, res.Merge)
			}
			content("quick")
			for i, kept := range []bool{false, true, false} {
				if res.Attempts[i].Kept != kept {
					t.Errorf("attempt %d is kept: %v", i, res.Attempts[i].Kept)
				}
			}
			if got := d.Sh(t, res.Attempts[1].SandboxID, "cat file"); got != "slow\n" {
				t.Errorf("the one that is kept has %q", got)
			}
			onlyThese(t, d, s.ID, res.Attempts[1].SandboxID)
			if _, err := d.Client.Kill(t.Context(), res.Attempts[1].SandboxID); err != nil {
				t.Fatal(err)
			}
		})
		t.Run("a failure is picked, all live", func(t *testing.T) {
			res := try(t, sandbox.TryRequest{Pick: "0", Merge: sandbox.MergeFiles, Keep: sandbox.KeepAll})
			ids := []string{s.ID}
			for _, a := range res.Attempts {
				ids = append(ids, a.SandboxID)
				if !a.Kept {
					t.Errorf("attempt %d is not kept", a.Index)
				}
			}
			onlyThese(t, d, ids...)
			if got := d.Sh(t, s.ID, "ls file 2>/dev/null || echo none"); got != "none\n" {
				t.Errorf("the file is %q", got)
			}
			for _, id := range ids[1:] {
				if _, err := d.Client.Kill(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
		})
		t.Run("no success", func(t *testing.T) {
			res, err := d.Client.Try(t.Context(), s.ID, sandbox.TryRequest{Count: 4, Commands: []sandbox.TryCommand{{Shell: "sleep 5; true"}}, TimeoutMS: 300, Pick: sandbox.PickFirstSuccess}, nil)
			if err != nil || res.Picked != nil || res.Merge != nil || len(res.Attempts) != 4 || res.Attempts[3].EndCause != sandbox.EndTimeout {
				t.Errorf("try: %+v, %v", res, err)
			}
			onlyThese(t, d, s.ID)
		})
		t.Run("cancelled", func(t *testing.T) { testTryCancelled(t, d, s.ID) })
	})
}

// testTryCancelled cancels tries at several times, by the caller and by the sink, and
// checks that nothing is left.
func testTryCancelled(t *testing.T, d *covetest.Daemon, id string) {
	req := sandbox.TryRequest{Count: 3, Commands: []sandbox.TryCommand{{Shell: "[ $COVE_FORK_INDEX = 0 ] || sleep 60"}}, Pick: sandbox.PickFirstSuccess}
	// The call ends at once, and the forks soon after.
	only := func() bool {
		list, err := d.Client.List(t.Context(), sandbox.ListRequest{})
		return err == nil && len(list.Items) == 1
	}
	for _, after := range []time.Duration{20, 100, 400, 1500} {
		ctx, cancel := context.WithTimeout(t.Context(), after*time.Millisecond)
		_, err := d.Client.Try(ctx, id, req, nil)
		cancel()
		if err == nil {
			t.Errorf("a try that was cancelled after %d ms gave no error", after)
		}
		if !covetest.Eventually(30*time.Second, only) {
			t.Fatalf("forks are left of a try that was cancelled after %d ms", after)
		}
		onlyThese(t, d, id)
	}
	enough := errors.New("enough")
	if _, err := d.Client.Try(t.Context(), id, req, func(sandbox.TryEvent) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("a sink that fails: %v", err)
	}
	if !covetest.Eventually(30*time.Second, only) {
		t.Errorf("forks are left after a sink failed")
	}
	onlyThese(t, d, id)
	if got := d.Sh(t, id, "echo here"); got != "here\n" {
		t.Errorf("the sandbox itself says %q", got)
	}
}

// A history takes back what commands destroy.
func TestRewind(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Name: "history", History: 3})
		back := func(step int) {
			t.Helper()
			got, err := d.Client.RestoreSnapshot(t.Context(), s.ID, sandbox.RestoreRequest{Step: step})
			if err != nil || got.ID != s.ID || got.Name != "history" || got.State != sandbox.StateRunning {
				t.Fatalf("back to step %d: %+v, %v", step, got, err)
			}
		}
		// Reading a file makes no step.
		content := func() string {
			r, err := d.Client.ReadFile(t.Context(), s.ID, sandbox.ReadFileRequest{Path: "/workspace/file"})
			if err != nil {
				return string(sandbox.CodeOf(err))
			}
			defer r.Close()
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
		if _, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{Shell: "sleep 1000", Background: true}, nil); err != nil {
			t.Fatal(err)
		}
		d.Sh(t, s.ID, "echo 1 > file")
		d.Sh(t, s.ID, "echo 2 >> file")
		if _, err := d.Exec(t.Context(), s.ID, sandbox.ExecRequest{Shell: "rm -rf /workspace/* /workspace; pkill -9 sleep"}); err != nil {
			t.Fatal(err)
		}
		if got := content(); got != string(sandbox.CodeNotFound) {
			t.Errorf("after the destruction the file is %q", got)
		}
		back(-1)
		if got := content(); got != "1\n2\n" {
			t.Errorf("before the last command the file was %q", got)
		}
		if got := d.Sh(t, s.ID, "pgrep -c sleep"); got != "1\n" {
			t.Errorf("processes that were killed and came back: %q", got)
		}
		steps, err := d.Client.ListSnapshots(t.Context(), sandbox.ListSnapshotsRequest{Sandbox: s.ID, Automatic: true})
		if err != nil || len(steps.Items) != 3 {
			t.Fatalf("steps: %+v, %v; want the last 3", steps, err)
		}
		for i, step := range steps.Items {
			if !step.Automatic || !strings.HasPrefix(step.Label, "before ") || step.SandboxID != s.ID {
				t.Errorf("step -%d is %+v", i+1, step)
			}
		}
		if list, err := d.Client.ListSnapshots(t.Context(), sandbox.ListSnapshotsRequest{}); err != nil || len(list.Items) != 0 {
			t.Errorf("steps are listed without being asked for: %+v, %v", list, err)
		}
		back(-3)
		if got := content(); got != "1\n" {
			t.Errorf("three steps back the file is %q", got)
		}
		_, err = d.Client.RestoreSnapshot(t.Context(), s.ID, sandbox.RestoreRequest{Step: -4})
		if sandbox.CodeOf(err) != sandbox.CodeNotFound || !strings.Contains(err.Error(), "-3") {
			t.Errorf("a step that is not kept: %v", err)
		}
		none := 0
		if _, err := d.Client.Update(t.Context(), s.ID, sandbox.UpdateRequest{History: &none}); err != nil {
			t.Fatal(err)
		}
		if list, err := d.Client.ListSnapshots(t.Context(), sandbox.ListSnapshotsRequest{Automatic: true}); err != nil || len(list.Items) != 0 {
			t.Errorf("steps are left of a history that has ended: %+v, %v", list, err)
		}
	})
}

// Files with holes are compared as what they hold, and merged with their holes. In "make test",
// TestMergeFiles, and TestMergeSparse of package layer, stand for it.
func TestMoreHolesAreMerged(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		parent := d.Create(t, sandbox.CreateRequest{})
		d.Sh(t, parent.ID, "truncate -s 8M untouched; truncate -s 8M full; truncate -s 8M part; truncate -s 100M data; echo data >> data")
		wantChanges(t, "of the template", changesOf(t, d, parent.ID, ""),
			"added file /workspace/data", "added file /workspace/full", "added file /workspace/part", "added file /workspace/untouched")
		winner := forkOf(t, d, parent.ID, "winner")
		d.Sh(t, winner, `head -c 8M /dev/zero > full
			printf x | dd of=part bs=1 seek=7000000 conv=notrunc status=none
			truncate -s 200M new; echo end >> new`)
		wantChanges(t, "of the fork", changesOf(t, d, winner, parent.ID),
			"added file /workspace/new", "modified file /workspace/part content 8388608 to 8388608")
		const state = "sha256sum *"
		want := d.Sh(t, winner, state)
		res, err := d.Client.Merge(t.Context(), parent.ID, sandbox.MergeRequest{Winner: winner, Kind: sandbox.MergeFiles})
		if err != nil || !res.Merged {
			t.Fatalf("merge: %+v, %v", res, err)
		}
		if got := d.Sh(t, parent.ID, state); got != want {
			t.Errorf("the files are\n%s\nwant\n%s", got, want)
		}
		if st, err := d.Client.Stats(t.Context(), parent.ID); err != nil || st.DiskBytes > 50<<20 {
			t.Errorf("with a file of 200 MiB, of which all is a hole but its last line: %+v, %v", st, err)
		}
	})
}
