package service

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/orphan"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// keysOf returns a unique key of each item of a listing.
type keysOf func(ctx context.Context, p sandbox.Page) (keys []string, next string, err error)

func keysBy[T any](list sandbox.Lister[T], key func(*T) string) keysOf {
	return func(ctx context.Context, p sandbox.Page) ([]string, string, error) {
		part, err := list(ctx, p)
		if err != nil {
			return nil, "", err
		}
		keys := []string{}
		for i := range part.Items {
			keys = append(keys, key(&part.Items[i]))
		}
		return keys, part.NextCursor, nil
	}
}

// listings returns all listings of a harness that the store's own tests do not cover.
// The sandbox x has several items in each.
func listings(w *harness) map[string]keysOf {
	return map[string]keysOf{
		"templates": keysBy(w.ListTemplates, func(t *sandbox.Template) string { return t.Name }),
		"orphans":   keysBy(w.ListOrphans, func(o *sandbox.Orphan) string { return o.ID }),
		"jobs":      keysBy(sandbox.Of("x", w.ListJobs), func(j *sandbox.Job) string { return j.ID }),
		"previews":  keysBy(sandbox.Of("", w.ListPreviews), func(p *sandbox.Preview) string { return p.ID }),
		"of x":      keysBy(sandbox.Of("x", w.ListPreviews), func(p *sandbox.Preview) string { return p.ID }),
		"env":       keysBy(sandbox.Of("x", w.GetEnv), func(v *sandbox.EnvVar) string { return v.Name }),
		"processes": keysBy(sandbox.Of("x", w.ListProcesses), func(p *sandbox.Process) string { return fmt.Sprint(p.PID) }),
		"sandboxes": keysBy(func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.Sandbox], error) {
			return w.List(ctx, sandbox.ListRequest{Page: p})
		}, func(s *sandbox.Sandbox) string { return s.ID }),
		"stats": keysBy(func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.SandboxStats], error) {
			return w.ListStats(ctx, sandbox.StatsRequest{Page: p})
		}, func(s *sandbox.SandboxStats) string { return s.ID }),
		"files": keysBy(func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.FileInfo], error) {
			return w.ListFiles(ctx, "x", sandbox.ListFilesRequest{Path: ".", Page: p})
		}, func(f *sandbox.FileInfo) string { return f.Path }),
	}
}

// furnish makes four items of each kind for each team.
func furnish(w *harness) {
	for i := range 4 {
		must(w.t, putOrphan(w, fmt.Sprint("ckp-", i)))
		for _, team := range []string{"red", "blue"} {
			ctx := as(w.t.Context(), team)
			name := "x"
			if i > 0 {
				name = fmt.Sprint("x", i)
			}
			sbx, err := w.Create(ctx, sandbox.CreateRequest{Name: name, Env: map[string]string{"A": "1", "B": "2", "C": "3"}})
			must(w.t, err)
			for port := 8000; i == 0 && port < 8004; port++ {
				_, err = w.CreatePreview(ctx, sbx.ID, sandbox.CreatePreviewRequest{Port: port})
				must(w.t, err)
				_, err = w.Exec(ctx, sbx.ID, sandbox.ExecRequest{Command: []string{"true"}}, nil)
				must(w.t, err)
				_, err = w.MakeDir(ctx, sbx.ID, sandbox.MakeDirRequest{Path: fmt.Sprint("dir", port)})
				must(w.t, err)
			}
		}
	}
}

func putOrphan(w *harness, id string) error {
	_, err := w.cfg.Orphans.Put(orphan.Item{ID: id, Kind: orphan.Checkpoint, Team: "red"}, func(string) error { return nil })
	return err
}

// TestPages reads every listing in parts of each size: all parts together are the whole
// listing in order, with each item once.
func TestPages(t *testing.T) {
	w := newHarness(t, setsAside(t))
	furnish(w)
	for name, list := range listings(w) {
		if name == "processes" { // those of the machine, which come and go
			continue
		}
		whole, next, err := list(asRed(t), sandbox.Page{})
		must(t, err)
		if len(whole) < 2 || next != "" {
			t.Errorf("%s: %d items, and more at %q", name, len(whole), next)
		}
		for limit := 1; limit <= min(len(whole), 4)+1; limit++ {
			var got []string
			p := sandbox.Page{Limit: limit}
			for parts := 0; ; parts++ {
				part, next, err := list(asRed(t), p)
				must(t, err)
				got = append(got, part...)
				if len(part) > limit || len(part) == 0 || parts > len(whole) {
					t.Fatalf("%s: a part of %d has %d items", name, limit, len(part))
				}
				if p.Cursor = next; next == "" {
					break
				}
			}
			if !slices.Equal(got, whole) {
				t.Errorf("%s in parts of %d: %v, want %v", name, limit, got, whole)
			}
		}
	}
}

