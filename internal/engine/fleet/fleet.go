// Package fleet is an engine that consists of the engines of several machines: the
// server's own, if it has one, and those of nodes that connect and go.
//
// A node that is away keeps its sandboxes for a lease. After that they have failed, and
// the node must end them before it is driven again: a record of each of its instances,
// in a file, says whether it is still wanted. So no instance runs that is believed to have
// ended, once its node can be reached; ids of instances are never used again.
//
// Nodes are trusted with the sandboxes that run on them and with nothing else: what a node
// says about instances, sandboxes and checkpoints that are not its own is ignored.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// DefaultLease is how long a node may be away before its sandboxes fail.
const DefaultLease = time.Minute

// Config configures a [Fleet].
type Config struct {
	// Local is the engine of this machine, or nil. The fleet closes it.
	Local engine.Engine
	// LocalReport says what this machine has; required with Local.
	LocalReport func() remote.Report
	// Files has what is known of nodes.
	Files durable.Files
	// Epoch is larger than that of each server before, which nodes then refuse; 0 is that
	// nobody counts.
	Epoch int64
	// Lease is how long a node may be away; 0 is [DefaultLease].
	Lease time.Duration
	// Rest is how long nothing must have begun or ended on a dedicated node before it is vacant;
	// 0 is [DefaultRest].
	Rest time.Duration
	// Shared opens the content of a file that exports share, by [engine.ExportFile].Shared, if
	// this machine has it itself. What a node sends as such a file is never taken: other
	// machines run it. Nil has none.
	Shared func(name string) (content io.ReadCloser, err error)
	Log    *slog.Logger
}

// Fleet implements [engine.Engine] and all optional abilities of engines.
type Fleet struct {
	cfg   Config
	log   *slog.Logger
	local *site // nil if there is none

	mu    sync.Mutex
	sites map[string]*site // guarded by mu; nodes by name
	// instances are those on nodes, which their sites have too; see put. Guarded by mu.
	instances map[string]*entry
	// checkpoints are those on nodes and on this machine. Guarded by mu.
	checkpoints map[string]*kept
	logs        map[string]*site // guarded by mu; where a sandbox's network log is
	here        int              // guarded by mu; instances made on this machine that were not destroyed
	started     bool             // guarded by mu; see [Fleet.Started]
	closed      bool             // guarded by mu
	// everDedicated says that dedicated nodes have joined, and may do so again. Guarded by mu.
	everDedicated bool

	// notBefore is until when no lease ends, and shorter the timer that records that; see
	// [Fleet.loadLease].
	notBefore time.Time
	shorter   *time.Timer // nil if there is none

	// attached is closed, and replaced, when a node attaches. Guarded by mu.
	attached chan struct{}

	reached func()                                                                            // guarded by mu; see [Fleet.OnReach]
	failed  func(engine.Status)                                                               // guarded by mu
	asked   func(instanceID string, open []engine.Question)                                   // guarded by mu
	peers   func(ctx context.Context, fromSandboxID, name string, port int) (net.Conn, error) // guarded by mu

	wg sync.WaitGroup
}

// site is a place for instances. All fields but name and the mutexes are guarded by Fleet.mu.
type site struct {
	name   string
	local  engine.Engine  // of this machine, or nil
	remote *remote.Engine // of a node that is connected, or nil
	member member

	address string
	report  remote.Report
	seen    time.Time   // when the node last answered
	lease   *time.Timer // runs while the node is away
	until   time.Time   // when the lease that was begun last runs out
	lost    bool        // the lease has run out
	pending int64       // memory of instances made since the report, in bytes
	warm    []engine.WarmSpec
	stale   map[string]bool // checkpoints that the node must remove
	// instances are those of Fleet.instances that are here, of which so many are believed to
	// run. Placement asks for the number of each site for each new sandbox.
	instances map[string]*entry
	running   int
	removed   bool
	starting  sync.Mutex // held by attach
	// busy is when something last began or ended on a dedicated node, and holds how much else
	// goes on there, such as that a checkpoint is made or read.
	busy  time.Time
	holds int
	// givingUp is set while the instances are given up: nothing else may change their records.
	givingUp bool
	// expiring is held while the instances are given up, and to let a node begin a lease or be
	// there again, which must not happen meanwhile. It is locked before Fleet.mu.
	expiring sync.Mutex
}

