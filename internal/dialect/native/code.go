package native

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// codeTimeout is when code is interrupted unless the call says otherwise:
// clients give up a call after 60 s.
const codeTimeout = 45 * time.Second

type codeArgs struct {
	Sandbox    string            `json:"sandbox"`
	Language   string            `json:"language"`
	Code       string            `json:"code"`
	Context    string            `json:"context"`
	Fresh      bool              `json:"fresh"`
	TimeoutMS  *int64            `json:"timeout_ms"`
	Env        map[string]string `json:"env"`
	WorkDir    string            `json:"workdir"`
	User       string            `json:"user"`
	Stdin      *string           `json:"stdin"`
	Background bool              `json:"background"`
	Webhook    *webhookArgs      `json:"webhook"`
	Template   string            `json:"template"`
}

func languageSchema(description string) *jsonschema.Schema {
	all := make([]string, 0, len(sandbox.Languages()))
	for _, l := range sandbox.Languages() {
		all = append(all, string(l))
	}
	return oneOf(description, all...)
}

func runCode() dialect.Tool {
	return dialect.New(toolsetCode, &mcp.Tool{
		Name:  "run_code",
		Title: "Run code",
		Description: "Run code as in a notebook: variables, imports and the working directory stay for the next call in the same sandbox and context. " +
			"Returns stdout and stderr (the first 32 KiB of each), the last expression's value, plots as images, tables, and errors with traceback. " +
			"Without a sandbox it runs in a fresh one that is gone afterwards. Go keeps nothing between calls.",
		Annotations: annotations("Run code", false, true, false, true),
		InputSchema: input(
			opt("sandbox", bounded("Id or name of the sandbox; a fresh one for this call if left out.", 0, 128)),
			req("code", bounded("Python: the last expression is shown, as are matplotlib figures and DataFrames; await and %magics work.", 1, sandbox.MaxCodeBytes)),
			opt("language", with(languageSchema("Must be in the sandbox's template."), string(sandbox.Python))),
			opt("context", bounded("Name of an interpreter with a state of its own; default if left out.", 0, sandbox.MaxNameLength)),
			opt("fresh", with(boolean("Run in an interpreter of its own that ends afterwards."), false)),
			opt("timeout_ms", integer(fmt.Sprintf("Interrupt the code after this many milliseconds, which keeps the state; %d if left out, none in the background.",
				codeTimeout.Milliseconds()), 1, sandbox.MaxCodeTimeout.Milliseconds())),
			opt("env", envSchema("Environment for this code only.")),
			opt("workdir", bounded("Directory for this code only.", 0, sandbox.MaxPathBytes)),
			opt("user", bounded("Who a new interpreter runs as.", 0, 64)),
			opt("stdin", bounded("What input() reads; without it input() fails.", 0, sandbox.MaxStdinBytes)),
			opt("background", with(boolean("Return at once with a job_id for job_get; the code runs in an interpreter of its own."), false)),
			opt("webhook", webhookSchema()),
			opt("template", bounded("Template of the fresh sandbox, when none is given.", 0, 256)),
		),
		OutputSchema: output(
			opt("sandbox_id", text("")),
			opt("exit_code", &jsonschema.Schema{Type: "integer", Description: "Set when it has ended: 0, 1 after an error, 124 after a timeout, 130 after an interrupt, or what the code exited with."}),
			req("duration_ms", count("")),
			opt("count", count("Number of the run in its context.")),
			req("stdout", text("")),
			req("stderr", text("")),
			req("truncated", boolean("Part of stdout or stderr is left out of this result.")),
			opt("outputs", array("Values, figures and tables in order; images are content blocks.", object("", outputProps()...), 0, 0)),
			opt("exception", object("What the code raised and did not catch.", req("name", text("")), req("message", text("")), opt("traceback", text("")))),
			opt("restarted", boolean("The interpreter is a new one: earlier state is lost.")),
			opt("job_id", text("Of code in the background.")),
			opt("hint", text("What to do next.")),
		),
	}, runRunCode)
}

