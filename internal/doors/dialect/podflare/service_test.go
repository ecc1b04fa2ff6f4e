package podflare_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/podflare"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/sandbox"
)

// imaginary is a service that records the calls it gets.
type imaginary struct {
	sandbox.Service
	created []sandbox.CreateRequest
	ran     []sandbox.RunCodeRequest
	output  []byte
}

func (s *imaginary) Create(_ context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	s.created = append(s.created, req)
	return &sandbox.Sandbox{ID: "sbx-1"}, nil
}

func (s *imaginary) RunCode(_ context.Context, _ string, req sandbox.RunCodeRequest, _ sandbox.CodeSink) (*sandbox.CodeResult, error) {
	s.ran = append(s.ran, req)
	return &sandbox.CodeResult{}, nil
}

func (s *imaginary) Exec(_ context.Context, _ string, _ sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	return &sandbox.Job{}, sink(sandbox.JobEvent{Stream: sandbox.Stdout, Data: s.output})
}

// ask calls a tool of the hosted server and returns the text of its result.
func ask(t *testing.T, svc sandbox.Service, tool, args string) string {
	t.Helper()
	res, err := dialecttest.Direct(t, podflare.NewHosted(), svc)(t.Context(), tool, json.RawMessage(args))
	if err != nil || res.IsError {
		t.Fatalf("%s %s: %v, %+v", tool, args, err, res)
	}
	return res.Content[0].(*mcp.TextContent).Text
}

// TestCreateRequests checks that the product's templates map to ours, and that a sandbox
// with egress has the server's default policy, which its operator sets.
func TestCreateRequests(t *testing.T) {
	for args, want := range map[string]struct {
		template string
		network  sandbox.NetworkPreset
	}{
		`{}`:                            {"", ""},
		`{"template":"default"}`:        {"", ""},
		`{"template":"python-datasci"}`: {"code-interpreter", ""},
		`{"template":"mine"}`:           {"mine", ""},
		`{"egress":true}`:               {"", ""},
		`{"egress":false}`:              {"", sandbox.NetworkNone},
	} {
		svc := &imaginary{}
		ask(t, svc, "create_sandbox", args)
		req := svc.created[0]
		var network sandbox.NetworkPreset
		if req.Network != nil {
			network = req.Network.Preset
		}
		if len(svc.created) != 1 || req.Template != want.template || network != want.network {
			t.Errorf("%s: asked for %+v with the network %q", args, svc.created, network)
		}
	}
}

// TestOutputIsBounded checks that the beginning of long output is returned, and how much
// more there was.
func TestOutputIsBounded(t *testing.T) {
	const most = 512 << 10
	svc := &imaginary{}
	ask(t, svc, "run_python", `{"sandbox_id":"sbx-1","code":"1"}`)
	if svc.ran[0].KeepBytes != most {
		t.Errorf("of Python's output %d bytes are kept", svc.ran[0].KeepBytes)
	}
	for n, more := range map[int]string{most: "", most + 7: `\n[7 more bytes; write to a file and read it in parts]\n`} {
		svc.output = bytes.Repeat([]byte("x"), n)
		want := `{"stdout":"` + strings.Repeat("x", most) + more + `","stderr":"","exit_code":0}`
		if got := ask(t, svc, "run_bash", `{"sandbox_id":"sbx-1","code":"1"}`); got != want {
			t.Errorf("of %d bytes come %d, at the end %s", n, len(got), got[len(got)-100:])
		}
	}
}
