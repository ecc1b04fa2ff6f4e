package sandbox

import (
	"context"
	"io"
	"net"
)

// Service is everything Cove does. Errors are [Error] values; see the codes.
// All methods are safe for concurrent use. The caller's identity travels in
// the context ([WithCaller]). A sandbox of another team is not_found, as if it
// did not exist. The same holds for sandboxes of other namespaces if the caller
// is in one ([Caller.Namespace]).
//
// A sandbox argument is an id, or a name in the caller's namespace. For a caller
// who is in none, a name means the sandbox in the default namespace or, if there
// is none, the one in any other; if several others have the name, the call fails
// with conflict.
type Service interface {
	Sandboxes
	Snapshots
	Jobs
	Interpreters
	Files
	Network
	Approvals
	Secrets
	Previews
	Observe
	Templates
	Volumes
	Orphans
	Machine
	Nodes
	Computers
	Events
	Keys
}

// Sandboxes is the life of sandboxes.
type Sandboxes interface {
	// Create returns when the sandbox runs and its agent answers, or fails
	// and leaves nothing behind. If ctx is cancelled on the way, the sandbox
	// is removed. Scope: sandboxes:write.
	Create(ctx context.Context, req CreateRequest) (*Sandbox, error)
	// Get returns a sandbox in any state. An ended one is kept for [EndedRetention].
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
	// Stats returns what a running sandbox uses. Scope: sandboxes:read.
	Stats(ctx context.Context, sandbox string) (*Stats, error)
	// Audit lists what was done, newest first. Scope: sandboxes:read for one
	// sandbox, else admin.
	Audit(ctx context.Context, req AuditRequest) (*List[AuditEvent], error)
}

// Snapshots is the life of a sandbox's state in time: pause, snapshot, fork,
// compare, merge, restore. Every verb of [Jobs] and [Files] on a paused sandbox
// resumes it first. Scope: sandboxes:write, or sandboxes:read for verbs that only
// read.
type Snapshots interface {
	// Pause writes the sandbox's memory, processes and files to disk and ends
	// its processes. Pausing a paused sandbox is not an error. If the pause fails,
	// the sandbox continues to run.
	Pause(ctx context.Context, sandbox string) (*Sandbox, error)
	// Resume continues a paused sandbox where it was; for a running one it only
	// returns the record. If the resume fails, the sandbox is still paused.
	Resume(ctx context.Context, sandbox string, req ResumeRequest) (*Sandbox, error)
	// Fork makes children that continue from the parent's current state, and
	// returns them in the order of their indexes. The parent stands still only
	// while its state is saved. Either all children run, or there is an error and
	// none of them exists. A paused parent stays paused.
	Fork(ctx context.Context, sandbox string, req ForkRequest) (*List[Sandbox], error)
	// CreateSnapshot keeps the state of a running or paused sandbox. The sandbox
	// continues, or stays paused.
	CreateSnapshot(ctx context.Context, sandbox string, req CreateSnapshotRequest) (*Snapshot, error)
	// GetSnapshot takes an id or a name; names are looked up as for sandboxes.
	GetSnapshot(ctx context.Context, snapshot string) (*Snapshot, error)
	// ListSnapshots returns snapshots, newest first.
	ListSnapshots(ctx context.Context, req ListSnapshotsRequest) (*List[Snapshot], error)
	// RestoreSnapshot sets a running or paused sandbox back to a kept state. The
	// sandbox keeps its own id, name and limits. If the restore fails, it continues as
	// it was.
	RestoreSnapshot(ctx context.Context, sandbox string, req RestoreRequest) (*Sandbox, error)
	// DeleteSnapshot removes a snapshot. Sandboxes made from it are unharmed.
	DeleteSnapshot(ctx context.Context, snapshot string) (*Snapshot, error)
	// Diff compares the files of a subject, which is a sandbox or a snapshot
	// by id or name, with those of another or of the template. Paused sandboxes
	// stay paused.
	Diff(ctx context.Context, subject string, req DiffRequest) (*Diff, error)
	// Merge takes a winner's changes into a parent. They are applied completely or
	// not at all.
	Merge(ctx context.Context, parent string, req MergeRequest) (*MergeResult, error)
	// Try forks a sandbox, runs commands in the forks and merges one back if the
	// request picks one. Sink, which may be nil, gets each attempt as it ends. If
	// ctx is cancelled or sink fails, the forks are killed.
	Try(ctx context.Context, sandbox string, req TryRequest, sink func(TryEvent) error) (*TryResult, error)
}

