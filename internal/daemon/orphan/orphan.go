// Package orphan sets aside content that no record names, so that it can be brought back
// for a while. Each item is a directory with the content and a file that describes it. The
// content may be hostile; nothing here reads it.
package orphan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/volume"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/machine"
)

const (
	// aboutFile describes the content of an item's directory, contentName is the content.
	aboutFile   = "about.json"
	contentName = "content"
	// draftPrefix and gonePrefix are the prefixes of directories that are being filled and
	// removed, respectively.
	draftPrefix = ".draft-"
	gonePrefix  = ".gone-"
	// stampForm is the format of the time, in UTC, at the beginning of a name.
	stampForm = "20060102T150405.000Z"
	// maxAbout bounds the size of an aboutFile.
	maxAbout = 8 << 20
)

// Kind is the kind of an item.
type Kind string

// The kinds of items.
const (
	// Checkpoint is a checkpoint of a sandbox, see package engine.
	Checkpoint Kind = "checkpoint"
	// Volume has the files of a volume, see package volume.
	Volume Kind = "volume"
)

// Item is content that was set aside.
type Item struct {
	// ID is the id of the checkpoint or volume.
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	// Team, Name and SandboxID come from its label or manifest; empty if unknown.
	Team      string `json:"team,omitempty"`
	Name      string `json:"name,omitempty"`
	SandboxID string `json:"sandbox_id,omitempty"`
	// SizeBytes is the approximate space that it takes on disk.
	SizeBytes int64 `json:"size_bytes"`
	// Since is the time at which it was set aside; [Dir.Put] sets it.
	Since time.Time `json:"since"`
	// Why is the reason, for people to read.
	Why string `json:"why"`
	// Record is its label or manifest, from which a record can be recreated.
	Record json.RawMessage `json:"record,omitempty"`

	dir string // the name of its directory
}

// Dir is a directory of items. Its methods may be called concurrently, but only one caller
// at a time may change an item. Only one process at a time may use it.
type Dir struct{ path string }

// Open opens the directory at path, which it makes if missing, and finishes what an earlier
// process left unfinished.
func Open(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of orphans: %w", err)
	}
	d := &Dir{path}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("list orphans: %w", err)
	}
	for _, e := range entries {
		if err := d.tidy(e.Name()); err != nil {
			return nil, fmt.Errorf("tidy the directory of orphans: %w", err)
		}
	}
	return d, nil
}

// tidy finishes an interrupted operation on one directory: it removes a directory without
// content, and completes a draft with content.
func (d *Dir) tidy(name string) error {
	if strings.HasPrefix(name, gonePrefix) {
		return volume.RemoveTree(d.path, name)
	}
	_, err := os.Lstat(filepath.Join(d.path, name, contentName))
	final, draft := strings.CutPrefix(name, draftPrefix)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d.discard(name)
	case err == nil && draft:
		return os.Rename(filepath.Join(d.path, name), filepath.Join(d.path, final))
	}
	return nil
}

// Put sets content aside. It calls move once, to move the content to the given path, which
// does not exist. If move fails, Put fails, and nothing is set aside. Put returns the item
// as [Dir.List] would. The item is durable if the result of move is.
func (d *Dir) Put(it Item, move func(to string) error) (Item, error) {
	it.Since = time.Now().UTC()
	it.dir = fmt.Sprintf("%s-%s-%s", it.Since.Format(stampForm), it.Kind, it.ID)
	if filepath.Base(it.dir) != it.dir {
		return it, fmt.Errorf("set %s aside: the id cannot be in the name of a file", it.ID)
	}
	draft := filepath.Join(d.path, draftPrefix+it.dir)
	err := os.Mkdir(draft, 0o700)
	if err == nil {
		if err = writeAbout(draft, &it); err == nil {
			err = move(filepath.Join(draft, contentName))
		}
		if err != nil {
			err = errors.Join(err, d.discard(draftPrefix+it.dir))
		}
	}
	if err == nil {
		err = errors.Join(durable.SyncDir(draft), durable.Rename(draft, filepath.Join(d.path, it.dir)))
	}
	if err != nil {
		return it, fmt.Errorf("set %s aside: %w", it.ID, err)
	}
	return it, nil
}

func writeAbout(dir string, it *Item) error {
	data, err := json.MarshalIndent(it, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, aboutFile), append(data, '\n'))
}

// discard removes the directory of an item that has no content.
func (d *Dir) discard(name string) error {
	err := os.Remove(filepath.Join(d.path, name, aboutFile))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(filepath.Join(d.path, name))
	}
	return err
}

// List returns all items, the oldest first. If the description of an item is missing or
// damaged, the item has only what is in its directory's name.
func (d *Dir) List() ([]Item, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("list orphans: %w", err)
	}
	var all []Item
	for _, e := range entries {
		if it, ok := parseName(e.Name()); ok && e.IsDir() {
			if err := d.readAbout(&it); err != nil {
				return nil, fmt.Errorf("list orphans: %w", err)
			}
			all = append(all, it)
		}
	}
	slices.SortFunc(all, func(a, b Item) int { return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.dir, b.dir)) })
	return all, nil
}

func parseName(name string) (Item, bool) {
	stamp, rest, _ := strings.Cut(name, "-")
	kind, id, ok := strings.Cut(rest, "-")
	since, err := time.Parse(stampForm, stamp)
	return Item{ID: id, Kind: Kind(kind), Since: since, dir: name}, ok && err == nil && id != ""
}

// readAbout adds the description of an item. The directory's name has precedence: a file
// that may be damaged must not decide when an item is removed. The error is that the
// description is there, but cannot be read now: what it names must not pass for unused.
func (d *Dir) readAbout(it *Item) error {
	f, err := os.Open(filepath.Join(d.path, it.dir, aboutFile))
	if machine.Scarce(err) {
		return err
	}
	if err != nil {
		return nil //nolint:nilerr // the item stays without
	}
	defer f.Close()
	var known Item
	if json.NewDecoder(io.LimitReader(f, maxAbout)).Decode(&known) != nil {
		return nil
	}
	known.ID, known.Kind, known.Since, known.dir = it.ID, it.Kind, it.Since, it.dir
	*it = known
	return nil
}

// Find returns the newest item with an id.
func (d *Dir) Find(id string) (it Item, found bool, err error) {
	all, err := d.List()
	for _, one := range all {
		if one.ID == id {
			it, found = one, true
		}
	}
	return it, found, err
}

// Take brings an item back: move moves the content away from the given path. If move fails,
// Take fails and the item stays.
func (d *Dir) Take(it Item, move func(from string) error) error {
	if err := move(filepath.Join(d.path, it.dir, contentName)); err != nil {
		return fmt.Errorf("bring %s back: %w", it.ID, err)
	}
	// The rest of the item is useless. It is removed at the next start at the latest.
	_ = d.discard(it.dir)
	return nil
}

// Remove removes an item permanently. A missing item is not an error.
func (d *Dir) Remove(it Item) error {
	err := os.Rename(filepath.Join(d.path, it.dir), filepath.Join(d.path, gonePrefix+it.dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = volume.RemoveTree(d.path, gonePrefix+it.dir)
	}
	if err != nil {
		return fmt.Errorf("remove %s, which was set aside: %w", it.ID, err)
	}
	return nil
}
