package podflare

import (
	"context"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// runners are what the tools do, by name.
var runners = map[string]runner{
	"run_python":      on("sandbox_id", map[string][]string{"sandbox_id": aliasesOfID}, (*runArgs).target, runPython),
	"run_bash":        on("sandbox_id", map[string][]string{"sandbox_id": aliasesOfID, "code": {"command", "script"}}, (*runArgs).target, runBash),
	"fork":            on("sandbox_id", map[string][]string{"sandbox_id": aliasesOfID}, (*forkArgs).target, fork),
	"diff":            on("sandbox_id", map[string][]string{"sandbox_id": append([]string{"a", "left", "base", "sandbox_a"}, aliasesOfID...), "other": {"b", "right", "other_id", "sandbox_b"}}, (*diffArgs).target, diff),
	"merge_into":      on("parent", map[string][]string{"parent": append([]string{"parent_id", "sandbox_id"}, aliasesOfID...), "winner": {"winner_id", "child"}}, (*mergeArgs).target, mergeInto),
	"upload":          on("sandbox_id", map[string][]string{"sandbox_id": aliasesOfID, "content_base64": {"data", "content", "base64", "content_b64"}}, (*uploadArgs).target, upload),
	"download":        on("sandbox_id", map[string][]string{"sandbox_id": aliasesOfID}, (*downloadArgs).target, download),
	"create_sandbox":  plain("", nil, createSandbox),
	"destroy_sandbox": plain("sandbox_id", map[string][]string{"sandbox_id": aliasesOfID}, destroySandbox),
}

// maxOutput is what is returned of stdout and of stderr.
const maxOutput = 512 << 10

type runArgs struct {
	Code    string  `json:"code"`
	Timeout float64 `json:"timeout"`
	Sandbox string  `json:"sandbox_id"`
}

func (a *runArgs) target() string { return a.Sandbox }

func (a *runArgs) milliseconds() int64 { return max(1, int64(a.Timeout*1000)) }

// ran is what came of code.
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

// shell runs a command and keeps so much of each stream.
func shell(ctx context.Context, c *call, id string, req sandbox.ExecRequest, keep int) (ran, error) {
	out := dialect.Beginnings{Limit: keep}
	req.KeepBytes = 1 // it is taken as it comes
	job, err := c.Service.Exec(ctx, id, req, out.Take)
	if err != nil {
		return ran{}, err
	}
	if job.EndCause == sandbox.EndTimeout {
		return ran{}, timedOut(req.TimeoutMS, "files that it wrote are kept")
	}
	return ran{Stdout: out.Text(sandbox.Stdout), Stderr: out.Text(sandbox.Stderr), ExitCode: job.ExitCode}, nil
}

type forkArgs struct {
	N       int    `json:"n"`
	Sandbox string `json:"sandbox_id"`
}

func (a *forkArgs) target() string { return a.Sandbox }

// forked has the ids of children.
type forked struct {
	Children []string `json:"children"`
}

func fork(ctx context.Context, c *call, id string, in forkArgs) (any, error) {
	c.Status("forking")
	list, err := c.Service.Fork(ctx, id, sandbox.ForkRequest{Count: in.N})
	if err != nil {
		return nil, err
	}
	out := forked{Children: []string{}}
	for _, s := range list.Items {
		out.Children = append(out.Children, s.ID)
	}
	if c.box != nil {
		if err := c.box.forked(ctx, out.Children); err != nil {
			return nil, err
		}
	}
	return out, nil
}

type mergeArgs struct {
	Winner string `json:"winner"`
	Parent string `json:"parent"`
}

func (a *mergeArgs) target() string { return a.Parent }

// merged says which sandbox has become another.
type merged struct {
	Parent string `json:"parent"`
	Merged string `json:"merged"`
	OK     bool   `json:"ok"`
}

func mergeInto(ctx context.Context, c *call, parent string, in mergeArgs) (any, error) {
	c.Status("merging")
	if in.Winner == parent {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "a sandbox cannot be merged into itself")
	}
	if _, err := c.Service.Merge(ctx, parent, sandbox.MergeRequest{Winner: in.Winner, Kind: sandbox.MergeWhole}); err != nil {
		return nil, c.explain(ctx, in.Winner, err)
	}
	if c.box != nil {
		c.box.merged(in.Winner, parent)
	}
	return merged{Parent: parent, Merged: in.Winner, OK: true}, nil
}

type createArgs struct {
	Template string `json:"template"`
	Egress   bool   `json:"egress"`
}

// created is a sandbox that is ready.
type created struct {
	SandboxID string `json:"sandbox_id"`
	ID        string `json:"id"`
	State     string `json:"state"`
}

// templates are the names of the product's templates here.
var templates = map[string]string{"default": "", "python-datasci": "code-interpreter"}

func createSandbox(ctx context.Context, c *call, in createArgs) (any, error) {
	c.Status("creating a sandbox")
	req := request(map[string]string{"dialect": HostedName})
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
	return created{SandboxID: s.ID, ID: s.ID, State: "ready"}, nil
}

type destroyArgs struct {
	Sandbox string `json:"sandbox_id"`
}

// destroyed says that a sandbox is gone.
type destroyed struct {
	SandboxID string `json:"sandbox_id"`
	OK        bool   `json:"ok"`
}

func destroySandbox(ctx context.Context, c *call, in destroyArgs) (any, error) {
	s, err := c.Service.Get(ctx, in.Sandbox)
	if err != nil || s.State.Final() {
		if err == nil || sandbox.CodeOf(err) == sandbox.CodeNotFound {
			err = errGone
		}
		return nil, err
	}
	if s, err = c.Service.Kill(ctx, s.ID); err != nil {
		return nil, err
	}
	return destroyed{SandboxID: s.ID, OK: true}, nil
}
