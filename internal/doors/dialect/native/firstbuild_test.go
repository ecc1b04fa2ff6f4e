package native

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// unbuilt is a service with a template that was never built; to build it takes
// some time, and ends as state says.
type unbuilt struct {
	sandbox.Service
	template sandbox.TemplateState
	takes    time.Duration
	ends     sandbox.BuildState
	refused  error // of StartBuild
	started  int
}

func (u *unbuilt) build(state sandbox.BuildState) *sandbox.Build {
	return &sandbox.Build{ID: "bld-1", Template: "node", State: state, Step: "install Debian", Fraction: 0.25, Reason: "no room."}
}

func (u *unbuilt) Create(_ context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	if req.Template == "node" && u.template != sandbox.TemplateReady {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "template node is not built yet")
	}
	return &sandbox.Sandbox{ID: "sbx-1", State: sandbox.StateRunning}, nil
}

func (u *unbuilt) GetTemplate(context.Context, string) (*sandbox.Template, error) {
	return &sandbox.Template{Name: "node", State: u.template}, nil
}

func (u *unbuilt) StartBuild(context.Context, sandbox.BuildTemplateRequest) (*sandbox.Build, error) {
	u.started++
	return u.build(sandbox.BuildRunning), u.refused
}

func (u *unbuilt) ListBuilds(context.Context, sandbox.ListBuildsRequest) (*sandbox.List[sandbox.Build], error) {
	return &sandbox.List[sandbox.Build]{Items: []sandbox.Build{*u.build(sandbox.BuildRunning)}}, nil
}

func (u *unbuilt) GetBuild(context.Context, string) (*sandbox.Build, error) {
	return u.build(sandbox.BuildRunning), nil
}

func (u *unbuilt) FollowBuild(ctx context.Context, _ string, sink func(sandbox.BuildEvent) error) (*sandbox.Build, error) {
	if err := sink(sandbox.BuildEvent{Step: "install Debian", Fraction: 0.25}); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(u.takes):
	}
	if u.ends == sandbox.BuildReady {
		u.template = sandbox.TemplateReady
	}
	return u.build(u.ends), nil
}

// A template that is not built yet is built when a sandbox is first requested. A build
// that takes longer than a call may continues, and the error says so.
func TestFirstUseBuildsTheTemplate(t *testing.T) {
	const node = `{"template":"node"}`
	for name, tt := range map[string]struct {
		svc     unbuilt
		args    string
		want    string
		started int
	}{
		"quickly":      {unbuilt{template: sandbox.TemplateAvailable, takes: 44 * time.Second, ends: sandbox.BuildReady}, node, "Created sandbox sbx-1", 1},
		"slowly":       {unbuilt{template: sandbox.TemplateAvailable, takes: 46 * time.Second, ends: sandbox.BuildReady}, node, "is being built now (25 %: install Debian)", 1},
		"by others":    {unbuilt{template: sandbox.TemplateBuilding, takes: time.Second, ends: sandbox.BuildReady}, node, "Created sandbox sbx-1", 0},
		"in vain":      {unbuilt{template: sandbox.TemplateAvailable, ends: sandbox.BuildFailed}, node, "building it has failed: no room; tell your user,", 1},
		"not by a key": {unbuilt{template: sandbox.TemplateAvailable, refused: sandbox.Errorf(sandbox.CodeForbidden, "no scope")}, node, "tell your user to ask the server's operator for 'cove template build node'", 1},
		"failed once":  {unbuilt{template: sandbox.TemplateFailed}, node, "template node is not built yet", 0},
		"not needed":   {unbuilt{template: sandbox.TemplateAvailable}, `{}`, "Created sandbox sbx-1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var status []string
				c := &dialect.Call{Service: &tt.svc, Args: json.RawMessage(tt.args), Status: func(s string) { status = append(status, s) }, Log: slog.New(slog.DiscardHandler)}
				res, err := dialect.Invoke(t.Context(), New(), named("sandbox_create"), c)
				if err != nil {
					t.Fatal(err)
				}
				text := res.Content[0].(*mcp.TextContent).Text
				if !strings.Contains(text, tt.want) || res.IsError == strings.HasPrefix(tt.want, "Created") || tt.svc.started != tt.started {
					t.Errorf("%d builds were started, it says %q, want %q", tt.svc.started, text, tt.want)
				}
				if told := strings.Join(status, "; "); tt.started > 0 && tt.svc.refused == nil && !strings.Contains(told, "building template node: install Debian") {
					t.Errorf("meanwhile it told %q", told)
				}
			})
		})
	}
}
