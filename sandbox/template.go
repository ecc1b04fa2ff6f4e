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
	// Source is what the template is made from: "host", "debian", "image", "archive",
	// "directory", "template" or "snapshot".
	Source string        `json:"source"`
	State  TemplateState `json:"state"`
	Reason string        `json:"reason,omitempty"`
	// Version counts its successful builds from 1; "NAME@3" names one of them,
	// NAME the newest. 0 until built.
	Version int `json:"version,omitempty"`
	// Versions are the versions that are kept, newest first.
	Versions []int `json:"versions,omitempty"`
	// Aliases are other names of the template.
	Aliases []string `json:"aliases,omitempty"`
	// Digest identifies the content; empty until built.
	Digest    string     `json:"digest,omitempty"`
	SizeBytes int64      `json:"size_bytes,omitempty"`
	BuiltAt   *time.Time `json:"built_at,omitempty"`
	// User, WorkDir, Env and Resources are defaults for its sandboxes.
	User      string            `json:"user,omitempty"`
	WorkDir   string            `json:"workdir,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Resources Resources         `json:"resources,omitzero"`
	// Packages are the Debian packages that it is made of.
	Packages []string `json:"packages,omitempty"`
	// Warm has the languages whose default interpreter already runs in its
	// sandboxes, each with the code that prepared it.
	Warm map[string]string `json:"warm,omitempty"`
	// WarmBytes is the disk space of the golden checkpoint from which its sandboxes
	// start, nearly all of it pages of memory; 0 if there is none.
	WarmBytes int64 `json:"warm_bytes,omitempty"`
	// Start runs in each of its sandboxes from the sandbox's beginning.
	Start *StartCommand `json:"start,omitempty"`
	// Desktop is set if its sandboxes have a screen; see [Computers].
	Desktop *Desktop `json:"desktop,omitempty"`
	// Ports are the ports on which its sandboxes serve something.
	Ports []int `json:"ports,omitempty"`
	// Network is the policy of sandboxes that ask for none.
	Network *NetworkPolicy `json:"network,omitempty"`
	// BuildNetwork is the network policy that its build had, if the builder set one;
	// nil is the preset packages.
	BuildNetwork *NetworkPolicy `json:"build_network,omitempty"`
}

// StartCommand is a program that runs in a template's sandboxes from the beginning. In
// sandboxes that start from a golden checkpoint, it is already running.
type StartCommand struct {
	// Command is a line for /bin/sh -c. It runs in the background, with the template's
	// user, directory and environment.
	Command string `json:"command"`
	// Ready is a command that succeeds when the start command is ready. It is
	// tried every 200 ms. If it is empty, the start command counts as ready at once.
	Ready string `json:"ready,omitempty"`
	// TimeoutMS bounds the wait for Ready; 0 is [DefaultStartTimeout].
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// TemplateSource is what a template begins with. Exactly one field is set.
type TemplateSource struct {
	// Image is a reference to an OCI image, as Docker writes it: "node:22",
	// "ghcr.io/org/name@sha256:…".
	Image string `json:"image,omitempty"`
	// Archive is a file on the server, in a directory that its operator has
	// allowed: what docker save or an OCI tool wrote, as tar, or an OCI layout.
	// It can also be an upload ([ArchiveUpload].Archive).
	Archive string `json:"archive,omitempty"`
	// Directory is a root file system on the server, allowed likewise.
	Directory string `json:"directory,omitempty"`
	// Debian is a release: "bookworm".
	Debian string `json:"debian,omitempty"`
	// Template is another template that is ready, by name or NAME@VERSION.
	Template string `json:"template,omitempty"`
	// Snapshot is a snapshot of the caller's team; only its files are used.
	Snapshot string `json:"snapshot,omitempty"`
	// Host is the machine's own programs.
	Host bool `json:"host,omitempty"`
}

// ArchiveUpload is an archive that was sent to the server. It is kept for
// [UploadRetention].
type ArchiveUpload struct {
	// Archive is the value for [TemplateSource].Archive: "upload-" and letters and
	// digits. Anyone who knows it can use it.
	Archive   string    `json:"archive"`
	SizeBytes int64     `json:"size_bytes"`
	ExpiresAt time.Time `json:"expires_at"`
}

// TemplateSpec says how a template is made. As a file it is YAML or JSON with
// the same names.
type TemplateSpec struct {
	Description string         `json:"description,omitempty"`
	From        TemplateSource `json:"from"`
	// Apt, Pip and NPM are packages, installed in this order. Versions are
	// written as each installer does: "curl", "pandas==2.2.3", "typescript@5".
	Apt []string `json:"apt,omitempty"`
	Pip []string `json:"pip,omitempty"`
	NPM []string `json:"npm,omitempty"`
	// Files are written after the packages are there, before the steps.
	Files []TemplateFile `json:"files,omitempty"`
	// Run are commands for /bin/sh -c, as root unless they say otherwise.
	Run []TemplateStep `json:"run,omitempty"`
	// Env and WorkDir hold for the steps after the packages and for the template's
	// sandboxes, User for the sandboxes only.
	Env     map[string]string `json:"env,omitempty"`
	WorkDir string            `json:"workdir,omitempty"`
	User    string            `json:"user,omitempty"`
	// Resources are those of the build, and the defaults for the template's sandboxes.
	Resources Resources         `json:"resources,omitzero"`
	Start     *StartCommand     `json:"start,omitempty"`
	Warm      map[string]string `json:"warm,omitempty"`
	Desktop   *Desktop          `json:"desktop,omitempty"`
	Ports     []int             `json:"ports,omitempty"`
	// BuildNetwork is the network policy of the steps; nil is the preset packages.
	BuildNetwork *NetworkPolicy `json:"build_network,omitempty"`
	Network      *NetworkPolicy `json:"network,omitempty"`
}

// TemplateFile is a file of a template.
type TemplateFile struct {
	Path    string `json:"path"`
	Content []byte `json:"content"` // base64 in JSON; text in YAML
	// Mode is permission bits in octal, "0644" if empty.
	Mode  string `json:"mode,omitempty"`
	Owner string `json:"owner,omitempty"`
}

// TemplateStep is a step of a build: a command, or files of an upload.
type TemplateStep struct {
	Run string `json:"run,omitempty"`
	// Copy, set instead of Run, takes none of the other fields.
	Copy *TemplateCopy `json:"copy,omitempty"`
	// User and WorkDir are those of the command. The directory is made if it is
	// missing.
	User    string            `json:"user,omitempty"`
	WorkDir string            `json:"workdir,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
}

