package hopx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const shell = "/bin/sh"

type commandArgs struct {
	target
	Command    string            `json:"command"`
	Args       []string          `json:"args"` // REST API only
	Timeout    int64             `json:"timeout"`
	Env        map[string]string `json:"env"`
	WorkingDir string            `json:"working_dir"`
	Name       string            `json:"name"`
}

// argv returns what to run: a line for the shell, or a program with its arguments.
func (in *commandArgs) argv() []string {
	if in.Args == nil {
		return []string{shell, "-c", in.Command}
	}
	return append([]string{in.Command}, in.Args...)
}

// line returns the command for display.
func (in *commandArgs) line() string {
	return strings.Join(append([]string{in.Command}, in.Args...), " ")
}

// commandDone is the result of a command.
type commandDone struct {
	Stdout        string  `json:"stdout"`
	Stderr        string  `json:"stderr"`
	ExitCode      int     `json:"exit_code"`
	ExecutionTime float64 `json:"execution_time"`
	Command       string  `json:"command"`
	PID           int     `json:"pid"`
	Success       bool    `json:"success"`
	Timestamp     string  `json:"timestamp"`
}

func runCommand(ctx context.Context, m *vm, in *commandArgs) (*commandDone, error) {
	const route = "/commands/run"
	if err := in.check(maxTimeout, "or use run_command_background"); err != nil {
		return nil, m.failed(route, err)
	}
	m.Status("running")
	req := sandbox.ExecRequest{
		Command: in.argv(), Env: in.Env, WorkDir: in.WorkingDir, TimeoutMS: in.Timeout * 1000,
	}
	var streams *dialect.Beginnings
	var job *sandbox.Job
	err := m.atHome(ctx, in.WorkingDir, func() (err error) {
		job, streams, err = dialect.Exec(ctx, m.Service, m.id, req, maxOutput)
		return err
	})
	if err != nil {
		return nil, m.missing(ctx, route, "DIRECTORY_NOT_FOUND", err)
	}
	out := &commandDone{
		Stdout: streams.Text(sandbox.Stdout), Stderr: streams.Text(sandbox.Stderr), ExitCode: job.ExitCode,
		ExecutionTime: seconds(job.Duration().Milliseconds()), Command: in.line(), PID: job.PID, Success: job.ExitCode == 0, Timestamp: dialect.Stamp(time.Now()),
	}
	switch job.EndCause {
	case sandbox.EndTimeout:
		out.ExitCode = exitTimeout
		out.Stderr = dialect.Line(out.Stderr) + fmt.Sprintf("Command timed out after %d seconds\n", in.Timeout)
	case sandbox.EndOutOfMemory:
		out.Stderr = dialect.Line(out.Stderr) + "Command was ended: it used more memory than the sandbox has\n"
	case sandbox.EndProcessLimit:
		out.Stderr = dialect.Line(out.Stderr) + "Command was ended: it started more processes than the sandbox may have\n"
	}
	return out, nil
}

func command(ctx context.Context, c *dialect.Call, in commandArgs) (any, error) {
	return inside(runCommand)(ctx, c, &in)
}

func (in *commandArgs) check(most int64, instead string) error {
	switch {
	case strings.TrimSpace(in.Command) == "":
		return dialect.Invalid("command is empty; give a shell command line")
	case strings.Contains(in.line()+in.Name, "\x00"):
		return dialect.Invalid("command or name has a NUL byte; leave it out")
	}
	return checkTimeout(in.Timeout, most, instead)
}

// The prefixes of process ids: of background code, of background commands, and of
// executions. The rest is the job's id.
const (
	codePrefix      = "bg_"
	commandPrefix   = "cmd_"
	executionPrefix = "exec_"
)

// commandTag is the prefix of the tag of a background program that was started with
// arguments; its name follows. The command of such a job does not identify it.
const commandTag = "hopx:"

// jobOf returns the job id of a process or execution.
func jobOf(id string) string {
	for _, prefix := range []string{codePrefix, commandPrefix, executionPrefix} {
		if job, ok := strings.CutPrefix(id, prefix); ok {
			return job
		}
	}
	return id
}

