package sandbox

import (
	"context"
	"io"
	"net"
)

// Service is everything Cove does. Errors are [Error] values; see the codes.
// All methods are safe for concurrent use. The caller's identity travels in
// the context ([WithCaller]); a sandbox of another team is not_found, as if it
// did not exist, and so is one of another namespace for a caller who is in one
// ([Caller.Namespace]).
//
// A sandbox argument is an id, or a name in the caller's namespace. To a caller
// who is in none, a name means the sandbox of the default namespace first, and
// then that of any other; if several others have it, that is a conflict.
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
	// GetSnapshot takes an id or a name, as of a sandbox.
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
	// command, or when it is detached. If ctx is cancelled, or sink fails,
	// the job's whole process group is killed and the output so far stays
	// readable.
	Exec(ctx context.Context, sandbox string, req ExecRequest, sink JobSink) (*Job, error)
	// Attach passes a job's kept output, and then live output, to sink until
	// the job exits. Cancelling ctx leaves the job alone.
	Attach(ctx context.Context, sandbox, job string, req AttachRequest, sink JobSink) (*Job, error)
	// GetJob returns a job, running or ended, as far as it is remembered.
	GetJob(ctx context.Context, sandbox, job string) (*Job, error)
	// ListJobs returns jobs, oldest first; ended ones, the newest 256.
	ListJobs(ctx context.Context, sandbox string, page Page) (*List[Job], error)
	// ReadOutput returns a range of a job's kept output; it does not wait for more.
	ReadOutput(ctx context.Context, sandbox, job string, req OutputRequest) (*Output, error)
	// WriteInput writes to a job's standard input, and closes it then if told.
	WriteInput(ctx context.Context, sandbox, job string, data []byte, closeAfter bool) error
	// ResizeTerminal changes the size of the terminal of a job that runs in one.
	ResizeTerminal(ctx context.Context, sandbox, job string, size TerminalSize) error
	// SignalJob sends a signal by name ("TERM") or number to a job's process
	// group, and KILL killAfterMS later if that is positive and it still runs.
	SignalJob(ctx context.Context, sandbox, job, signal string, killAfterMS int64) (*Job, error)
}

// Interpreters runs code in interpreters that keep their state, through pause, snapshot
// and fork too. All need the scope sandboxes:write, but listing:
// sandboxes:read.
type Interpreters interface {
	// RunCode runs code and passes what happens to sink, which may be nil. It
	// returns when the code has ended; code that fails is no error. Runs of
	// one context wait for each other. If ctx is cancelled, or sink fails, the
	// code is interrupted, and its interpreter killed if that does not help.
	RunCode(ctx context.Context, sandbox string, req RunCodeRequest, sink CodeSink) (*CodeResult, error)
	// RunIsolated runs code in a sandbox of its own, which is gone afterwards.
	RunIsolated(ctx context.Context, req RunIsolatedRequest, sink CodeSink) (*CodeResult, error)
	// ListContexts returns interpreters, the oldest first.
	ListContexts(ctx context.Context, sandbox string) (*List[CodeContext], error)
	// InterruptContext interrupts what runs in a context, as ^C does, and
	// keeps its state. An idle context is not an error.
	InterruptContext(ctx context.Context, sandbox string, ref ContextRef) (*CodeContext, error)
	// RestartContext gives a context a new interpreter: its state is lost, and
	// what runs or waits in it ends.
	RestartContext(ctx context.Context, sandbox string, ref ContextRef) (*CodeContext, error)
	// DeleteContext ends an interpreter. One that is not there is not an error.
	DeleteContext(ctx context.Context, sandbox string, ref ContextRef) error
}

// Network decides and tells what sandboxes reach. None of these resumes a
// paused sandbox.
type Network interface {
	// GetNetwork returns the policy in effect. Scope: sandboxes:read.
	GetNetwork(ctx context.Context, sandbox string) (*NetworkPolicy, error)
	// SetNetwork replaces the policy at once; existing connections are judged
	// again. Scope: sandboxes:write.
	SetNetwork(ctx context.Context, sandbox string, policy NetworkPolicy) (*NetworkPolicy, error)
	// NetworkLog returns events, newest first, of ended sandboxes too, for
	// [NetworkLogRetention]. Scope: sandboxes:read.
	NetworkLog(ctx context.Context, sandbox string, req NetworkLogRequest) (*List[NetworkEvent], error)
	// FollowNetworkLog passes events to sink as they come, in their order,
	// until ctx is cancelled, which is not an error, or the sandbox ends.
	// Scope: sandboxes:read.
	FollowNetworkLog(ctx context.Context, sandbox string, req NetworkLogRequest, sink func(NetworkEvent) error) error
}