// Jobs runs commands. Scope: sandboxes:write, or sandboxes:read for verbs that only
// read.
type Jobs interface {
	// Exec runs a command and passes its events to sink, which may be nil. It
	// returns when the job has exited or is detached, and for a background command
	// as soon as it has started. If ctx is cancelled or sink fails, the job's whole
	// process group is killed; the output so far stays readable.
	Exec(ctx context.Context, sandbox string, req ExecRequest, sink JobSink) (*Job, error)
	// Attach passes a job's kept output, and then live output, to sink until
	// the job exits. Cancelling ctx leaves the job alone.
	Attach(ctx context.Context, sandbox, job string, req AttachRequest, sink JobSink) (*Job, error)
	// GetJob returns a job, running or ended. Only the newest ended jobs are kept, at
	// most 256.
	GetJob(ctx context.Context, sandbox, job string) (*Job, error)
	// ListJobs returns jobs, oldest first: all that run, and the newest that have ended,
	// at most 256.
	ListJobs(ctx context.Context, sandbox string, page Page) (*List[Job], error)
	// ReadOutput returns a range of a job's kept output; it does not wait for more.
	ReadOutput(ctx context.Context, sandbox, job string, req OutputRequest) (*Output, error)
	// WriteInput writes to a job's standard input, and can close it afterwards.
	WriteInput(ctx context.Context, sandbox, job string, data []byte, closeAfter bool) error
	// ResizeTerminal changes the size of the terminal that a job runs in.
	ResizeTerminal(ctx context.Context, sandbox, job string, size TerminalSize) error
	// SignalJob sends a signal by name ("TERM") or number to a job's process
	// group. If killAfterMS is positive, the job gets KILL if it still runs after this
	// many milliseconds.
	SignalJob(ctx context.Context, sandbox, job, signal string, killAfterMS int64) (*Job, error)
}

// Interpreters runs code in interpreters that keep their state, also through pause,
// snapshot and fork. Scope: sandboxes:write, or sandboxes:read for listing.
type Interpreters interface {
	// RunCode runs code and passes its events to sink, which may be nil. It
	// returns when the code has ended; code that fails is not an error. Runs of
	// one context wait for each other. If ctx is cancelled or sink fails, the
	// code is interrupted, and its interpreter killed if that does not help.
	RunCode(ctx context.Context, sandbox string, req RunCodeRequest, sink CodeSink) (*CodeResult, error)
	// RunIsolated runs code in a sandbox of its own, which is gone afterwards.
	RunIsolated(ctx context.Context, req RunIsolatedRequest, sink CodeSink) (*CodeResult, error)
	// ListContexts returns contexts, oldest first.
	ListContexts(ctx context.Context, sandbox string) (*List[CodeContext], error)
	// InterruptContext interrupts what runs in a context, as ^C does, and
	// keeps its state. An idle context is not an error.
	InterruptContext(ctx context.Context, sandbox string, ref ContextRef) (*CodeContext, error)
	// RestartContext gives a context a new interpreter: its state is lost, and
	// what runs or waits in it ends.
	RestartContext(ctx context.Context, sandbox string, ref ContextRef) (*CodeContext, error)
	// DeleteContext ends a context and its interpreter. A context that does not exist
	// is not an error.
	DeleteContext(ctx context.Context, sandbox string, ref ContextRef) error
}

