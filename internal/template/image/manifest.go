package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/sandbox"
)

// manifest is the record of a built template. A build exists once its manifest is in a
// file.
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

// readManifest returns the record of a template's newest version, or
// [fs.ErrNotExist].
func (p *Provider) readManifest(name string) (*manifest, error) { return p.readRecord(name, name) }

// readVersion returns the record of one version, or [fs.ErrNotExist].
func (p *Provider) readVersion(name string, number int) (*manifest, error) {
	return p.readRecord(name, versioned(name, number))
}

func (p *Provider) readRecord(name, file string) (*manifest, error) {
	if !validTemplate.MatchString(name) {
		return nil, fs.ErrNotExist
	}
	m, err := p.readManifestFile(p.manifestFile(file))
	if err == nil && m.Name != name {
		return nil, fmt.Errorf("manifest of template %s: it is of %.80q", name, m.Name)
	}
	return m, err
}

func (p *Provider) readManifestFile(path string) (*manifest, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", filepath.Base(path), err)
	}
	if m.Version != manifestVersion || !validDigest.MatchString(m.Digest) {
		return nil, fmt.Errorf("manifest %s: not one of this version", filepath.Base(path))
	}
	if _, err := os.Stat(p.rootfsDir(m.Digest)); err != nil {
		return nil, err
	}
	for i, b := range m.Binds {
		if b.Mask { // the state directory may have been moved since
			m.Binds[i].Source = p.mask(filepath.Base(b.Source))
		}
	}
	return &m, nil
}

// writeManifest makes a build visible under the name of a file, atomically and
// durably.
func (p *Provider) writeManifest(m *manifest, file string) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.WriteFile(p.manifestFile(file), append(data, '\n')); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return nil
}

// manifests returns the records of all templates that can be read.
func (p *Provider) manifests() ([]*manifest, error) {
	all, err := p.records("manifests")
	return slices.DeleteFunc(all, func(m *manifest) bool { return m.pinned }), err
}

// records returns the records in a directory that can be read, of all versions.
func (p *Provider) records(dir string) ([]*manifest, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, dir))
	if err != nil {
		return nil, err
	}
	var out []*manifest
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		m, err := p.readManifestFile(filepath.Join(p.dir, dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was deleted meanwhile
		}
		if machine.Scarce(err) {
			return nil, fmt.Errorf("read template record %s: %w", name, err) // it must not pass for missing
		}
		if err != nil {
			p.log.Warn("cannot read template record", "record", name, "error", err)
			continue
		}
		m.pinned = strings.Contains(name, "@")
		out = append(out, m)
	}
	return out, nil
}

func (p *Provider) manifestFile(name string) string {
	return filepath.Join(p.dir, "manifests", name+".json")
}

func (p *Provider) rootfsDir(digest string) string { return filepath.Join(p.dir, "rootfs", digest) }

// mask returns the path of an empty file or directory, named "file" or "dir", that is
// bound over what is hidden.
func (p *Provider) mask(name string) string { return filepath.Join(p.dir, "mask", name) }
