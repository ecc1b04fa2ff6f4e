package sandbox

import "time"

// Volume is a directory of a team's own that outlives sandboxes.
type Volume struct {
	// ID is "vol-" and letters and digits.
	ID   string `json:"id"`
	Name string `json:"name"`
	// SizeMiB bounds what it holds.
	SizeMiB int64 `json:"size_mib"`
	// UsedBytes is what it held when it was last looked at.
	UsedBytes int64 `json:"used_bytes"`
	// Sandboxes are the living ones that have it.
	Sandboxes []string  `json:"sandboxes,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// CreateVolumeRequest describes a volume. Its name is unique in its team: as
// that of a sandbox.
type CreateVolumeRequest struct {
	Name string `json:"name"`
	// SizeMiB 0 is [DefaultVolumeMiB].
	SizeMiB int64 `json:"size_mib,omitempty"`
}

// Mount shows something in a sandbox at a path; exactly one of Volume, Host
// and Tmpfs is set.
type Mount struct {
	// Target is an absolute path, not "/" and nothing that the system needs.
	Target string `json:"target"`
	// Volume is a volume's id or name.
	Volume string `json:"volume,omitempty"`
	// Host is a directory of the server, below one that its operator allows.
	Host string `json:"host,omitempty"`
	// Tmpfs is a file system in the sandbox's memory.
	Tmpfs bool `json:"tmpfs,omitempty"`
	// SizeMiB bounds a tmpfs; 0 is half of the memory.
	SizeMiB  int64 `json:"size_mib,omitempty"`
	ReadOnly bool  `json:"read_only,omitempty"`
}
