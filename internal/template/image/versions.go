package image

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// keptVersions bounds the versions of a template: if there are more, the oldest are
// removed, except those that have an alias.
const keptVersions = 10

// versioned returns the name of one version of a template, NAME@N.
func versioned(name string, number int) string { return name + "@" + strconv.Itoa(number) }

// cutVersion splits NAME@N; the number is 0 for a bare name.
func cutVersion(ref string) (name string, number int, err error) {
	name, digits, found := strings.Cut(ref, "@")
	if !found {
		return name, 0, nil
	}
	number, err = strconv.Atoi(digits)
	if err != nil || number < 1 || digits != strconv.Itoa(number) {
		return "", 0, sandbox.Errorf(sandbox.CodeInvalid, "%.80q is not a version of a template; use NAME@N, such as %.64s@1", ref, name)
	}
	return name, number, nil
}

// resolveName resolves an alias, and returns a template's name and version, which is
// 0 for the newest.
//
// Preconditions: p.mu is held, or p.aliases is not changed meanwhile.
func (p *Provider) resolveName(ref string) (name string, number int, err error) {
	name, number, err = cutVersion(ref)
	if err != nil {
		return "", 0, err
	}
	target, ok := p.aliases[name]
	if !ok {
		return name, number, nil
	}
	to, pinned, err := cutVersion(target)
	if err != nil {
		return "", 0, err
	}
	if number > 0 && pinned > 0 {
		return "", 0, sandbox.Errorf(sandbox.CodeInvalid, "%s is an alias of %s, which is one version; leave out @%d", name, target, number)
	}
	return to, max(number, pinned), nil
}

