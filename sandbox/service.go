package sandbox

import (
	"context"
	"io"
)

// Service is everything Cove does. Errors are [Error] values; see the codes.
// All methods are safe for concurrent use. The caller's identity travels in
// the context ([WithCaller]); a sandbox of another team is not_found, as if it
// did not exist.
//
// A sandbox argument is an id or a name of the caller's team.
type Service interface {
	Sandboxes
	Snapshots
	Jobs
	Files
	Templates
	Keys
}

// Sandboxes is the life of sandboxes.
type Sandboxes interface {
	// Create returns when the sandbox runs and its agent answers, or fails
	// and leaves nothing behind. If ctx is cancelled on the way, the sandbox
	// is removed. Scope: sandboxes:write.
	Create(ctx context.Context, req CreateRequest) (*Sandbox, error)
	// Get returns a sandbox in any state, ended ones for [EndedRetention].
	// Scope: sandboxes:read.
	Get(ctx context.Context, sandbox string) (*Sandbox, error)
	// List returns sandboxes, newest first. Scope: sandboxes:read.
	List(ctx context.Context, req ListRequest) (*List[Sandbox], error)
	// Update applies all of the request or none of it. Scope: sandboxes:write.
	Update(ctx context.Context, sandbox string, req UpdateRequest) (*Sandbox, error)
	// Kill ends a sandbox and removes its files. When it returns, its
	// processes are gone. Killing an ended sandbox is not an error.
	// Scope: sandboxes:write.
	Kill(ctx context.Context, sandbox string) (*Sandbox, error)
	// Stats tells what a running sandbox uses. Scope: sandboxes:read.
	Stats(ctx context.Context, sandbox string) (*Stats, error)
	// Audit lists what was done, newest first. Scope: sandboxes:read for one
	// sandbox, else admin.
	Audit(ctx context.Context, req AuditRequest) (*List[AuditEvent], error)
}

// Snapshots is the life of a sandbox's state in time: pause, snapshot, fork,
// compare, merge, rewind. Every verb of [Jobs] and [Files] on a paused sandbox
// resumes it first. All need the scope sandboxes:write, but those that only
// read: sandboxes:read.
type Snapshots interface {
	// Pause writes the sandbox's memory, processes and files to disk and ends
	// its processes. Pausing a paused sandbox is not an error. When it fails,
	// the sandbox runs on.
	Pause(ctx context.Context, sandbox string) (*Sandbox, error)
	// Resume continues a paused sandbox where it was; of a running one it only
	// returns the record. When it fails, the sandbox is still paused.
	Resume(ctx context.Context, sandbox string, req ResumeRequest) (*Sandbox, error)
	// Fork makes children that continue from the parent's present instant, in
	// the order of their indexes. The parent stands still only while its state
	// is saved. All children run, or an error is returned and there are none.
	// A paused parent stays paused.
	Fork(ctx context.Context, sandbox string, req ForkRequest) (*List[Sandbox], error)
	// CreateSnapshot keeps the state of a running or paused sandbox, which
	// goes on.
	CreateSnapshot(ctx context.Context, sandbox string, req CreateSnapshotRequest) (*Snapshot, error)
	// GetSnapshot takes an id or a name of the caller's team.
	GetSnapshot(ctx context.Context, snapshot string) (*Snapshot, error)
	// ListSnapshots returns snapshots, newest first.
	ListSnapshots(ctx context.Context, req ListSnapshotsRequest) (*List[Snapshot], error)
	// RestoreSnapshot puts a running or paused sandbox into a kept state,
	// under its own id, name and limits. When it fails, the sandbox goes on as
	// it was.
	RestoreSnapshot(ctx context.Context, sandbox string, req RestoreRequest) (*Sandbox, error)
	// DeleteSnapshot removes a snapshot. Sandboxes made from it are unharmed.
	DeleteSnapshot(ctx context.Context, snapshot string) (*Snapshot, error)
	// Diff compares the files of a subject, which is a sandbox or a snapshot
	// by id or name, with those of another. Paused sandboxes stay paused.
	Diff(ctx context.Context, subject string, req DiffRequest) (*Diff, error)
	// Merge brings a winner's state into a parent, all of it or nothing.
	Merge(ctx context.Context, parent string, req MergeRequest) (*MergeResult, error)
	// Try forks a sandbox, runs commands in the forks and merges one back if
	// told. Sink, which may be nil, is told of each attempt as it ends. If ctx
	// is cancelled or sink fails, the forks are killed.
	Try(ctx context.Context, sandbox string, req TryRequest, sink func(TryEvent) error) (*TryResult, error)
}