// Network sets and reports what sandboxes can reach. None of its verbs resumes a
// paused sandbox.
type Network interface {
	// GetNetwork returns the policy in effect. Scope: sandboxes:read.
	GetNetwork(ctx context.Context, sandbox string) (*NetworkPolicy, error)
	// SetNetwork replaces the policy at once; existing connections are judged
	// again. Scope: sandboxes:write.
	SetNetwork(ctx context.Context, sandbox string, policy NetworkPolicy) (*NetworkPolicy, error)
	// NetworkLog returns events, newest first. The log of an ended sandbox is kept
	// for [NetworkLogRetention]. Scope: sandboxes:read.
	NetworkLog(ctx context.Context, sandbox string, req NetworkLogRequest) (*List[NetworkEvent], error)
	// FollowNetworkLog passes events to sink in order as they come, until ctx is
	// cancelled, which is not an error, or the sandbox ends.
	// Scope: sandboxes:read.
	FollowNetworkLog(ctx context.Context, sandbox string, req NetworkLogRequest, sink func(NetworkEvent) error) error
}

// Secrets manages credentials. Their values go in and never come out. Scope:
// secrets:write, or any scope for verbs that only read.
type Secrets interface {
	// CreateSecret keeps a value under a name that no other secret of the team has.
	// Nothing returns the value again.
	CreateSecret(ctx context.Context, req CreateSecretRequest) (*Secret, error)
	// GetSecret takes an id or a name of the caller's team.
	GetSecret(ctx context.Context, secret string) (*Secret, error)
	// ListSecrets returns secrets, newest first.
	ListSecrets(ctx context.Context, page Page) (*List[Secret], error)
	// RotateSecret replaces a value. Running sandboxes use the new one at once.
	RotateSecret(ctx context.Context, secret string, req RotateSecretRequest) (*Secret, error)
	// DeleteSecret removes a secret, which ends its use everywhere: its placeholders
	// remain and are no longer replaced.
	DeleteSecret(ctx context.Context, secret string) error
	// RotateSecretsKey makes a new key, seals with it the values of all teams'
	// secrets and the secrets of webhooks, and deletes the old key. The values do not
	// change. After an error or a crash both keys work, and another call finishes the
	// rotation. Scope: admin.
	RotateSecretsKey(ctx context.Context) (*Resealed, error)
	// ListProviders returns the presets, by name.
	ListProviders(ctx context.Context) (*List[Provider], error)
	// AttachSecret gives a living sandbox a placeholder for a secret in an
	// environment variable. Commands that start afterwards see it.
	// Scope: sandboxes:write.
	AttachSecret(ctx context.Context, sandbox, secret, env string) (*Sandbox, error)
	// DetachSecret takes a secret from a sandbox, by its environment variable.
	// The placeholder is no longer replaced. Scope: sandboxes:write.
	DetachSecret(ctx context.Context, sandbox, env string) (*Sandbox, error)
}

// Previews gives access from outside to ports of sandboxes. Scope: sandboxes:write,
// or sandboxes:read for listing.
type Previews interface {
	// CreatePreview makes a preview of a port, or changes the one that it has.
	CreatePreview(ctx context.Context, sandbox string, req CreatePreviewRequest) (*NewPreview, error)
	// ListPreviews returns the previews of a sandbox, sorted by port. For "" it returns
	// those of the caller's whole team, sorted by sandbox and port.
	ListPreviews(ctx context.Context, sandbox string, page Page) (*List[Preview], error)
	// LinkPreview signs a link that opens a private preview.
	LinkPreview(ctx context.Context, sandbox string, port int, req PreviewLinkRequest) (*PreviewLink, error)
	// DeletePreview ends a preview, its key and its links at once. A port without a
	// preview is not an error.
	DeletePreview(ctx context.Context, sandbox string, port int) error
	// VisitPreview admits a visitor, who needs no API key, and returns the preview
	// that they may open. The error is not_found if there is no such preview,
	// forbidden if the visitor may not open it, and not_running if the sandbox does
	// not run and the preview does not wake it.
	VisitPreview(ctx context.Context, visit PreviewVisit) (*Preview, error)
	// DialPreview opens a connection to the port of a preview that
	// VisitPreview has returned. If nothing listens on the port, the error is
	// unavailable.
	DialPreview(ctx context.Context, preview *Preview) (net.Conn, error)
	// DialPort opens a TCP connection to a port of a sandbox. If nothing listens on
	// the port, the error is unavailable.
	DialPort(ctx context.Context, sandbox string, port int) (net.Conn, error)
}

