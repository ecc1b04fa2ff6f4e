package hopx

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxTimeout bounds code and commands that a call waits for, in seconds, and
	// maxBackground those in the background.
	maxTimeout    = 300
	maxBackground = 24 * 60 * 60
	// maxOutput bounds the returned part of stdout and of stderr, in bytes.
	maxOutput = 512 << 10
	// exitTimeout is the exit code of code or a command that timed out.
	exitTimeout = 124
	// richDir is the default directory for code with rich outputs.
	richDir = "/tmp"
)

type codeArgs struct {
	target
	Code       string            `json:"code"`
	Language   string            `json:"language"`
	Timeout    int64             `json:"timeout"`
	Env        map[string]string `json:"env"`
	WorkingDir string            `json:"working_dir"`
	Rich       bool              `json:"capture_rich"`
}

// executed is the result of code. The first rich output of each kind has a field of its
// own.
type executed struct {
	Success       bool    `json:"success"`
	Stdout        string  `json:"stdout"`
	Stderr        string  `json:"stderr"`
	ExitCode      int     `json:"exit_code"`
	ExecutionTime float64 `json:"execution_time"`
	Language      string  `json:"language"`
	Timestamp     string  `json:"timestamp"`
	flat
	RichOutputs *[]richOutput `json:"rich_outputs,omitempty"`
	SandboxID   string        `json:"sandbox_id,omitempty"`
	Note        string        `json:"_note,omitempty"`
}

// request checks the arguments and translates them into the service's terms.
func (in *codeArgs) request() (sandbox.RunCodeRequest, error) {
	lang, err := sandbox.ParseLanguage(in.Language)
	switch {
	case err != nil:
		return sandbox.RunCodeRequest{}, dialect.Invalid("language %q is not supported; use python, javascript, bash or go", clip.Text(in.Language, maxShown))
	case in.Code == "":
		return sandbox.RunCodeRequest{}, dialect.Invalid("code is empty; set it to the code to run")
	}
	if err := checkTimeout(in.Timeout, maxTimeout, "or use execute_code_background"); err != nil {
		return sandbox.RunCodeRequest{}, err
	}
	return sandbox.RunCodeRequest{
		Language: lang, Code: in.Code, Env: in.Env, WorkDir: in.WorkingDir, TimeoutMS: in.Timeout * 1000, KeepBytes: maxOutput,
		// Each shell is new, as in the product: its exit and its variables do not affect
		// later calls.
		Fresh: lang == sandbox.Bash,
	}, nil
}

func checkTimeout(s, most int64, instead string) error {
	if s < 1 || s > most {
		return dialect.Invalid("timeout is %d seconds; give 1 to %d, %s", s, most, instead)
	}
	return nil
}

// execute runs code in a sandbox.
func (m *vm) execute(ctx context.Context, route string, in *codeArgs) (*executed, *sandbox.CodeResult, error) {
	return m.executeTo(ctx, route, in, nil)
}

// executeTo runs code in a sandbox, and passes events to sink.
func (m *vm) executeTo(ctx context.Context, route string, in *codeArgs, sink sandbox.CodeSink) (*executed, *sandbox.CodeResult, error) {
	req, err := in.request()
	if err != nil {
		return nil, nil, m.failed(route, err)
	}
	m.Status("running " + string(req.Language))
	var res *sandbox.CodeResult
	err = m.atHome(ctx, req.WorkDir, func() (err error) {
		res, err = m.Service.RunCode(ctx, m.id, req, sink)
		return err
	})
	if err != nil {
		return nil, nil, m.missing(ctx, route, "DIRECTORY_NOT_FOUND", err)
	}
	return executedOf(res, in.Timeout), res, nil
}

// atHome runs something in a directory. If that is the default directory and does not
// exist, as in a sandbox that another door made, it is made first.
func (m *vm) atHome(ctx context.Context, dir string, run func() error) error {
	err := run()
	if err == nil || dir != home && (dir != "" || m.box.WorkDir != home) {
		return err
	}
	if _, statErr := m.Service.StatFile(ctx, m.id, home); sandbox.CodeOf(statErr) != sandbox.CodeNotFound {
		return err
	}
	if _, mkErr := m.Service.MakeDir(ctx, m.id, sandbox.MakeDirRequest{Path: home}); mkErr != nil {
		return err
	}
	return run()
}

func executedOf(res *sandbox.CodeResult, timeout int64) *executed {
	out := &executed{
		Success: res.ExitCode == 0 && res.Error == nil && !res.TimedOut && !res.Interrupted,
		Stdout:  res.Stdout, Stderr: res.Stderr, ExitCode: res.ExitCode,
		ExecutionTime: seconds(res.DurationMS), Language: string(res.Language), Timestamp: dialect.Stamp(time.Now()),
	}
	if !out.Success && out.ExitCode == 0 {
		out.ExitCode = 1
	}
	if res.Error != nil && !res.TimedOut {
		out.Stderr = dialect.WithError(out.Stderr, res.Error)
	}
	if res.TimedOut {
		out.ExitCode = exitTimeout
		if !strings.Contains(out.Stderr, "time limit") { // the interpreter may have said so
			out.Stderr = dialect.Line(out.Stderr) + fmt.Sprintf("Execution timed out after %d seconds\n", timeout)
		}
	}
	if res.Restarted {
		out.remark("The interpreter is a new one, variables and imports are gone: " + res.Reason + ".")
	}
	return out
}

