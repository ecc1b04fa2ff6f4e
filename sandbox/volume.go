package sandbox

import "time"

// Volume is a directory of a team's own that outlives sandboxes.
type Volume struct {
	// ID is "vol-" and letters and digits.
	ID   string `json:"id"`
	Name string `json:"name"`
	// SizeMiB bounds its content.
	SizeMiB int64 `json:"size_mib"`
	// UsedBytes is the size of its content when that was last measured.
	UsedBytes int64 `json:"used_bytes"`
	// Sandboxes are the living sandboxes that have it mounted.
	Sandboxes []string  `json:"sandboxes,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// CreateVolumeRequest describes a volume. Its name is unique in the team, with the
// rules for names of sandboxes.
type CreateVolumeRequest struct {
	Name string `json:"name"`
	// SizeMiB bounds its content; 0 is [DefaultVolumeMiB].
	SizeMiB int64 `json:"size_mib,omitempty"`
}

// Mount is what a sandbox has at a path. Exactly one of Volume, Host and Tmpfs is
// set.
type Mount struct {
	// Target is an absolute path, except "/" and directories that the system needs.
	Target string `json:"target"`
	// Volume is a volume's id or name.
	Volume string `json:"volume,omitempty"`
	// Host is a directory of the server, below one that its operator allows.
	Host string `json:"host,omitempty"`
	// Tmpfs is a file system in the sandbox's memory.
	Tmpfs bool `json:"tmpfs,omitempty"`
	// SizeMiB bounds a tmpfs; 0 is half of the sandbox's memory.
	SizeMiB  int64 `json:"size_mib,omitempty"`
	ReadOnly bool  `json:"read_only,omitempty"`
}
