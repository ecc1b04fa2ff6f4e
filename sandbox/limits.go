package sandbox

import "time"

// Limits and defaults that callers meet. They are the same behind every door
// unless a door documents a smaller one.
const (
	DefaultNamespace = "default"

	DefaultVCPUs     = 1
	DefaultMemoryMiB = 1024
	DefaultDiskMiB   = 4096
	DefaultMaxPIDs   = 512

	MinMemoryMiB = 64
	MinDiskMiB   = 16
	MinPIDs      = 16
	MaxVCPUs     = 64
	MaxMemoryMiB = 256 * 1024
	MaxDiskMiB   = 1024 * 1024
	MaxPIDsLimit = 32768

	DefaultLifetime    = time.Hour
	DefaultIdleTimeout = 0
	MaxLifetime        = 365 * 24 * time.Hour

	DefaultExecTimeout = 60 * time.Second
	MaxExecTimeout     = 10 * time.Minute
	// DetachedTimeout is the default, and the longest, timeout of a command that may be
	// detached, counted from its start.
	DetachedTimeout  = time.Hour
	DefaultKeepBytes = 1 << 20
	MaxKeepBytes     = 16 << 20
	// MaxJobOutputBytes bounds the output of a job that is kept on the sandbox's disk
	// beyond what is in memory, if the request does not set KeepBytes. The newest output
	// is kept, at most a quarter of the disk for all jobs together.
	MaxJobOutputBytes = 256 << 20
	MaxOutputRead     = 1 << 20
	MaxStdinBytes     = 8 << 20
	MaxTagBytes       = 256
	// MaxCommandBytes bounds arguments and environment together, as execve
	// does on Linux by default (128 KiB an argument, 2 MiB in all).
	MaxCommandBytes = 2 << 20

	MaxNameLength    = 63
	MaxMetadataPairs = 64
	MaxMetadataKey   = 128
	MaxMetadataValue = 1024
	MaxEnvPairs      = 256
	MaxEnvBytes      = 256 << 10
	MaxPathBytes     = 4096
	MaxListDepth     = 32
	MaxEditFileBytes = 8 << 20

	// MaxForks bounds the children of one fork.
	MaxForks = 32
	// MinCheckpointInterval and MaxCheckpointInterval bound the time between automatic
	// checkpoints. MaxCheckpointRestores is how often a sandbox continues from the same
	// one before it fails.
	MinCheckpointInterval = time.Minute
	MaxCheckpointInterval = 24 * time.Hour
	MaxCheckpointRestores = 3
	// MaxHistory bounds the automatic snapshots of a sandbox, and MaxHistoryBytes the
	// disk space that they take together: fewer are kept if they are large.
	MaxHistory       = 50
	MaxHistoryBytes  = 8 << 30
	MaxSnapshotLabel = 1024
	DefaultDiffLimit = 1000
	MaxDiffLimit     = 100_000
	// MaxPatchFileBytes is the largest text file that is shown as a patch, and
	// MaxPatchBytes bounds all patches of a diff together.
	MaxPatchFileBytes = 1 << 20
	MaxPatchBytes     = 4 << 20
	MaxDiffPaths      = 64
	// MaxResolved bounds the paths for which a merge says who wins.
	MaxResolved = 10_000
	// MaxTryOutput bounds what is returned of each stream of an attempt.
	MaxTryOutput = 64 << 10

	// Limits of a [NetworkPolicy].
	DefaultMaxConnections       = 4096
	MaxMaxConnections           = 65536
	DefaultConnectionsPerSecond = 500
	MaxConnectionsPerSecond     = 100_000
	MaxNetworkRules             = 512
	// MaxHeaderRules bounds the rules of a policy that set headers, MaxHeaders the headers
	// of each, and MaxHeaderName and MaxHeaderValue their sizes in bytes, without the values
	// of secrets.
	MaxHeaderRules = 32
	MaxHeaders     = 20
	MaxHeaderName  = 64
	MaxHeaderValue = 2048

	DefaultAskTimeoutSeconds = 120
	MaxAskTimeoutSeconds     = 600

	// Limits of [Approval]. MaxOpenApprovals, MaxOpenApprovalsTeam and
	// MaxOpenApprovalsServer bound the open questions of a sandbox, a team and the server;
	// above that, connections are refused without a question. MaxAnswers is how many
	// answers are kept for a sandbox, and MaxAnswerSeconds how long an answer with a
	// duration can hold. ApprovalsKept is how many ended questions the server remembers
	// until it is restarted.
	MaxOpenApprovals       = 64
	MaxOpenApprovalsTeam   = 1024
	MaxOpenApprovalsServer = 8192
	MaxAnswers             = 256
	MaxAnswerSeconds       = 30 * 24 * 3600
	ApprovalsKept          = 1024

	// MaxNetworkLogBytes bounds a sandbox's network log on disk; it keeps the newest
	// events. NetworkLogRetention is how long the log is kept after the sandbox has
	// ended.
	MaxNetworkLogBytes  = 32 << 20
	NetworkLogRetention = EndedRetention

	MaxSecretBytes       = 64 << 10
	MaxSecretHosts       = 64
	MaxSecretsPerSandbox = 64
	// MaxSecretBody is the largest request body that is searched for placeholders, in
	// bytes.
	MaxSecretBody = 1 << 20

	DefaultPreviewLink = time.Hour
	MaxPreviewLink     = 30 * 24 * time.Hour
	MaxPreviews        = 64
	MaxPublishedPorts  = 32

	DefaultCodeTimeout = 60 * time.Second
	MaxCodeTimeout     = time.Hour
	MaxCodeBytes       = 4 << 20
	MaxContexts        = 32
	// MaxQueuedRuns bounds the runs that wait for one context.
	MaxQueuedRuns = 64
	// MaxOutputBytes is the largest representation of a rich output, and
	// MaxOutputs how many a run returns; MaxOutputsBytes bounds them together.
	MaxOutputBytes  = 4 << 20
	MaxOutputsBytes = 16 << 20
	MaxOutputs      = 64

	// StatsInterval is the time between two points of a series, and
	// StatsRetention how long they are kept.
	StatsInterval  = 10 * time.Second
	StatsRetention = time.Hour

	// MaxSandboxWebhooks and MaxTeamWebhooks bound the webhooks that wait for a job
	// or are not delivered yet.
	MaxSandboxWebhooks = 256
	MaxTeamWebhooks    = 4096
	// WebhookAttempts bounds the attempts to deliver a webhook, over about an hour.
	WebhookAttempts = 8

	MaxTemplatePackages = 500
	MaxTemplateSteps    = 200
	MaxTemplateFiles    = 256
	// MaxTemplateFileBytes bounds the files of a spec together.
	MaxTemplateFileBytes = 8 << 20
	// MaxUploadBytes bounds an archive that is sent to the server, and
	// UploadRetention how long it stays there.
	MaxUploadBytes  = 16 << 30
	UploadRetention = time.Hour
	// MaxUploadName bounds a name for an upload, and UploadLinkTime how long a
	// link to send it is good.
	MaxUploadName       = 256
	UploadLinkTime      = 15 * time.Minute
	DefaultStartTimeout = 60 * time.Second
	MaxStartTimeout     = 10 * time.Minute
	// MaxBuildTime bounds one build, MaxBuilds those that run at once, and
	// MaxTeamBuilds those of one team: the other places are for other teams.
	MaxBuildTime   = 2 * time.Hour
	MaxBuilds      = 5
	MaxTeamBuilds  = 3
	BuildRetention = 7 * 24 * time.Hour
	// MaxTemplateAliases bounds the aliases of all templates of a server.
	MaxTemplateAliases = 1024

	DefaultVolumeMiB = 1024
	MaxVolumes       = 256
	// MaxMounts bounds the mounts of a sandbox.
	MaxMounts = 16

	MaxScreenWidth  = 4096
	MaxScreenHeight = 4096
	// MaxPicture bounds an encoded screenshot, in bytes: it is in memory whole.
	MaxPicture = 16 << 20
	MaxInputs  = 256
	// MaxWindows bounds a list of windows.
	MaxWindows = 512
	// Limits of one input: clicks, notches of the wheel in each direction, points of a
	// drag, keys or combinations, and bytes of text.
	MaxClicks     = 10
	MaxNotches    = 1000
	MaxDragPoints = 1024
	MaxInputKeys  = 64
	MaxTypedBytes = 64 << 10
	MaxClipboard  = 1 << 20
	// MaxInputTime bounds the waits of one call together.
	MaxInputTime  = 60 * time.Second
	MaxStableWait = 10 * time.Second

	DefaultPageSize = 100
	MaxPageSize     = 1000

	// EndedRetention is how long the record of an ended sandbox can be read.
	EndedRetention = 24 * time.Hour
)
