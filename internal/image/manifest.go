package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// manifest is the record of one built template; a file of it is what makes a
// build exist.
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
	// Binds are shown in the sandbox in this order; a later one may lie inside
	// an earlier one.
	Binds []engine.Bind `json:"binds,omitempty"`
	// Stamp is what the source was like; see [source].
	Stamp string `json:"stamp,omitempty"`
	// Notes say what a reader should know of the content.
	Notes []string `json:"notes,omitempty"`
}

const manifestVersion = 1

var validDigest = regexp.MustCompile(`^sha256-[0-9a-f]{64}$`)

func (m *manifest) template() sandbox.Template {
	built := m.BuiltAt
	return sandbox.Template{
		Name: m.Name, Description: m.Description, Source: m.Source, State: sandbox.TemplateReady,
		Digest: m.Digest, SizeBytes: m.SizeBytes, BuiltAt: &built,
		User: m.User, WorkDir: m.WorkDir, Env: m.Env, Packages: m.Packages,
	}
}

// readManifest returns the record of a template, or [fs.ErrNotExist].
func (p *Provider) readManifest(name string) (*manifest, error) {
	if !validTemplate.MatchString(name) {
		return nil, fs.ErrNotExist
	}
	data, err := os.ReadFile(p.manifestFile(name))
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read manifest of template %s: %w", name, err)
	}
	if m.Version != manifestVersion || m.Name != name || !validDigest.MatchString(m.Digest) {
		return nil, fmt.Errorf("manifest of template %s: not one of this version", name)
	}
	if _, err := os.Stat(p.rootfsDir(m.Digest)); err != nil {
		return nil, err
	}
	return &m, nil
}

// writeManifest makes a build visible, durably and at once.
func (p *Provider) writeManifest(m *manifest) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Join(p.dir, "manifests")
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if err := os.Rename(f.Name(), p.manifestFile(m.Name)); err != nil {
		return err
	}
	return syncDir(dir)
}

// manifests returns all records that can be read.
func (p *Provider) manifests() ([]*manifest, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, "manifests"))
	if err != nil {
		return nil, err
	}
	var out []*manifest
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		m, err := p.readManifest(name)
		if err != nil {
			p.log.Warn("template's record is not usable", "template", name, "error", err)
			continue
		}
		out = append(out, m)
	}
	return out, nil
}

func (p *Provider) manifestFile(name string) string {
	return filepath.Join(p.dir, "manifests", name+".json")
}

func (p *Provider) rootfsDir(digest string) string { return filepath.Join(p.dir, "rootfs", digest) }

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