// Secrets manages credentials. Their values go in and never come out. Scope:
// secrets:write, but looking at what there is needs any.
type Secrets interface {
	// CreateSecret keeps a value under a name that no other secret of the team has.
	// Nothing gives the value out again.
	CreateSecret(ctx context.Context, req CreateSecretRequest) (*Secret, error)
	// GetSecret takes an id or a name of the caller's team.
	GetSecret(ctx context.Context, secret string) (*Secret, error)
	// ListSecrets returns secrets, newest first.
	ListSecrets(ctx context.Context, page Page) (*List[Secret], error)
	// RotateSecret replaces a value, at once in running sandboxes.
	RotateSecret(ctx context.Context, secret string, req RotateSecretRequest) (*Secret, error)
	// DeleteSecret removes a secret, which ends its use everywhere: the
	// placeholders stay and are worth nothing.
	DeleteSecret(ctx context.Context, secret string) error
	// RotateSecretsKey makes a new key for the values of all teams' secrets,
	// seals them and what webhooks have of secrets with it, and throws the old
	// one away. Values stay what they are. After an error or a crash both keys
	// open, and another call finishes the work. Scope: admin.
	RotateSecretsKey(ctx context.Context) (*Resealed, error)
	// ListProviders returns the presets, by name.
	ListProviders(ctx context.Context) (*List[Provider], error)
	// AttachSecret gives a living sandbox a placeholder for a secret in an
	// environment variable, which commands started from then on see.
	// Scope: sandboxes:write.
	AttachSecret(ctx context.Context, sandbox, secret, env string) (*Sandbox, error)
	// DetachSecret takes a secret from a sandbox, by its environment variable.
	// The placeholder is worth nothing from then on. Scope: sandboxes:write.
	DetachSecret(ctx context.Context, sandbox, env string) (*Sandbox, error)
}

// Previews leads from outside to ports of sandboxes. Scope: sandboxes:write,
// and sandboxes:read for listing.
type Previews interface {
	// CreatePreview makes a port a URL, or changes the preview that it has.
	CreatePreview(ctx context.Context, sandbox string, req CreatePreviewRequest) (*NewPreview, error)
	// ListPreviews returns the previews of a sandbox by port, or of all of the
	// caller's team by sandbox and port for "".
	ListPreviews(ctx context.Context, sandbox string, page Page) (*List[Preview], error)
	// LinkPreview signs a link that opens a private preview.
	LinkPreview(ctx context.Context, sandbox string, port int, req PreviewLinkRequest) (*PreviewLink, error)
	// DeletePreview ends a preview, its key and its links, at once. One that
	// is not there is not an error.
	DeletePreview(ctx context.Context, sandbox string, port int) error
	// VisitPreview admits a visitor, who needs no key of the server's, and
	// returns the preview that they may open. The error is not_found for a
	// preview that is not there, forbidden for a visitor who may not,
	// not_running for a sandbox that does not run and may not be woken.
	VisitPreview(ctx context.Context, visit PreviewVisit) (*Preview, error)
	// DialPreview opens a connection to the port of a preview that
	// VisitPreview has returned. A port on which nothing listens is
	// unavailable.
	DialPreview(ctx context.Context, preview *Preview) (net.Conn, error)
	// DialPort opens a TCP connection to a port of a sandbox. A port on which
	// nothing listens is unavailable.
	DialPort(ctx context.Context, sandbox string, port int) (net.Conn, error)
}

// Observe looks into sandboxes. Scope: sandboxes:read, and sandboxes:write for
// what changes something.
type Observe interface {
	// ListProcesses returns the processes inside by id.
	ListProcesses(ctx context.Context, sandbox string, page Page) (*List[Process], error)
	// SignalProcess sends a signal by name ("TERM") or number to one process.
	SignalProcess(ctx context.Context, sandbox string, pid int, signal string) error
	// GetEnv returns the default environment by name.
	GetEnv(ctx context.Context, sandbox string, page Page) (*List[EnvVar], error)
	// SetEnv changes the default environment and returns it as GetEnv does, the
	// first [MaxPageSize] variables of it.
	SetEnv(ctx context.Context, sandbox string, req SetEnvRequest) (*List[EnvVar], error)
	// ListStats tells what sandboxes use now, newest first. It resumes none.
	ListStats(ctx context.Context, req StatsRequest) (*List[SandboxStats], error)
	// StatsSeries returns what a sandbox has used, oldest first, a point every
	// [StatsInterval] in which it ran.
	StatsSeries(ctx context.Context, sandbox string, req StatsSeriesRequest) (*List[StatsPoint], error)
	// ListDeliveries returns the webhooks of a sandbox's jobs and approvals, newest first.
	ListDeliveries(ctx context.Context, sandbox string, page Page) (*List[Delivery], error)
}

