package service

import (
	"database/sql"
	"slices"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// TestHistoryBytes makes the steps of a history exceed their disk space: the oldest are
// removed, whatever their number, but never the newest.
func TestHistoryBytes(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "x", History: 10})
	run := func(programs ...string) {
		t.Helper()
		for _, p := range programs {
			_, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Command: []string{p}}, nil)
			must(t, err)
		}
	}
	db, err := sql.Open("sqlite", "file:"+w.path+"?_pragma=busy_timeout(10000)")
	must(t, err)
	defer db.Close()
	// resize sets the size of a step in the store.
	resize := func(label string, bytes int64) {
		t.Helper()
		res, err := db.ExecContext(t.Context(), "UPDATE snapshots SET size_bytes = ? WHERE label = ?", bytes, label)
		must(t, err)
		if n, err := res.RowsAffected(); err != nil || n != 1 {
			t.Fatalf("%s: %d rows changed, %v", label, n, err)
		}
	}
	want := func(labels ...string) {
		t.Helper()
		var got []string
		for _, s := range w.steps("x") {
			got = append(got, s.Label)
		}
		if !slices.Equal(got, labels) {
			t.Errorf("the steps are %v, want %v", got, labels)
		}
		w.agree()
	}
	run("true", "pwd", "ls")
	want("before ls", "before pwd", "before true")
	for _, label := range []string{"before true", "before pwd", "before ls"} {
		resize(label, sandbox.MaxHistoryBytes*3/8)
	}
	run("echo")
	want("before echo", "before ls", "before pwd")
	resize("before echo", sandbox.MaxHistoryBytes/8)
	run("id")
	want("before id", "before echo", "before ls", "before pwd") // 7/8 and a little
	resize("before id", sandbox.MaxHistoryBytes+1)
	_, err = w.Update(asRed(t), "x", sandbox.UpdateRequest{History: ptr(9)})
	must(t, err)
	want("before id")
}