// Observe looks into sandboxes. Scope: sandboxes:read, or sandboxes:write for verbs
// that change something.
type Observe interface {
	// ListProcesses returns the processes inside a sandbox, sorted by id.
	ListProcesses(ctx context.Context, sandbox string, page Page) (*List[Process], error)
	// SignalProcess sends a signal by name ("TERM") or number to one process.
	SignalProcess(ctx context.Context, sandbox string, pid int, signal string) error
	// GetEnv returns the default environment, sorted by name.
	GetEnv(ctx context.Context, sandbox string, page Page) (*List[EnvVar], error)
	// SetEnv changes the default environment and returns its first [MaxPageSize]
	// variables as GetEnv does.
	SetEnv(ctx context.Context, sandbox string, req SetEnvRequest) (*List[EnvVar], error)
	// ListStats returns what sandboxes use now, newest first. It resumes none.
	ListStats(ctx context.Context, req StatsRequest) (*List[SandboxStats], error)
	// StatsSeries returns what a sandbox has used, oldest first: a point for every
	// [StatsInterval] in which it ran.
	StatsSeries(ctx context.Context, sandbox string, req StatsSeriesRequest) (*List[StatsPoint], error)
	// ListDeliveries returns the webhooks of a sandbox's jobs and approvals, newest first.
	ListDeliveries(ctx context.Context, sandbox string, page Page) (*List[Delivery], error)
}

// Files works on a sandbox's files, inside the sandbox. Scope: sandboxes:read, or
// files:write for verbs that change something.
type Files interface {
	// StatFile describes a file. It does not follow a symbolic link.
	StatFile(ctx context.Context, sandbox, path string) (*FileInfo, error)
	// ListFiles returns the contents of a directory, sorted by path.
	ListFiles(ctx context.Context, sandbox string, req ListFilesRequest) (*List[FileInfo], error)
	// ReadFile returns a file, or a range of it.
	ReadFile(ctx context.Context, sandbox string, req ReadFileRequest) (*FileReader, error)
	// WriteFile writes content to a file. If reading content fails, nothing is written.
	WriteFile(ctx context.Context, sandbox string, req WriteFileRequest, content io.Reader) (*FileInfo, error)
	// EditFile replaces text in a file atomically: readers see the old content or the
	// new.
	EditFile(ctx context.Context, sandbox string, req EditFileRequest) (*EditFileResult, error)
	// MakeDir makes a directory and its missing parents. A directory that already
	// exists is not an error, unless the request is exclusive; a file is a conflict.
	MakeDir(ctx context.Context, sandbox string, req MakeDirRequest) (*FileInfo, error)
	// MakeSymlink makes a symbolic link atomically, also if it replaces a file.
	MakeSymlink(ctx context.Context, sandbox string, req MakeSymlinkRequest) (*FileInfo, error)
	// MoveFile renames a file or directory. If the new name exists, the error is
	// conflict, unless the request overwrites it.
	MoveFile(ctx context.Context, sandbox string, req MoveFileRequest) (*FileInfo, error)
	// DeleteFile removes a file or an empty directory, or with recursive a directory
	// and all its contents.
	DeleteFile(ctx context.Context, sandbox, path string, recursive bool) error
	// ArchiveDir returns a directory as a ZIP file, with symbolic links as
	// links and without special files. Beyond maxBytes (0: no bound) reading fails with
	// too_large.
	ArchiveDir(ctx context.Context, sandbox, path string, maxBytes int64) (io.ReadCloser, error)
	// WatchFiles passes changes to sink until ctx is cancelled, which is not
	// an error, or the sandbox ends.
	WatchFiles(ctx context.Context, sandbox string, req WatchRequest, sink func(WatchEvent) error) error
}