func newSite(name string) *site {
	return &site{name: name, stale: map[string]bool{}, instances: map[string]*entry{}}
}

var (
	_ engine.Engine        = (*Fleet)(nil)
	_ engine.Checkpointer  = (*Fleet)(nil)
	_ engine.Admitter      = (*Fleet)(nil)
	_ engine.Ender         = (*Fleet)(nil)
	_ engine.Inquirer      = (*Fleet)(nil)
	_ engine.Switch        = (*Fleet)(nil)
	_ engine.NetworkLogger = (*Fleet)(nil)
	_ engine.Placer        = (*Fleet)(nil)
	_ engine.Portable      = (*Fleet)(nil)
	_ engine.Scattered     = (*Fleet)(nil)
)

// validName matches names of nodes, which are names of directories and of certificates.
var validName = lazyregexp.New(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// New returns a fleet with the nodes that have joined. The leases of all begin anew.
func New(cfg Config) (*Fleet, error) {
	if cfg.Lease == 0 {
		cfg.Lease = DefaultLease
	}
	cfg.Rest = cmp.Or(cfg.Rest, DefaultRest)
	f := &Fleet{
		cfg: cfg, log: cfg.Log, sites: map[string]*site{}, instances: map[string]*entry{}, checkpoints: map[string]*kept{}, logs: map[string]*site{}, attached: make(chan struct{}),
		failed: func(engine.Status) {}, asked: func(string, []engine.Question) {}, reached: func() {},
	}
	if cfg.Local != nil {
		f.local = &site{name: sandbox.LocalNode, local: cfg.Local, report: cfg.LocalReport()}
	}
	if err := f.load(); err != nil {
		return nil, fmt.Errorf("open the nodes: %w", err)
	}
	if err := f.loadLocal(); err != nil {
		return nil, err
	}
	if err := errors.Join(f.loadLease(), f.loadDedicated()); err != nil {
		return nil, fmt.Errorf("open the nodes: %w", err)
	}
	for _, s := range f.sites {
		f.runLease(s, cfg.Lease)
	}
	return f, nil
}

// Available returns nil if a node can join with a name. A name that is taken is a conflict.
func (f *Fleet) Available(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.available(name)
}

// available is [Fleet.Available]. The caller holds f.mu.
func (f *Fleet) available(name string) error {
	if !validName.MatchString(name) || name == sandbox.LocalNode {
		return sandbox.Errorf(sandbox.CodeInvalid, "%.80q is not valid as the name of a node; use up to 63 lower-case letters, digits, dots and dashes, and not %q", name, sandbox.LocalNode)
	}
	if f.sites[name] != nil {
		return sandbox.Errorf(sandbox.CodeConflict, "there is a node %s already; choose another name with --name, or remove the old one with: cove node rm %s", name, name)
	}
	return nil
}

// Join adds a node, which may be dedicated. A name that is taken is a conflict.
func (f *Fleet) Join(name, id string, dedicated bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.available(name); err != nil {
		return err
	}
	if dedicated {
		if err := f.noteDedicated(); err != nil {
			return err
		}
	}
	s := newSite(name)
	s.member, s.lost = member{ID: id, JoinedAt: time.Now().UTC(), dedication: dedication{Dedicated: dedicated}}, true
	if err := f.saveMember(s); err != nil {
		return err
	}
	f.sites[name] = s
	return nil
}

// IsMember reports whether a node with this name and id has joined and not been removed.
func (f *Fleet) IsMember(name, id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sites[name]
	return s != nil && s.member.ID == id
}

// Started says that whoever drives the fleet has seen all instances of the nodes that were
// connected so far. From now on, instances that no record names end with the next
// connection of their node.
func (f *Fleet) Started() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = true
}

