package hopx

import (
	"context"
	"fmt"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// The modes of code execution in v0.2.
const (
	modeIsolated   = "isolated"
	modePersistent = "persistent"
	modeRich       = "rich"
	modeBackground = "background"
)

// backgroundTimeout is the default timeout of background code, in seconds: the schema's
// default for execute_code applies to the other modes.
const backgroundTimeout = 300

type modeArgs struct {
	backgroundArgs
	Mode     string  `json:"mode"`
	Template string  `json:"template_name"`
	Region   *string `json:"region"`
}

// v2InMode makes a tool of one mode.
func v2InMode(mode string) func(context.Context, *dialect.Call, modeArgs) (any, error) {
	return func(ctx context.Context, c *dialect.Call, in modeArgs) (any, error) {
		in.Mode = mode
		return v2ExecuteCode(ctx, c, in)
	}
}

func v2ExecuteCode(ctx context.Context, c *dialect.Call, in modeArgs) (any, error) {
	if wrong := in.check(); wrong != nil {
		return wrong, nil
	}
	v, err := in.run(ctx, c)
	if err != nil {
		return nil, in.failed(err)
	}
	return v, nil
}

// check returns a description of what is wrong with a request, or nil.
func (in *modeArgs) check() any {
	wrong := func(what, provided any, format string, args ...any) any {
		out := object(pair{"error", what}, pair{"message", fmt.Sprintf(format, args...)})
		if provided != nil {
			out = append(out, pair{"provided", provided})
		}
		return append(out, pair{"mode", in.Mode})
	}
	most := int64(maxTimeout)
	if in.Mode == modeBackground {
		most = maxBackground
	}
	if in.Mode != modeIsolated && in.SandboxID == "" && in.VMURL == "" {
		return wrong("Missing sandbox_id", nil, "mode %s needs the sandbox_id of create_sandbox", in.Mode)
	}
	if _, err := sandbox.ParseLanguage(in.Language); err != nil {
		return wrong("Invalid language", clip.Text(in.Language, maxShown), "language must be python, javascript, bash or go")
	}
	if in.Timeout < 1 {
		return wrong("Invalid timeout", in.Timeout, "timeout must be 1 second or more")
	}
	if in.Timeout > most {
		return wrong("Timeout too large", in.Timeout, "timeout must be %d seconds at most in this mode; use mode background for longer code", most)
	}
	return nil
}

// ranV2 is the result of code.
type ranV2 struct {
	Stdout        string        `json:"stdout"`
	Stderr        string        `json:"stderr"`
	ExitCode      int           `json:"exit_code"`
	ExecutionTime float64       `json:"execution_time"`
	Success       bool          `json:"success"`
	RichOutputs   *[]richOutput `json:"rich_outputs,omitempty"`
	Mode          string        `json:"mode"`
	SandboxID     string        `json:"sandbox_id"`
	Note          string        `json:"_note,omitempty"`
}

func (in *modeArgs) ran(e *executed, id, note string) *ranV2 {
	e.remark(note)
	return &ranV2{e.Stdout, e.Stderr, e.ExitCode, e.ExecutionTime, e.Success, e.RichOutputs, in.Mode, id, e.Note}
}

func (in *modeArgs) run(ctx context.Context, c *dialect.Call) (any, error) {
	if in.Mode == modeIsolated && in.SandboxID == "" && in.VMURL == "" {
		return in.alone(ctx, c)
	}
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	var out *executed
	note := ""
	switch in.Mode {
	case modeBackground:
		job, err := m.start(ctx, "/execute/background", &in.backgroundArgs)
		if err != nil {
			return nil, err
		}
		s := startedOf(codePrefix, job, in.Name)
		s.Mode, s.SandboxID = in.Mode, m.id
		return s, nil
	case modeRich:
		if in.WorkingDir == "" {
			in.WorkingDir = richDir
		}
		in.Rich = true // implied by the mode
		out, err = m.rich(ctx, &in.codeArgs)
	case modeIsolated:
		note = "Ran in the sandbox that was given, which lives on."
		fallthrough
	default:
		out, _, err = m.execute(ctx, "/execute", &in.codeArgs)
	}
	if err != nil {
		return nil, err
	}
	return in.ran(out, m.id, note), nil
}

// alone runs code in a sandbox that is killed before the answer.
func (in *modeArgs) alone(ctx context.Context, c *dialect.Call) (any, error) {
	req, err := in.request()
	if err != nil {
		return nil, failed(true, "", err)
	}
	name, note, err := templateFor(ctx, c, in.Template)
	if err != nil {
		return nil, control(templatePath(in.Template), "template", err)
	}
	req.WorkDir, req.User, req.Fresh = "", "root", false // its sandbox is new anyway
	c.Status("running " + string(req.Language))
	res, err := c.Service.RunIsolated(ctx, sandbox.RunIsolatedRequest{RunCodeRequest: req, Template: name}, nil)
	if err != nil {
		return nil, failed(true, "", err)
	}
	text := "Ran in a sandbox of its own, which is gone."
	if note != "" {
		text += " " + note + "."
	}
	return in.ran(executedOf(res, in.Timeout), res.SandboxID, text), nil
}

// failed returns the result of code that did not run.
func (in *modeArgs) failed(err error) error {
	f := failed(true, "", err)
	what := "Code execution failed"
	switch {
	case f.code == "SANDBOX_NOT_FOUND":
		what = "Sandbox not found"
	case f.status >= 500:
		what = "Unexpected error during code execution"
	}
	if sandbox.CodeOf(err) == sandbox.CodeUnavailable {
		return err
	}
	text := f.message()
	return &failure{err: err, status: f.status, exact: object(append([]pair{
		{"error", what}, {"exception", text}, {"exception_type", errorType(err)}, {"traceback", ""}, {"mode", in.Mode},
	}, notRunKeys(err)...)...)}
}