// Templates manages templates, which all teams of the server share. Scope:
// templates:write, or sandboxes:read for verbs that only read.
type Templates interface {
	// ListTemplates returns all templates, built or only defined, by name.
	ListTemplates(ctx context.Context, page Page) (*List[Template], error)
	// GetTemplate takes a name, NAME@VERSION or an alias.
	GetTemplate(ctx context.Context, name string) (*Template, error)
	// BuildTemplate builds a template and passes progress to sink. If it fails or ctx
	// is cancelled, an earlier build stays in use.
	BuildTemplate(ctx context.Context, req BuildTemplateRequest, sink func(BuildEvent) error) (*Template, error)
	// StartBuild begins a build that continues after the call. Errors in the request
	// that need no build to be found are returned at once.
	StartBuild(ctx context.Context, req BuildTemplateRequest) (*Build, error)
	// GetBuild returns a build, running or ended.
	GetBuild(ctx context.Context, build string) (*Build, error)
	// ListBuilds returns builds, newest first.
	ListBuilds(ctx context.Context, req ListBuildsRequest) (*List[Build], error)
	// FollowBuild passes the build's events to sink, from its beginning, and
	// returns when it has ended. Cancelling ctx leaves the build alone.
	FollowBuild(ctx context.Context, build string, sink func(BuildEvent) error) (*Build, error)
	// CancelBuild ends a build and removes what it has made. A build that has ended
	// is not an error.
	CancelBuild(ctx context.Context, build string) (*Build, error)
	// UploadArchive keeps an archive for [UploadRetention], for builds from it: an
	// image that docker save or an OCI tool wrote, as tar, perhaps compressed.
	UploadArchive(ctx context.Context, content io.Reader) (*ArchiveUpload, error)
	// LinkUpload makes a link with which anyone can send one archive without a key.
	LinkUpload(ctx context.Context, req UploadLinkRequest) (*UploadLink, error)
	// AliasTemplate gives a template, or NAME@VERSION, another name, and takes that
	// name from any template that has it. An empty name removes the alias.
	AliasTemplate(ctx context.Context, alias, name string) error
	// DeleteTemplate removes a template with all versions, or NAME@VERSION. Its
	// sandboxes and snapshots stay. A built-in template is then available to build
	// again.
	DeleteTemplate(ctx context.Context, name string) error
}

// Volumes manages volumes, which are mounted into sandboxes at their creation. Scope:
// sandboxes:write, or sandboxes:read for verbs that only read.
type Volumes interface {
	// CreateVolume makes an empty volume. Its name is unique in the team.
	CreateVolume(ctx context.Context, req CreateVolumeRequest) (*Volume, error)
	// GetVolume takes an id or a name of the caller's team.
	GetVolume(ctx context.Context, volume string) (*Volume, error)
	// ListVolumes returns volumes, newest first.
	ListVolumes(ctx context.Context, page Page) (*List[Volume], error)
	// DeleteVolume removes a volume and its files. If a living sandbox or a snapshot
	// uses it, the error is conflict.
	DeleteVolume(ctx context.Context, volume string) error
}

// Orphans is what the server has found on its disk without a record, for example
// after its database was lost. Scope: admin. A key sees the orphans of its team; the
// user who runs the server sees all.
type Orphans interface {
	// ListOrphans returns orphans, oldest first.
	ListOrphans(ctx context.Context, page Page) (*List[Orphan], error)
	// RecoverOrphan gives an orphan a record again: a volume under its old id, a
	// checkpoint as a snapshot. It has its old name unless that is taken now. A
	// checkpoint that does not say whose it was becomes a snapshot of the caller's
	// team; sandboxes made from it have no network.
	RecoverOrphan(ctx context.Context, id string) (*Recovered, error)
}