// Await waits until all nodes with instances are connected, or ctx ends.
func (f *Fleet) Await(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for f.absent() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (f *Fleet) absent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.instances {
		if !e.GivenUp && e.site.remote == nil {
			return true
		}
	}
	return false
}

// Drain keeps new sandboxes from a node, or takes them again if req is nil. That
// sandboxes move is only noted here; see [Fleet.Moving].
func (f *Fleet) Drain(name string, req *sandbox.DrainRequest) (sandbox.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.site(name)
	if err != nil {
		return sandbox.Node{}, err
	}
	m := s.member
	m.Draining, m.Moving, m.Resume = req != nil, req != nil && req.Move, req != nil && req.Resume
	m.Leaving, m.Before = false, asked{}
	return f.nodeOf(s), f.setMember(s, m)
}

// setMember changes the record of a site. The one of this machine lasts until the next
// start. The caller holds f.mu.
func (f *Fleet) setMember(s *site, m member) error {
	if s.removed {
		return sandbox.Wrap(sandbox.CodeUnavailable, errAway, "node "+s.name+" was removed")
	}
	before := s.member
	s.member = m
	if s == f.local {
		return nil
	}
	err := f.saveMember(s)
	if err != nil {
		s.member = before
	}
	return err
}

// Leave drains a node that stops, and has its sandboxes move, until it returns.
func (f *Fleet) Leave(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.site(name)
	if err != nil {
		return err
	}
	m := s.member
	if m.Retired && s.running == 0 {
		return sandbox.Errorf(sandbox.CodeNotFound, "node %s has nothing to move, and is being replaced", name)
	}
	if !m.Leaving {
		m.Leaving, m.Before = true, asked{m.Draining, m.Moving, m.Resume}
	}
	m.Draining, m.Moving = true, true
	return f.setMember(s, m)
}

// Return undoes [Fleet.Leave]: what was asked for before holds again. It reports whether
// there was something to undo.
func (f *Fleet) Return(name string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.site(name)
	if err != nil || !s.member.Leaving {
		return false, err
	}
	m := s.member
	m.Draining, m.Moving, m.Resume = m.Before.Draining, m.Before.Moving, m.Before.Resume
	m.Leaving, m.Before = false, asked{}
	return true, f.setMember(s, m)
}

// Moving returns the nodes whose sandboxes are to move, and how.
func (f *Fleet) Moving() map[string]sandbox.DrainRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]sandbox.DrainRequest{}
	for _, s := range append(slices.Collect(maps.Values(f.sites)), f.local) {
		if s != nil && s.member.Moving {
			all[s.name] = sandbox.DrainRequest{Move: true, Resume: s.member.Resume}
		}
	}
	return all
}

