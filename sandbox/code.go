package sandbox

import (
	"encoding/json"
	"strings"
	"time"
)

// Language names what [Interpreters.RunCode] can run. The template must have it.
type Language string

// The languages. Doors also take the usual short names.
const (
	Python     Language = "python"
	JavaScript Language = "javascript"
	TypeScript Language = "typescript"
	Bash       Language = "bash"
	Go         Language = "go"
)

// Languages lists all languages.
func Languages() []Language { return []Language{Python, JavaScript, TypeScript, Bash, Go} }

var languageNames = map[string]Language{
	"python": Python, "python3": Python, "py": Python, "ipython": Python,
	"javascript": JavaScript, "js": JavaScript, "node": JavaScript, "nodejs": JavaScript,
	"typescript": TypeScript, "ts": TypeScript,
	"bash": Bash, "sh": Bash, "shell": Bash,
	"go": Go, "golang": Go,
}

// ParseLanguage reads the name of a language, or one of its usual other names
// such as "py", "node", "ts", "sh" or "golang", in any case.
func ParseLanguage(s string) (Language, error) {
	if len(s) <= 16 {
		if l, ok := languageNames[strings.ToLower(s)]; ok {
			return l, nil
		}
	}
	if s == "" {
		return "", Errorf(CodeInvalid, "the language is missing; use python, javascript, typescript, bash or go")
	}
	return "", Errorf(CodeInvalid, "language %.32q is not supported; use python, javascript, typescript, bash or go", s)
}

// TextType reports whether data of a MIME type is text. A [CodeOutput] has text as a
// string, JSON (see [JSONType]) as JSON, and all other data as a base64 string.
func TextType(mime string) bool {
	kind, _, _ := strings.Cut(mime, ";")
	return strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "+xml") ||
		kind == "application/javascript" || kind == "application/xml" || kind == "application/x-latex"
}

// JSONType reports whether data of a MIME type is JSON.
func JSONType(mime string) bool {
	kind, _, _ := strings.Cut(mime, ";")
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}

// RunCodeRequest describes a piece of code to run in a sandbox.
type RunCodeRequest struct {
	Language Language `json:"language"`
	Code     string   `json:"code"`
	// Context names the interpreter that runs the code: it sees what earlier code
	// in the same context of the same language has left. Empty is "default".
	// Go keeps nothing.
	Context string `json:"context,omitempty"`
	// Fresh runs the code in an interpreter of its own that ends afterwards.
	Fresh bool `json:"fresh,omitempty"`
	// Env is added for this code only.
	Env map[string]string `json:"env,omitempty"`
	// WorkDir is the working directory for this code only. Empty is the context's
	// current directory, at first the sandbox's.
	WorkDir string `json:"workdir,omitempty"`
	// User is who the interpreter runs as. It is fixed when the context is made.
	User string `json:"user,omitempty"`
	// TimeoutMS is when the code is interrupted, at most [MaxCodeTimeout]; 0 is
	// [DefaultCodeTimeout]. Time in the queue of its context does not count.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Stdin is what input() and similar functions read. Without it they fail at once.
	Stdin []byte `json:"stdin,omitzero"`
	// KeepBytes is how much is kept of stdout and of stderr, from the beginning
	// of each: 1 to [MaxKeepBytes]; 0 is [DefaultKeepBytes].
	KeepBytes int64 `json:"keep_bytes,omitempty"`
}

// RunIsolatedRequest describes code to run in a sandbox that is made for it and
// is gone when the call returns.
type RunIsolatedRequest struct {
	RunCodeRequest
	// Template, Resources, Network and Secrets are those of the sandbox.
	Template  string            `json:"template,omitempty"`
	Resources Resources         `json:"resources,omitzero"`
	Network   *NetworkPolicy    `json:"network,omitempty"`
	Secrets   map[string]string `json:"secrets,omitempty"`
}

// CodeResult is the outcome of a piece of code.
type CodeResult struct {
	SandboxID string   `json:"sandbox_id,omitempty"`
	Language  Language `json:"language"`
	Context   string   `json:"context,omitempty"`
	// Count is the number of this run in its context, from 1.
	Count int `json:"count,omitempty"`
	// Stdout and Stderr are text. If more was written than is kept, a line says
	// how much is missing.
	Stdout      string `json:"stdout"`
	Stderr      string `json:"stderr"`
	StdoutBytes int64  `json:"stdout_bytes"`
	StderrBytes int64  `json:"stderr_bytes"`
	// Outputs are the rich outputs, in order.
	Outputs []CodeOutput `json:"outputs,omitempty"`
	// Error is set if the code raised an error and did not catch it.
	Error *CodeError `json:"error,omitempty"`
	// ExitCode is 0, 1 after an error, the code's own exit code if it exited, 124
	// after a timeout, or 130 after an interrupt.
	ExitCode   int   `json:"exit_code"`
	DurationMS int64 `json:"duration_ms"`
	// TimedOut and Interrupted say that the code was stopped.
	TimedOut    bool `json:"timed_out,omitempty"`
	Interrupted bool `json:"interrupted,omitempty"`
	// Restarted says that the context has a new interpreter now: the old one died
	// or had to be killed, and its state is lost. Reason says why.
	Restarted bool   `json:"restarted,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// CodeOutput is one rich output in several representations.
type CodeOutput struct {
	// Result is set on the value of the last expression.
	Result bool `json:"result,omitempty"`
	// Data has a value per MIME type: text as a string, binary data as a
	// base64 string, application/json and types ending in +json as JSON.
	Data map[string]json.RawMessage `json:"data"`
	// Metadata is what the interpreter says about the values.
	Metadata map[string]json.RawMessage `json:"metadata,omitempty"`
	// Files are representations larger than [MaxOutputBytes], which are files in
	// the sandbox instead: a path per MIME type.
	Files map[string]string `json:"files,omitempty"`
	// Source is the library that made the output: "matplotlib", "pandas", "plotly",
	// or empty.
	Source string `json:"source,omitempty"`
}

// CodeError is an error that code did not catch.
type CodeError struct {
	Name    string `json:"name"`
	Message string `json:"message"`
	// Traceback has the user's line numbers, without colours and without the
	// interpreter's own frames.
	Traceback string `json:"traceback"`
}

// CodeEvent is one thing that happened while code ran: output, a rich output, or
// the result, which comes last.
type CodeEvent struct {
	Stream Stream      `json:"stream,omitempty"`
	Data   []byte      `json:"data,omitempty"`
	Output *CodeOutput `json:"output,omitempty"`
	Result *CodeResult `json:"result,omitempty"`
}

// CodeSink takes events in order. An error ends the code.
type CodeSink func(CodeEvent) error

// CodeContextState says what a context is doing.
type CodeContextState string

// The states of contexts.
const (
	ContextIdle CodeContextState = "idle"
	ContextBusy CodeContextState = "busy"
	ContextDead CodeContextState = "dead"
)

// CodeContext is an interpreter that keeps its state between runs.
type CodeContext struct {
	Language  Language         `json:"language"`
	Name      string           `json:"name"`
	State     CodeContextState `json:"state"`
	PID       int              `json:"pid,omitempty"`
	User      string           `json:"user,omitempty"`
	WorkDir   string           `json:"workdir,omitempty"`
	Runs      int              `json:"runs"`
	Queued    int              `json:"queued"`
	CreatedAt time.Time        `json:"created_at"`
}

// ContextRef names a context.
type ContextRef struct {
	Language Language `json:"language"`
	// Name is "default" when empty.
	Name string `json:"name,omitempty"`
}