// TemplateCopy puts files of an upload into a template. Existing directories keep
// their owner and mode.
type TemplateCopy struct {
	// Archive is an upload, as [ArchiveUpload] names it: tar, perhaps with gzip
	// or zstd.
	Archive string `json:"archive"`
	// Sources are names in the archive, or patterns; empty takes all. Of a directory,
	// the contents are taken and not the directory itself.
	Sources []string `json:"sources,omitempty"`
	// To is an absolute path: a directory or, for a single file, its new name unless
	// the path ends in a slash or is a directory.
	To string `json:"to"`
	// Owner is who gets the files: a user of the template, or user:group, by
	// names or numbers; root if empty.
	Owner string `json:"owner,omitempty"`
	// Mode is the permission bits of all files and directories, in octal; empty keeps
	// those of the archive.
	Mode string `json:"mode,omitempty"`
}

// UploadLinkRequest asks for an address to which an archive can be sent.
type UploadLinkRequest struct {
	// Name is the team's name for the archive, such as a hash of its content: 1
	// to [MaxUploadName] bytes. The same name means the same archive.
	Name string `json:"name"`
	// SizeBytes is the most that may be sent.
	SizeBytes int64 `json:"size_bytes"`
}

// UploadLink is an address to which an archive can be sent without a key: PUT,
// with the archive as the body.
type UploadLink struct {
	// Archive is the name of the archive once it is sent, as [ArchiveUpload] has it.
	Archive string `json:"archive"`
	// Present says that the archive was sent before. It is kept for another
	// [UploadRetention].
	Present   bool      `json:"present"`
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"`
}

// BuildTemplateRequest asks for a template to be built or rebuilt.
type BuildTemplateRequest struct {
	// Name is a built-in definition, a template that was built before, or a new name
	// if Spec or Packages is set.
	Name string `json:"name"`
	// Packages are Debian packages for a template of the caller's own: short for a
	// Spec from Debian that has them as Apt.
	Packages []string `json:"packages,omitempty"`
	// Spec defines a template of the caller's own.
	Spec *TemplateSpec `json:"spec,omitempty"`
	// Force builds even if a ready build of the same definition exists.
	Force bool `json:"force,omitempty"`
	// Login is for the registry of the image that the template begins with, for
	// this build only; nil uses the server's own logins.
	Login *RegistryLogin `json:"registry_login,omitempty"`
}

// RegistryLogin is a login at one registry, for one build. It is sent only to the
// registry of the build's image, and is not stored.
type RegistryLogin struct {
	Username string      `json:"username"`
	Password SecretValue `json:"password"` // or a token that stands for it
}

// BuildEvent reports the progress of a build. Fraction is 0 to 1, or -1 if unknown.
type BuildEvent struct {
	Step     string    `json:"step"`
	Fraction float64   `json:"fraction"`
	Log      string    `json:"log,omitempty"`
	Template *Template `json:"template,omitempty"`
	// Failed is set in the last event of a build that has failed or was cancelled;
	// its Log is the reason.
	Failed bool `json:"failed,omitempty"`
}

// BuildState says whether a build runs, or how it has ended.
type BuildState string

// The states of a build.
const (
	BuildRunning   BuildState = "building"
	BuildReady     BuildState = "ready"
	BuildFailed    BuildState = "failed"
	BuildCancelled BuildState = "cancelled"
)

// Build is one attempt to make a template, in the background. Its record stays
// for [BuildRetention].
type Build struct {
	// ID is "bld-" and letters and digits.
	ID       string     `json:"id"`
	Template string     `json:"template"`
	State    BuildState `json:"state"`
	// Reason says why the build failed.
	Reason   string  `json:"reason,omitempty"`
	Step     string  `json:"step,omitempty"`
	Fraction float64 `json:"fraction"`
	// Version is the version of the template that the build made, once ready.
	Version   int        `json:"version,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// ListBuildsRequest selects builds. Zero fields select all.
type ListBuildsRequest struct {
	Template string `json:"template,omitempty" query:"template" doc:"Only builds of this template."`
	Page
}