// TestPagesOfProcesses lists the processes of this machine, since the fake engine has
// no others.
func TestPagesOfProcesses(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	last, found := 0, false
	for p := (sandbox.Page{Limit: 20}); ; {
		part, err := w.ListProcesses(asRed(t), "x", p)
		must(t, err)
		for _, v := range part.Items {
			if v.PID <= last {
				t.Errorf("process %d comes after %d", v.PID, last)
			}
			last, found = v.PID, found || v.PID == os.Getpid()
		}
		if p.Cursor = part.NextCursor; p.Cursor == "" {
			break
		}
	}
	if !found {
		t.Errorf("this process, %d, is not in the list, which ends with %d", os.Getpid(), last)
	}
}

// TestForeignCursors gives every listing cursors that are not its own.
func TestForeignCursors(t *testing.T) {
	w := newHarness(t, setsAside(t))
	furnish(w)
	all := listings(w)
	cursors := map[string]string{}
	for name, list := range all {
		_, next, err := list(asRed(t), sandbox.Page{Limit: 1})
		must(t, err)
		if next == "" {
			t.Fatalf("%s has one part", name)
		}
		cursors[name] = next
	}
	same := map[string]string{"of x": "previews", "stats": "sandboxes"}
	kind := func(name string) string {
		if s, ok := same[name]; ok {
			return s
		}
		return name
	}
	for name, list := range all {
		refused := []string{"zz", "é", store.Place{Text: "../x"}.Cursor("none"), strings.Repeat("A", 1<<16)}
		for other, cursor := range cursors {
			if kind(other) != kind(name) {
				refused = append(refused, cursor)
			}
		}
		for _, cursor := range refused {
			_, _, err := list(asRed(t), sandbox.Page{Cursor: cursor})
			wantCode(t, err, sandbox.CodeInvalid)
			if !strings.Contains(sandbox.MessageOf(err), "start over without a cursor") {
				t.Errorf("%s with the cursor %.30q: %v", name, cursor, err)
			}
		}
		for _, limit := range []int{-1, sandbox.MaxPageSize + 1} {
			_, _, err := list(asRed(t), sandbox.Page{Limit: limit})
			wantCode(t, err, sandbox.CodeInvalid)
		}
	}
	_, err := w.ListStats(asRed(t), sandbox.StatsRequest{Sandbox: "x", Page: sandbox.Page{Cursor: cursors["stats"]}})
	wantCode(t, err, sandbox.CodeInvalid)
}

// TestCursorOfAnotherTeam continues at another team's cursor, and sees nothing of that
// team.
func TestCursorOfAnotherTeam(t *testing.T) {
	w := newHarness(t, setsAside(t))
	furnish(w)
	blue := as(t.Context(), "blue")
	for name, list := range listings(w) {
		if name == "templates" || name == "processes" || name == "files" || name == "env" { // which look alike to both
			continue
		}
		mine, _, err := list(asRed(t), sandbox.Page{})
		must(t, err)
		_, cursor, err := list(asRed(t), sandbox.Page{Limit: 2})
		must(t, err)
		got, _, err := list(blue, sandbox.Page{Cursor: cursor})
		must(t, err)
		for _, key := range got {
			if slices.Contains(mine, key) {
				t.Errorf("%s: with red's cursor, blue sees %s", name, key)
			}
		}
	}
}

// TestPagesWhileItemsGo removes the item that a cursor names, and the one that would
// come next, between two parts.
func TestPagesWhileItemsGo(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	for port := 8001; port <= 8006; port++ {
		_, err := w.CreatePreview(ctx, "x", sandbox.CreatePreviewRequest{Port: port})
		must(t, err)
	}
	var ports []int
	for p := (sandbox.Page{Limit: 2}); ; {
		part, err := w.ListPreviews(ctx, "x", p)
		must(t, err)
		for _, v := range part.Items {
			ports = append(ports, v.Port)
		}
		if len(ports) == 2 {
			for _, port := range []int{8001, 8002, 8003} {
				must(t, w.DeletePreview(ctx, "x", port))
			}
			_, err := w.CreatePreview(ctx, "x", sandbox.CreatePreviewRequest{Port: 8000})
			must(t, err)
		}
		if p.Cursor = part.NextCursor; p.Cursor == "" {
			break
		}
	}
	if !slices.Equal(ports, []int{8001, 8002, 8004, 8005, 8006}) {
		t.Errorf("seen are the ports %v", ports)
	}
}

// A job keeps its place in the listing although the sandbox drops older ones.
func TestJobsAreInTheirOrder(t *testing.T) {
	begun := time.Unix(100, 0)
	jobs := []sandbox.Job{{ID: "b", StartedAt: begun}, {ID: "a", StartedAt: begun}, {ID: "c", StartedAt: begun.Add(-1)}}
	list, err := call.PageOf("jobs", jobs, sandbox.Page{Limit: 2}, placeOfJob)
	must(t, err)
	rest, err := call.PageOf("jobs", jobs[1:], sandbox.Page{Cursor: list.NextCursor}, placeOfJob)
	must(t, err)
	if len(list.Items) != 2 || list.Items[0].ID != "c" || list.Items[1].ID != "a" || len(rest.Items) != 1 || rest.Items[0].ID != "b" {
		t.Errorf("first %+v, then %+v", list.Items, rest.Items)
	}
}
