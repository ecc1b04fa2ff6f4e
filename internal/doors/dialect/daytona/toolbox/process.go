package toolbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// endTime bounds the clean-up after a client that is gone.
	endTime = 10 * time.Second
	// maxOutput bounds the output in an answer, in bytes.
	maxOutput = 4 << 20
	// maxSeconds bounds a time limit of a client's.
	maxSeconds = int64(sandbox.MaxLifetime / time.Second)
)

// text collects output up to a bound.
type text struct {
	bytes.Buffer
	left int64 // bytes that were not kept
}

func (t *text) add(data []byte) {
	n := min(len(data), max(0, maxOutput-t.Len()))
	t.Write(data[:n])
	t.left += int64(len(data) - n)
}

// done returns the text, with a line that says how much is missing.
func (t *text) done() string {
	if t.left > 0 {
		fmt.Fprintf(t, "\n[… %d bytes left out …]\n", t.left)
	}
	return strings.ToValidUTF8(t.String(), "\uFFFD")
}

type executeBody struct {
	Command string            `json:"command"`
	Cwd     string            `json:"cwd"`
	Envs    map[string]string `json:"envs"`
	Timeout *int64            `json:"timeout"`
}

type executed struct {
	ExitCode int    `json:"exitCode"`
	Result   string `json:"result"`
}

// timeoutMS converts a time limit in seconds; 0 and nil are none.
func timeoutMS(seconds *int64) (int64, error) {
	if seconds == nil {
		return 0, nil
	}
	if *seconds < 0 || *seconds > maxSeconds {
		return 0, answer.Invalid("timeout is %d; give 0 to %d seconds", *seconds, maxSeconds)
	}
	return *seconds * 1000, nil
}

func errTimeout() error {
	return answer.Fail(http.StatusRequestTimeout, answer.ExecutionTimeout, "command execution timeout")
}

func (p *plane) execute(w http.ResponseWriter, r *http.Request, body *executeBody) error {
	if strings.TrimSpace(body.Command) == "" {
		return answer.Invalid("the command is empty; give one")
	}
	timeout, err := timeoutMS(body.Timeout)
	if err != nil {
		return err
	}
	return p.run(w, r, sandbox.ExecRequest{Shell: body.Command, WorkDir: body.Cwd, Env: body.Envs, TimeoutMS: timeout})
}

// run runs a command to its end and answers with its output. The command is a
// background job, which has no longest time, and is killed when the client goes away.
func (p *plane) run(w http.ResponseWriter, r *http.Request, req sandbox.ExecRequest) error {
	ctx, id := r.Context(), boxOf(r).ID
	req.Background = true
	job, err := p.svc.Exec(sandbox.WithFollowed(ctx), id, req, nil)
	if cannotStart(err) {
		return ok(w, executed{-1, sandbox.MessageOf(err)})
	}
	if err != nil {
		return err
	}
	var out text
	next := map[sandbox.Stream]int64{}
	ended, err := p.svc.Attach(ctx, id, job.ID, sandbox.AttachRequest{}, func(e sandbox.JobEvent) error {
		if len(e.Data) > 0 {
			out.left += max(0, e.Offset-next[e.Stream])
			next[e.Stream] = e.Offset + int64(len(e.Data))
			out.add(e.Data)
		}
		return nil
	})
	switch {
	case err != nil:
		p.kill(ctx, id, job.ID)
		return err
	case ended.EndCause == sandbox.EndTimeout:
		return errTimeout()
	}
	return ok(w, executed{ended.ExitCode, out.done()})
}

// cannotStart reports whether an error is about the command itself.
func cannotStart(err error) bool {
	if sandbox.CodeOf(err) == sandbox.CodeInvalid {
		return true
	}
	reason := sandbox.ReasonOf(err)
	return reason == sandbox.ReasonProgramNotFound || reason == sandbox.ReasonProgramNotExecutable
}

// kill ends a job that nobody waits for any more.
func (p *plane) kill(ctx context.Context, id, job string) {
	ctx, cancel := detached(ctx)
	defer cancel()
	if _, err := p.svc.SignalJob(ctx, id, job, "KILL", 0); err != nil {
		p.log.DebugContext(ctx, "kill a command whose client is gone", "sandbox", id, "job", job, "error", err)
	}
}

type codeBody struct {
	Code     string            `json:"code"`
	Language string            `json:"language"`
	Argv     []string          `json:"argv"`
	Envs     map[string]string `json:"envs"`
	Timeout  *int64            `json:"timeout"`
}

type artifacts struct {
	Charts []json.RawMessage `json:"charts"`
}

type codeResult struct {
	executed
	Artifacts artifacts `json:"artifacts"`
}

