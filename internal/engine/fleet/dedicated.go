package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

// A dedicated node runs the sandboxes of one family at a time: the first instance claims it
// for its family. When nothing runs there any more and nothing is only there, the node is
// retired: it is replaced, or freed for another family by [Fleet.Free].

// dedication is what a member's record says of it.
type dedication struct {
	// Dedicated says that the node runs the sandboxes of one family at a time. It is as the
	// node said when it joined: one that others have used cannot become one.
	Dedicated bool `json:"dedicated,omitempty"`
	// Family is the one that the node is claimed for, or empty. It is recorded before the node
	// gets anything of the family.
	Family string `json:"family,omitempty"`
	// Retired says that the node takes nothing more.
	Retired bool `json:"retired,omitempty"`
	// AsideAt is when a checkpoint was last set aside there.
	AsideAt time.Time `json:"aside_at,omitzero"`
}

// DefaultRest is how long nothing must have begun or ended on a dedicated node before it is
// vacant: a sandbox that was just paused may be resumed at once, and one whose state was just
// fetched is about to run.
const DefaultRest = 5 * time.Second

// checkDedicated looks at what a dedicated node has when it is there again, before it is driven.
// What nobody knew of when the node was claimed, as after a restore of older records, has it
// retired: it takes no family beside. The caller holds f.mu.
func (f *Fleet) checkDedicated(s *site, dedicated bool) error {
	s.busy = time.Now()
	if s.member.Dedicated != dedicated {
		f.log.Warn("--dedicated has no effect on a node that has joined; to change it, stop the node, run cove node rm, empty the node's state directory, and join again", "node", s.name, "dedicated", s.member.Dedicated)
	}
	if !s.member.Dedicated || s.member.Family != "" || s.member.Retired || len(s.instances) == 0 && len(f.keptOn(s)) == 0 {
		return nil
	}
	m := s.member
	m.Retired = true
	return f.setMember(s, m)
}

// takes reports whether a site takes new instances of a family, "" being none. The caller
// holds Fleet.mu.
func (s *site) takes(family string) bool {
	if !s.member.Dedicated {
		return family == ""
	}
	return family != "" && !s.member.Retired && (s.member.Family == "" || s.member.Family == family)
}

// claim makes sure that a site can have an instance, and that no other family gets instances
// there if the site is dedicated. First says that nobody had claimed the site before. The caller
// holds f.mu.
func (f *Fleet) claim(s *site, spec *engine.Spec) (first bool, err error) {
	switch {
	case !s.takes(spec.Family):
		return false, f.notTaken(s, spec)
	case !s.member.Dedicated:
		return false, nil
	}
	s.busy = time.Now()
	if s.member.Family == spec.Family {
		return false, nil
	}
	m := s.member
	m.Family = spec.Family
	return true, f.setMember(s, m)
}

// notTaken says why a site does not take an instance that is of another family. There may be
// room elsewhere. The caller holds f.mu.
func (f *Fleet) notTaken(s *site, spec *engine.Spec) error {
	switch {
	case spec.Checkpoint == "" && spec.Family == "":
		return noRoom("node " + s.name + " is for dedicated sandboxes")
	case spec.Checkpoint == "":
		return noRoom(allDedicatedUsed)
	}
	why := "which does not run dedicated sandboxes"
	switch {
	case s.member.Retired:
		why = "which is being replaced"
	case s.member.Dedicated:
		why = "which is dedicated to other sandboxes"
	}
	err := sandbox.Wrap(sandbox.CodeUnavailable, engine.ErrNoRoom, "the state is on node "+s.name+", "+why+"; the sandbox can start on another node once the state is in the object store (--objects); steps of histories are never stored there")
	err.RetryAfter = noRoomRetry
	return err
}

// unclaim frees a site that a family was the first to claim and has not used, if nothing of it
// is there. The caller holds f.mu.
func (f *Fleet) unclaim(s *site, family string) {
	if !s.member.Dedicated || s.member.Retired || s.member.Family != family || len(s.instances) > 0 || s.holds > 0 || len(f.keptOn(s)) > 0 {
		return
	}
	m := s.member
	m.Family = ""
	if err := f.setMember(s, m); err != nil {
		f.log.Warn("a dedicated node stays claimed until it is retired", "node", s.name, "error", err)
	}
}

// hold keeps a site from being vacant until release is called. The caller holds f.mu.
func (f *Fleet) hold(s *site) (release func()) {
	s.holds++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		s.holds--
		s.busy = time.Now()
	}
}

