package sandbox

import "time"

// Process is a process inside a sandbox, as of one instant.
type Process struct {
	PID    int    `json:"pid"`
	Parent int    `json:"parent"`
	User   string `json:"user"`
	// State is the kernel's letter: R, S, D, T, Z.
	State   string   `json:"state"`
	Name    string   `json:"name"`
	Command []string `json:"command,omitempty"`
	// CPUSeconds is what it has used since its start, CPUPercent what it uses
	// now, of one processor.
	CPUSeconds  float64   `json:"cpu_seconds"`
	CPUPercent  float64   `json:"cpu_percent"`
	MemoryBytes int64     `json:"memory_bytes"`
	Threads     int       `json:"threads"`
	StartedAt   time.Time `json:"started_at"`
	// Job is the job that it belongs to, Context the interpreter that it is
	// or belongs to ("python/default"), or empty.
	Job     string `json:"job,omitempty"`
	Context string `json:"context,omitempty"`
}

// SetEnvRequest changes the default environment of a sandbox, which commands
// and code started from then on see. Running interpreters see it with their
// next run.
type SetEnvRequest struct {
	// Set adds or replaces variables, Unset removes them.
	Set   map[string]string `json:"set,omitempty"`
	Unset []string          `json:"unset,omitempty"`
	// Replace removes all of the sandbox's own that are not in Set first; those
	// of the template stay unless they are in Unset.
	Replace bool `json:"replace,omitempty"`
}

// EnvVar is a variable of a sandbox's default environment.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// Source is "template", "sandbox" or "secret". The value of a secret is
	// shown as "[secret NAME]".
	Source string `json:"source"`
}

// StatsRequest selects what [Observe.ListStats] tells of.
type StatsRequest struct {
	// Namespace "*" is every namespace that the caller may know of, "" too.
	Namespace string `json:"namespace,omitempty" query:"namespace" doc:"Only this namespace; absent or * is all."`
	// Sandbox selects one, by id or name.
	Sandbox string `json:"sandbox,omitempty" query:"sandbox" doc:"Only this sandbox, by id or name."`
	Page
}

// StatsSeriesRequest asks for the past.
type StatsSeriesRequest struct {
	// Since is at most [StatsRetention] ago; nil is that.
	Since *time.Time `json:"since,omitempty" query:"since"`
	// MaxPoints thins the series out; 0 is all.
	MaxPoints int `json:"max_points,omitempty" query:"max_points"`
}

// StatsPoint is what a sandbox used at one time.
type StatsPoint struct {
	Time time.Time `json:"time"`
	// CPUPercent is of one processor, since the point before.
	CPUPercent      float64 `json:"cpu_percent"`
	MemoryBytes     int64   `json:"memory_bytes"`
	DiskBytes       int64   `json:"disk_bytes"`
	Processes       int64   `json:"processes"`
	NetworkInBytes  int64   `json:"network_in_bytes"`
	NetworkOutBytes int64   `json:"network_out_bytes"`
}

// SandboxStats is what one of many sandboxes uses. Stats is nil if it does not
// run.
type SandboxStats struct {
	ID         string  `json:"id"`
	Name       string  `json:"name,omitempty"`
	Namespace  string  `json:"namespace"`
	State      State   `json:"state"`
	CPUPercent float64 `json:"cpu_percent"`
	Stats      *Stats  `json:"stats,omitempty"`
}
