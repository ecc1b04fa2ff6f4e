package image

import (
	"path/filepath"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// manifest is the record of a built template. A build exists once its manifest is among the
// records.
type manifest struct {
	Version     int               `json:"version"`
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Source      string            `json:"source"`
	Digest      string            `json:"digest"`
	SizeBytes   int64             `json:"size_bytes"`
	BuiltAt     time.Time         `json:"built_at"`
	User        string            `json:"user"`
	WorkDir     string            `json:"workdir"`
	Env         map[string]string `json:"env,omitempty"`
	Packages    []string          `json:"packages,omitempty"`
	// Number is the template's version, and Last the highest version it has had.
	Number int `json:"number,omitempty"`
	Last   int `json:"last,omitempty"`
	// Spec is what it was built from, unless that was a built-in definition.
	Spec *sandbox.TemplateSpec `json:"spec,omitempty"`
	// The fields below are as in [sandbox.TemplateSpec].
	Resources sandbox.Resources      `json:"resources,omitzero"`
	Warm      map[string]string      `json:"warm,omitempty"`
	Start     *sandbox.StartCommand  `json:"start,omitempty"`
	Desktop   *sandbox.Desktop       `json:"desktop,omitempty"`
	Ports     []int                  `json:"ports,omitempty"`
	Network   *sandbox.NetworkPolicy `json:"network,omitempty"`
	// Binds are mounted in the sandbox in this order; a later one may be inside an
	// earlier one.
	Binds []engine.Bind `json:"binds,omitempty"`
	// Stamp identifies the state of the source; see [hostSource.stamp].
	Stamp string `json:"stamp,omitempty"`
	// Machine names the directory in which it was built, if servers share templates.
	Machine string `json:"machine,omitempty"`
	// Layers are those that it was composed of. They are kept for later builds.
	Layers []string `json:"layers,omitempty"`
	// Notes describe the content to readers.
	Notes []string `json:"notes,omitempty"`

	pinned bool // read as one version, not as the newest
}

const manifestVersion = 1

var validDigest = lazyregexp.New(`^sha256-[0-9a-f]{64}$`)

func (m *manifest) template() sandbox.Template {
	built := m.BuiltAt
	t := sandbox.Template{
		Name: m.Name, Description: m.Description, Source: m.Source, State: sandbox.TemplateReady,
		Digest: m.Digest, SizeBytes: m.SizeBytes, BuiltAt: &built,
		User: m.User, WorkDir: m.WorkDir, Env: m.Env, Packages: m.Packages, Version: max(1, m.Number),
		Resources: m.Resources, Warm: m.Warm, Start: m.Start, Desktop: m.Desktop, Ports: m.Ports, Network: m.Network,
	}
	if m.Spec != nil {
		t.BuildNetwork = m.Spec.BuildNetwork
	}
	return t
}

func (p *Provider) rootfsDir(digest string) string { return filepath.Join(p.dir, "rootfs", digest) }

// mask returns the path of an empty file or directory, named "file" or "dir", that is
// bound over what is hidden.
func (p *Provider) mask(name string) string { return filepath.Join(p.dir, "mask", name) }
