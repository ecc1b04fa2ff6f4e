package service

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

func TestMergeEnforcedOrRefused(t *testing.T) {
	// merged merges; with conflict, the parent has changed the same file.
	merged := func(req sandbox.MergeRequest, conflict bool, want string, check func(w *harness, r *sandbox.MergeResult) bool) func(*testing.T, *harness) {
		return func(t *testing.T, w *harness) {
			w.family()
			if conflict {
				w.shell("parent", "echo parent > file")
			}
			res := w.merge(req)
			if got := w.shell("parent", "cat file; cat added 2>&1"); got != want && !strings.HasPrefix(got, want+"\ncat:") {
				t.Errorf("the parent has %q, want %q", got, want)
			}
			if !res.Merged || !check(w, res) {
				t.Errorf("merged %+v", res)
			}
			w.agree()
		}
	}
	files := sandbox.MergeFiles
	lives := func(w *harness, _ *sandbox.MergeResult) bool { return w.get("child").State == sandbox.StateRunning }
	everyField[sandbox.MergeRequest](t, map[string]func(*testing.T, *harness){
		"winner": func(t *testing.T, w *harness) {
			_, child := w.family()
			w.fork("parent", sandbox.ForkRequest{Name: "loser"})
			if res := w.merge(sandbox.MergeRequest{Winner: child.ID}); !res.Merged || w.shell("parent", "cat file") != "child" {
				t.Errorf("merged %+v", res)
			}
			if got := w.get("loser").State; got != sandbox.StateRunning {
				t.Errorf("the other one is %s", got)
			}
		},
		"kind": func(t *testing.T, w *harness) {
			merged(sandbox.MergeRequest{Winner: "child", Kind: sandbox.MergeWhole}, true, "child\nnew", func(w *harness, r *sandbox.MergeResult) bool {
				return r.Kind == sandbox.MergeWhole && w.get("child").State == sandbox.StateKilled
			})(t, w)
			merged(sandbox.MergeRequest{Winner: "child", Kind: files}, false, "child\nnew", func(w *harness, r *sandbox.MergeResult) bool {
				return r.Kind == files && len(r.Applied) == 2 && len(r.Conflicts) == 0 && lives(w, r)
			})(t, newHarness(t))
		},
		"policy": func(t *testing.T, w *harness) {
			merged(sandbox.MergeRequest{Winner: "child", Kind: files, Policy: sandbox.PolicyOurs}, true, "parent\nnew", lives)(t, w)
			merged(sandbox.MergeRequest{Winner: "child", Kind: files, Policy: sandbox.PolicyTheirs}, true, "child\nnew", lives)(t, newHarness(t))
		},
		"resolve": func(t *testing.T, w *harness) {
			in := func(policy sandbox.MergePolicy) map[string]sandbox.MergePolicy {
				return map[string]sandbox.MergePolicy{"/workspace/file": policy}
			}
			merged(sandbox.MergeRequest{Winner: "child", Kind: files, Resolve: in(sandbox.PolicyOurs)}, true, "parent\nnew", lives)(t, w)
			merged(sandbox.MergeRequest{Winner: "child", Kind: files, Policy: sandbox.PolicyOurs, Resolve: in(sandbox.PolicyTheirs)}, true, "child\nnew", lives)(t, newHarness(t))
			other := newHarness(t)
			other.family()
			other.shell("parent", "echo parent > file")
			res := other.merge(sandbox.MergeRequest{Winner: "child", Kind: files, Resolve: map[string]sandbox.MergePolicy{"/workspace/fil": sandbox.PolicyTheirs}})
			if res.Merged || len(res.Conflicts) != 1 || other.shell("parent", "cat file; ls added 2>/dev/null || true") != "parent" {
				t.Errorf("with a path that is not in conflict: %+v", res)
			}
		},
		"paths": merged(sandbox.MergeRequest{Winner: "child", Kind: files, Paths: []string{"/workspace/added"}}, true, "parent\nnew", lives),
		"kill_winner": merged(sandbox.MergeRequest{Winner: "child", Kind: files, KillWinner: true}, false, "child\nnew", func(w *harness, r *sandbox.MergeResult) bool {
			return w.get("child").State == sandbox.StateKilled && strings.Contains(w.get("child").Reason, "merged into")
		}),
	})
}

// TestMergeFilesStates merges the files of paused sandboxes and of a fork of a fork,
// and fails if the checkpoint of the fork is gone.
func TestMergeFilesStates(t *testing.T) {
	w := newHarness(t)
	w.family()
	w.fork("child", sandbox.ForkRequest{Name: "grandchild"})
	w.shell("grandchild", "echo grand > deep")
	w.pause("grandchild")
	w.pause("parent")
	res := w.merge(sandbox.MergeRequest{Winner: "grandchild", Kind: sandbox.MergeFiles})
	if !res.Merged || len(res.Applied) != 3 || w.shell("parent", "cat file added deep") != "child\nnew\ngrand" {
		t.Errorf("merged %+v", res)
	}
	w.agree()
	// Merged once more, there is nothing to do.
	if res := w.merge(sandbox.MergeRequest{Winner: "grandchild", Kind: sandbox.MergeFiles}); !res.Merged || len(res.Applied) != 0 {
		t.Errorf("merged again %+v", res)
	}
	w.agree()
}