// resolved is resolveName for callers that do not hold p.mu.
func (p *Provider) resolved(ref string) (string, int, error) {
	if strings.ContainsAny(ref, ":/") && imageName.MatchString(ref) {
		return "", 0, imageNameError(ref)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resolveName(ref)
}

// imageName matches references of images in Docker's notation.
var imageName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{1,254}$`)

// imageNameError is the error for the name of an image in place of a template's.
func imageNameError(ref string) error {
	image, _, _ := strings.Cut(path.Base(ref), "@")
	name := strings.Trim(strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(image)), "-")
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no template %.80q; make one of the image first with 'cove template build %.40s --image %s' (template_build with from.image), and use its name", ref, cmp.Or(name, "NAME"), ref)
}

// version returns the record of a version, or of the newest for 0; an error is
// [fs.ErrNotExist] if there is none.
func (p *Provider) version(name string, number int) (*manifest, error) {
	m, err := p.readManifest(name)
	if err != nil || number == 0 || number == max(1, m.Number) {
		return m, err
	}
	return p.readVersion(name, number)
}

// newestFirst returns the versions of a template for callers.
func newestFirst(numbers []int) []int {
	numbers = slices.Clone(numbers)
	slices.Reverse(numbers)
	return numbers
}

// publish makes a build the newest version of its template, atomically and durably.
func (p *Provider) publish(m *manifest) error {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	old, err := p.readManifest(m.Name)
	if isAbsent(err) {
		old = &manifest{}
	} else if err != nil {
		return err
	} else if old.Number == 0 { // from before there were versions
		old.Number = 1
	}
	numbers, err := p.versions(m.Name)
	if err != nil {
		return err
	}
	m.Number = max(old.Number, old.Last, slices.Max(append(numbers, 0))) + 1
	m.Last = m.Number
	if m.Name == Host {
		return p.writeManifest(m, m.Name) // earlier ones bind what no longer exists
	}
	if old.Name != "" && !slices.Contains(numbers, old.Number) {
		if err := p.writeManifest(old, versioned(m.Name, old.Number)); err != nil {
			return err
		}
		numbers = append(numbers, old.Number)
	}
	if p.sharing != nil {
		m.Machine = p.sharing.machine
		p.sharing.roots.KeepRoot(m.Digest) // first: a write that fails may have been made
	}
	if err := p.writeManifest(m, versioned(m.Name, m.Number)); err != nil {
		return err
	}
	if err := p.writeManifest(m, m.Name); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(numbers) >= keptVersions {
		n := numbers[0]
		numbers = numbers[1:]
		if !slices.Contains(slices.Collect(maps.Values(p.aliases)), versioned(m.Name, n)) {
			if err := p.recordsOf(m.Name).Remove(recordName(versioned(m.Name, n))); err != nil {
				p.log.Warn("remove an old version of a template", "template", m.Name, "version", n, "error", err)
			}
		}
	}
	return nil
}

// Alias adds another name for a template or one version of it, or removes the alias if name
// is empty.
func (p *Provider) Alias(alias, name string) error {
	if !validTemplate.MatchString(alias) {
		return sandbox.Errorf(sandbox.CodeInvalid, "%.80q is not a valid template name; use 1 to 63 of a-z, 0-9, hyphens, underscores and dots", alias)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if name == "" {
		if _, ok := p.aliases[alias]; !ok {
			return sandbox.Errorf(sandbox.CodeNotFound, "there is no alias %s; list the templates to see which exist", alias)
		}
		next := maps.Clone(p.aliases)
		delete(next, alias)
		return p.keepAliases(next)
	}
	if _, known := p.builtins[alias]; known || p.taken(alias) {
		return sandbox.Errorf(sandbox.CodeConflict, "%s is the name of a template; choose another alias", alias)
	}
	to, number, err := p.resolveName(name)
	if err != nil {
		return err
	}
	if _, known := p.builtins[to]; !known || number > 0 {
		if _, err := p.version(to, number); err != nil {
			return notFound(name, err)
		}
	}
	if number > 0 {
		to = versioned(to, number)
	}
	if _, ok := p.aliases[alias]; !ok && len(p.aliases) >= sandbox.MaxTemplateAliases {
		return sandbox.Errorf(sandbox.CodeQuotaExceeded, "templates have %d aliases, which is the limit of a server; remove one that is not needed, or move one of them to %s", len(p.aliases), name)
	}
	next := maps.Clone(p.aliases)
	next[alias] = to
	return p.keepAliases(next)
}

// taken reports whether a template of this name is built or being built, or its build
// failed.
//
// Preconditions: p.mu is held.
func (p *Provider) taken(name string) bool {
	_, failed := p.failed[name]
	_, err := p.readManifest(name)
	return !isAbsent(err) || failed || !p.building[name].IsZero()
}

// notFound turns [fs.ErrNotExist] into the error for a template that does not exist.
func notFound(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no template %.80q; list the templates to see which exist", name)
	}
	return err
}

// aliasesOf returns the aliases of a template and its versions, sorted.
//
// Preconditions: p.mu is held.
func (p *Provider) aliasesOf(name string) []string {
	var out []string
	for alias, target := range p.aliases {
		if to, _, err := cutVersion(target); err == nil && to == name {
			out = append(out, alias)
		}
	}
	slices.Sort(out)
	return out
}

const aliasFile = "aliases.json"

// readAliases reads the aliases. If they are damaged, there are none.
func (p *Provider) readAliases() {
	var err error
	if p.aliases, err = readAliases(p.shared()); err != nil {
		p.log.Warn("cannot read template aliases", "error", err)
		p.aliases = map[string]string{}
	}
}

func readAliases(records durable.Files) (map[string]string, error) {
	data, err := records.Read(aliasFile)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	var aliases map[string]string
	if err == nil {
		err = json.Unmarshal(data, &aliases)
	}
	return aliases, err
}

// keepAliases replaces the aliases, atomically and durably.
//
// Preconditions: p.mu is held.
func (p *Provider) keepAliases(next map[string]string) error {
	data, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return err
	}
	if err := p.shared().Write(aliasFile, append(data, '\n')); err != nil {
		return fmt.Errorf("keep aliases: %w", err)
	}
	p.aliases = next
	return nil
}

// Delete removes a template with all its versions and aliases, or one version.
// [Provider.Collect] removes the content when nothing uses it.
func (p *Provider) Delete(ref string) error {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	name, number, err := cutVersion(ref)
	if err != nil {
		return err
	}
	if target, ok := p.aliases[name]; ok {
		return sandbox.Errorf(sandbox.CodeInvalid, "%s is an alias of %s; delete that template, or remove only the alias", name, target)
	}
	switch {
	case name == Host:
		return sandbox.Errorf(sandbox.CodeInvalid, "the template host is this machine; it cannot be deleted")
	case !p.building[name].IsZero():
		return sandbox.Errorf(sandbox.CodeConflict, "template %s is being built; cancel that build first", name)
	case !validTemplate.MatchString(name) || !p.taken(name):
		return notFound(ref, fs.ErrNotExist)
	}
	numbers, err := p.versions(name)
	if err != nil {
		return err
	}
	if number > 0 {
		return p.deleteVersion(name, number, numbers)
	}
	files := []string{name} // first: without it the template no longer exists
	for _, n := range numbers {
		files = append(files, versioned(name, n))
	}
	delete(p.failed, name)
	delete(p.shapes, name)
	return errors.Join(p.removeManifests(name, files...), p.dropAliases(name, 0))
}

// deleteVersion removes one version. If it is the newest, the next older one becomes
// the newest.
//
// Preconditions: p.mu and p.publishing are held.
func (p *Provider) deleteVersion(name string, number int, numbers []int) error {
	now, err := p.readManifest(name)
	if err != nil {
		return notFound(versioned(name, number), err)
	}
	current := max(1, now.Number)
	if !slices.Contains(numbers, number) && number != current {
		return notFound(versioned(name, number), fs.ErrNotExist)
	}
	numbers = slices.DeleteFunc(numbers, func(n int) bool { return n == number })
	if number == current {
		if len(numbers) == 0 {
			err = p.removeManifests(name, name)
		} else {
			var before *manifest
			if before, err = p.readVersion(name, numbers[len(numbers)-1]); err == nil {
				before.Last = max(now.Last, current)
				err = p.writeManifest(before, name)
			}
		}
		if err != nil {
			return err
		}
	}
	err = p.removeManifests(name, versioned(name, number))
	if len(numbers) == 0 {
		number = 0 // no alias can refer to anything that is left
	}
	return errors.Join(err, p.dropAliases(name, number))
}

// dropAliases removes the aliases of one version of a template, or all for 0.
//
// Preconditions: p.mu is held.
func (p *Provider) dropAliases(name string, number int) error {
	next := maps.Clone(p.aliases)
	maps.DeleteFunc(next, func(_, target string) bool {
		to, n, err := cutVersion(target)
		return err != nil || to == name && (number == 0 || n == number)
	})
	if len(next) == len(p.aliases) {
		return nil
	}
	return p.keepAliases(next)
}