// heldReader releases a site when it is closed.
type heldReader struct {
	io.ReadCloser
	release func()
}

func (r *heldReader) Close() error {
	r.release()
	return r.ReadCloser.Close()
}

// importClaimed is importTo on a site that the spec claims first. If nothing comes of it, the
// site is free again.
func (f *Fleet) importClaimed(ctx context.Context, s *site, spec *engine.Spec, c engine.Checkpoint, description []byte, fetch engine.Fetch, usable *earlyUse) (made engine.Checkpoint, err error) {
	f.mu.Lock()
	first, err := f.claim(s, spec)
	release := f.hold(s)
	f.mu.Unlock()
	if err == nil {
		made, err = f.importTo(ctx, s, c, description, fetch, usable)
	}
	release()
	if err == nil || !first || usable.used {
		return made, err
	}
	if p, perr := f.portable(s); perr == nil && p.RemoveCheckpoint(ctx, c.ID) == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.unclaim(s, spec.Family)
	}
	return made, err
}

// claimedBy returns those of the sites that a family has claimed.
func (f *Fleet) claimedBy(sites []*site, family string) []*site {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(sites, func(s *site) bool { return s.member.Family != family })
}

// dedicatedFile is there once a dedicated node has joined.
const dedicatedFile = "dedicated.json"

// loadDedicated reads whether dedicated nodes have joined.
func (f *Fleet) loadDedicated() error {
	_, err := f.cfg.Files.Read(dedicatedFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	f.everDedicated = err == nil
	return err
}

// noteDedicated records that a dedicated node joins. The caller holds f.mu.
func (f *Fleet) noteDedicated() error {
	if f.everDedicated {
		return nil
	}
	if err := f.write(dedicatedFile, struct{}{}); err != nil {
		return fmt.Errorf("record that there are dedicated nodes: %w", err)
	}
	f.everDedicated = true
	return nil
}

// noDedicated says why no dedicated node takes a sandbox. The caller holds f.mu.
func (f *Fleet) noDedicated(bound bool) error {
	switch {
	case bound:
		return sandbox.Errorf(sandbox.CodeUnsupported, "volumes and directories of the host are on the server's machine, but a dedicated sandbox runs on a node; remove the mounts, or set dedicated to false")
	case !f.everDedicated:
		return sandbox.Errorf(sandbox.CodeUnsupported, "this server has no nodes for dedicated sandboxes; start one with: cove node run --dedicated, or set dedicated to false")
	}
	return noRoom(allDedicatedUsed)
}

const allDedicatedUsed = "all dedicated nodes are in use, draining or away; kill sandboxes that are no longer needed, add a node, or retry later"

// onlyDedicated reports whether all machines are dedicated nodes. The caller holds f.mu.
func (f *Fleet) onlyDedicated() bool {
	all := f.everySite()
	return len(all) > 0 && !slices.ContainsFunc(all, func(s *site) bool { return !s.member.Dedicated })
}

// Takes implements [engine.Scattered].
func (f *Fleet) Takes(id, family string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.checkpoints[id]
	return k == nil || k.site.takes(family)
}

// Claimed reports whether a node is dedicated and a family has claimed it.
func (f *Fleet) Claimed(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sites[name]
	return s != nil && s.member.claimed()
}

func (m *member) claimed() bool { return m.Dedicated && (m.Family != "" || m.Retired) }

// keptOn returns the checkpoints of sandboxes on a node. The caller holds f.mu.
func (f *Fleet) keptOn(s *site) (ids []string) {
	for id, k := range f.checkpoints {
		if k.site == s {
			ids = append(ids, id)
		}
	}
	return ids
}

// Vacancy is a dedicated node on which nothing runs.
type Vacancy struct {
	// Node is its name, and ID what distinguishes it from others that had the name.
	Node, ID string
	// Claimed says that a family has used it, Retired that it takes nothing more, and Lost that
	// it is away and its lease has run out.
	Claimed, Retired, Lost bool
	// Checkpoints are those that are there.
	Checkpoints []string
}

// Vacancies returns the dedicated nodes that were used or are lost, and on which nothing runs
// or begins, and has not for a while. Those that are away and may be back are not among them.
func (f *Fleet) Vacancies() []Vacancy {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := map[*site]int{}
	var all []Vacancy
	for _, s := range f.sites {
		if !f.vacant(s) || !s.member.claimed() && s.remote != nil {
			continue
		}
		at[s] = len(all)
		all = append(all, Vacancy{
			Node: s.name, ID: s.member.ID, Claimed: s.member.claimed(), Retired: s.member.Retired, Lost: s.remote == nil,
		})
	}
	if len(all) == 0 {
		return nil
	}
	for id, k := range f.checkpoints {
		if i, ok := at[k.site]; ok {
			all[i].Checkpoints = append(all[i].Checkpoints, id)
		}
	}
	return all
}

// vacant reports whether nothing runs or begins on a dedicated node, and nothing was set aside
// there. The caller holds f.mu.
func (f *Fleet) vacant(s *site) bool {
	return s.member.Dedicated && s.running == 0 && s.holds == 0 && time.Since(s.busy) >= f.cfg.Rest && (s.remote != nil || s.lost) &&
		time.Since(s.member.AsideAt) >= remote.AsideAge
}

// Retire keeps everything from a vacant node from now on. It reports false if the node is not
// vacant any more, or has other checkpoints.
func (f *Fleet) Retire(v Vacancy) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sites[v.Node]
	if s == nil || s.member.ID != v.ID || !f.vacant(s) {
		return false, nil
	}
	for _, id := range f.keptOn(s) {
		if !slices.Contains(v.Checkpoints, id) {
			return false, nil
		}
	}
	if s.member.Retired {
		return true, nil
	}
	m := s.member
	m.Retired = true
	return true, f.setMember(s, m)
}