func TestMergeFilesFailures(t *testing.T) {
	for name, set := range map[string]func(*harness){
		"changes are not read": func(w *harness) { w.state.Fail(memory.StepChanges, memory.Before, errors.New("boom")) },
		"changes are lost":     func(w *harness) { w.state.Fail(memory.StepChanges, memory.After, errors.New("boom")) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			w.family()
			set(w)
			_, err := w.Merge(asRed(t), "parent", sandbox.MergeRequest{Winner: "child", Kind: sandbox.MergeFiles, KillWinner: true})
			wantCode(t, err, sandbox.CodeInternal)
			if got := w.shell("parent", "cat file; ls"); got != "begun\nfile\nother" {
				t.Errorf("the parent has %q", got)
			}
			if got := w.get("child").State; got != sandbox.StateRunning {
				t.Errorf("the winner is %s", got)
			}
			w.agree()
		})
	}
}

func TestTryEnforcedOrRefused(t *testing.T) {
	tried := func(req sandbox.TryRequest, check func(w *harness, r *sandbox.TryResult) bool) func(*testing.T, *harness) {
		return func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "parent"})
			w.shell("parent", "echo begun > file")
			if req.Commands == nil {
				req.Commands = []sandbox.TryCommand{{Shell: "echo tried > file"}}
			}
			res, err := w.Try(asRed(t), "parent", req, nil)
			must(t, err)
			if !check(w, res) {
				t.Errorf("no effect on %+v", res)
			}
			w.agree()
		}
	}
	first := func(c sandbox.TryCommand, out string) func(*testing.T, *harness) {
		return tried(sandbox.TryRequest{Commands: []sandbox.TryCommand{c}}, func(_ *harness, r *sandbox.TryResult) bool {
			return r.Attempts[0].Stdout == out && r.Attempts[0].Error == ""
		})
	}
	everyField[sandbox.TryRequest](t, map[string]func(*testing.T, *harness){
		"count": tried(sandbox.TryRequest{Count: 3}, func(_ *harness, r *sandbox.TryResult) bool { return len(r.Attempts) == 3 }),
		"commands": tried(sandbox.TryRequest{Commands: []sandbox.TryCommand{{Shell: "echo a"}, {Command: []string{"echo", "b"}}}}, func(_ *harness, r *sandbox.TryResult) bool {
			return r.Attempts[0].Stdout == "a\n" && r.Attempts[1].Stdout == "b\n"
		}),
		"timeout_ms": tried(sandbox.TryRequest{Commands: []sandbox.TryCommand{{Shell: "sleep 300"}}, TimeoutMS: 200}, func(_ *harness, r *sandbox.TryResult) bool {
			return r.Attempts[0].EndCause == sandbox.EndTimeout
		}),
		"pick": tried(sandbox.TryRequest{Pick: "0"}, func(w *harness, r *sandbox.TryResult) bool {
			return r.Picked != nil && w.shell("parent", "cat file") == "tried"
		}),
		"merge": tried(sandbox.TryRequest{Pick: "0", Merge: sandbox.MergeFiles}, func(w *harness, r *sandbox.TryResult) bool {
			return r.Merge.Kind == sandbox.MergeFiles && len(r.Merge.Applied) == 1 && w.shell("parent", "cat file") == "tried"
		}),
		"policy": tried(sandbox.TryRequest{Pick: "0", Merge: sandbox.MergeFiles, Policy: sandbox.PolicyTheirs}, func(_ *harness, r *sandbox.TryResult) bool {
			return r.Merge.Merged
		}),
		"keep": tried(sandbox.TryRequest{Count: 2, Keep: sandbox.KeepAll}, func(w *harness, r *sandbox.TryResult) bool {
			return !slices.ContainsFunc(r.Attempts, func(a sandbox.Attempt) bool { return !a.Kept || w.get(a.SandboxID).State != sandbox.StateRunning })
		}),
		"no_diff": func(t *testing.T, w *harness) {
			tried(sandbox.TryRequest{NoDiff: true}, func(_ *harness, r *sandbox.TryResult) bool { return r.Attempts[0].Changes == nil })(t, w)
			tried(sandbox.TryRequest{}, func(_ *harness, r *sandbox.TryResult) bool { return r.Attempts[0].Changes.Modified == 1 })(t, newHarness(t))
		},
	})
	everyField[sandbox.TryCommand](t, map[string]func(*testing.T, *harness){
		"command": first(sandbox.TryCommand{Command: []string{"echo", "$HOME"}}, "$HOME\n"),
		"shell":   first(sandbox.TryCommand{Shell: "echo $((1+2))"}, "3\n"),
		"env":     first(sandbox.TryCommand{Shell: "echo $X", Env: map[string]string{"X": "x"}}, "x\n"),
		"workdir": first(sandbox.TryCommand{Shell: "pwd", WorkDir: "/usr"}, "/usr\n"),
		"user": tried(sandbox.TryRequest{Commands: []sandbox.TryCommand{{Shell: "id", User: "nobody-of-this-name"}}}, func(_ *harness, r *sandbox.TryResult) bool {
			return strings.Contains(r.Attempts[0].Error, "nobody-of-this-name")
		}),
	})
}