// Jobs runs commands. All need the scope sandboxes:write, but those that only
// read: sandboxes:read.
type Jobs interface {
	// Exec runs a command and passes what happens to sink, which may be nil.
	// It returns when the job has exited, when it is started for a background
	// command, or at the handover time. If ctx is cancelled, or sink fails,
	// the job's whole process group is killed and the output so far stays
	// readable.
	Exec(ctx context.Context, sandbox string, req ExecRequest, sink JobSink) (*Job, error)
	// Attach passes a job's kept output, and then live output, to sink until
	// the job exits. Cancelling ctx leaves the job alone.
	Attach(ctx context.Context, sandbox, job string, req AttachRequest, sink JobSink) (*Job, error)
	GetJob(ctx context.Context, sandbox, job string) (*Job, error)
	// ListJobs returns jobs, oldest first; ended ones, the newest 256.
	ListJobs(ctx context.Context, sandbox string) (*List[Job], error)
	ReadOutput(ctx context.Context, sandbox, job string, req OutputRequest) (*Output, error)
	// WriteInput writes to a job's standard input, and closes it then if told.
	WriteInput(ctx context.Context, sandbox, job string, data []byte, closeAfter bool) error
	ResizeTerminal(ctx context.Context, sandbox, job string, size TerminalSize) error
	// SignalJob sends a signal by name ("TERM") or number to a job's process
	// group, and KILL killAfterMS later if that is positive and it still runs.
	SignalJob(ctx context.Context, sandbox, job, signal string, killAfterMS int64) (*Job, error)
}

// Files works on a sandbox's files, inside the sandbox. Reading needs
// sandboxes:read, changing files:write.
type Files interface {
	StatFile(ctx context.Context, sandbox, path string) (*FileInfo, error)
	ListFiles(ctx context.Context, sandbox string, req ListFilesRequest) (*List[FileInfo], error)
	ReadFile(ctx context.Context, sandbox string, req ReadFileRequest) (*FileReader, error)
	// WriteFile reads content to its end; when that fails, nothing is written.
	WriteFile(ctx context.Context, sandbox string, req WriteFileRequest, content io.Reader) (*FileInfo, error)
	EditFile(ctx context.Context, sandbox string, req EditFileRequest) (*EditFileResult, error)
	// MakeDir makes a directory and its missing parents. Mode is as in
	// [WriteFileRequest], "0755" when empty.
	MakeDir(ctx context.Context, sandbox, path, mode string) (*FileInfo, error)
	MoveFile(ctx context.Context, sandbox string, req MoveFileRequest) (*FileInfo, error)
	DeleteFile(ctx context.Context, sandbox, path string, recursive bool) error
	// ArchiveDir returns a directory as a ZIP file, without symbolic links
	// and special files. Over maxBytes (0: no bound) reading fails with
	// too_large.
	ArchiveDir(ctx context.Context, sandbox, path string, maxBytes int64) (io.ReadCloser, error)
	// WatchFiles passes changes to sink until ctx is cancelled, which is not
	// an error, or the sandbox ends.
	WatchFiles(ctx context.Context, sandbox string, req WatchRequest, sink func(WatchEvent) error) error
}

// Templates manages templates.
type Templates interface {
	// ListTemplates returns all templates, built or only defined, by name.
	ListTemplates(ctx context.Context) (*List[Template], error)
	GetTemplate(ctx context.Context, name string) (*Template, error)
	// BuildTemplate builds and reports on the way; when it fails or ctx is
	// cancelled, an earlier build stays in use. Scope: templates:write.
	BuildTemplate(ctx context.Context, req BuildTemplateRequest, sink func(BuildEvent) error) (*Template, error)
}

// Keys manages API keys. Scope: admin.
type Keys interface {
	CreateKey(ctx context.Context, req CreateKeyRequest) (*NewKey, error)
	ListKeys(ctx context.Context, page Page) (*List[Key], error)
	RevokeKey(ctx context.Context, id string) (*Key, error)
}
