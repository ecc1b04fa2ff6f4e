package cloud

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/cove-sh/cove/sandbox"
)

// spec is the description of a sandbox, as clients send and receive it. They read the
// working directory, the shell and the command from the received one.
type spec struct {
	Name      string            `json:"name"`
	Image     *image            `json:"image"`
	Resources resources         `json:"resources"`
	Runtime   runtime           `json:"runtime"`
	Env       []pair            `json:"env"`
	Labels    map[string]string `json:"labels"`
	Rlimits   []json.RawMessage `json:"rlimits"`
	Mounts    []mount           `json:"mounts"`
	Patches   []patch           `json:"patches"`
	Network   network           `json:"network"`
	Init      json.RawMessage   `json:"init"`
	Pull      string            `json:"pull_policy"`
	Security  string            `json:"security_profile"`
	Lifecycle lifecycle         `json:"lifecycle"`
	Slug      string            `json:"slug,omitempty"`
	Registry  *registry         `json:"registry,omitempty"`
}

type image struct {
	Type      string `json:"type"`
	Reference string `json:"reference,omitempty"`
	// Path belongs to images that are refused.
	Path json.RawMessage `json:"path,omitempty"`
}

type resources struct {
	VCPUs  int   `json:"vcpus"`
	Memory int64 `json:"memory_mib"`
	Disk   int64 `json:"disk_size_mib,omitempty"`
}

type runtime struct {
	WorkDir    *string           `json:"workdir"`
	Shell      *string           `json:"shell"`
	Scripts    map[string]string `json:"scripts"`
	Entrypoint []string          `json:"entrypoint"`
	Cmd        []string          `json:"cmd"`
	User       *string           `json:"user"`
	LogLevel   *string           `json:"log_level"`
}

type pair struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type mountOptions struct {
	ReadOnly bool `json:"readonly"`
	NoExec   bool `json:"noexec"`
	NoSUID   bool `json:"nosuid"`
	NoDev    bool `json:"nodev"`
}

type mount struct {
	Type    string       `json:"type"`
	Name    string       `json:"name,omitempty"`
	Guest   string       `json:"guest"`
	Size    int64        `json:"size_mib,omitempty"`
	Options mountOptions `json:"options"`
	Stat    string       `json:"stat_virtualization,omitempty"`
	Perms   string       `json:"host_permissions,omitempty"`
	// These belong to mounts that are refused.
	Host   json.RawMessage `json:"host,omitempty"`
	Format json.RawMessage `json:"format,omitempty"`
	FSType json.RawMessage `json:"fstype,omitempty"`
	Quota  json.RawMessage `json:"quota_mib,omitempty"`
}

type lifecycle struct {
	Ephemeral   bool   `json:"ephemeral"`
	MaxDuration *int64 `json:"max_duration_secs"`
	IdleTimeout *int64 `json:"idle_timeout_secs"`
}

type registry struct {
	Mode string `json:"mode"`
	// These belong to modes that are refused.
	User       json.RawMessage `json:"username,omitempty"`
	Password   json.RawMessage `json:"password,omitempty"`
	Credential json.RawMessage `json:"credential_id,omitempty"`
}

// command is the program of a sandbox if a client names none.
type command struct {
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
}

// specOf returns the description of a sandbox. It leaves out what applies only to the
// creation, such as patches and secrets.
func specOf(s *sandbox.Sandbox) *spec {
	v := &spec{
		Name: nameOf(s), Image: &image{Type: imageOCI, Reference: s.Metadata[tagImage]},
		Resources: resources{s.Resources.VCPUs, s.Resources.MemoryMiB, s.Resources.DiskMiB},
		Runtime:   runtime{WorkDir: &s.WorkDir, Scripts: map[string]string{}, User: &s.User},
		Env:       []pair{}, Labels: labelsOf(s), Rlimits: []json.RawMessage{}, Mounts: []mount{}, Patches: []patch{},
		Network: network{Enabled: true}, Init: json.RawMessage("null"), Pull: pullMissing, Security: securityDefault,
		Lifecycle: lifecycle{Ephemeral: ephemeral(s)},
	}
	if v.Image.Reference == "" {
		v.Image.Reference = s.Template
	}
	if shell := s.Metadata[tagShell]; shell != "" {
		v.Runtime.Shell = &shell
	}
	var c command
	if json.Unmarshal([]byte(s.Metadata[tagRun]), &c) == nil {
		v.Runtime.Entrypoint, v.Runtime.Cmd = c.Entrypoint, c.Cmd
	}
	for _, key := range slices.Sorted(maps.Keys(s.Env)) {
		v.Env = append(v.Env, pair{key, s.Env[key]})
	}
	for _, m := range s.Mounts {
		switch {
		case m.Volume != "":
			v.Mounts = append(v.Mounts, mount{Type: mountNamed, Name: m.Volume, Guest: m.Target, Options: mountOptions{ReadOnly: m.ReadOnly}, Stat: statStrict, Perms: permsPrivate})
		case m.Tmpfs:
			v.Mounts = append(v.Mounts, mount{Type: mountTmpfs, Guest: m.Target, Size: m.SizeMiB, Options: mountOptions{ReadOnly: m.ReadOnly}})
		}
	}
	if s.Network != nil && s.Network.Preset == sandbox.NetworkNone && len(s.Network.Rules) == 0 && len(s.Network.AllowOut) == 0 {
		v.Network.Enabled = false
	}
	if s.LifetimeSeconds > 0 {
		v.Lifecycle.MaxDuration = &s.LifetimeSeconds
	}
	if s.IdleTimeoutSeconds > 0 {
		v.Lifecycle.IdleTimeout = &s.IdleTimeoutSeconds
	}
	return v
}
