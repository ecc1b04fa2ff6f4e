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
	// CPUSeconds is the processor time that it has used since its start.
	// CPUPercent is what it uses now; 100 is one processor.
	CPUSeconds  float64   `json:"cpu_seconds"`
	CPUPercent  float64   `json:"cpu_percent"`
	MemoryBytes int64     `json:"memory_bytes"`
	Threads     int       `json:"threads"`
	StartedAt   time.Time `json:"started_at"`
	// Job is the job that the process belongs to, or empty. Context is the context
	// whose interpreter it is or belongs to ("python/default"), or empty.
	Job     string `json:"job,omitempty"`
	Context string `json:"context,omitempty"`
}

// SetEnvRequest changes the default environment of a sandbox. Commands and code
// that start afterwards see it; running interpreters see it in their next run.
type SetEnvRequest struct {
	// Set adds or replaces variables, Unset removes them.
	Set   map[string]string `json:"set,omitempty"`
	Unset []string          `json:"unset,omitempty"`
	// Replace first removes all of the sandbox's own variables that are not in
	// Set. Variables of the template stay unless they are in Unset.
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

// StatsRequest selects the sandboxes of [Observe.ListStats].
type StatsRequest struct {
	// Namespace selects one; "*" and "" are all that the caller can see.
	Namespace string `json:"namespace,omitempty" query:"namespace" doc:"Only this namespace; absent or * is all."`
	// Sandbox selects one, by id or name.
	Sandbox string `json:"sandbox,omitempty" query:"sandbox" doc:"Only this sandbox, by id or name."`
	Page
}

// StatsSeriesRequest asks for what a sandbox has used over time.
type StatsSeriesRequest struct {
	// Since is at most [StatsRetention] ago, which is also the default.
	Since *time.Time `json:"since,omitempty" query:"since"`
	// MaxPoints thins the series out; 0 is all.
	MaxPoints int `json:"max_points,omitempty" query:"max_points"`
}

// StatsPoint is what a sandbox used at one time.
type StatsPoint struct {
	Time time.Time `json:"time"`
	// CPUPercent is the average since the previous point; 100 is one processor.
	CPUPercent      float64 `json:"cpu_percent"`
	MemoryBytes     int64   `json:"memory_bytes"`
	DiskBytes       int64   `json:"disk_bytes"`
	Processes       int64   `json:"processes"`
	NetworkInBytes  int64   `json:"network_in_bytes"`
	NetworkOutBytes int64   `json:"network_out_bytes"`
}

// SandboxStats is what one sandbox of a listing uses. Stats is nil if the sandbox is
// not running.
type SandboxStats struct {
	ID         string  `json:"id"`
	Name       string  `json:"name,omitempty"`
	Namespace  string  `json:"namespace"`
	State      State   `json:"state"`
	CPUPercent float64 `json:"cpu_percent"`
	Stats      *Stats  `json:"stats,omitempty"`
}