// started is code or a command that was started in the background.
type started struct {
	ProcessID   string  `json:"process_id"`
	ExecutionID string  `json:"execution_id"`
	Status      string  `json:"status"`
	StartTime   string  `json:"start_time"`
	Message     string  `json:"message"`
	Name        *string `json:"name"`
	Mode        string  `json:"mode,omitempty"`
	SandboxID   string  `json:"sandbox_id,omitempty"`
}

type backgroundArgs struct {
	codeArgs
	Name     string            `json:"name"`
	Callback string            `json:"callback_url"`
	Headers  map[string]string `json:"callback_headers"`
	Secret   string            `json:"callback_signature_secret"`
}

// start starts code as a job.
func (m *vm) start(ctx context.Context, route string, in *backgroundArgs) (*sandbox.Job, error) {
	longest := in.Timeout
	in.Timeout = 1 // the other checks are those of code in the foreground
	req, err := in.request()
	in.Timeout = longest
	if err == nil {
		err = checkTimeout(longest, maxBackground, "or split the work")
	}
	if err != nil {
		return nil, m.failed(route, err)
	}
	exec := sandbox.ExecRequest{
		Code: &sandbox.JobCode{Language: req.Language, Code: req.Code}, Env: in.Env, WorkDir: in.WorkingDir, TimeoutMS: longest * 1000, Background: true,
	}
	if in.Callback != "" {
		exec.Webhook = &sandbox.Webhook{URL: in.Callback, Headers: in.Headers, Secret: sandbox.NewSecretValue(in.Secret), Format: sandbox.WebhookHOPX}
	}
	return m.begin(ctx, route, in.WorkingDir, exec)
}

// begin starts a background job.
func (m *vm) begin(ctx context.Context, route, dir string, req sandbox.ExecRequest) (job *sandbox.Job, err error) {
	m.Status("starting")
	err = m.atHome(ctx, dir, func() (err error) {
		job, err = m.Service.Exec(ctx, m.id, req, nil)
		return err
	})
	if err != nil {
		return nil, m.missing(ctx, route, "DIRECTORY_NOT_FOUND", aboutCallback(err))
	}
	return job, nil
}

// callbacks maps the service's names of a callback's arguments to the product's.
var callbacks = []struct{ ours, theirs string }{
	{"webhook.url", "callback_url"}, {"webhook.headers", "callback_headers"},
	{"webhook header ", "callback_headers: "}, {"webhook.secret", "callback_signature_secret"},
}

// aboutCallback replaces the names of a callback's arguments in an error by those that
// clients know.
func aboutCallback(err error) error {
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok {
		return err
	}
	for _, c := range callbacks {
		if rest, found := strings.CutPrefix(e.Message, c.ours); found {
			return sandbox.Wrap(e.Code, err, c.theirs+rest)
		}
	}
	return err
}

func startedOf(prefix string, job *sandbox.Job, name string) *started {
	s := &started{
		ProcessID: prefix + job.ID, ExecutionID: executionPrefix + job.ID, Status: "running", StartTime: dialect.Stamp(job.StartedAt),
		Message: "Started in the background; execute_list_processes tells how it goes, execute_kill_process ends it",
	}
	if name != "" {
		s.Name = &name
	}
	return s
}

func executeBackground(ctx context.Context, c *dialect.Call, in backgroundArgs) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	job, err := m.start(ctx, "/execute/background", &in)
	if err != nil {
		return nil, err
	}
	return startedOf(codePrefix, job, in.Name), nil
}

func executeAsync(ctx context.Context, c *dialect.Call, in backgroundArgs) (any, error) {
	const route = "/execute/async"
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	if in.Callback == "" {
		return nil, m.failed(route, dialect.Invalid("callback_url is empty; give the URL to call at the end"))
	}
	job, err := m.start(ctx, route, &in)
	if err != nil {
		return nil, err
	}
	return object(
		pair{"execution_id", executionPrefix + job.ID}, pair{"status", "queued"}, pair{"callback_url", in.Callback},
		pair{"message", "Started; callback_url is called when it has ended"}, pair{"timestamp", dialect.Stamp(time.Now())}), nil
}

