package sandbox

import (
	"context"
	"time"
)

// ExecRequest describes a command. Exactly one of Command and Shell is set.
type ExecRequest struct {
	// Command is a program and its arguments. A program without a slash is looked up
	// in PATH. No shell is involved.
	Command []string `json:"command,omitempty"`
	// Shell is a line for the sandbox's /bin/bash, or /bin/sh if it has no bash.
	Shell string            `json:"shell,omitempty"`
	Env   map[string]string `json:"env,omitempty"`
	// WorkDir and User default to those of the sandbox.
	WorkDir string `json:"workdir,omitempty"`
	User    string `json:"user,omitempty"`
	// TimeoutMS is when the command is ended, with its whole process group: at most
	// [MaxExecTimeout], and 0 is [DefaultExecTimeout]. If DetachAfterMS detaches the
	// command within [MaxExecTimeout], both are [DetachedTimeout]. A background command
	// can have any timeout, and 0 is none. -1 is none, for these two kinds only.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Stdin is what the command reads before end of file.
	Stdin []byte `json:"stdin,omitempty"`
	// OpenStdin keeps standard input open for [Jobs.WriteInput].
	OpenStdin bool `json:"open_stdin,omitempty"`
	// Terminal runs the command in a terminal of this size; all its output is then
	// stdout.
	Terminal *TerminalSize `json:"terminal,omitempty"`
	// Background returns as soon as the command has started.
	Background bool `json:"background,omitempty"`
	// DetachAfterMS detaches a command that has not ended after this time: the command
	// continues in the background, and the result has State running. 0 is never.
	DetachAfterMS int64 `json:"detach_after_ms,omitempty"`
	// KeepBytes is how much of each stream stays readable, half from its beginning
	// and half from its end: 1 to [MaxKeepBytes]. 0 keeps [DefaultKeepBytes] in the
	// sandbox's memory and up to [MaxJobOutputBytes] of the middle on its disk.
	KeepBytes int64 `json:"keep_bytes,omitempty"`
	// Tag is a word that the caller chooses to find the job by, at most [MaxTagBytes].
	// Several jobs can have the same tag.
	Tag string `json:"tag,omitempty"`
	// Webhook is told when a background command has ended.
	Webhook *Webhook `json:"webhook,omitempty"`
	// Code, set instead of Command and Shell, runs code as a job in an
	// interpreter of its own.
	Code *JobCode `json:"code,omitempty"`
}

