package operation

import (
	"cmp"
	"context"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Operations on commands.
var (
	Exec = Op[SandboxBody[sandbox.ExecRequest], sandbox.Job]{Info: about("POST "+inBox+"/exec", "exec", "jobs", write, "Run a command").upTo(MaxExecBody).repeatable(RepeatBackground).
		says("With `Accept: application/x-ndjson` the answer is a stream of events, output in base64, that ends with a line " +
			"marked `final` or with an `error`. Otherwise it is one value when the command has ended. A client that disconnects kills the " +
			"command, unless it runs in the background.")}
	OpenTerminal = Op[SandboxPath, Empty]{Info: about("GET "+inBox+"/terminal", "open-terminal", "jobs", write, "Run a command on a WebSocket, with input and output").says("%s", terminalText)}
	ListJobs     = op(about("GET "+inBox+"/jobs", "list-jobs", "jobs", read, "List jobs, oldest first"), pageOf(sandbox.Service.ListJobs))
	GetJob       = op(about("GET "+inJob, "get-job", "jobs", read, "Get a job"),
		func(ctx context.Context, s sandbox.Service, in *JobPath) (*sandbox.Job, error) {
			return s.GetJob(ctx, in.Sandbox, in.Job)
		})
	Attach = streamed(about("GET "+inJob+"/attach", "attach-job", "jobs", read, "Stream a job's kept and live output").does("Attach").
		says("The answer is a stream of events, output in base64, that ends with a line marked `final` when the job has ended, or with an `error`. A client that disconnects leaves the job alone. "+
			"With `max_bytes` the stream is one piece, and the client attaches again for the next."),
		func(ctx context.Context, s sandbox.Service, in *attachInput, send func(JobLine) error) error {
			return JobLines(send, func(sink sandbox.JobSink) (*sandbox.Job, error) {
				return s.Attach(ctx, in.Sandbox, in.Job, in.AttachRequest, sink)
			})
		})
	ReadOutput = op(about("GET "+inJob+"/output", "read-output", "jobs", read, "Read a range of a job's kept output"),
		func(ctx context.Context, s sandbox.Service, in *outputInput) (*sandbox.Output, error) {
			return s.ReadOutput(ctx, in.Sandbox, in.Job, in.OutputRequest)
		})
	SignalJob = op(about("POST "+inJob+"/signal", "signal-job", "jobs", write, "Send a signal to a job's process group"),
		func(ctx context.Context, s sandbox.Service, in *signalInput) (*sandbox.Job, error) {
			return s.SignalJob(ctx, in.Sandbox, in.Job, in.Body.Signal, in.Body.KillAfterMS)
		})
	WriteStdin = op(about("POST "+inJob+"/stdin", "write-stdin", "jobs", write, "Write to a job's standard input").does("WriteInput").upTo(sandbox.MaxStdinBytes+1),
		func(ctx context.Context, s sandbox.Service, in *stdinInput) (*Empty, error) {
			return nil, s.WriteInput(ctx, in.Sandbox, in.Job, in.RawBody, in.Close)
		})
	ResizeTerminal = op(about("POST "+inJob+"/resize", "resize-terminal", "jobs", write, "Change the size of a job's terminal"),
		func(ctx context.Context, s sandbox.Service, in *resizeInput) (*Empty, error) {
			return nil, s.ResizeTerminal(ctx, in.Sandbox, in.Job, in.Body)
		})
)

// JobLines sends the events of a job as lines, and the ended job as the final line.
func JobLines(send func(JobLine) error, run func(sandbox.JobSink) (*sandbox.Job, error)) error {
	job, err := run(func(ev sandbox.JobEvent) error { return send(JobLine{JobEvent: ev}) })
	if err != nil {
		return err
	}
	return send(JobLine{JobEvent: sandbox.JobEvent{Job: job}, End: Final})
}

const terminalText = "A WebSocket. The client's first message is a text: the request as for exec, with open_stdin if the command gets input. After that, its binary " +
	"messages are standard input, and its text messages are `{\"resize\":{\"cols\":C,\"rows\":R}}`, `{\"signal\":\"INT\"}` or " +
	"`{\"close_stdin\":true}`. The server sends text `{\"job\":...}` when the command has started, then output as binary messages whose first " +
	"byte is 1 for stdout and 2 for stderr, and at the end text `{\"job\":...,\"final\":true}` or `{\"error\":{...}}`. Text " +
	"`{\"stream\":...,\"offset\":N}` says that output before N is missing, because the client was too slow. Empty objects keep the connection " +
	"alive. A client that disconnects kills the command. `timeout_ms` 0 is no timeout."

const codeStreamed = "With `Accept: application/x-ndjson` or `text/event-stream` the answer is a stream of output as it comes, in base64. " +
	"It ends with a line marked `final` that has the whole result, or with an `error`. A client that disconnects interrupts the code."

// Operations on code and interpreters.
var (
	RunCode = Op[SandboxBody[sandbox.RunCodeRequest], sandbox.CodeResult]{Info: about("POST "+inBox+"/code", "run-code", "code", write, "Run code in an interpreter that keeps its state").upTo(maxCodeBody).
		says("Code that fails is not an error of the request: the answer has its `error`. %s", codeStreamed)}
	RunIsolated = Op[Body[sandbox.RunIsolatedRequest], sandbox.CodeResult]{Info: about("POST /v1/code", "run-isolated", "code", write, "Run code in a new sandbox, which is gone afterwards").upTo(maxCodeBody).
			says("%s", codeStreamed)}
	ListContexts     = op(about("GET "+inContexts, "list-contexts", "code", read, "List interpreters, oldest first").says("A sandbox has at most %d; one answer has them all.", sandbox.MaxContexts), one[SandboxPath](sandbox.Service.ListContexts))
	InterruptContext = op(about("POST "+inContexts+"/{language}/{context}/interrupt", "interrupt-context", "code", write, "Interrupt what runs in an interpreter; its state stays"), inContext(sandbox.Service.InterruptContext))
	RestartContext   = op(about("POST "+inContexts+"/{language}/{context}/restart", "restart-context", "code", write, "Replace an interpreter with a new one; its state is lost"), inContext(sandbox.Service.RestartContext))
	DeleteContext    = op(about("DELETE "+inContexts+"/{language}/{context}", "delete-context", "code", write, "End an interpreter"),
		func(ctx context.Context, s sandbox.Service, in *ContextPath) (*Empty, error) {
			return nil, s.DeleteContext(ctx, in.Sandbox, in.ref())
		})
)

const cutText = "A failure during the transfer breaks the connection, so that a truncated file is never taken for complete. " +
	"A client that sends `TE: trailers` gets the trailer `X-Cove-End` instead: `ok`, or the problem as JSON."

// Operations on files.
var (
	ListFiles = op(about("GET "+inFiles, "list-files", "files", read, "List a directory, sorted by name"),
		func(ctx context.Context, s sandbox.Service, in *listFilesInput) (*sandbox.List[sandbox.FileInfo], error) {
			return s.ListFiles(ctx, in.Sandbox, in.ListFilesRequest)
		})
	StatFile = op(about("GET "+inFiles+"/stat", "stat-file", "files", read, "Describe a file"),
		func(ctx context.Context, s sandbox.Service, in *statInput) (*sandbox.FileInfo, error) {
			return s.StatFile(ctx, in.Sandbox, in.Path)
		})
	EditFile    = op(about("POST "+inFiles+"/edit", "edit-file", "files", files, "Replace text in a file").upTo(MaxEditBody), inSandbox(sandbox.Service.EditFile))
	MakeDir     = op(about("POST "+inFiles+"/mkdir", "make-dir", "files", files, "Make a directory and its parents"), inSandbox(sandbox.Service.MakeDir))
	MakeSymlink = op(about("POST "+inFiles+"/symlink", "make-symlink", "files", files, "Make a symbolic link"), inSandbox(sandbox.Service.MakeSymlink))
	MoveFile    = op(about("POST "+inFiles+"/move", "move-file", "files", files, "Rename a file or directory"), inSandbox(sandbox.Service.MoveFile))
	DeleteFile  = op(about("DELETE "+inFiles, "delete-file", "files", files, "Delete a file, or a directory with recursive"),
		func(ctx context.Context, s sandbox.Service, in *deleteInput) (*Empty, error) {
			return nil, s.DeleteFile(ctx, in.Sandbox, in.Path, in.Recursive)
		})
	WatchFiles = streamed(about("GET "+inFiles+"/watch", "watch-files", "files", read, "Stream changes in a directory").
			says("The first event is `ready`: changes from then on are reported. The stream ends with the sandbox or when the client disconnects."),
		func(ctx context.Context, s sandbox.Service, in *watchInput, send func(WatchLine) error) error {
			err := s.WatchFiles(ctx, in.Sandbox, in.WatchRequest, func(ev sandbox.WatchEvent) error { return send(WatchLine{WatchEvent: ev}) })
			if err != nil {
				return err
			}
			return send(WatchLine{End: Final})
		})
	ReadFile = Op[ReadInput, Empty]{Info: about("GET "+inFiles+"/content", "read-file", "files", read, "Read a file of any size").
			says("The header `X-Cove-File` describes the file, as JSON. %s", cutText)}
	WriteFile = Op[WriteInput, sandbox.FileInfo]{Info: about("PUT "+inFiles+"/content", "write-file", "files", files, "Write a file of any size").
			says("Readers see the old content or the whole new content. If the upload breaks off, or stalls for a minute (408), nothing is written; if it appends, the part that has arrived stays.")}
	ArchiveDir = Op[ArchiveInput, Empty]{Info: about("GET "+inFiles+"/archive", "archive-dir", "files", read, "Download a directory as a ZIP file").
			says("Symbolic links are kept as links; special files are left out. %s", cutText)}
)

// Operations that look into sandboxes.
var (
	ListProcesses = op(about("GET "+inBox+"/processes", "list-processes", "observe", read, "List the processes inside a sandbox, sorted by id"), pageOf(sandbox.Service.ListProcesses))
	SignalProcess = op(about("POST "+inBox+"/processes/{pid}/signal", "signal-process", "observe", write, "Send a signal to one process"),
		func(ctx context.Context, s sandbox.Service, in *signalProcessInput) (*Empty, error) {
			return nil, s.SignalProcess(ctx, in.Sandbox, in.PID, in.Body.Signal)
		})
	GetEnv = op(about("GET "+inBox+"/env", "get-env", "observe", read, "Get the default environment of a sandbox, sorted by name"), pageOf(sandbox.Service.GetEnv))
	SetEnv = op(about("PATCH "+inBox+"/env", "set-env", "observe", write, "Change the default environment of a sandbox").
		says("Commands and code that start afterwards see it. The answer has the first %d variables, sorted by name; use its `next_cursor` with the list of the environment to get the rest.", sandbox.MaxPageSize),
		inSandbox(sandbox.Service.SetEnv))
	ListStats   = op(about("GET /v1/stats", "list-stats", "observe", read, "List what sandboxes use now, newest first"), query(sandbox.Service.ListStats))
	StatsSeries = op(about("GET "+inBox+"/stats/series", "get-stats-series", "observe", read, "List what a sandbox has used, oldest first").does("StatsSeries").
			says("There is a point for every %d seconds of the last %d minutes in which it ran: at most %d, all in one answer.",
			sandbox.StatsInterval/time.Second, sandbox.StatsRetention/time.Minute, sandbox.StatsRetention/sandbox.StatsInterval),
		func(ctx context.Context, s sandbox.Service, in *seriesInput) (*sandbox.List[sandbox.StatsPoint], error) {
			return s.StatsSeries(ctx, in.Sandbox, sandbox.StatsSeriesRequest{Since: given(in.Since), MaxPoints: in.MaxPoints})
		})
	ListDeliveries = op(about("GET "+inBox+"/deliveries", "list-deliveries", "observe", read, "List the webhooks of a sandbox's jobs and approvals, newest first"), pageOf(sandbox.Service.ListDeliveries))
	FollowEvents   = streamed(about("GET /v1/events", "follow-events", "observe", read, "Stream what happens: changes of sandboxes, snapshots, jobs and builds, and samples of what sandboxes use").
			says("The first event is `begun`. Listings that you request after it miss no change: each one is in the listing or in the stream. With `Accept: text/event-stream` the lines are server-sent events with ids, and a browser that reconnects misses nothing: the server keeps the last %d events. "+
			"If it no longer has those after the given id, for example after a restart, `begun` has `missed`. Events of kind `network` are only in streams of one sandbox and are not kept: they are in its network log.", sandbox.EventsKept),
		func(ctx context.Context, s sandbox.Service, in *followEventsInput, send func(EventLine) error) error {
			req := sandbox.FollowEventsRequest{Sandbox: in.Sandbox, Kinds: in.Kind, After: cmp.Or(in.After, in.LastEventID), Once: in.Once}
			if err := s.FollowEvents(ctx, req, func(e sandbox.Event) error { return send(EventLine{Event: &e}) }); err != nil {
				return err
			}
			return send(EventLine{End: Final})
		})
)
