package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/machine"
)

// manifestsDir has the records: NAME.json is that of a template's newest version, and
// NAME@N.json that of each version.
const manifestsDir = "manifests"

func recordName(file string) string { return manifestsDir + "/" + file + ".json" }

// recordsOf returns the files with the records of a template. The template host is of one
// machine, whatever has the others.
func (p *Provider) recordsOf(name string) durable.Files {
	if name == Host {
		return p.local()
	}
	return p.shared()
}

// local are the files of this provider's directory, and shared those with the records of
// templates that all providers of the installation have.
func (p *Provider) local() durable.Files { return durable.Dir(p.dir) }

func (p *Provider) shared() durable.Files {
	if p.elsewhere != nil {
		return p.elsewhere.records
	}
	return p.local()
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
	data, err := p.recordsOf(name).Read(recordName(file))
	if err != nil {
		return nil, err
	}
	m, err := p.parse(file, data)
	if err != nil {
		return nil, err
	}
	if m.Name != name {
		return nil, fmt.Errorf("manifest of template %s: it is of %.80q", name, m.Name)
	}
	return m, p.checkRoot(m)
}

// parse returns the record in a file.
func (p *Provider) parse(file string, data []byte) (*manifest, error) {
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", file, err)
	}
	if m.Version != manifestVersion || !validDigest.MatchString(m.Digest) {
		return nil, fmt.Errorf("manifest %s: not one of this version", file)
	}
	for i, b := range m.Binds {
		if b.Mask { // the state directory may have been moved since
			m.Binds[i].Source = p.mask(filepath.Base(b.Source))
		}
	}
	return &m, nil
}

// checkRoot returns [fs.ErrNotExist] if the root of a template is gone. One that other
// machines may have is not.
func (p *Provider) checkRoot(m *manifest) error {
	if p.elsewhere != nil && m.Name != Host {
		return nil
	}
	_, err := os.Stat(p.rootfsDir(m.Digest))
	return err
}

// writeManifest makes a build visible under the name of a record, atomically and
// durably.
func (p *Provider) writeManifest(m *manifest, file string) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := p.recordsOf(m.Name).Write(recordName(file), append(data, '\n')); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return nil
}

// removeManifests removes records of a template, one after another and durably.
func (p *Provider) removeManifests(name string, files ...string) error {
	records := p.recordsOf(name)
	var errs []error
	for _, file := range files {
		if err := records.Remove(recordName(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, records.Sync(manifestsDir))...)
}

// catalog is all records of templates.
type catalog struct {
	all      []*manifest      // those that can be read
	versions map[string][]int // which are stored, by template, sorted
}

// newest returns the record of the newest version of each template.
func (c *catalog) newest() []*manifest {
	return slices.DeleteFunc(slices.Clone(c.all), func(m *manifest) bool { return m.pinned })
}

// catalog reads all records of templates.
func (p *Provider) catalog() (*catalog, error) {
	files, err := p.shared().ReadAll(manifestsDir)
	if err != nil {
		return nil, err
	}
	if p.elsewhere != nil {
		delete(files, recordName(Host))
		host, err := p.local().Read(recordName(Host))
		switch {
		case err == nil:
			files[recordName(Host)] = host
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	c := &catalog{versions: map[string][]int{}}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if name, number, err := cutVersion(fileOf(file)); err == nil && number > 0 {
			c.versions[name] = append(c.versions[name], number)
		}
	}
	for _, numbers := range c.versions {
		slices.Sort(numbers)
	}
	c.all, err = p.parseAll(files)
	return c, err
}

// fileOf returns the name of a record without its directory and its ending.
func fileOf(record string) string { return strings.TrimSuffix(path.Base(record), ".json") }

// parseAll returns the records in files that can be read, and of which the root is here or
// may be elsewhere.
func (p *Provider) parseAll(files map[string][]byte) ([]*manifest, error) {
	var out []*manifest
	for file, data := range files {
		m, err := p.parse(fileOf(file), data)
		if err == nil {
			err = p.checkRoot(m)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was deleted meanwhile
		}
		if machine.Scarce(err) {
			return nil, fmt.Errorf("read template record %s: %w", fileOf(file), err) // it must not pass for missing
		}
		if err != nil {
			p.log.Warn("cannot read template record", "record", fileOf(file), "error", err)
			continue
		}
		m.pinned = strings.Contains(fileOf(file), "@")
		out = append(out, m)
	}
	return out, nil
}

// versions returns the numbers of the stored versions of a template, sorted.
func (p *Provider) versions(name string) ([]int, error) {
	c, err := p.catalog()
	if err != nil {
		return nil, err
	}
	return c.versions[name], nil
}