func executeCode(ctx context.Context, c *dialect.Call, in codeArgs) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	out, res, err := m.execute(ctx, "/execute", &in)
	if err != nil {
		return nil, err
	}
	out.flatten(res)
	return out, nil
}

// flatten sets the fields of the outputs that have their own.
func (e *executed) flatten(res *sandbox.CodeResult) {
	var text, others leftOut
	e.flat, text, others = flatOf(res, maxFlat)
	e.remark(append(text, others...).note("execute_code_rich returns 8 MiB of outputs; save what is larger to a file."))
}

// remark adds a sentence to the note.
func (e *executed) remark(sentence string) {
	if e.Note != "" && sentence != "" {
		e.Note += " "
	}
	e.Note += sentence
}

func executeRich(ctx context.Context, c *dialect.Call, in codeArgs) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	return m.rich(ctx, &in)
}

// rich runs code and returns its rich outputs.
func (m *vm) rich(ctx context.Context, in *codeArgs) (*executed, error) {
	began := time.Now()
	out, res, err := m.execute(ctx, "/execute/rich", in)
	if err != nil {
		return nil, err
	}
	outputs := []richOutput{}
	if in.Rich {
		var text, left leftOut
		outputs, left = richOf(res)
		out.flat, text, _ = flatOf(res, maxFlat) // the others are in the outputs
		out.remark(append(text, left...).note("Save what is larger to a file."))
		if saves(in.Code) && !hasImage(outputs) {
			outputs = append(outputs, m.savedImages(ctx, in.WorkingDir, began)...)
		}
	}
	out.RichOutputs = &outputs
	return out, nil
}

type isolatedArgs struct {
	codeArgs
	Template string  `json:"template_name"`
	Region   *string `json:"region"`
}

// notRun is the result of isolated code that did not run.
type notRun struct {
	Error     string `json:"error"`
	Details   any    `json:"details,omitempty"`
	Exception string `json:"exception,omitempty"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	ExitCode  int    `json:"exit_code"`
}

// executeIsolated makes a sandbox with a limited lifetime, and runs code in it.
func executeIsolated(ctx context.Context, c *dialect.Call, in isolatedArgs) (any, error) {
	if _, err := in.request(); err != nil { // before a sandbox is made for it
		return nil, failed(true, "/execute", err)
	}
	create := createArgs{TemplateID: in.Template, Region: in.Region, Timeout: new(int64(isolatedLife))}
	s, note, err := create.make(ctx, c)
	if err != nil {
		return nil, in.notMade(err)
	}
	m := &vm{Call: c, id: s.ID, box: s, url: directURL(s.ID)}
	out, res, err := m.execute(ctx, "/execute", &in.codeArgs)
	if err != nil {
		m.forget(ctx)
		return nil, in.notRun(err)
	}
	out.SandboxID = s.ID
	out.remark(fmt.Sprintf("Sandbox will auto-destroy after 10 minutes. delete_sandbox('%s') removes it earlier.", s.ID))
	if note != "" {
		out.remark(note + ".")
	}
	out.flatten(res)
	return out, nil
}

// forget kills a sandbox that the client will not learn about.
func (m *vm) forget(ctx context.Context) {
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if _, err := m.Service.Kill(clean, m.id); err != nil {
		m.Log.Warn("a sandbox whose code did not run lives until its lifetime ends", "sandbox", m.id, "error", err)
	}
}

// notMade returns the result if no sandbox could be made. An unreachable server is reported
// as by every tool.
func (in *isolatedArgs) notMade(err error) error {
	f := failed(false, sandboxesPath, err)
	out := notRun{Error: "Failed to create sandbox", Details: f.v1(), Stderr: f.message(), ExitCode: 1}
	if f.code == "template_not_found" {
		out.Error = "Failed to resolve template"
		out.Stderr = fmt.Sprintf("Template '%s' could not be resolved: %s", clip.Text(in.Template, maxShown), f.message())
	}
	return &failure{err: err, exact: out, status: f.status}
}

// notRun returns the result of code that did not run to its end. An invalid request is
// reported as such.
func (in *isolatedArgs) notRun(err error) error {
	f, ok := errors.AsType[*failure](err)
	if ok && f.status >= 400 && f.status < 500 && f.status != 499 {
		return err
	}
	text := sandbox.MessageOf(err)
	return &failure{err: err, exact: notRun{Error: "Code execution failed", Exception: text, Stderr: text, ExitCode: 1}}
}