// Machine is what the server runs on. Scope: admin.
type Machine interface {
	// CheckMachine reports what the server's machine lets Cove do for the user who runs
	// the server, and how to get what is missing, as "cove doctor" does on that
	// machine.
	CheckMachine(ctx context.Context) (*MachineReport, error)
}

// Nodes manages the further machines on which the server runs sandboxes. Scope: admin. On a
// server that was not started with an address for nodes, all verbs except ListNodes are
// unsupported.
type Nodes interface {
	// ListNodes returns the server's own machine, if it runs sandboxes, and then all nodes,
	// sorted by name.
	ListNodes(ctx context.Context) (*List[Node], error)
	// CreateJoinToken makes a token with which one machine can join as a node, once and
	// within an hour.
	CreateJoinToken(ctx context.Context) (*JoinToken, error)
	// DrainNode keeps new sandboxes from a node. Unless the request says that they move,
	// sandboxes on the node continue, and their forks still start there. A move goes on after
	// the answer, which has its progress; ListNodes has it later.
	DrainNode(ctx context.Context, node string, req DrainRequest) (*Node, error)
	// UndrainNode lets a node take new sandboxes again.
	UndrainNode(ctx context.Context, node string) (*Node, error)
	// RemoveNode removes a node for good, with the paused sandboxes and snapshots that are
	// only there. If sandboxes run on the node, that is a conflict.
	RemoveNode(ctx context.Context, node string) error
}

// Computers uses the screens of sandboxes whose template has a desktop; for others
// the error is unsupported. Paused ones are resumed first. Scope: computers:write, or
// sandboxes:read for screenshots and other verbs that only read.
type Computers interface {
	// GetScreen returns the size of the screen and the position of the pointer.
	GetScreen(ctx context.Context, sandbox string) (*Screen, error)
	// Screenshot takes a picture of the screen, or of a region of it.
	Screenshot(ctx context.Context, sandbox string, req ScreenshotRequest) (*Screenshot, error)
	// SendInput performs inputs in order and returns when the X server has them
	// all. It stops at the first that fails; the error says which. If ctx is
	// cancelled, buttons and keys that the call holds are released.
	SendInput(ctx context.Context, sandbox string, inputs []Input) (*Screen, error)
	// GetClipboard returns the text in the clipboard.
	GetClipboard(ctx context.Context, sandbox string) (string, error)
	// SetClipboard puts text into the clipboard.
	SetClipboard(ctx context.Context, sandbox, text string) error
	// ListWindows returns top-level windows, topmost first.
	ListWindows(ctx context.Context, sandbox string) (*List[Window], error)
	// ControlWindow focuses, closes, minimises, maximises or places a window, and
	// returns all windows.
	ControlWindow(ctx context.Context, sandbox string, req WindowRequest) (*List[Window], error)
	// OpenURL opens an address in the computer's browser and returns when there is a
	// window for it; the page may still be loading. If there is no window after 30
	// seconds, the error is timeout and the browser continues.
	OpenURL(ctx context.Context, sandbox, url string) error
	// ViewComputer makes a link to the live view.
	ViewComputer(ctx context.Context, sandbox string, req ViewRequest) (*ViewLink, error)
}

// Keys manages API keys. Scope: admin.
type Keys interface {
	// CreateKey makes a key and returns its secret, which is never shown again.
	CreateKey(ctx context.Context, req CreateKeyRequest) (*NewKey, error)
	// ListKeys returns keys, including expired and revoked ones, newest first.
	ListKeys(ctx context.Context, page Page) (*List[Key], error)
	// RevokeKey revokes a key by its id, or by its name if no other valid key has
	// that name. Revoking a revoked key by its id is not an error.
	RevokeKey(ctx context.Context, key string) (*Key, error)
}
