package image

import (
	"context"
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
	// FetchRoot makes a stored root here, by [Provider.UnpackRoot]. The error is
	// [fs.ErrNotExist] if it is not stored.
	FetchRoot(ctx context.Context, digest string) error
}

// elsewhere is where the templates are that all servers use.
type elsewhere struct {
	records durable.Files
	roots   RootStore
	fetches flights[string, struct{}]
}

// sharedFile says that the records of this directory were put among the shared ones: from
// then on only these count, but for that of the template host.
const sharedFile = "shared"

// Share has the templates where the next server finds them: their records and aliases in
// files that nobody else changes meanwhile, and their roots in a store. Templates that this
// provider's directory has from before become shared once. Share is called before the
// provider is used.
func (p *Provider) Share(records durable.Files, roots RootStore) error {
	cached, err := durable.Cached(records)
	if err == nil {
		p.elsewhere = &elsewhere{records: cached, roots: roots}
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

// SharedRoots returns the digests of the shared templates' roots, of all versions.
func (p *Provider) SharedRoots() (map[string]bool, error) {
	c, err := p.catalog()
	if err != nil {
		return nil, err
	}
	digests := map[string]bool{}
	for _, m := range c.all {
		if m.Name != Host {
			digests[m.Digest] = true
		}
	}
	return digests, nil
}

// shareOwn puts the records of this provider's directory among the shared ones, once. A
// template that is shared already is left out.
func (p *Provider) shareOwn() error {
	if _, err := p.local().Read(sharedFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	own, err := p.local().ReadAll(manifestsDir)
	if err != nil {
		return err
	}
	known, err := p.elsewhere.records.ReadAll(manifestsDir)
	if err != nil {
		return err
	}
	// The record of the newest version comes last: it says that the others are there.
	files := slices.SortedFunc(maps.Keys(own), func(a, b string) int {
		return strings.Count(b, "@") - strings.Count(a, "@")
	})
	for _, file := range files {
		name, number, err := cutVersion(fileOf(file))
		if err != nil || name == Host {
			continue
		}
		if _, taken := known[recordName(name)]; taken {
			if number == 0 {
				p.log.Warn("a template of this state directory is not used: another server has built one of this name", "template", name)
			}
			continue
		}
		m, err := p.parse(fileOf(file), own[file])
		if err != nil || !p.hasRoot(m.Digest) {
			p.log.Warn("a template of this state directory cannot be shared with other servers", "template", fileOf(file), "error", err)
			continue
		}
		if err := p.elsewhere.records.Write(file, own[file]); err != nil {
			return err
		}
	}
	if err := p.shareAliases(); err != nil {
		return err
	}
	return p.local().Write(sharedFile, nil)
}

// shareAliases adds the aliases of this provider's directory to the shared ones.
func (p *Provider) shareAliases() error {
	own, err := readAliases(p.local())
	if err != nil || len(own) == 0 {
		return nil // damaged ones are none
	}
	all, err := readAliases(p.elsewhere.records)
	if err != nil {
		return err
	}
	maps.Copy(own, all)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keepAliases(own)
}

// bring makes sure that the root of a template is here, and keeps it from being collected
// for a while, as [Provider.hold] does. The error is [fs.ErrNotExist] if the root is
// nowhere.
func (p *Provider) bring(ctx context.Context, m *manifest) error {
	err := p.hold(m.Digest)
	if !errors.Is(err, fs.ErrNotExist) || p.elsewhere == nil || m.Name == Host {
		return err
	}
	_, err = p.elsewhere.fetches.get(ctx, m.Digest, func(string, float64, string) {}, func(ctx context.Context, _ reporter) (none struct{}, err error) {
		return none, p.elsewhere.roots.FetchRoot(ctx, m.Digest)
	})
	if err != nil {
		return err
	}
	return p.hold(m.Digest)
}

// lostRoot is the error for a template whose root is nowhere.
func lostRoot(name string) error {
	return sandbox.Errorf(sandbox.CodeConflict, "the files of template %s are neither on this server nor in the object store: the server that built it was lost before it had stored them; build the template again with 'cove template build %s'", name, name)
}
