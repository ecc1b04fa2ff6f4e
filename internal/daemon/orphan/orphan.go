// Package orphan keeps content that no record names aside for a while, so that
// it can be had back: a directory each, with the content and a file that says
// what it was. What is aside is hostile where its content was; nothing here looks
// into that.
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
)

const (
	// aboutFile says what a directory holds, contentName is what it holds.
	aboutFile   = "about.json"
	contentName = "content"
	// draftPrefix and gonePrefix begin the names of directories that are being
	// filled and removed.
	draftPrefix = ".draft-"
	gonePrefix  = ".gone-"
	// stampForm is the time at the beginning of a name, in UTC.
	stampForm = "20060102T150405.000Z"
	// maxAbout bounds what is read of such a file.
	maxAbout = 8 << 20
)

// Kind says what something is.
type Kind string

// The kinds of what is set aside.
const (
	// Checkpoint is the kept state of a sandbox, see package engine.
	Checkpoint Kind = "checkpoint"
	// Volume is the files of a volume, see package volume.
	Volume Kind = "volume"
)

// Item is something that was set aside.
type Item struct {
	// ID is that of the checkpoint or volume.
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	// Team, Name and SandboxID are what it told of itself; empty if it did not.
	Team      string `json:"team,omitempty"`
	Name      string `json:"name,omitempty"`
	SandboxID string `json:"sandbox_id,omitempty"`
	// SizeBytes is about what it takes on disk.
	SizeBytes int64 `json:"size_bytes"`
	// Since is when it was set aside; [Dir.Put] sets it.
	Since time.Time `json:"since"`
	// Why says for whoever reads it why that was done.
	Why string `json:"why"`
	// Record is what it told of itself, for whoever makes a record of it again.
	Record json.RawMessage `json:"record,omitempty"`

	dir string // the name of its directory
}

// Dir is a directory of what was set aside. Its methods may be called
// concurrently, but those that change one item by one caller at a time. Only one
// process at a time may use it.
type Dir struct{ path string }

// Open returns the directory at path, which is made if it is missing. What an
// earlier process was in the middle of is finished.
func Open(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of what is set aside: %w", err)
	}
	d := &Dir{path}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("look at what is set aside: %w", err)
	}
	for _, e := range entries {
		if err := d.tidy(e.Name()); err != nil {
			return nil, fmt.Errorf("tidy what is set aside: %w", err)
		}
	}
	return d, nil
}

// tidy finishes what was begun with one directory: one without content is
// nothing, and content in a draft is set aside.
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

// Put sets something aside. It calls move once, which moves the content to the
// path that it is given and nothing has; if that fails, so does Put, and nothing
// is aside. It returns the item as it is in the list, with Since. It survives a
// loss of power if move's part of it does.
func (d *Dir) Put(it Item, move func(to string) error) (Item, error) {
	it.Since = time.Now().UTC()
	it.dir = fmt.Sprintf("%s-%s-%s", it.Since.Format(stampForm), it.Kind, it.ID)
	if filepath.Base(it.dir) != it.dir {
		return it, fmt.Errorf("set %s aside: it is no name of a file", it.ID)
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

// discard removes a directory that has no content.
func (d *Dir) discard(name string) error {
	err := os.Remove(filepath.Join(d.path, name, aboutFile))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(filepath.Join(d.path, name))
	}
	return err
}

// List returns what is aside, the oldest first. Of one whose description cannot
// be read, it returns what its name tells.
func (d *Dir) List() ([]Item, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("list what is set aside: %w", err)
	}
	var all []Item
	for _, e := range entries {
		if it, ok := parseName(e.Name()); ok && e.IsDir() {
			d.readAbout(&it)
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

// readAbout fills in what is known of an item beside its name. The name has the
// last word: what goes when is not for a file to say that may be damaged.
func (d *Dir) readAbout(it *Item) {
	f, err := os.Open(filepath.Join(d.path, it.dir, aboutFile))
	if err != nil {
		return
	}
	defer f.Close()
	var known Item
	if json.NewDecoder(io.LimitReader(f, maxAbout)).Decode(&known) != nil {
		return
	}
	known.ID, known.Kind, known.Since, known.dir = it.ID, it.Kind, it.Since, it.dir
	*it = known
}

// Find returns the newest item with this id.
func (d *Dir) Find(id string) (it Item, found bool, err error) {
	all, err := d.List()
	for _, one := range all {
		if one.ID == id {
			it, found = one, true
		}
	}
	return it, found, err
}

// Take brings something back: move moves the content away from the path that it
// is given. If that fails, so does Take, and the item stays.
func (d *Dir) Take(it Item, move func(from string) error) error {
	if err := move(filepath.Join(d.path, it.dir, contentName)); err != nil {
		return fmt.Errorf("bring %s back: %w", it.ID, err)
	}
	// It is back; what is left of it here is of no use to anybody, and goes at
	// the next start at the latest.
	_ = d.discard(it.dir)
	return nil
}

// Remove removes something for good; one that is not there any more is not an
// error.
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