// Files works on a sandbox's files, inside the sandbox. Reading needs
// sandboxes:read, changing files:write.
type Files interface {
	// StatFile describes a file; of a symbolic link, the link itself.
	StatFile(ctx context.Context, sandbox, path string) (*FileInfo, error)
	// ListFiles returns what is in a directory, by path.
	ListFiles(ctx context.Context, sandbox string, req ListFilesRequest) (*List[FileInfo], error)
	// ReadFile returns a file, or a range of it.
	ReadFile(ctx context.Context, sandbox string, req ReadFileRequest) (*FileReader, error)
	// WriteFile reads content to its end; when that fails, nothing is written.
	WriteFile(ctx context.Context, sandbox string, req WriteFileRequest, content io.Reader) (*FileInfo, error)
	// EditFile replaces text in a file at once: readers see the old content or the
	// new one.
	EditFile(ctx context.Context, sandbox string, req EditFileRequest) (*EditFileResult, error)
	// MakeDir makes a directory and its missing parents. One that is there already
	// is not an error, unless the request is exclusive; a file is a conflict.
	MakeDir(ctx context.Context, sandbox string, req MakeDirRequest) (*FileInfo, error)
	// MakeSymlink makes a symbolic link. It is there whole or not at all, also
	// where it replaces a file.
	MakeSymlink(ctx context.Context, sandbox string, req MakeSymlinkRequest) (*FileInfo, error)
	// MoveFile renames a file or directory. One that is there already is a conflict,
	// unless it is to be replaced.
	MoveFile(ctx context.Context, sandbox string, req MoveFileRequest) (*FileInfo, error)
	// DeleteFile removes a file or an empty directory, or a directory with all that
	// is in it if recursive.
	DeleteFile(ctx context.Context, sandbox, path string, recursive bool) error
	// ArchiveDir returns a directory as a ZIP file, with symbolic links as
	// links and without special files. Over maxBytes (0: no bound) reading fails with
	// too_large.
	ArchiveDir(ctx context.Context, sandbox, path string, maxBytes int64) (io.ReadCloser, error)
	// WatchFiles passes changes to sink until ctx is cancelled, which is not
	// an error, or the sandbox ends.
	WatchFiles(ctx context.Context, sandbox string, req WatchRequest, sink func(WatchEvent) error) error
}

// Templates manages templates. They belong to all teams of the server. Scope:
// templates:write, but looking: sandboxes:read.
type Templates interface {
	// ListTemplates returns all templates, built or only defined, by name.
	ListTemplates(ctx context.Context, page Page) (*List[Template], error)
	// GetTemplate takes a name, NAME@VERSION or an alias.
	GetTemplate(ctx context.Context, name string) (*Template, error)
	// BuildTemplate builds and reports on the way; when it fails or ctx is
	// cancelled, an earlier build stays in use.
	BuildTemplate(ctx context.Context, req BuildTemplateRequest, sink func(BuildEvent) error) (*Template, error)
	// StartBuild begins a build that goes on when the call is over. What can
	// be said of the request at once is an error here.
	StartBuild(ctx context.Context, req BuildTemplateRequest) (*Build, error)
	// GetBuild returns a build, running or ended.
	GetBuild(ctx context.Context, build string) (*Build, error)
	// ListBuilds returns builds, newest first.
	ListBuilds(ctx context.Context, req ListBuildsRequest) (*List[Build], error)
	// FollowBuild passes the build's events to sink, from its beginning, and
	// returns when it has ended. Cancelling ctx leaves the build alone.
	FollowBuild(ctx context.Context, build string, sink func(BuildEvent) error) (*Build, error)
	// CancelBuild ends a build and leaves nothing of it. One that has ended is
	// not an error.
	CancelBuild(ctx context.Context, build string) (*Build, error)
	// UploadArchive keeps an archive of an image for a while, for builds from
	// it: what docker save or an OCI tool wrote, as tar, perhaps compressed.
	UploadArchive(ctx context.Context, content io.Reader) (*ArchiveUpload, error)
	// LinkUpload makes a link by which somebody without a key can send one
	// archive.
	LinkUpload(ctx context.Context, req UploadLinkRequest) (*UploadLink, error)
	// AliasTemplate gives a template, or NAME@VERSION, a further name, taking
	// it from another template if need be. An empty name takes the alias away.
	AliasTemplate(ctx context.Context, alias, name string) error
	// DeleteTemplate removes a template with all versions, or NAME@VERSION.
	// Its sandboxes and snapshots live on; a built-in one is unbuilt again.
	DeleteTemplate(ctx context.Context, name string) error
}