// JobCode is code that runs as a job.
type JobCode struct {
	Language Language `json:"language"`
	Code     string   `json:"code"`
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// JobState says whether a job still runs.
type JobState string

// The states of a job.
const (
	JobRunning JobState = "running"
	JobExited  JobState = "exited"
)

// EndCause says what ended a job other than itself.
type EndCause string

// The causes, and "" for a job that ended by itself.
const (
	EndTimeout     EndCause = "timeout"
	EndOutOfMemory EndCause = "out_of_memory"
	EndSignal      EndCause = "signal"
	// EndProcessLimit: the job kept hitting the limit on processes, as a fork bomb does.
	EndProcessLimit EndCause = "process_limit"
)

// Job is a command that runs, or ran, in a sandbox. It belongs to the sandbox,
// not to the call that started it, and survives a restart of the daemon.
type Job struct {
	ID        string   `json:"id"`
	SandboxID string   `json:"sandbox_id"`
	Command   []string `json:"command"`
	User      string   `json:"user"`
	WorkDir   string   `json:"workdir"`
	PID       int      `json:"pid"`
	State     JobState `json:"state"`
	// ExitCode is 128 plus the signal's number for a job ended by a signal.
	ExitCode  int        `json:"exit_code"`
	Signal    string     `json:"signal,omitempty"`
	EndCause  EndCause   `json:"end_cause,omitempty"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// StdoutBytes and StderrBytes count all bytes written, whether kept or not.
	StdoutBytes int64 `json:"stdout_bytes"`
	StderrBytes int64 `json:"stderr_bytes"`
	Terminal    bool  `json:"terminal,omitempty"`
	// Tag is the tag of the request.
	Tag string `json:"tag,omitempty"`
	// Language is set for a job that runs code (see [ExecRequest.Code]); Command
	// is then the language and the code's first line. It is empty for commands, and
	// for jobs of an agent that is too old to report it.
	Language Language `json:"language,omitempty"`
}

// ValidJobID reports whether s has the form of a job's id: 1 to 64 of a-z, A-Z,
// 0-9, "-", "_" and ".".
func ValidJobID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return true
}

// Duration is how long the job ran, or has run up to now.
func (j *Job) Duration() time.Duration {
	if j.EndedAt != nil {
		return j.EndedAt.Sub(j.StartedAt)
	}
	return time.Since(j.StartedAt)
}

// Stream names an output stream.
type Stream string

// The output streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// JobEvent is one thing that happened to a job. The first and the last event of a
// stream have Job set; each one between them has Data.
type JobEvent struct {
	Job *Job `json:"job,omitempty"`
	// Stream, Offset and Data are a piece of output; Offset is the position
	// of its first byte in the stream. Bytes missing before it were not kept.
	Stream Stream `json:"stream,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Data   []byte `json:"data,omitempty"`
}

// JobSink takes events in order. Data is valid until the sink returns. An error ends
// the stream and is returned by the call that was given the sink.
type JobSink func(JobEvent) error

// AttachRequest asks for a job's output from the given offsets on.
type AttachRequest struct {
	StdoutOffset int64 `json:"stdout_offset,omitempty" query:"stdout_offset" doc:"The byte of standard output to begin at; absent is the first."`
	StderrOffset int64 `json:"stderr_offset,omitempty" query:"stderr_offset" doc:"The byte of standard error to begin at; absent is the first."`
	// DetachAfterMS stops streaming after this time; 0 streams until the job exits.
	DetachAfterMS int64 `json:"detach_after_ms,omitempty" query:"detach_after_ms" doc:"Stop streaming after this time; absent streams until the job exits."`
	// MaxBytes gives the job flow control: streaming stops after this many bytes of output,
	// and the caller attaches again from there once it has processed them. Until it is back,
	// for ten seconds at most, the job may write as many bytes again (1 MiB at most) and
	// then blocks. A stream that stopped earlier has ended for another reason. 0 is no
	// limit, and no flow control.
	MaxBytes int64 `json:"max_bytes,omitempty" query:"max_bytes" doc:"Stop streaming after this many bytes of output. Attach again from there once you have processed them: until then, for ten seconds at most, the job may write as many bytes again (1 MiB at most) and then blocks. A stream that stopped earlier has ended for another reason. Absent is no limit."`
	// LastBytes skips output that exists already: of each stream, all but the last so many
	// bytes. The offset of the first event says where the stream continues. 0 skips nothing.
	LastBytes int64 `json:"last_bytes,omitempty" query:"last_bytes" doc:"Of the output that exists already, skip all but the last so many bytes of each stream; the offset of the first event says where it continues. Absent skips nothing."`
}

// OutputRequest asks for a range of a job's kept output.
type OutputRequest struct {
	Stream Stream `json:"stream" query:"stream" doc:"stdout or stderr."`
	Offset int64  `json:"offset,omitempty" query:"offset" doc:"The byte to begin at; absent is the first."`
	// Limit is in bytes, at most [MaxOutputRead]; 0 is the same.
	Limit int64 `json:"limit,omitempty" query:"limit" doc:"At most 1 MiB, which is also the default."`
}

// Output is a range of a job's kept output.
type Output struct {
	// Offset is where Data begins. It is later than requested if the bytes in
	// between were not kept.
	Offset     int64  `json:"offset"`
	Data       []byte `json:"data"`
	TotalBytes int64  `json:"total_bytes"`
	Running    bool   `json:"running"`
}

type followedKey struct{}

// WithFollowed says that the caller who starts a background command with ctx follows it
// to its end, as a terminal does. In the sandbox's history, the command counts as one in
// the foreground. If [Jobs.Exec] of the server's own service is given a sink, it follows
// the command and returns at its end; the command continues if the sink fails or ctx ends.
func WithFollowed(ctx context.Context) context.Context {
	return context.WithValue(ctx, followedKey{}, true)
}

// Followed reports whether ctx comes from [WithFollowed].
func Followed(ctx context.Context) bool { return ctx.Value(followedKey{}) != nil }