// site returns a site by its name. The caller holds f.mu.
func (f *Fleet) site(name string) (*site, error) {
	if f.local != nil && name == f.local.name {
		return f.local, nil
	}
	if s := f.sites[name]; s != nil {
		return s, nil
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no node %.80q; list them with: cove node ls", name)
}

// Remove removes a node for ever: its certificate is refused, and what was on it is gone.
// A node on which sandboxes run is a conflict.
func (f *Fleet) Remove(name string) error { return f.RemoveMember(name, "") }

// RemoveMember is [Fleet.Remove] of the node with this id, unless that is empty. If another
// node has the name, nothing happens.
func (f *Fleet) RemoveMember(name, id string) error {
	f.mu.Lock()
	s, err := f.site(name)
	if id != "" && (err != nil || s.member.ID != id) {
		f.mu.Unlock()
		return nil
	}
	if err == nil && s == f.local {
		err = sandbox.Errorf(sandbox.CodeInvalid, "%s is the server's own machine; to use nodes only, start the server with --nodes-only", name)
	}
	if err == nil {
		if n := s.running; n > 0 {
			err = sandbox.Errorf(sandbox.CodeConflict, "%d sandboxes run on node %s; kill them first, or wait until the node is lost", n, name)
		}
	}
	if err == nil {
		err = f.forget(s)
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if s.remote != nil {
		s.remote.Close()
	}
	return nil
}

// forget removes all that is known of a node. The caller holds f.mu.
func (f *Fleet) forget(s *site) error {
	if err := f.cfg.Files.RemoveAll(s.name); err != nil {
		return err
	}
	s.removed = true
	delete(f.sites, s.name)
	for id := range s.instances {
		f.take(id)
	}
	for id, k := range f.checkpoints {
		if k.site == s {
			delete(f.checkpoints, id)
		}
	}
	for id, at := range f.logs {
		if at == s {
			delete(f.logs, id)
		}
	}
	if s.lease != nil {
		s.lease.Stop()
	}
	return nil
}

// Nodes lists all machines by name, this one first.
func (f *Fleet) Nodes(ctx context.Context) []sandbox.Node {
	var list []sandbox.Node
	f.mu.Lock()
	for _, s := range f.sites {
		list = append(list, f.nodeOf(s))
	}
	f.mu.Unlock()
	slices.SortFunc(list, func(a, b sandbox.Node) int { return strings.Compare(a.Name, b.Name) })
	if f.local == nil {
		return list
	}
	all, _ := f.local.local.List(ctx) // its errors are the service's to report
	f.mu.Lock()
	here := f.nodeOf(f.local)
	f.mu.Unlock()
	for _, st := range all {
		if st.Running {
			here.Sandboxes++
		}
	}
	return append([]sandbox.Node{here}, list...)
}

// nodeOf describes a site. The caller holds f.mu.
func (f *Fleet) nodeOf(s *site) sandbox.Node {
	if s == f.local {
		s.report, s.seen = f.cfg.LocalReport(), time.Now()
	}
	n := sandbox.Node{Name: s.name, Address: s.address, Version: s.report.Version, State: f.stateOf(s), Sandboxes: s.running, Dedicated: s.member.Dedicated, DedicatedTo: s.member.Family}
	n.FreeMemoryMiB, n.FreeDiskMiB = max(0, s.report.FreeMemory>>20), max(0, s.report.FreeDisk>>20)
	if !s.seen.IsZero() {
		at := s.seen.UTC()
		n.LastSeenAt = &at
	}
	return n
}

func (f *Fleet) stateOf(s *site) sandbox.NodeState {
	switch {
	case s.local == nil && s.remote == nil && s.lost:
		return sandbox.NodeLost
	case s.local == nil && s.remote == nil:
		return sandbox.NodeUnreachable
	case s.member.Draining || s.member.Retired:
		return sandbox.NodeDraining
	}
	return sandbox.NodeReady
}

// Close implements [engine.Engine].
func (f *Fleet) Close() error {
	f.mu.Lock()
	f.closed = true
	if f.shorter != nil {
		f.shorter.Stop()
	}
	var open []*remote.Engine
	for _, s := range f.sites {
		if s.remote != nil {
			open = append(open, s.remote)
		}
		if s.lease != nil {
			s.lease.Stop()
		}
	}
	f.mu.Unlock()
	var errs []error
	for _, e := range open {
		errs = append(errs, e.Close())
	}
	f.wg.Wait()
	if f.local != nil {
		errs = append(errs, f.local.local.Close())
	}
	return errors.Join(errs...)
}

// away is the error of calls on a node that is not connected. The caller holds f.mu.
func (f *Fleet) away(s *site) error {
	if s.lost {
		return sandbox.Errorf(sandbox.CodeUnavailable, "node %s, which has the sandbox's state, is lost; start the node again, or remove it with: cove node rm %s", s.name, s.name)
	}
	return sandbox.Errorf(sandbox.CodeUnavailable, "node %s, which has the sandbox, cannot be reached; try again when it is back. If it is away for more than %s, its running sandboxes fail", s.name, f.cfg.Lease)
}
