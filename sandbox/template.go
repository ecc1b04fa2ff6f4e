package sandbox

import "time"

// TemplateState says whether a template can be used.
type TemplateState string

// The states of a template.
const (
	TemplateBuilding TemplateState = "building"
	TemplateReady    TemplateState = "ready"
	TemplateFailed   TemplateState = "failed"
	// TemplateAvailable is a built-in definition that has not been built.
	TemplateAvailable TemplateState = "available"
)

// Template is a root file system with defaults, from which sandboxes are made.
type Template struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// Source is what it is made from: "host" or "debian".
	Source string        `json:"source"`
	State  TemplateState `json:"state"`
	Reason string        `json:"reason,omitempty"`
	// Digest identifies the content; empty until built.
	Digest    string     `json:"digest,omitempty"`
	SizeBytes int64      `json:"size_bytes,omitempty"`
	BuiltAt   *time.Time `json:"built_at,omitempty"`
	// User, WorkDir, Env and Resources are defaults of its sandboxes.
	User      string            `json:"user,omitempty"`
	WorkDir   string            `json:"workdir,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Resources Resources         `json:"resources,omitzero"`
	// Packages are the Debian packages it is made of.
	Packages []string `json:"packages,omitempty"`
}

// BuildTemplateRequest asks for a template to be built, or built anew.
type BuildTemplateRequest struct {
	// Name is a built-in definition, or a new name when Packages is set.
	Name string `json:"name"`
	// Packages are Debian packages for a template of the caller's own.
	Packages []string `json:"packages,omitempty"`
	// Force builds although a ready build exists.
	Force bool `json:"force,omitempty"`
}

// BuildEvent tells how a build goes. Fraction is 0 to 1, or -1 if unknown.
type BuildEvent struct {
	Step     string    `json:"step"`
	Fraction float64   `json:"fraction"`
	Log      string    `json:"log,omitempty"`
	Template *Template `json:"template,omitempty"`
}