// startCommand starts a command as a job. The command's name becomes the shell's $0, from
// which it is read back.
func startCommand(ctx context.Context, m *vm, in *commandArgs) (*sandbox.Job, error) {
	const route = "/commands/background"
	err := in.check(maxBackground, "or split the work")
	if err == nil && len(in.Name) > 128 {
		err = dialect.Invalid("name has %d bytes; give at most 128", len(in.Name))
	}
	if err != nil {
		return nil, m.failed(route, err)
	}
	req := sandbox.ExecRequest{Command: in.argv(), Tag: commandTag + in.Name}
	if in.Args == nil {
		req.Command, req.Tag = append(req.Command, cmp.Or(in.Name, shell)), ""
	}
	req.Env, req.WorkDir, req.TimeoutMS, req.Background = in.Env, in.WorkingDir, in.Timeout*1000, true
	return m.begin(ctx, route, in.WorkingDir, req)
}

// background is a background job.
type background struct {
	ProcessID   string  `json:"process_id"`
	ExecutionID string  `json:"execution_id"`
	Name        string  `json:"name,omitempty"`
	Status      string  `json:"status"`
	Language    string  `json:"language"`
	Command     string  `json:"command,omitempty"`
	StartTime   string  `json:"start_time"`
	EndTime     *string `json:"end_time"`
	ExitCode    *int    `json:"exit_code"`
	Duration    float64 `json:"duration"`
	PID         int     `json:"pid"`
	Stdout      string  `json:"stdout"`
	Stderr      string  `json:"stderr"`
	job         *sandbox.Job
}

// backgroundOf returns a job as a background job. The result is false for a command that a
// caller waits or waited for, or that another door started. Jobs that run code are marked;
// this is never guessed from the command.
func backgroundOf(job *sandbox.Job) (*background, bool) {
	b := &background{
		ProcessID: codePrefix + job.ID, ExecutionID: executionPrefix + job.ID, Status: jobStatus(job), StartTime: dialect.Stamp(job.StartedAt),
		Duration: seconds(job.Duration().Milliseconds()), PID: job.PID, job: job,
	}
	name, tagged := strings.CutPrefix(job.Tag, commandTag)
	switch argv := job.Command; {
	case tagged:
		b.ProcessID, b.Language, b.Command, b.Name = commandPrefix+job.ID, string(sandbox.Bash), strings.Join(argv, " "), name
	case job.Language != "":
		b.Language = string(job.Language)
	case len(argv) == 4 && argv[0] == shell && argv[1] == "-c":
		b.ProcessID, b.Language, b.Command = commandPrefix+job.ID, string(sandbox.Bash), argv[2]
		if argv[3] != shell {
			b.Name = argv[3]
		}
	default:
		return nil, false
	}
	if job.State == sandbox.JobExited {
		b.ExitCode = &job.ExitCode
		b.EndTime = stampOrNull(job.EndedAt)
	}
	return b, true
}

func jobStatus(job *sandbox.Job) string {
	switch {
	case job.State == sandbox.JobRunning:
		return "running"
	case job.EndCause == sandbox.EndSignal:
		return "killed"
	case job.ExitCode != 0:
		return "failed"
	}
	return "completed"
}

// Bounds of the returned output of processes: of each stream, and of all.
const (
	maxProcessOutput   = 16 << 10
	maxProcessesOutput = 512 << 10
)

// some is the beginning of a list, with the length of the whole list.
type some[T any] struct {
	list  []T
	total int
}

// first returns the first most items of a list; 0 means all.
func first[T any](list []T, most int64) *some[T] {
	out := &some[T]{list, len(list)}
	if most > 0 && int64(out.total) > most {
		out.list = list[:most]
	}
	return out
}

// cut reports whether items were left out.
func (s *some[T]) cut() bool { return len(s.list) < s.total }

// showing returns the keys by which v0.1 describes a list that was cut.
func (s *some[T]) showing(what string) []pair {
	if !s.cut() {
		return nil
	}
	return []pair{{"truncated", true}, {"total_" + what, s.total}, {"showing_" + what, len(s.list)}}
}

type processesArgs struct {
	target
	Max int64 `json:"max_results"`
}

