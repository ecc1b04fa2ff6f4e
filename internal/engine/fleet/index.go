package fleet

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/lazyregexp"
)

// member is the record of a node.
type member struct {
	// ID is in the node's certificates; another node with the same name has another.
	ID       string    `json:"id"`
	JoinedAt time.Time `json:"joined_at"`
	Draining bool      `json:"draining,omitempty"`
	// Moving says that its sandboxes are to move to other nodes.
	Moving bool `json:"moving,omitempty"`
	// Resume says that those that were running continue at once.
	Resume bool `json:"resume,omitempty"`
	// Leaving says that the node itself asked for that, because it stops: it takes sandboxes
	// again when it starts again.
	Leaving bool `json:"leaving,omitempty"`
	// Before is what was asked for when the node began to leave.
	Before asked `json:"before,omitzero"`
	dedication
}

// asked is what has been asked for about a node's sandboxes; see [member].
type asked struct {
	Draining bool `json:"draining,omitempty"`
	Moving   bool `json:"moving,omitempty"`
	Resume   bool `json:"resume,omitempty"`
}

// entry is an instance on a node. It is in a file before the node hears of the instance.
type entry struct {
	site *site
	// Sandbox is the sandbox whose network it has.
	Sandbox string `json:"sandbox,omitempty"`
	// Root is that of its spec.
	Root engine.Root `json:"root,omitzero"`
	// From is the checkpoint from which it continues, if any.
	From string `json:"from,omitempty"`
	// GivenUp says that the instance has ended as far as anybody is concerned: the node
	// must end it.
	GivenUp bool `json:"given_up,omitempty"`
	// Fenced says that the instance stops by itself before it is given up.
	Fenced bool `json:"fenced,omitempty"`
	// fencing is set once it may be fenced.
	fencing bool
	// making is set until the node has answered that it runs, and claimed says that the node was
	// claimed for it.
	making, claimed bool
}

// kept is a checkpoint on a node or on this machine. Those on nodes are in files.
type kept struct {
	site       *site
	Checkpoint engine.Checkpoint `json:"checkpoint"`
	// Removed says that the node must remove it. It is then only in site.stale.
	Removed bool `json:"removed,omitempty"`
}

const (
	memberFile     = "node.json"
	instancesDir   = "instances"
	checkpointsDir = "checkpoints"
)

