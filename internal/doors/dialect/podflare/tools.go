package podflare

import (
	"context"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// runners make the tools, by name.
var runners = map[string]runner{
	"run_python":      on("sandbox_id", nil, runPython),
	"run_bash":        on("sandbox_id", aliases{"code": {"command", "script"}}, runBash),
	"fork":            on("sandbox_id", nil, fork),
	"diff":            on("sandbox_id", aliases{"sandbox_id": {"a", "left", "base", "sandbox_a"}, "other": {"b", "right", "other_id", "sandbox_b"}}, diff),
	"merge_into":      on("parent", aliases{"parent": {"parent_id", "sandbox_id"}, "winner": {"winner_id", "child"}}, mergeInto),
	"upload":          on("sandbox_id", aliases{"content_base64": {"data", "content", "base64", "content_b64"}}, upload),
	"download":        on("sandbox_id", nil, download),
	"create_sandbox":  tool("", nil, createSandbox),
	"destroy_sandbox": on("sandbox_id", nil, destroySandbox),
}

// maxOutput bounds the returned part of stdout and of stderr, in bytes.
const maxOutput = 512 << 10

type runArgs struct {
	inSandbox
	Code    string  `json:"code"`
	Timeout float64 `json:"timeout"`
}

func (a *runArgs) milliseconds() int64 { return max(1, int64(a.Timeout*1000)) }

// ran is the result of code or a command.
type ran struct {
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExitCode int    `json:"exit_code"`
}

func timedOut(after int64, then string) error {
	return sandbox.Errorf(sandbox.CodeTimeout, "timeout: the code was ended after %v; %s", time.Duration(after)*time.Millisecond, then)
}

func runPython(ctx context.Context, c *call, id string, in runArgs) (any, error) {
	c.Status("running Python")
	res, err := c.Service.RunCode(ctx, id, sandbox.RunCodeRequest{
		Language: sandbox.Python, Code: in.Code, TimeoutMS: in.milliseconds(), KeepBytes: maxOutput,
	}, nil)
	if err != nil {
		return nil, err
	}
	if res.TimedOut {
		then := "what it had defined is kept"
		if res.Restarted {
			then = "its interpreter had to be ended too, so variables and imports are gone"
		}
		return nil, timedOut(in.milliseconds(), then)
	}
	out := ran{Stdout: res.Stdout, Stderr: res.Stderr, ExitCode: res.ExitCode}
	if values := dialect.Values(res); len(values) > 0 {
		out.Stdout = dialect.Line(out.Stdout) + values[0] + "\n"
	}
	if res.Error != nil {
		out.Stderr = dialect.WithError(out.Stderr, res.Error)
	}
	if res.Restarted && res.Reason != "" {
		out.Stderr = dialect.Line(out.Stderr) + "the interpreter is a new one, variables and imports are gone: " + res.Reason + "\n"
	}
	return out, nil
}

func runBash(ctx context.Context, c *call, id string, in runArgs) (any, error) {
	c.Status("running Bash")
	return shell(ctx, c, id, sandbox.ExecRequest{Shell: in.Code, TimeoutMS: in.milliseconds()}, maxOutput)
}

// shell runs a command and returns the first keep bytes of each stream.
func shell(ctx context.Context, c *call, id string, req sandbox.ExecRequest, keep int) (ran, error) {
	job, out, err := dialect.Exec(ctx, c.Service, id, req, keep)
	if err != nil {
		return ran{}, err
	}
	if job.EndCause == sandbox.EndTimeout {
		return ran{}, timedOut(req.TimeoutMS, "files that it wrote are kept")
	}
	return ran{Stdout: out.Text(sandbox.Stdout), Stderr: out.Text(sandbox.Stderr), ExitCode: job.ExitCode}, nil
}

type forkArgs struct {
	inSandbox
	N int `json:"n"`
}

func fork(ctx context.Context, c *call, id string, in forkArgs) (any, error) {
	c.Status("forking")
	list, err := c.Service.Fork(ctx, id, sandbox.ForkRequest{Count: in.N})
	if err != nil {
		return nil, err
	}
	children := []string{}
	for _, s := range list.Items {
		children = append(children, s.ID)
	}
	if c.session != nil {
		if err := c.session.forked(ctx, children); err != nil {
			return nil, err
		}
	}
	return map[string]any{"children": children}, nil
}

type mergeArgs struct {
	Winner string `json:"winner"`
	Parent string `json:"parent"`
}

func (a mergeArgs) sandbox() string { return a.Parent }

func mergeInto(ctx context.Context, c *call, parent string, in mergeArgs) (any, error) {
	c.Status("merging")
	if in.Winner == parent {
		return nil, dialect.Invalid("a sandbox cannot be merged into itself")
	}
	if _, err := c.Service.Merge(ctx, parent, sandbox.MergeRequest{Winner: in.Winner, Kind: sandbox.MergeWhole}); err != nil {
		return nil, c.explain(ctx, in.Winner, err)
	}
	if c.session != nil {
		c.session.merged(in.Winner, parent)
	}
	return dialect.ObjectOf("parent", parent, "merged", in.Winner, "ok", true), nil
}

type createArgs struct {
	Template string `json:"template"`
	Egress   bool   `json:"egress"`
}

// templates maps the product's templates to the server's.
var templates = map[string]string{"default": "", "python-datasci": "code-interpreter"}

func createSandbox(ctx context.Context, c *call, in createArgs) (any, error) {
	c.Status("creating a sandbox")
	req := request("dialect", HostedName)
	req.Template = in.Template
	if name, ok := templates[in.Template]; ok {
		req.Template = name
	}
	if !in.Egress {
		req.Network = &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}
	}
	s, err := c.Service.Create(ctx, req)
	if err != nil {
		return nil, err
	}
	return dialect.ObjectOf("sandbox_id", s.ID, "id", s.ID, "state", "ready"), nil
}

func destroySandbox(ctx context.Context, c *call, id string, _ inSandbox) (any, error) {
	s, err := c.Service.Get(ctx, id)
	if err == nil && s.State.Final() {
		err = errGone
	}
	if err == nil {
		s, err = c.Service.Kill(ctx, s.ID)
	}
	if err != nil {
		return nil, err
	}
	return dialect.ObjectOf("sandbox_id", s.ID, "ok", true), nil
}