// Free lets a machine that is retired take another family. First it removes what the machine
// has of the family before.
func (f *Fleet) Free(ctx context.Context, v Vacancy) error {
	s, e, err := f.emptied(v)
	if err != nil || s == nil {
		return err
	}
	if err := f.endLeft(ctx, s, e); err != nil {
		return err
	}
	for _, id := range v.Checkpoints {
		if err := f.freeOf(ctx, s, e, id); err != nil {
			return err
		}
	}
	logs, err := e.NetworkLogs(ctx)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		return err
	}
	for _, id := range logs {
		if err := e.RemoveNetworkLog(ctx, id); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case s.removed || !s.member.Retired:
		return nil
	case s.remote != e || len(s.instances) > 0 || len(s.stale) > 0 || s.holds > 0 || len(f.keptOn(s)) > 0:
		return errNotEmpty
	}
	for id, at := range f.logs {
		if at == s {
			delete(f.logs, id)
		}
	}
	m := s.member
	m.dedication = dedication{Dedicated: true}
	return f.setMember(s, m)
}

// errNotEmpty means that a machine has something left of the family before.
var errNotEmpty = errors.New("the node is away, or has something left of the family before")

// emptied returns the site of a machine that is retired and there, and its engine.
func (f *Fleet) emptied(v Vacancy) (*site, *remote.Engine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sites[v.Node]
	switch {
	case s == nil || s.member.ID != v.ID || !s.member.Retired:
		return nil, nil, nil
	case s.remote == nil || s.running > 0:
		return nil, nil, errNotEmpty
	}
	return s, s.remote, nil
}

// endLeft ends instances that were given up, and removes checkpoints that have moved away, as far
// as that has failed so far.
func (f *Fleet) endLeft(ctx context.Context, s *site, e *remote.Engine) error {
	f.mu.Lock()
	instances, stale := slices.Collect(maps.Keys(s.instances)), slices.Collect(maps.Keys(s.stale))
	f.mu.Unlock()
	for _, id := range instances {
		if err := e.Destroy(ctx, id); err != nil {
			return err
		}
		f.mu.Lock()
		if i := s.instances[id]; i != nil && i.GivenUp {
			f.dropInstance(id)
		}
		f.mu.Unlock()
	}
	for _, id := range stale {
		if err := f.removeStale(ctx, s, e, id); err != nil {
			return err
		}
	}
	return nil
}

// freeOf removes a checkpoint from a machine, if it has not moved elsewhere meanwhile.
func (f *Fleet) freeOf(ctx context.Context, s *site, e *remote.Engine, id string) error {
	f.mu.Lock()
	k := f.checkpoints[id]
	f.mu.Unlock()
	if k == nil || k.site != s {
		return nil
	}
	if err := e.RemoveCheckpoint(ctx, id); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if k := f.checkpoints[id]; k != nil && k.site == s {
		f.dropCheckpoint(id)
	}
	return nil
}