// listBackground lists running and ended background jobs, newest first, up to the requested
// number.
func listBackground(ctx context.Context, m *vm, in *processesArgs) (*some[*background], error) {
	const route = "/execute/processes"
	list, err := sandbox.All(ctx, sandbox.Of(m.id, m.Service.ListJobs))
	if err != nil {
		return nil, m.missing(ctx, route, "NOT_FOUND", err)
	}
	found := []*background{}
	for i := range slices.Backward(list) {
		if b, ok := backgroundOf(&list[i]); ok {
			found = append(found, b)
		}
	}
	out := first(found, in.Max)
	room := int64(maxProcessesOutput)
	for _, b := range out.list {
		if b.Stdout, err = m.tail(ctx, b.job, sandbox.Stdout, b.job.StdoutBytes, &room); err != nil {
			return nil, m.failed(route, err)
		}
		if b.Stderr, err = m.tail(ctx, b.job, sandbox.Stderr, b.job.StderrBytes, &room); err != nil {
			return nil, m.failed(route, err)
		}
	}
	return out, nil
}

// tail returns the end of a job's output, as far as room allows.
func (m *vm) tail(ctx context.Context, job *sandbox.Job, stream sandbox.Stream, total int64, room *int64) (string, error) {
	limit := min(maxProcessOutput, *room)
	if total == 0 || limit == 0 {
		return "", nil
	}
	out, err := m.Service.ReadOutput(ctx, m.id, job.ID, sandbox.OutputRequest{Stream: stream, Offset: max(0, total-limit), Limit: limit})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound { // dropped meanwhile
		return "", nil
	}
	if err != nil {
		return "", err
	}
	*room -= int64(len(out.Data))
	return strings.ToValidUTF8(string(out.Data), "\uFFFD"), nil
}

type killArgs struct {
	target
	ProcessID string `json:"process_id"`
}

// killProcess ends a background process.
func killProcess(ctx context.Context, m *vm, in *killArgs) (*sandbox.Job, error) {
	route := query("/execute/kill", "process_id", in.ProcessID)
	job, err := m.Service.GetJob(ctx, m.id, jobOf(in.ProcessID))
	if err == nil && job.State == sandbox.JobRunning {
		job, err = m.Service.SignalJob(ctx, m.id, job.ID, "KILL", 0)
		if sandbox.CodeOf(err) == sandbox.CodeConflict { // it has ended meanwhile
			job, err = m.Service.GetJob(ctx, m.id, jobOf(in.ProcessID))
		}
	}
	switch {
	case err == nil:
		return job, nil
	case sandbox.CodeOf(err) == sandbox.CodeNotFound, sandbox.CodeOf(err) == sandbox.CodeInvalid:
		err = sandbox.Errorf(sandbox.CodeNotFound, "process %s does not exist; execute_list_processes shows those that do", clip.Text(in.ProcessID, maxShown))
	}
	return nil, m.missing(ctx, route, "PROCESS_NOT_FOUND", err)
}

// killed returns the state of a process after a kill, and whether it had already ended.
func killed(job *sandbox.Job) (state string, already bool) {
	if job.State == sandbox.JobExited && job.EndCause != sandbox.EndSignal {
		return jobStatus(job), true
	}
	return "killed", false
}

// process is one of all processes in a sandbox.
type process struct {
	PID        int     `json:"pid"`
	Command    string  `json:"command"`
	User       string  `json:"user"`
	Name       string  `json:"name"`
	Status     string  `json:"status"`
	CPUPercent float64 `json:"cpu_percent"`
	MemoryMB   float64 `json:"memory_mb"`
}

// processStates maps the kernel's state letters to words.
var processStates = map[string]string{"R": "running", "S": "sleeping", "D": "waiting", "T": "stopped", "Z": "zombie"}

// maxCommandShown bounds the shown part of a process's command line, in bytes.
const maxCommandShown = 1024

func listProcesses(ctx context.Context, m *vm, in *processesArgs) (*some[process], error) {
	list, err := sandbox.All(ctx, sandbox.Of(m.id, m.Service.ListProcesses))
	if err != nil {
		return nil, m.missing(ctx, "/processes", "NOT_FOUND", err)
	}
	found := make([]process, 0, len(list))
	for i := range list {
		p := &list[i]
		command := strings.Join(p.Command, " ")
		if len(command) > maxCommandShown {
			command = strings.ToValidUTF8(command[:maxCommandShown], "") + "…"
		}
		if command == "" {
			command = p.Name
		}
		state, ok := processStates[p.State]
		if !ok {
			state = p.State
		}
		found = append(found, process{p.PID, command, p.User, p.Name, state, tenths(p.CPUPercent), tenths(float64(p.MemoryBytes) / (1 << 20))})
	}
	out := first(found, in.Max)
	return out, nil
}
