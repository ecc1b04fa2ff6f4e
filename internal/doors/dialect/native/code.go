package native

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// codeTimeout is the default timeout of code: clients give up a call after 60 s.
const codeTimeout = 45 * time.Second

type codeArgs struct {
	Sandbox string `json:"sandbox,omitempty"`
	sandbox.RunCodeRequest
	Stdin      *string          `json:"stdin,omitempty"` // text, not base64
	Background bool             `json:"background,omitempty"`
	Webhook    *sandbox.Webhook `json:"webhook,omitempty"`
	Template   string           `json:"template,omitempty"`
}

type codeResult struct {
	SandboxID  string         `json:"sandbox_id,omitempty"`
	ExitCode   *int           `json:"exit_code,omitempty"`
	DurationMS int64          `json:"duration_ms"`
	Count      int            `json:"count,omitempty"`
	Stdout     string         `json:"stdout"`
	Stderr     string         `json:"stderr"`
	Truncated  bool           `json:"truncated"`
	Outputs    []outputView   `json:"outputs,omitempty"`
	Exception  *codeErrorView `json:"exception,omitempty"`
	Restarted  bool           `json:"restarted,omitempty"`
	JobID      string         `json:"job_id,omitempty"`
	Hint       string         `json:"hint,omitempty"`
}

type codeErrorView struct {
	Name      string `json:"name"`
	Message   string `json:"message"`
	Traceback string `json:"traceback,omitempty"`
}

func runCode(ctx context.Context, c *dialect.Call, in codeArgs) (*reply[codeResult], error) {
	r := in.RunCodeRequest
	if in.Stdin != nil {
		r.Stdin = append([]byte{}, *in.Stdin...)
	}
	if in.Background {
		return backgroundCode(ctx, c, in, r)
	}
	if in.Webhook != nil {
		return nil, invalid("run_code: a webhook tells the end of code in the background; set background too")
	}
	r.TimeoutMS, r.KeepBytes = cmp.Or(r.TimeoutMS, codeTimeout.Milliseconds()), maxStreamBytes
	c.Status("running")
	watch := &codeWatch{status: c.Status, out: newOutputStreamer(ctx, c.Output)}
	defer watch.out.end()
	if in.Sandbox == "" {
		if in.Context != "" {
			return nil, invalid("run_code: a context needs a sandbox; give the id of one, or leave context out")
		}
		res, err := c.Service.RunIsolated(ctx, sandbox.RunIsolatedRequest{RunCodeRequest: r, Template: in.Template}, watch.take)
		if err != nil {
			return nil, err
		}
		return codeDone(res, true)
	}
	if in.Template != "" {
		return nil, invalid("run_code: a template is for code without a sandbox; leave one of the two out")
	}
	res, err := c.Service.RunCode(ctx, in.Sandbox, r, watch.take)
	if err != nil {
		return nil, err
	}
	return codeDone(res, false)
}

// backgroundCode starts code as a job.
func backgroundCode(ctx context.Context, c *dialect.Call, in codeArgs, r sandbox.RunCodeRequest) (*reply[codeResult], error) {
	switch {
	case in.Sandbox == "":
		return nil, invalid("run_code: code in the background needs a sandbox that outlives the call; create one with sandbox_create")
	case in.Context != "":
		return nil, invalid("run_code: code in the background runs in an interpreter of its own; leave context out")
	}
	job, err := c.Service.Exec(ctx, in.Sandbox, sandbox.ExecRequest{
		Code: &sandbox.JobCode{Language: r.Language, Code: r.Code}, Env: r.Env, WorkDir: r.WorkDir, User: r.User,
		TimeoutMS: r.TimeoutMS, Stdin: r.Stdin, Background: true, Webhook: in.Webhook,
	}, nil)
	if err != nil {
		return nil, err
	}
	res := codeResult{
		SandboxID: job.SandboxID, JobID: job.ID, DurationMS: max(0, job.Duration().Milliseconds()),
		Hint: fmt.Sprintf("it runs as job %s; call job_get with that job_id and wait_ms to follow it, job_stop to end it", job.ID),
	}
	return answer(fmt.Sprintf("started in the background, job_id %s\nhint: %s\n", job.ID, res.Hint), res)
}

// codeWatch streams what code writes, and reports the last line as status.
type codeWatch struct {
	status func(string)
	out    *outputStreamer

	mu   sync.Mutex
	line []byte // guarded by mu; the last line, which may be incomplete
}

// maxStatusLine bounds a line in a status, in bytes.
const maxStatusLine = 200

func (w *codeWatch) take(e sandbox.CodeEvent) error {
	if len(e.Data) == 0 {
		return nil
	}
	w.out.write(e.Stream, e.Data)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line = append(w.line, e.Data...)
	whole := strings.TrimRight(string(w.line), "\n")
	if i := strings.LastIndexByte(whole, '\n'); i >= 0 {
		whole = whole[i+1:]
	}
	if len(whole) > maxStatusLine {
		whole = whole[:maxStatusLine]
	}
	shown, _ := clean(clip.TrimEnd([]byte(whole)))
	if strings.HasSuffix(string(w.line), "\n") {
		w.line = w.line[:0]
	} else {
		w.line = []byte(whole)
	}
	w.status("running: " + shown)
	return nil
}

