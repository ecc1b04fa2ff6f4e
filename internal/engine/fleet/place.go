package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// A new sandbox is expected to use 1/growthShare of its memory limit soon, but at most
	// maxGrowth bytes. The node itself decides; this only spreads sandboxes.
	growthShare = 4
	maxGrowth   = 128 << 20
	// diskFloor is how much disk must be free on a node that is chosen, in bytes.
	diskFloor = 64 << 20
	// Nodes whose free memory differs by less than 1/tieShare are equal.
	tieShare = 8
	// returnTimeout bounds how long a new instance waits for a node when all are away: after a
	// restart of the server or a cut of the network they are back within a second.
	returnTimeout = 5 * time.Second
)

func growth(r sandbox.Resources) int64 { return min(r.MemoryMiB<<20/growthShare, maxGrowth) }

// Place implements [engine.Placer].
func (f *Fleet) Place(r sandbox.Resources) string {
	all, _ := f.candidates(&engine.Spec{Resources: r})
	if len(all) == 0 {
		return ""
	}
	return all[0].name
}

// PlaceOf implements [engine.Placer].
func (f *Fleet) PlaceOf(of engine.Source) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.instances[of.Instance]; e != nil && (!e.GivenUp || of.Checkpoint == "") {
		return e.site.name
	}
	if k := f.checkpoints[of.Checkpoint]; k != nil {
		return k.site.name
	}
	if f.local != nil {
		return f.local.name
	}
	return ""
}

// everySite returns all nodes, and this machine if it runs sandboxes.
//
// Preconditions: f.mu is held.
func (f *Fleet) everySite() []*site {
	sites := make([]*site, 0, len(f.sites)+1)
	if f.local != nil {
		sites = append(sites, f.local)
	}
	return slices.AppendSeq(sites, maps.Values(f.sites))
}

// awaitNodes waits for a while, if no site is there for dedicated sandboxes, or for others, but
// the lease of a node that takes new instances has not run out, until one is.
func (f *Fleet) awaitNodes(ctx context.Context, dedicated bool) {
	ctx, cancel := context.WithTimeout(ctx, returnTimeout)
	defer cancel()
	for {
		attached := f.returning(dedicated)
		if attached == nil {
			return
		}
		select {
		case <-attached:
		case <-ctx.Done():
			return
		}
	}
}

// returning returns a channel that is closed when a node attaches; or nil if a site is there,
// or none is expected that takes new instances.
func (f *Fleet) returning(dedicated bool) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	expected := false
	for _, s := range f.everySite() {
		if s.member.Dedicated != dedicated {
			continue
		}
		if s.local != nil || s.remote != nil {
			return nil
		}
		expected = expected || !s.lost && !s.member.Draining && !s.member.Retired
	}
	if !expected {
		return nil
	}
	return f.attached
}

// candidates returns the sites that can have a new instance, the best first. The error
// says why there are none.
func (f *Fleet) candidates(spec *engine.Spec) ([]*site, error) {
	var here remote.Report
	if f.local != nil {
		here = f.cfg.LocalReport()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.local != nil {
		f.local.report = here
	}
	sites := f.everySite()
	bound := slices.ContainsFunc(spec.Mounts, func(m engine.Mount) bool { return m.Source != "" })
	ready, large := 0, 0
	var fit []*site
	for _, s := range sites {
		if f.stateOf(s) != sandbox.NodeReady || bound && s != f.local || !s.takes(spec.Family) {
			continue
		}
		ready++
		if !holds(s.report.Capacity, spec.Resources) {
			continue
		}
		large++
		if s.report.FreeMemory-s.pending >= growth(spec.Resources) && s.report.FreeDisk >= diskFloor {
			fit = append(fit, s)
		}
	}
	switch {
	case spec.Family != "" && ready == 0:
		return nil, f.noDedicated(bound)
	case bound && f.local == nil:
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "volumes and directories of the host are on the server's machine, which runs no sandboxes (--nodes-only); leave mounts out")
	case ready == 0 && f.onlyDedicated():
		return nil, noRoom("all nodes of this server are for dedicated sandboxes; ask for one of these, or add a node that is not dedicated")
	case ready == 0:
		return nil, noRoom("no node takes new sandboxes now: all are away or draining; see cove node ls")
	case large == 0:
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "no node is large enough for %d vCPUs and %d MiB of memory; ask for less", spec.Resources.VCPUs, spec.Resources.MemoryMiB)
	case len(fit) == 0:
		return nil, noRoom("no node has room for another sandbox; kill or pause sandboxes that are no longer needed, add a node, or retry later")
	}
	f.sort(fit, spec.Resources.DiskMiB)
	if spec.Family != "" {
		slices.SortStableFunc(fit, func(a, b *site) int { return cmp.Compare(b.member.Family, a.member.Family) }) // its own first
	}
	return fit, nil
}

// sort puts the sites first that have as large a disk; of these, the one with the most free
// memory, and of about equal ones, the one with the fewest instances. An instance takes only
// the disk that it writes, so that those with a smaller disk remain. The caller holds f.mu.
func (f *Fleet) sort(sites []*site, disk int64) {
	most := int64(0)
	for _, s := range sites {
		most = max(most, s.report.FreeMemory)
	}
	small := func(s *site) int64 {
		if has := s.report.Capacity.DiskMiB; has > 0 {
			return max(0, disk-has)
		}
		return 0
	}
	class := func(s *site) int64 { return (most - s.report.FreeMemory) / max(1, most/tieShare) }
	slices.SortFunc(sites, func(a, b *site) int {
		return cmp.Or(cmp.Compare(small(a), small(b)), cmp.Compare(class(a), class(b)), cmp.Compare(f.instancesOf(a), f.instancesOf(b)), cmp.Compare(a.name, b.name))
	})
}

// holds reports whether a site with these resources can hold an instance.
func holds(has, wants sandbox.Resources) bool {
	return (has.VCPUs == 0 || wants.VCPUs <= has.VCPUs) && (has.MemoryMiB == 0 || wants.MemoryMiB <= has.MemoryMiB)
}

// instancesOf counts the instances of a site. The caller holds f.mu.
func (f *Fleet) instancesOf(s *site) int {
	if s == f.local {
		return f.here
	}
	return s.running
}

// noRoomRetry is the delay after which a start without room may be tried again.
const noRoomRetry = 10 * time.Second

func noRoom(message string) error {
	err := sandbox.Wrap(sandbox.CodeQuotaExceeded, engine.ErrNoRoom, message)
	err.RetryAfter = noRoomRetry
	return err
}
