package cli

import (
	"bytes"
	"context"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/sandbox"
)

// unbuilt is a service with a template that was never built.
type unbuilt struct {
	kept
	state  sandbox.TemplateState
	failed error // of the build
}

func (u *unbuilt) Create(ctx context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	if u.state != sandbox.TemplateReady {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "template node is not built yet; build it first")
	}
	return u.kept.Create(ctx, req)
}

func (u *unbuilt) GetTemplate(context.Context, string) (*sandbox.Template, error) {
	return &sandbox.Template{Name: "node", State: u.state}, nil
}

func (u *unbuilt) ListBuilds(context.Context, sandbox.ListBuildsRequest) (*sandbox.List[sandbox.Build], error) {
	return &sandbox.List[sandbox.Build]{}, nil
}

func (u *unbuilt) BuildTemplate(_ context.Context, req sandbox.BuildTemplateRequest, sink func(sandbox.BuildEvent) error) (*sandbox.Template, error) {
	u.hear("BuildTemplate", req)
	if err := sink(sandbox.BuildEvent{Step: "install Debian", Fraction: 0.5}); err != nil {
		return nil, err
	}
	if u.failed != nil {
		return nil, u.failed
	}
	u.state = sandbox.TemplateReady
	return &sandbox.Template{Name: "node", State: u.state}, nil
}

const buildsNode = `BuildTemplate {"name":"node"}`

// A template that nobody has built is built when it is first asked for.
func TestFirstUseBuildsTheTemplate(t *testing.T) {
	svc := &unbuilt{state: sandbox.TemplateAvailable}
	got := lineWith(t, svc, "", "create", "-T", "node")
	if got.Code != 0 || got.Out != "sbx-new\n" || len(svc.heard) != 2 || svc.heard[0] != buildsNode {
		t.Errorf("%+v, heard %q", got, svc.heard)
	}
	if !strings.Contains(got.Errors, "template node is not built yet; building it downloads its parts") || !strings.Contains(got.Errors, "install Debian") {
		t.Errorf("it says %q", got.Errors)
	}
	failing := &unbuilt{state: sandbox.TemplateAvailable, failed: sandbox.Errorf(sandbox.CodeInvalid, "there is no mmdebstrap")}
	if got := lineWith(t, failing, "", "create", "-T", "node"); got.Code == 0 || got.Out != "" || !strings.Contains(got.Errors, "there is no mmdebstrap") {
		t.Errorf("a build that fails: %+v", got)
	}
	refused := &unbuilt{state: sandbox.TemplateAvailable, failed: sandbox.Errorf(sandbox.CodeForbidden, "no scope")}
	if got := lineWith(t, refused, "", "create", "-T", "node"); got.Code == 0 || !strings.Contains(got.Errors, "ask the server's operator to run 'cove template build node'") {
		t.Errorf("a key that builds no templates: %+v", got)
	}
	for _, state := range []sandbox.TemplateState{sandbox.TemplateBuilding, sandbox.TemplateFailed} {
		other := &unbuilt{state: state}
		if got := lineWith(t, other, "", "create", "-T", "node"); got.Code == 0 || len(other.heard) != 0 || !strings.Contains(got.Errors, "build it first") {
			t.Errorf("a template that is %s: %+v, heard %q", state, got, other.heard)
		}
	}
}

// At a terminal somebody is asked first.
func TestFirstUseAsksAtATerminal(t *testing.T) {
	for answer, builds := range map[string]bool{"\n": true, "y\n": true, "Yes\n": true, "n\n": false, "what\n": false, "\x04": false} {
		svc := &unbuilt{state: sandbox.TemplateAvailable}
		srv := httptest.NewServer(rest.New(rest.Config{Service: svc}))
		screen, terminal, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := screen.WriteString(answer); err != nil {
			t.Fatal(err)
		}
		shown := make(chan string, 1)
		go func() {
			var text bytes.Buffer
			_, _ = text.ReadFrom(screen) // until the terminal is closed
			shown <- text.String()
		}()
		out := new(bytes.Buffer)
		code := Run(t.Context(), Program{
			Args: []string{"create", "-T", "node"}, Stdin: terminal, Stdout: out, Stderr: terminal,
			Env: func(name string) string { return map[string]string{"COVE_URL": srv.URL, "TERM": "dumb"}[name] },
		})
		closeAll(t, terminal, srv)
		text := <-shown
		_ = screen.Close()
		if (code == 0) != builds || (len(svc.heard) == 2) != builds || !strings.Contains(text, "build it now? [Y/n]") {
			t.Errorf("to %q: exit code %d, heard %q, shown %q", answer, code, svc.heard, text)
		}
	}
}

func closeAll(t *testing.T, terminal *os.File, srv *httptest.Server) {
	t.Helper()
	srv.Close()
	if err := terminal.Close(); err != nil {
		t.Error(err)
	}
}