// The languages of code, and how a program in each is run with arguments.
var programs = map[sandbox.Language][]string{
	sandbox.Python: {"python3", "-c"}, sandbox.JavaScript: {"node", "-e"}, sandbox.TypeScript: nil,
}

// withData makes interpreters describe charts as data too.
const withData = "COVE_DATA"

func (p *plane) codeRun(w http.ResponseWriter, r *http.Request, body *codeBody) error {
	language := sandbox.Language(body.Language)
	program, known := programs[language]
	timeout, err := timeoutMS(body.Timeout)
	switch {
	case !known:
		return answer.Invalid("language %.32q is not python, javascript or typescript", body.Language)
	case err != nil:
		return err
	case len(body.Argv) > 0 && program == nil:
		return answer.Refused("argv", "code in "+body.Language+" takes no arguments; set variables instead")
	case len(body.Argv) > 0:
		command := append(append([]string{}, program...), body.Code)
		if language == sandbox.JavaScript {
			command = append(command, "--", "code.js") // arguments come after the program's name
		}
		return p.run(w, r, sandbox.ExecRequest{Command: append(command, body.Argv...), Env: body.Envs, TimeoutMS: timeout})
	}
	return p.runCode(w, r, body, language, timeout)
}

// runCode runs code in an interpreter of its own, with the charts that it shows.
func (p *plane) runCode(w http.ResponseWriter, r *http.Request, body *codeBody, language sandbox.Language, timeout int64) error {
	req := sandbox.RunCodeRequest{Language: language, Code: body.Code, Fresh: true, KeepBytes: sandbox.MaxKeepBytes, Env: map[string]string{withData: "1"}}
	for name, value := range body.Envs {
		req.Env[name] = value
	}
	if strings.TrimSpace(req.Code) == "" {
		req.Code = "\n"
	}
	most := sandbox.MaxCodeTimeout.Milliseconds()
	if req.TimeoutMS = timeout; timeout == 0 {
		req.TimeoutMS = most
	}
	if timeout > most {
		return answer.Invalid("timeout is over %d seconds, the most for code; run what takes longer as a command", most/1000)
	}
	var out text
	found := []json.RawMessage{}
	res, err := p.svc.RunCode(r.Context(), boxOf(r).ID, req, func(e sandbox.CodeEvent) error {
		out.add(e.Data)
		if e.Output != nil {
			if c := chartOf(e.Output); c != nil {
				found = append(found, c)
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case res.TimedOut:
		return errTimeout()
	case res.Error != nil:
		out.add([]byte(res.Error.Traceback + "\n"))
	case res.Reason != "" && res.ExitCode != 0:
		out.add([]byte(res.Reason + "\n"))
	}
	return ok(w, codeResult{executed{res.ExitCode, out.done()}, artifacts{found}})
}

const typeChart = "application/vnd.cove.chart+json"

// chartOf returns a figure as the product's charts are; nil for all else.
func chartOf(o *sandbox.CodeOutput) json.RawMessage {
	raw := o.Data["image/png"]
	if raw == nil || o.Source != "matplotlib" {
		return nil
	}
	chart := map[string]any{"type": "unknown", "title": "", "elements": []any{}}
	if data := o.Data[typeChart]; data != nil {
		_ = json.Unmarshal(data, &chart) // what cannot be read stays a picture
	}
	if chart["type"] == "superchart" {
		chart["type"] = "composite_chart"
	}
	var png string
	if json.Unmarshal(raw, &png) != nil {
		return nil
	}
	if _, err := base64.StdEncoding.DecodeString(png); err != nil {
		return nil
	}
	chart["png"] = png
	data, err := json.Marshal(chart)
	if err != nil {
		return nil
	}
	return data
}

// A tool is a command that the plane itself runs in a sandbox, with its result.
type tool struct {
	code           int
	stdout, stderr string
}

// tool runs a short command. An error is that it could not be run.
func (p *plane) tool(ctx context.Context, id string, req sandbox.ExecRequest) (*tool, error) {
	var out, errs text
	job, err := p.svc.Exec(ctx, id, req, func(e sandbox.JobEvent) error {
		if e.Stream == sandbox.Stderr {
			errs.add(e.Data)
		} else {
			out.add(e.Data)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if job.EndCause == sandbox.EndTimeout {
		limit := cmp.Or(time.Duration(req.TimeoutMS)*time.Millisecond, sandbox.DefaultExecTimeout)
		return nil, sandbox.Errorf(sandbox.CodeTimeout, "the sandbox took longer than %s to answer; ask for less at a time", limit)
	}
	if out.left > 0 {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "the result has more than %d bytes; ask for less", maxOutput)
	}
	return &tool{job.ExitCode, out.String(), errs.done()}, nil
}