// validID matches ids of instances and checkpoints, which are names of files.
var validID = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}$`)

// load reads all files.
func (f *Fleet) load() error {
	all, err := f.cfg.Files.ReadAll("")
	if err != nil {
		return err
	}
	for name, data := range all {
		if node, file, _ := strings.Cut(name, "/"); file == memberFile && validName.MatchString(node) {
			s := newSite(node)
			if err := unmarshal(name, data, &s.member); err != nil {
				return err
			}
			f.sites[node] = s
		}
	}
	for name, data := range all {
		node, file, _ := strings.Cut(name, "/")
		kind, id, _ := strings.Cut(file, "/")
		s := f.sites[node] // nil if joining was interrupted
		if s == nil || !validID.MatchString(id) {
			continue
		}
		switch kind {
		case instancesDir:
			err = f.loadInstance(s, name, id, data)
		case checkpointsDir:
			err = f.loadCheckpoint(s, name, id, data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) loadInstance(s *site, file, id string, data []byte) error {
	e := &entry{site: s}
	if err := unmarshal(file, data, e); err != nil {
		return err
	}
	f.put(id, e)
	if e.Sandbox != "" {
		f.logs[e.Sandbox] = s
	}
	return nil
}

func (f *Fleet) loadCheckpoint(s *site, file, id string, data []byte) error {
	k := &kept{site: s}
	if err := unmarshal(file, data, k); err != nil {
		return err
	}
	if k.Removed {
		s.stale[id] = true
	} else {
		f.checkpoints[id] = k
	}
	return nil
}

func unmarshal(file string, data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func (f *Fleet) write(file string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return f.cfg.Files.Write(file, data)
}

// saveMember records a node. The caller holds f.mu.
func (f *Fleet) saveMember(s *site) error {
	if err := f.write(path.Join(s.name, memberFile), &s.member); err != nil {
		return fmt.Errorf("record node %s: %w", s.name, err)
	}
	return nil
}

func instanceFile(s *site, id string) string { return path.Join(s.name, instancesDir, id) }

// setInstance records an instance, durably. The caller holds f.mu.
func (f *Fleet) setInstance(id string, e entry) error {
	if err := f.recordInstance(id, &e); err != nil {
		return err
	}
	f.put(id, &e)
	if e.Sandbox != "" {
		f.logs[e.Sandbox] = e.site
	}
	return nil
}

// recordInstance writes the file of an instance.
func (f *Fleet) recordInstance(id string, e *entry) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("invalid instance id %q", id)
	}
	if err := f.write(instanceFile(e.site, id), e); err != nil {
		return fmt.Errorf("record instance %s: %w", id, err)
	}
	return nil
}

// dropInstance forgets an instance that has ended. A file that stays behind does no harm:
// the next connection of the node removes it. The caller holds f.mu.
func (f *Fleet) dropInstance(id string) {
	if e := f.take(id); e != nil {
		_ = f.cfg.Files.Remove(instanceFile(e.site, id))
	}
}

// put makes an instance known, in place of what was known of it on the same site. The caller
// holds f.mu, or is alone.
func (f *Fleet) put(id string, e *entry) {
	if old := f.instances[id]; old != nil && !old.GivenUp {
		old.site.running--
	}
	f.instances[id], e.site.instances[id] = e, e
	if !e.GivenUp {
		e.site.running++
	} else {
		e.site.busy = time.Now()
	}
}

// take removes what is known of an instance, and returns it; nil if nothing is. The caller
// holds f.mu, or is alone.
func (f *Fleet) take(id string) *entry {
	e := f.instances[id]
	if e == nil {
		return nil
	}
	delete(f.instances, id)
	delete(e.site.instances, id)
	e.site.busy = time.Now()
	if !e.GivenUp {
		e.site.running--
	}
	return e
}

// giveUp records that an instance has ended as far as anybody is concerned. The caller
// holds f.mu.
func (f *Fleet) giveUp(id string) error {
	e := f.instances[id]
	if e == nil || e.GivenUp {
		return nil
	}
	return f.setInstance(id, *e.givenUp())
}

// givenUp returns a copy of the entry that says that it is given up.
func (e *entry) givenUp() *entry {
	gone := *e
	gone.GivenUp = true
	return &gone
}

func checkpointFile(s *site, id string) string { return path.Join(s.name, checkpointsDir, id) }

// setCheckpoint records a checkpoint, durably. The caller holds f.mu.
func (f *Fleet) setCheckpoint(k kept) error {
	id := k.Checkpoint.ID
	if !validID.MatchString(id) {
		return fmt.Errorf("invalid checkpoint id %q", id)
	}
	if k.site != f.local {
		if err := f.write(checkpointFile(k.site, id), &k); err != nil {
			return fmt.Errorf("record checkpoint %s: %w", id, err)
		}
	}
	f.checkpoints[id] = &k
	return nil
}

// dropCheckpoint forgets a checkpoint. The caller holds f.mu.
func (f *Fleet) dropCheckpoint(id string) {
	k := f.checkpoints[id]
	delete(f.checkpoints, id)
	if k != nil && k.site != f.local {
		_ = f.cfg.Files.Remove(checkpointFile(k.site, id))
	}
}

// markStale records that a node must remove a checkpoint, which is forgotten. The caller holds
// f.mu.
func (f *Fleet) markStale(s *site, id string) error {
	gone := kept{Removed: true}
	gone.Checkpoint.ID = id
	if err := f.write(checkpointFile(s, id), &gone); err != nil {
		return fmt.Errorf("record the removal of checkpoint %s: %w", id, err)
	}
	s.stale[id] = true
	if k := f.checkpoints[id]; k != nil && k.site == s {
		delete(f.checkpoints, id)
	}
	return nil
}

// clearStale notes that a node has removed a checkpoint. The caller holds f.mu.
func (f *Fleet) clearStale(s *site, id string) {
	if s.stale[id] {
		delete(s.stale, id)
		_ = f.cfg.Files.Remove(checkpointFile(s, id))
	}
}
