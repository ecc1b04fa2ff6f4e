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
	DefaultKeepBytes   = 1 << 20
	MaxKeepBytes       = 16 << 20
	MaxOutputRead      = 1 << 20
	MaxStdinBytes      = 8 << 20
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
	// MaxHistory bounds the automatic snapshots of a sandbox, and
	// MaxHistoryBytes what they take on disk together: older ones go earlier
	// where they are larger.
	MaxHistory       = 50
	MaxHistoryBytes  = 8 << 30
	DefaultDiffLimit = 1000
	MaxDiffLimit     = 100_000
	// MaxPatchFileBytes is the largest text file that is shown as a patch, and
	// MaxPatchBytes bounds all patches of a diff together.
	MaxPatchFileBytes = 1 << 20
	MaxPatchBytes     = 4 << 20
	MaxDiffPaths      = 64
	// MaxTryOutput is what is returned of each stream of an attempt.
	MaxTryOutput = 64 << 10

	DefaultPageSize = 100
	MaxPageSize     = 1000

	// EndedRetention is how long the record of an ended sandbox can be read.
	EndedRetention = 24 * time.Hour
)
