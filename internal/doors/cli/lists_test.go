package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// crowded is a service each of whose listings has three parts of an item each.
type crowded struct{ sandbox.Service }

func third[T any](page sandbox.Page, make func(i int) T) (*sandbox.List[T], error) {
	i := len(page.Cursor)
	part := &sandbox.List[T]{Items: []T{make(i)}}
	if i < 2 {
		part.NextCursor = strings.Repeat("c", i+1)
	}
	return part, nil
}

func nameOfItem(i int) string { return fmt.Sprint("item-", i) }

func (crowded) List(_ context.Context, req sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	return third(req.Page, func(i int) sandbox.Sandbox { return sandbox.Sandbox{ID: nameOfItem(i), State: sandbox.StateRunning} })
}

func (crowded) ListTemplates(_ context.Context, page sandbox.Page) (*sandbox.List[sandbox.Template], error) {
	return third(page, func(i int) sandbox.Template { return sandbox.Template{Name: nameOfItem(i)} })
}

func (crowded) ListOrphans(_ context.Context, page sandbox.Page) (*sandbox.List[sandbox.Orphan], error) {
	return third(page, func(i int) sandbox.Orphan { return sandbox.Orphan{ID: nameOfItem(i)} })
}

func (crowded) ListApprovals(_ context.Context, req sandbox.ListApprovalsRequest) (*sandbox.List[sandbox.Approval], error) {
	return third(req.Page, func(i int) sandbox.Approval { return sandbox.Approval{ID: nameOfItem(i)} })
}

func (crowded) ListJobs(_ context.Context, _ string, page sandbox.Page) (*sandbox.List[sandbox.Job], error) {
	return third(page, func(i int) sandbox.Job {
		return sandbox.Job{ID: nameOfItem(i), State: sandbox.JobExited, EndedAt: &time.Time{}}
	})
}

func (crowded) ListPreviews(_ context.Context, _ string, page sandbox.Page) (*sandbox.List[sandbox.Preview], error) {
	return third(page, func(i int) sandbox.Preview { return sandbox.Preview{URL: nameOfItem(i)} })
}

func (crowded) ListProcesses(_ context.Context, _ string, page sandbox.Page) (*sandbox.List[sandbox.Process], error) {
	return third(page, func(i int) sandbox.Process { return sandbox.Process{PID: i, Name: nameOfItem(i)} })
}

func (crowded) ListStats(_ context.Context, req sandbox.StatsRequest) (*sandbox.List[sandbox.SandboxStats], error) {
	return third(req.Page, func(i int) sandbox.SandboxStats { return sandbox.SandboxStats{ID: nameOfItem(i)} })
}

func (crowded) GetEnv(_ context.Context, _ string, page sandbox.Page) (*sandbox.List[sandbox.EnvVar], error) {
	return third(page, func(i int) sandbox.EnvVar { return sandbox.EnvVar{Name: nameOfItem(i)} })
}

func (c crowded) SetEnv(ctx context.Context, name string, _ sandbox.SetEnvRequest) (*sandbox.List[sandbox.EnvVar], error) {
	return c.GetEnv(ctx, name, sandbox.Page{})
}

// What lists shows all parts of the listing, in JSON too.
func TestListsShowAllParts(t *testing.T) {
	for _, command := range []string{
		"ls", "template ls", "recover", "approvals ls", "job ls x", "preview ls", "preview ls x", "ps x", "top --once", "stats *", "env x", "env x A=B",
	} {
		for _, form := range []string{"", " --json"} {
			if command == "env x A=B" && form == "" {
				continue // which prints nothing
			}
			got := line(t.Context(), t, crowded{}, strings.Fields(command+form)...)
			if got.Code != 0 {
				t.Errorf("%s: %+v", command+form, got)
				continue
			}
			for i := range 3 {
				if !strings.Contains(got.Out, nameOfItem(i)) {
					t.Errorf("%s does not show %s:\n%s", command+form, nameOfItem(i), got.Out)
				}
			}
			if form != "" && !json.Valid([]byte(got.Out)) {
				t.Errorf("%s prints no JSON:\n%s", command+form, got.Out)
			}
		}
	}
}
