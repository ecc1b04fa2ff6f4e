package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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
	if p.sharing != nil {
		return p.sharing.records
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
		return nil, fmt.Errorf("%w: manifest of template %s: it is of %.80q", errNoRecord, name, m.Name)
	}
	return m, p.checkRoot(m)
}

// errNoRecord means that a file has no record that this program can read.
var errNoRecord = errors.New("not a template's record")

// isAbsent reports whether an error of reading a record means that there is none, and not that
// it could not be looked for.
func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoRecord) }

// parse returns the record in a file.
func (p *Provider) parse(file string, data []byte) (*manifest, error) {
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errNoRecord, file, err)
	}
	if m.Version != manifestVersion || !validDigest.MatchString(m.Digest) {
		return nil, fmt.Errorf("%w: manifest %s: not one of this version", errNoRecord, file)
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
	if p.sharing != nil && m.Name != Host {
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

// removeManifests removes records of a template, durably. It ends at the first that cannot be
// removed.
func (p *Provider) removeManifests(name string, files ...string) error {
	if p.sharing != nil {
		defer p.sharing.roots.CollectRoots()
	}
	records := p.recordsOf(name)
	for _, file := range files {
		if err := records.Remove(recordName(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return records.Sync(manifestsDir)
}

// catalog is all records of templates in some files.
type catalog struct {
	// files are the records of each template, by their names without directory and ending.
	files    map[string]map[string][]byte
	all      []*manifest      // those that can be read, and whose root is here or may be elsewhere
	versions map[string][]int // which are stored, by template, sorted
}

// newest returns the record of the newest version of each template.
func (c *catalog) newest() []*manifest {
	return slices.DeleteFunc(slices.Clone(c.all), func(m *manifest) bool { return m.pinned })
}

// catalog reads all records of templates: the shared ones, and that of the template host.
func (p *Provider) catalog() (*catalog, error) {
	if p.sharing == nil {
		return p.catalogOf(p.local())
	}
	c, err := p.catalogOf(p.shared(), Host)
	if err != nil {
		return nil, err
	}
	host, err := p.readManifest(Host)
	if err == nil {
		c.all = append(c.all, host)
	}
	return c, nil
}

// catalogOf reads the records in files, but for those of some templates.
func (p *Provider) catalogOf(files durable.Files, without ...string) (*catalog, error) {
	found, err := files.ReadAll(manifestsDir)
	if err != nil {
		return nil, err
	}
	c := &catalog{files: map[string]map[string][]byte{}, versions: map[string][]int{}}
	for file, data := range found {
		name, number, err := cutVersion(fileOf(file))
		if recordName(fileOf(file)) != file || err != nil || slices.Contains(without, name) {
			delete(found, file) // it is no record
			continue
		}
		if c.files[name] == nil {
			c.files[name] = map[string][]byte{}
		}
		c.files[name][fileOf(file)] = data
		if number > 0 {
			c.versions[name] = append(c.versions[name], number)
		}
	}
	for _, numbers := range c.versions {
		slices.Sort(numbers)
	}
	c.all, err = p.parseAll(found)
	return c, err
}

// digestsOf returns the digests in records, also in those that this program cannot read: a
// later one may have written them.
func digestsOf(files map[string][]byte) map[string]bool {
	digests := map[string]bool{}
	for _, data := range files {
		var m struct {
			Digest string `json:"digest"`
		}
		if json.Unmarshal(data, &m) == nil && validDigest.MatchString(m.Digest) {
			digests[m.Digest] = true
		}
	}
	return digests
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