// codeDone answers with a result: streams and outputs as text, images as separate
// content. gone means that the sandbox no longer exists.
func codeDone(r *sandbox.CodeResult, gone bool) (*reply[codeResult], error) {
	res := project[codeResult](r)
	res.ExitCode = &r.ExitCode
	if gone {
		res.SandboxID = ""
	}
	res.Truncated = r.StdoutBytes > maxStreamBytes || r.StderrBytes > maxStreamBytes
	if r.Error != nil {
		res.Exception = &codeErrorView{Name: r.Error.Name, Message: shortenText(r.Error.Message, maxOutputText), Traceback: shortenText(r.Error.Traceback, maxOutputText)}
	}
	var b strings.Builder
	b.WriteString(codeLine(r) + "\n")
	section(&b, "stdout", cleanText(r.Stdout), r.StdoutBytes, "")
	section(&b, "stderr", cleanText(r.Stderr), r.StderrBytes, "")
	shown := &outputViews{room: maxOutputsText, gone: gone}
	for i := range r.Outputs {
		res.Outputs = append(res.Outputs, shown.view(&b, &r.Outputs[i]))
	}
	if res.Exception != nil {
		b.WriteString(errorText(res.Exception))
	}
	res.Hint = codeHint(r, res.Truncated)
	field(&b, "hint: %s\n", res.Hint)
	return answer(b.String(), res, shown.images...)
}

func codeLine(r *sandbox.CodeResult) string {
	s := fmt.Sprintf("exit code %d after %s", r.ExitCode, seconds(r.DurationMS))
	switch {
	case r.TimedOut:
		s += ", interrupted at its timeout"
	case r.Interrupted:
		s += ", interrupted"
	}
	if r.Restarted {
		s += "; the interpreter was restarted and earlier state is lost"
		if r.Reason != "" {
			s += ": " + r.Reason
		}
	}
	return s
}

func errorText(e *codeErrorView) string {
	if e.Traceback != "" {
		return strings.TrimRight(e.Traceback, "\n") + "\n"
	}
	return e.Name + ": " + e.Message + "\n"
}

func codeHint(r *sandbox.CodeResult, truncated bool) string {
	var hints []string
	if r.TimedOut && !r.Restarted {
		hints = append(hints, "the state is kept; allow more with timeout_ms, or set background")
	}
	if truncated {
		hints = append(hints, "much output is left out; write it to a file and read parts of that")
	}
	return strings.Join(hints, "; ")
}

func cleanText(s string) string {
	shown, _ := clean([]byte(s))
	return shown
}

// shortenText keeps the beginning and the end of a text that is too long.
func shortenText(s string, limit int) string {
	c := newCapture(limit)
	c.write([]byte(s))
	return c.result(omission).text
}

type contextArgs struct {
	sandboxRef
	Action   string           `json:"action,omitempty"`
	Language sandbox.Language `json:"language,omitempty"`
	Context  string           `json:"context,omitempty"`
}

type contextView struct {
	Language string                   `json:"language"`
	Name     string                   `json:"name"`
	State    sandbox.CodeContextState `json:"state"`
	Runs     int                      `json:"runs"`
	Queued   int                      `json:"queued"`
	WorkDir  string                   `json:"workdir,omitempty"`
}

func (v contextView) line() string {
	s := fmt.Sprintf("%s/%s %s runs=%d queued=%d", v.Language, v.Name, v.State, v.Runs, v.Queued)
	if v.WorkDir != "" {
		s += " workdir=" + v.WorkDir
	}
	return s + "\n"
}

// The actions of code_context.
const (
	actionList      = "list"
	actionInterrupt = "interrupt"
	actionRestart   = "restart"
	actionDelete    = "delete"
)

type contextList struct {
	Contexts []contextView `json:"contexts"`
}

func controlContext(ctx context.Context, c *dialect.Call, in contextArgs) (*reply[contextList], error) {
	ref := sandbox.ContextRef{Language: in.Language, Name: in.Context}
	var found []sandbox.CodeContext
	one := func(cc *sandbox.CodeContext, err error) error {
		if err == nil {
			found = []sandbox.CodeContext{*cc}
		}
		return err
	}
	var err error
	switch in.Action {
	case actionInterrupt:
		err = one(c.Service.InterruptContext(ctx, in.Sandbox, ref))
	case actionRestart:
		err = one(c.Service.RestartContext(ctx, in.Sandbox, ref))
	case actionDelete:
		err = c.Service.DeleteContext(ctx, in.Sandbox, ref)
	default:
		var list *sandbox.List[sandbox.CodeContext]
		if list, err = c.Service.ListContexts(ctx, in.Sandbox); err == nil {
			found = list.Items
		}
	}
	if err != nil {
		return nil, err
	}
	shown := []contextView{}
	var b strings.Builder
	for i := range found {
		v := project[contextView](&found[i])
		shown = append(shown, v)
		b.WriteString(v.line())
	}
	switch {
	case in.Action == actionDelete:
		fmt.Fprintf(&b, "%s/%s is deleted\n", in.Language, in.Context)
	case len(shown) == 0:
		b.WriteString("no interpreters yet; run_code makes them\n")
	}
	return answer(b.String(), contextList{shown})
}
