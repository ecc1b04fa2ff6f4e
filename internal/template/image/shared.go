package image

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

// RootStore has the roots of templates that all servers of an installation use.
type RootStore interface {
	// KeepRoot has a root of this provider stored in the background.
	KeepRoot(digest string)
	// FetchRoot makes a stored root here, by [Provider.UnpackRoot]. It does so once for all
	// who ask at the same time, and goes on if they end. The error is [fs.ErrNotExist] if the
	// root is not stored.
	FetchRoot(ctx context.Context, digest string) error
	// CollectRoots says that some roots may be needed no longer: those that are not in use are
	// removed from the store after a while.
	CollectRoots()
}

// sharing is where the templates are that all servers use.
type sharing struct {
	records durable.Files
	roots   RootStore
	machine string // names this provider's directory in records; see [manifest.Machine]
}

// Share has the templates where the next server finds them: their records and aliases in
// files that nobody else changes meanwhile, and their roots in a store. What this provider's
// directory has from before is moved there. Share is called before the provider is used.
func (p *Provider) Share(records durable.Files, roots RootStore) error {
	cached, err := durable.Cached(records)
	if err != nil {
		return fmt.Errorf("share the templates: %w", err)
	}
	p.sharing = &sharing{records: cached, roots: roots}
	if p.sharing.machine, err = p.machineID(); err == nil {
		err = p.shareOwn()
	}
	var digests map[string]bool
	if err == nil {
		digests, err = p.SharedRoots()
	}
	if err != nil {
		return fmt.Errorf("share the templates: %w", err)
	}
	for digest := range digests { // the process before may have ended before they were stored
		if p.hasRoot(digest) {
			roots.KeepRoot(digest)
		}
	}
	p.readAliases()
	return nil
}

// machineFile has the name of this provider's directory among those of all servers.
const machineFile = "machine"

func (p *Provider) machineID() (string, error) {
	id, err := p.local().Read(machineFile)
	if errors.Is(err, fs.ErrNotExist) {
		id = []byte(rand.Text())
		err = p.local().Write(machineFile, id)
	}
	return string(id), err
}

// SharedRoots returns the digests of the shared templates' roots, of all versions.
func (p *Provider) SharedRoots() (map[string]bool, error) {
	files, err := p.sharing.records.ReadAll(manifestsDir)
	return digestsOf(files), err
}

// shareOwn moves the records of this provider's directory to the shared ones. A template
// whose name is taken there stays, with its roots, and is not used.
func (p *Provider) shareOwn() error {
	own, err := p.catalogOf(p.local())
	if err != nil {
		return err
	}
	known, err := p.catalogOf(p.sharing.records)
	if err != nil {
		return err
	}
	aliases, err := readAliases(p.sharing.records)
	if err != nil {
		return err
	}
	moved := map[string]bool{}
	for name := range own.files {
		_, alias := aliases[name]
		switch {
		case name == Host:
			continue
		case alias || known.files[name] != nil:
			p.log.Warn("a template of this server's directory is not used: with the other servers, its name is another template's", "template", name)
			continue
		}
		if moved[name], err = p.shareRecords(name, own.files[name]); err != nil {
			return err
		}
	}
	return p.shareAliases(moved, aliases, known)
}

// shareRecords moves the records of a template, and reports whether it did: one whose root is
// gone is none. That of the newest version is written last and removed first: without it there
// is no template, and the next start moves the rest.
func (p *Provider) shareRecords(name string, records map[string][]byte) (bool, error) {
	usable := map[string]*manifest{}
	for file, data := range records {
		if m, err := p.parse(file, data); err == nil && m.Name == name && p.hasRoot(m.Digest) {
			m.Machine = p.sharing.machine
			usable[file] = m
		}
	}
	if usable[name] == nil {
		return false, nil
	}
	files := slices.SortedFunc(maps.Keys(usable), func(a, b string) int { return strings.Count(b, "@") - strings.Count(a, "@") })
	for _, file := range files {
		if err := p.writeManifest(usable[file], file); err != nil {
			return false, err
		}
	}
	slices.Reverse(files)
	for _, file := range files {
		if err := p.local().Remove(recordName(file)); err != nil {
			return false, err
		}
	}
	p.log.Info("template is shared with the other servers", "template", name)
	return true, p.local().Sync(manifestsDir)
}

// shareAliases moves the aliases of the templates that were moved, unless they are names
// there.
func (p *Provider) shareAliases(moved map[string]bool, all map[string]string, known *catalog) error {
	own, err := readAliases(p.local())
	if _, damaged := errors.AsType[*json.SyntaxError](err); damaged {
		return nil // they are none
	}
	if err != nil {
		return err
	}
	before := len(all)
	for alias, target := range own {
		to, _, err := cutVersion(target)
		_, taken := all[alias]
		_, builtin := p.builtins[to]
		switch {
		case err != nil || !moved[to] && !builtin:
		case taken || known.files[alias] != nil || moved[alias]:
			p.log.Warn("an alias of this server's directory is not used: its name is taken", "alias", alias, "template", target)
		default:
			all[alias] = target
		}
	}
	if len(all) == before {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keepAliases(all)
}

// fetchRoot makes sure that a root is here, and keeps it from being collected for a while, as
// [Provider.hold] does. The error is [fs.ErrNotExist] if the root is nowhere.
func (p *Provider) fetchRoot(ctx context.Context, digest string) error {
	err := p.hold(digest)
	if !errors.Is(err, fs.ErrNotExist) || p.sharing == nil {
		return err
	}
	if err := p.sharing.roots.FetchRoot(ctx, digest); err != nil {
		return err
	}
	return p.hold(digest)
}

// bindHere makes a root that another machine has made fit this one: what it shows of the
// machine must be hidden here as well. The error says why it cannot be used here.
func (p *Provider) bindHere(ctx context.Context, m *manifest) error {
	if p.sharing == nil || len(m.Binds) == 0 || m.Name == Host || m.Machine == p.sharing.machine {
		return nil
	}
	root, err := p.Locate(ctx, m.Digest, m.Binds)
	m.Binds = root.Binds
	return err
}

// lostRoot is the error for a version of a template, or the newest for 0, whose root is
// nowhere.
func lostRoot(name string, number int) error {
	const lost = "the files of template %s are neither on this server nor in the object store: perhaps the server that built it was lost before it had stored them; "
	if number > 0 {
		return sandbox.Errorf(sandbox.CodeConflict, lost+"use another version, or build a new one with 'cove template build %s --force'", versioned(name, number), name)
	}
	return sandbox.Errorf(sandbox.CodeConflict, lost+"build it again with 'cove template build %s'", name, name)
}