func outputProps() []prop {
	return []prop{
		opt("result", boolean("It is the value of the last expression.")),
		opt("source", text("What made it, such as pandas.")),
		opt("text", text("")),
		opt("data", anyJSON("As JSON, such as the records of a table.")),
		opt("types", array("All MIME types it has.", text(""), 0, 0)),
		opt("image", count("Number of the image block that shows it, from 1.")),
		opt("files", pairs("Files in the sandbox that have what was too large, by MIME type.", 0, 0)),
	}
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

func runRunCode(ctx context.Context, c *dialect.Call, in codeArgs) (*mcp.CallToolResult, error) {
	if in.Background {
		return backgroundCode(ctx, c, in)
	}
	if in.Webhook != nil {
		return nil, invalid("run_code: a webhook tells the end of code in the background; set background too")
	}
	r := sandbox.RunCodeRequest{
		Language: sandbox.Language(in.Language), Code: in.Code, Context: in.Context, Fresh: in.Fresh, Env: in.Env, WorkDir: in.WorkDir, User: in.User,
		TimeoutMS: codeTimeout.Milliseconds(), KeepBytes: maxStreamBytes,
	}
	if in.TimeoutMS != nil {
		r.TimeoutMS = *in.TimeoutMS
	}
	if in.Stdin != nil {
		r.Stdin = append([]byte{}, *in.Stdin...)
	}
	c.Status("running")
	watch := &codeWatch{status: c.Status, tell: newOutputTeller(ctx, c.Output)}
	defer watch.tell.end()
	if in.Sandbox == "" {
		if in.Context != "" {
			return nil, invalid("run_code: a context needs a sandbox; give the id of one, or leave context out")
		}
		res, err := c.Service.RunIsolated(ctx, sandbox.RunIsolatedRequest{RunCodeRequest: r, Template: in.Template}, watch.take)
		if err != nil {
			return nil, err
		}
		return codeDone(res, true), nil
	}
	if in.Template != "" {
		return nil, invalid("run_code: a template is for code without a sandbox; leave one of the two out")
	}
	res, err := c.Service.RunCode(ctx, in.Sandbox, r, watch.take)
	if err != nil {
		return nil, err
	}
	return codeDone(res, false), nil
}

// backgroundCode starts code as a job.
func backgroundCode(ctx context.Context, c *dialect.Call, in codeArgs) (*mcp.CallToolResult, error) {
	switch {
	case in.Sandbox == "":
		return nil, invalid("run_code: code in the background needs a sandbox that outlives the call; create one with sandbox_create")
	case in.Context != "":
		return nil, invalid("run_code: code in the background runs in an interpreter of its own; leave context out")
	}
	r := sandbox.ExecRequest{
		Code: &sandbox.JobCode{Language: sandbox.Language(in.Language), Code: in.Code}, Env: in.Env, WorkDir: in.WorkDir, User: in.User,
		Background: true, Webhook: in.Webhook.webhook(),
	}
	if in.TimeoutMS != nil {
		r.TimeoutMS = *in.TimeoutMS
	}
	if in.Stdin != nil {
		r.Stdin = []byte(*in.Stdin)
	}
	job, err := c.Service.Exec(ctx, in.Sandbox, r, nil)
	if err != nil {
		return nil, err
	}
	res := codeResult{
		SandboxID: job.SandboxID, JobID: job.ID, DurationMS: max(0, job.Duration().Milliseconds()),
		Hint: fmt.Sprintf("it runs as job %s; call job_get with that job_id and wait_ms to follow it, job_stop to end it", job.ID),
	}
	return dialect.Text(fmt.Sprintf("started in the background, job_id %s\nhint: %s\n", job.ID, res.Hint), res), nil
}

// codeWatch tells on the way what code writes, and its last line as status.
type codeWatch struct {
	status func(string)
	tell   *outputTeller

	mu   sync.Mutex
	line []byte // guarded by mu; the last line, of which more may come
}

// maxStatusLine bounds what of a line is told on the way.
const maxStatusLine = 200

func (w *codeWatch) take(e sandbox.CodeEvent) error {
	if len(e.Data) == 0 {
		return nil
	}
	w.tell.write(e.Stream, e.Data)
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

// codeDone tells a result: its streams and outputs as text, images as blocks
// of their own.
func codeDone(r *sandbox.CodeResult, gone bool) *mcp.CallToolResult {
	res := codeResult{
		SandboxID: r.SandboxID, ExitCode: &r.ExitCode, DurationMS: r.DurationMS, Count: r.Count, Restarted: r.Restarted,
		Stdout: r.Stdout, Stderr: r.Stderr,
	}
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
	views := &outputViews{room: maxOutputsText, gone: gone}
	for i := range r.Outputs {
		res.Outputs = append(res.Outputs, views.view(&b, &r.Outputs[i]))
	}
	if res.Exception != nil {
		b.WriteString(errorText(res.Exception))
	}
	if res.Hint = codeHint(r, res.Truncated); res.Hint != "" {
		fmt.Fprintf(&b, "hint: %s\n", res.Hint)
	}
	result := dialect.Text(b.String(), res)
	result.Content = append(result.Content, views.images...)
	return result
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

// shortenText keeps the first and last half of a text that is too long.
func shortenText(s string, limit int) string {
	c := newCapture(limit)
	c.write([]byte(s))
	return c.result(func(omitted int64) string { return fmt.Sprintf("\n[… %d bytes left out …]\n", omitted) }).text
}

type contextArgs struct {
	Sandbox  string `json:"sandbox"`
	Action   string `json:"action"`
	Language string `json:"language"`
	Context  string `json:"context"`
}

type contextView struct {
	Language sandbox.Language         `json:"language"`
	Name     string                   `json:"name"`
	State    sandbox.CodeContextState `json:"state"`
	Runs     int                      `json:"runs"`
	Queued   int                      `json:"queued"`
	WorkDir  string                   `json:"workdir,omitempty"`
}

func viewContext(c *sandbox.CodeContext) contextView {
	return contextView{Language: c.Language, Name: c.Name, State: c.State, Runs: c.Runs, Queued: c.Queued, WorkDir: c.WorkDir}
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
	contextList      = "list"
	contextInterrupt = "interrupt"
	contextRestart   = "restart"
	contextDelete    = "delete"
)

func codeContext() dialect.Tool {
	return dialect.New(toolsetCode, &mcp.Tool{
		Name:        "code_context",
		Title:       "Control interpreters",
		Description: "List the interpreters of run_code in a sandbox, interrupt one (its state stays), restart one (its state is lost) or delete one.",
		Annotations: annotations("Control interpreters", false, true, true, false),
		InputSchema: input(
			sandboxArg(),
			opt("action", with(oneOf("", contextList, contextInterrupt, contextRestart, contextDelete), contextList)),
			opt("language", with(languageSchema("Of the interpreter."), string(sandbox.Python))),
			opt("context", with(bounded("Name of the interpreter.", 1, sandbox.MaxNameLength), "default")),
		),
		OutputSchema: output(
			req("contexts", array("All of them, or the one in question; none after a deletion.", object("",
				req("language", text("")), req("name", text("")),
				req("state", oneOf("", string(sandbox.ContextIdle), string(sandbox.ContextBusy), string(sandbox.ContextDead))),
				req("runs", count("")), req("queued", count("Runs that wait.")), opt("workdir", text(""))), 0, 0)),
		),
	}, runCodeContext)
}

func runCodeContext(ctx context.Context, c *dialect.Call, in contextArgs) (*mcp.CallToolResult, error) {
	ref := sandbox.ContextRef{Language: sandbox.Language(in.Language), Name: in.Context}
	var found []sandbox.CodeContext
	one := func(cc *sandbox.CodeContext, err error) error {
		if err == nil {
			found = []sandbox.CodeContext{*cc}
		}
		return err
	}
	var err error
	switch in.Action {
	case contextInterrupt:
		err = one(c.Service.InterruptContext(ctx, in.Sandbox, ref))
	case contextRestart:
		err = one(c.Service.RestartContext(ctx, in.Sandbox, ref))
	case contextDelete:
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
	views := []contextView{}
	var b strings.Builder
	for i := range found {
		v := viewContext(&found[i])
		views = append(views, v)
		b.WriteString(v.line())
	}
	switch {
	case in.Action == contextDelete:
		fmt.Fprintf(&b, "%s/%s is deleted\n", in.Language, in.Context)
	case len(views) == 0:
		b.WriteString("no interpreters yet; run_code makes them\n")
	}
	return dialect.Text(b.String(), struct {
		Contexts []contextView `json:"contexts"`
	}{slices.Clip(views)}), nil
}
