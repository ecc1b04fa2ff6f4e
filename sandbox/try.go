package sandbox

// KeepPolicy says which attempts of a try are kept as sandboxes.
type KeepPolicy string

// The keep policies. None is the default: all attempts are killed.
const (
	KeepNone    KeepPolicy = "none"
	KeepWinners KeepPolicy = "winners" // those whose command exited with 0
	KeepAll     KeepPolicy = "all"
)

// The picks of a try besides an attempt's index.
const (
	// PickNone merges nothing back; the default.
	PickNone = "none"
	// PickFirstSuccess merges the attempt with the lowest index that exited
	// with 0.
	PickFirstSuccess = "first_success"
)

// TryRequest describes commands that are tried in forks of a sandbox, all at
// the same time.
type TryRequest struct {
	// Count is how many forks are made, 1 to [MaxForks]; 0 is the number of
	// commands.
	Count int `json:"count,omitempty"`
	// Commands is one for all forks, or one for each.
	Commands []TryCommand `json:"commands"`
	// TimeoutMS ends each command; 0 is [DefaultExecTimeout].
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Pick is the attempt that is merged back: "none", "first_success" or an
	// index such as "2", whatever its exit code. If "first_success" finds no
	// success, nothing is merged.
	Pick string `json:"pick,omitempty"`
	// Merge says how the picked attempt is merged; "" is "whole".
	Merge MergeKind `json:"merge,omitempty"`
	// Policy is for merging "files".
	Policy MergePolicy `json:"policy,omitempty"`
	// Keep says which of the other attempts are kept.
	Keep KeepPolicy `json:"keep,omitempty"`
	// NoDiff leaves out what each attempt changed.
	NoDiff bool `json:"no_diff,omitempty"`
}

// TryCommand is one command of a try. Exactly one of Command and Shell is set,
// as in [ExecRequest].
type TryCommand struct {
	Command []string          `json:"command,omitempty"`
	Shell   string            `json:"shell,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	WorkDir string            `json:"workdir,omitempty"`
	User    string            `json:"user,omitempty"`
}

// Attempt is what one fork of a try did.
type Attempt struct {
	Index     int    `json:"index"`
	SandboxID string `json:"sandbox_id"`
	// ExitCode, Signal and EndCause are as in [Job].
	ExitCode int      `json:"exit_code"`
	Signal   string   `json:"signal,omitempty"`
	EndCause EndCause `json:"end_cause,omitempty"`
	// Stdout and Stderr are at most [MaxTryOutput] bytes each. Of longer output,
	// half of that is from the beginning and half from the end. Invalid UTF-8 is
	// replaced.
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	// OutputTruncated says that there was more output.
	OutputTruncated bool  `json:"output_truncated,omitempty"`
	DurationMS      int64 `json:"duration_ms"`
	// Error says why the command did not run to its end.
	Error string `json:"error,omitempty"`
	// Changes is what the attempt changed since the fork.
	Changes *Diff `json:"changes,omitempty"`
	// Kept says that the fork still exists, as SandboxID.
	Kept bool `json:"kept"`
}

// TryResult is the outcome of a try.
type TryResult struct {
	Attempts []Attempt `json:"attempts"`
	// Picked is the index of the attempt that was merged back, if one was.
	Picked *int `json:"picked,omitempty"`
	// Merge is the outcome of that merge.
	Merge *MergeResult `json:"merge,omitempty"`
}

// TryEvent reports that an attempt has ended.
type TryEvent struct {
	Attempt Attempt `json:"attempt"`
	// Done and Total count attempts.
	Done  int `json:"done"`
	Total int `json:"total"`
}