// Volumes manages volumes, which sandboxes get at their creation. Scope:
// sandboxes:write, but looking: sandboxes:read.
type Volumes interface {
	// CreateVolume makes an empty volume under a name that no other of the team has.
	CreateVolume(ctx context.Context, req CreateVolumeRequest) (*Volume, error)
	// GetVolume takes an id or a name of the caller's team.
	GetVolume(ctx context.Context, volume string) (*Volume, error)
	// ListVolumes returns volumes, newest first.
	ListVolumes(ctx context.Context, page Page) (*List[Volume], error)
	// DeleteVolume removes a volume and its files. One that a living sandbox
	// or a snapshot has is a conflict.
	DeleteVolume(ctx context.Context, volume string) error
}

// Orphans is what the server has found on its disk without a record of it, as
// after the loss of its database. Scope: admin. A key of a team sees what was its
// team's; the user who runs the server sees all.
type Orphans interface {
	// ListOrphans returns all of them, the oldest first.
	ListOrphans(ctx context.Context, page Page) (*List[Orphan], error)
	// RecoverOrphan makes a record of an orphan again: of a volume under its own
	// id, of kept state as a snapshot. It has its old name unless that is taken
	// by now. State that says nothing of itself becomes a snapshot of the
	// caller's team whose sandboxes reach no network.
	RecoverOrphan(ctx context.Context, id string) (*Recovered, error)
}

// Machine is what the server runs on. Scope: admin.
type Machine interface {
	// CheckMachine tells what the server's machine lets Cove do for the user who runs the
	// server, and how to get what is missing, as "cove doctor" does there.
	CheckMachine(ctx context.Context) (*MachineReport, error)
}

// Nodes are the machines on which the server runs sandboxes. Scope: admin. A server that
// was not started for it has none, and all but the list are unsupported.
type Nodes interface {
	// ListNodes returns the server's own machine, if it runs sandboxes, and then the nodes
	// by name, all at once.
	ListNodes(ctx context.Context) (*List[Node], error)
	// CreateJoinToken makes a token by which one machine can become a node.
	CreateJoinToken(ctx context.Context) (*JoinToken, error)
	// DrainNode keeps new sandboxes from a node. Those on it run on, and so do their forks
	// there.
	DrainNode(ctx context.Context, node string) (*Node, error)
	// UndrainNode lets a node take new sandboxes again.
	UndrainNode(ctx context.Context, node string) (*Node, error)
	// RemoveNode removes a node for ever, with paused sandboxes and snapshots on it. One
	// on which sandboxes run is a conflict.
	RemoveNode(ctx context.Context, node string) error
}

// Computers uses the screens of sandboxes whose template has a desktop; others
// are unsupported. Paused ones are resumed first. Scope: computers:write, but
// screenshots and looking: sandboxes:read.
type Computers interface {
	// GetScreen tells the size of the screen and where the pointer is.
	GetScreen(ctx context.Context, sandbox string) (*Screen, error)
	// Screenshot takes a picture of the screen, or of a region of it.
	Screenshot(ctx context.Context, sandbox string, req ScreenshotRequest) (*Screenshot, error)
	// SendInput does inputs in their order and returns when the X server has
	// them all. It stops at the first that fails; the error says which. If ctx
	// is cancelled, buttons and keys that it holds are let go of.
	SendInput(ctx context.Context, sandbox string, inputs []Input) (*Screen, error)
	// GetClipboard returns the text that the clipboard holds.
	GetClipboard(ctx context.Context, sandbox string) (string, error)
	// SetClipboard puts text into the clipboard.
	SetClipboard(ctx context.Context, sandbox, text string) error
	// ListWindows returns top-level windows, the topmost first.
	ListWindows(ctx context.Context, sandbox string) (*List[Window], error)
	// ControlWindow focuses, closes or places a window, and returns all.
	ControlWindow(ctx context.Context, sandbox string, req WindowRequest) (*List[Window], error)
	// OpenURL opens an address in the computer's browser and returns when a
	// window shows it, which may still be loading the page. It fails with
	// timeout when there is none after 30 seconds; the browser goes on.
	OpenURL(ctx context.Context, sandbox, url string) error
	// ViewComputer makes a link to the live view.
	ViewComputer(ctx context.Context, sandbox string, req ViewRequest) (*ViewLink, error)
}

// Keys manages API keys. Scope: admin.
type Keys interface {
	// CreateKey makes a key and shows its secret this once.
	CreateKey(ctx context.Context, req CreateKeyRequest) (*NewKey, error)
	// ListKeys returns keys, expired and revoked ones too, newest first.
	ListKeys(ctx context.Context, page Page) (*List[Key], error)
	// RevokeKey revokes a key by its id, or by its name if no other valid key has
	// that. It may be repeated by the id.
	RevokeKey(ctx context.Context, key string) (*Key, error)
}
