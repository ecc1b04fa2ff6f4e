package native

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// builder is a service that records requests for builds.
type builder struct {
	sandbox.Service
	got *sandbox.BuildTemplateRequest
}

var errNoted = errors.New("noted")

func (b *builder) StartBuild(_ context.Context, req sandbox.BuildTemplateRequest) (*sandbox.Build, error) {
	b.got = &req
	return nil, errNoted
}

// Every argument that says what a template is made of is used, or refused if it would
// have no effect, as without from.
func TestTemplateBuildArguments(t *testing.T) {
	values := map[string]string{
		"description": `"x"`, "apt": `["x"]`, "pip": `["x"]`, "npm": `["x"]`, "files": `[{"path": "/x", "content": ""}]`, "run": `["x"]`, "env": `{"A": "x"}`,
		"workdir": `"/x"`, "user": `"x"`, "vcpus": `1`, "memory_mib": `512`, "disk_mib": `512`, "max_pids": `64`, "start": `{"command": "x"}`, "warm": `{"python": "x"}`,
		"desktop": `{"width": 800, "height": 600}`, "ports": `[80]`, "build_network": `"open"`, "network": `"none"`,
	}
	build := func(args string) (*sandbox.BuildTemplateRequest, string) {
		t.Helper()
		svc := &builder{}
		c := &dialect.Call{Service: svc, Args: json.RawMessage(args), Status: func(string) {}, Log: slog.New(slog.DiscardHandler)}
		res, err := dialect.Invoke(t.Context(), New(), named("template_build"), c)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		return svc.got, string(text)
	}
	plain, _ := build(`{"name": "x", "from": {"host": true}}`)
	for name := range named("template_build").Def.InputSchema.(*jsonschema.Schema).Properties {
		switch name {
		case "name", "from", "force", "wait_ms":
			continue
		}
		value, ok := values[name]
		if !ok {
			t.Errorf("there is no value for %s", name)
			continue
		}
		if got, text := build(`{"name": "x", "` + name + `": ` + value + `}`); got != nil || !strings.Contains(text, name+" cannot be taken; set from") {
			t.Errorf("%s without from: %+v, %s", name, got, text)
		}
		got, _ := build(`{"name": "x", "from": {"host": true}, "` + name + `": ` + value + `}`)
		if got == nil || got.Spec == nil || encoded(t, got.Spec) == encoded(t, plain.Spec) {
			t.Errorf("%s with from changes nothing: %+v", name, got)
		}
	}
	if _, text := build(`{"name": "x", "apt": ["x"], "workdir": "/x"}`); !strings.Contains(text, "apt, workdir cannot be taken") {
		t.Errorf("two of them: %s", text)
	}
	for _, args := range []string{`{"name": "x"}`, `{"name": "x", "force": true, "wait_ms": 1, "build_network": "packages", "apt": [], "env": {}}`} {
		if got, text := build(args); got == nil || got.Spec != nil {
			t.Errorf("%s: %+v, %s", args, got, text)
		}
	}
}

func encoded(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
