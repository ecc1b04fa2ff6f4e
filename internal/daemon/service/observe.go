package service

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/events"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

// lookers bounds the sandboxes that are asked for their usage at the same time.
const lookers = 8

// ListProcesses implements [sandbox.Observe].
func (s *Service) ListProcesses(ctx context.Context, ref string, page sandbox.Page) (*sandbox.List[sandbox.Process], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Process], error) {
		h, err := s.openFor(c, ref)
		if err != nil {
			return nil, err
		}
		processes, err := h.client.ListProcesses(c.Ctx)
		if err != nil {
			return nil, h.explain(c.Ctx, err)
		}
		return call.PageOf("processes", processes, page, func(p *sandbox.Process) store.Place { return store.Place{Number: int64(p.PID)} })
	})
}

// SignalProcess implements [sandbox.Observe].
func (s *Service) SignalProcess(ctx context.Context, ref string, pid int, signal string) error {
	return call.Run(ctx, s.gate, call.Audited(sandbox.ScopeSandboxesWrite, "process.signal"), func(c *call.Call) error {
		sig, err := agentclient.ParseSignal(signal)
		if err != nil {
			return validate.Errorf("signal %s is not valid; %w", validate.Quote(signal), err)
		}
		// To the kernel, 0 and negative ids mean several processes; 1 is the agent.
		if pid < 2 || pid > 1<<30 {
			return validate.Errorf("pid is %d; use a process id of 2 or more from the list of processes", pid)
		}
		h, err := s.openFor(c, ref)
		if err != nil {
			return err
		}
		c.Detail = fmt.Sprintf("%d signal %d", pid, sig)
		return h.explain(c.Ctx, h.client.SignalProcess(c.Ctx, pid, sig))
	})
}

// usage returns what a running sandbox uses. Processes is counted inside; it is
// 0 if the sandbox is too busy to answer.
func (s *Service) usage(ctx context.Context, h *handle, r *store.Record) (*sandbox.Stats, error) {
	host, err := h.instance.Stats(ctx)
	if err != nil {
		return nil, h.explain(ctx, call.Unavailable(err, "sandbox %s does not report what it uses; try again", r.ID))
	}
	st := &sandbox.Stats{
		SandboxID: r.ID, CPUSeconds: float64(host.CPUNanos) / 1e9,
		MemoryBytes: host.MemoryBytes, MemoryMaxBytes: r.Resources.MemoryMiB << 20, PrivateBytes: host.PrivateBytes,
		DiskBytes: host.DiskBytes, DiskMaxBytes: r.Resources.DiskMiB << 20,
		NetworkInBytes: host.NetRxBytes, NetworkOutBytes: host.NetTxBytes,
	}
	began := time.Now()
	inside, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	a, err := h.client.Stats(inside)
	switch {
	case err == nil:
		h.heard()
		st.Processes = a.Processes
	case inside.Err() != nil && ctx.Err() == nil:
		s.suspect(ctx, h, began)
	}
	return st, nil
}

// ListStats implements [sandbox.Observe].
func (s *Service) ListStats(ctx context.Context, req sandbox.StatsRequest) (*sandbox.List[sandbox.SandboxStats], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.SandboxStats], error) {
		records, next, err := s.watched(c, &req)
		if err != nil {
			return nil, err
		}
		list := &sandbox.List[sandbox.SandboxStats]{Items: make([]sandbox.SandboxStats, len(records)), NextCursor: next}
		var g errgroup.Group
		g.SetLimit(lookers)
		for i := range records {
			r := &records[i]
			st := &list.Items[i]
			*st = sandbox.SandboxStats{ID: r.ID, Name: r.Name, Namespace: r.Namespace, State: r.State}
			if r.State != sandbox.StateRunning {
				continue
			}
			g.Go(func() error {
				s.look(c.Ctx, r, st)
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return nil, err
		}
		return list, c.Ctx.Err()
	})
}

// watched returns a page of the records that a request selects, newest first,
// and the cursor of the next.
func (s *Service) watched(c *call.Call, req *sandbox.StatsRequest) ([]store.Record, string, error) {
	if req.Sandbox != "" {
		switch _, err := store.PageLimit(req.Page); {
		case err != nil:
			return nil, "", err
		case req.Namespace != "":
			return nil, "", validate.Errorf("sandbox and namespace are both given; use one of them")
		case req.Cursor != "":
			return nil, "", validate.Errorf("a cursor does not work with sandbox; leave one of them out")
		}
		r, err := c.Resolve(req.Sandbox)
		return []store.Record{r}, "", err
	}
	f, err := s.filterFor(c, &sandbox.ListRequest{Namespace: req.Namespace})
	if err != nil {
		return nil, "", err
	}
	return s.cfg.Store.ListSandboxes(c.Ctx, f, req.Page)
}

// look fills in what a running sandbox uses, or nothing if the sandbox ends meanwhile
// or does not answer.
func (s *Service) look(ctx context.Context, r *store.Record, st *sandbox.SandboxStats) {
	h, err := s.openRecord(ctx, r)
	if err != nil {
		return
	}
	used, err := s.usage(ctx, h, r)
	if err != nil {
		return
	}
	st.Stats, st.CPUPercent = used, s.meter.percent(h, r.StartedAt, used.CPUSeconds)
}

// ListDeliveries implements [sandbox.Observe].
func (s *Service) ListDeliveries(ctx context.Context, ref string, page sandbox.Page) (*sandbox.List[sandbox.Delivery], error) {
	return s.webhooks.ListDeliveries(ctx, ref, page)
}

// StatsSeries implements [sandbox.Observe].
func (s *Service) StatsSeries(ctx context.Context, ref string, req sandbox.StatsSeriesRequest) (*sandbox.List[sandbox.StatsPoint], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.StatsPoint], error) {
		if err := validate.Range("max_points", int64(req.MaxPoints), 0, int64(sandbox.StatsRetention/sandbox.StatsInterval)); err != nil {
			return nil, err
		}
		since := time.Now().Add(-sandbox.StatsRetention)
		if req.Since != nil {
			// A minute allows for a client's clock that is behind.
			if req.Since.Before(since.Add(-time.Minute)) {
				return nil, validate.Errorf("since is more than %s ago, longer than statistics are kept; use a later time", sandbox.StatsRetention)
			}
			since = *req.Since
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		return &sandbox.List[sandbox.StatsPoint]{Items: thin(s.meter.points(r.ID, since), req.MaxPoints)}, nil
	})
}

// thin reduces points to most, each of which stands for several: it has the mean of
// their CPU percentages, and the last one's other values.
func thin(points []sandbox.StatsPoint, most int) []sandbox.StatsPoint {
	if most == 0 || len(points) <= most {
		return points
	}
	out := make([]sandbox.StatsPoint, 0, most)
	for i := range most {
		group := points[i*len(points)/most : (i+1)*len(points)/most]
		sum := 0.0
		for _, p := range group {
			sum += p.CPUPercent
		}
		last := group[len(group)-1]
		last.CPUPercent = sum / float64(len(group))
		out = append(out, last)
	}
	return out
}

// meter keeps what sandboxes have used, in memory only.
type meter struct {
	mu     sync.Mutex
	series map[string]*series // by sandbox; guarded by mu
	// primed says that all sandboxes were measured once: what a sandbox had sent before
	// the daemon started does not count in the totals. Guarded by mu.
	primed        bool
	netIn, netOut int64 // of all sandboxes, including ended ones; guarded by mu
}

// series is what one sandbox has used.
type series struct {
	ring []sandbox.StatsPoint // oldest at next once it is full
	next int
	// The last measurement of its processor time: which instance, when, and the
	// percentage that it gave.
	instance string
	at       time.Time
	cpu      float64
	percent  float64
	// The last measurement of its network, and which instance it was.
	netInstance   string
	netIn, netOut int64
}

const seriesLength = int(sandbox.StatsRetention / sandbox.StatsInterval)

// leastLook is the shortest time for which a CPU percentage is computed: in a shorter
// time the delay of a reading counts too much.
const leastLook = 250 * time.Millisecond

func (m *meter) of(id string) *series {
	if m.series == nil {
		m.series = map[string]*series{}
	}
	one := m.series[id]
	if one == nil {
		one = &series{}
		m.series[id] = one
	}
	return one
}

// percent returns the CPU percentage of a sandbox since it was last measured, or since
// it was started.
func (m *meter) percent(h *handle, started *time.Time, cpuSeconds float64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of(h.id).share(h.instance.ID(), int(h.vcpus.Load()), started, time.Now(), cpuSeconds)
}

// share records a measurement of the processor time, and returns the percentage since
// the previous one. A measurement within leastLook of the previous one is not recorded
// and returns that one's percentage. The result is at most 100 for each of the
// sandbox's processors; anything above that is the delay between a reading and its
// time.
func (one *series) share(instance string, vcpus int, started *time.Time, now time.Time, cpu float64) float64 {
	if one.instance == instance && now.Sub(one.at) < leastLook && cpu >= one.cpu {
		return one.percent
	}
	since, used := one.at, cpu-one.cpu
	if one.instance != instance || used < 0 {
		used, since = cpu, now
		if one.at.IsZero() && started != nil {
			since = *started
		}
	}
	one.instance, one.at, one.cpu, one.percent = instance, now, cpu, 0
	if d := now.Sub(since); d >= leastLook {
		one.percent = min(100*used/d.Seconds(), 100*float64(vcpus))
	}
	return one.percent
}

func (one *series) latest() sandbox.StatsPoint {
	return one.ring[(one.next+len(one.ring)-1)%len(one.ring)]
}

func (m *meter) add(h *handle, started *time.Time, st *sandbox.Stats) sandbox.StatsPoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	one, now := m.of(h.id), time.Now()
	m.carry(one, h.instance.ID(), st.NetworkInBytes, st.NetworkOutBytes)
	p := sandbox.StatsPoint{
		Time: now.UTC(), CPUPercent: one.share(h.instance.ID(), int(h.vcpus.Load()), started, now, st.CPUSeconds), MemoryBytes: st.MemoryBytes, DiskBytes: st.DiskBytes,
		Processes: st.Processes, NetworkInBytes: st.NetworkInBytes, NetworkOutBytes: st.NetworkOutBytes,
	}
	if len(one.ring) < seriesLength {
		one.ring = append(one.ring, p)
		return p
	}
	one.ring[one.next] = p
	one.next = (one.next + 1) % seriesLength
	return p
}

// carry adds to the totals what a sandbox has received and sent since the previous
// measurement. A new instance counts from 0.
//
// Preconditions: m.mu is held.
func (m *meter) carry(one *series, instance string, in, out int64) {
	if one.netInstance != instance {
		one.netInstance, one.netIn, one.netOut = instance, 0, 0
	}
	if m.primed {
		m.netIn += max(0, in-one.netIn)
		m.netOut += max(0, out-one.netOut)
	}
	one.netIn, one.netOut = in, out
}

// network returns what all sandboxes have received and sent, as of their last
// measurements.
func (m *meter) network() (in, out int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.netIn, m.netOut
}

// looked records that every running sandbox was measured.
func (m *meter) looked() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.primed = true
}

// points returns the points of a sandbox since a time, oldest first.
func (m *meter) points(id string, since time.Time) []sandbox.StatsPoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := []sandbox.StatsPoint{}
	one := m.series[id]
	if one == nil {
		return out
	}
	for i := range one.ring {
		if p := one.ring[(one.next+i)%len(one.ring)]; !p.Time.Before(since) {
			out = append(out, p)
		}
	}
	return out
}

// forget drops the series of sandboxes that have no point after a time.
func (m *meter) forget(before time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, one := range m.series {
		if one.at.Before(before) {
			delete(m.series, id)
		}
	}
}

// sum adds up the latest points of the running sandboxes.
func (m *meter) sum(handles map[string]*handle) (total sandbox.StatsPoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range handles {
		one := m.series[id]
		if one == nil || len(one.ring) == 0 {
			continue
		}
		p := one.latest()
		total.CPUPercent += p.CPUPercent
		total.MemoryBytes += p.MemoryBytes
		total.DiskBytes += p.DiskBytes
		total.Processes += p.Processes
	}
	return total
}

// meterLoop measures the running sandboxes every [sandbox.StatsInterval].
func (s *Service) meterLoop() {
	t := time.NewTicker(cmp.Or(s.cfg.statsInterval, sandbox.StatsInterval))
	defer t.Stop()
	for {
		select {
		case <-s.gate.Context().Done():
			return
		case <-t.C:
			s.measure(s.gate.Context())
		}
	}
}

// measure measures each running sandbox once.
func (s *Service) measure(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(lookers / 2)
	for _, h := range s.running() {
		g.Go(func() error {
			limited, cancel := context.WithTimeout(ctx, 3*lookTimeout)
			defer cancel()
			// A sandbox that does not answer gets no point for this time.
			if st, err := s.usage(limited, h, &store.Record{}); err == nil {
				point := s.meter.add(h, nil, st)
				s.events.Add(events.Entry{Team: h.realm.Team, Namespace: h.realm.Namespace, Event: sandbox.Event{Kind: sandbox.EventStats, SandboxID: h.id, Stats: &point}})
			}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
	s.events.KeepSamples(s.isOpen)
	s.meter.looked()
	s.meter.forget(time.Now().Add(-sandbox.StatsRetention))
}

// running returns the handles of the running sandboxes.
func (s *Service) running() map[string]*handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	handles := make(map[string]*handle, len(s.handles))
	for id, h := range s.handles {
		handles[id] = h
	}
	return handles
}

// Stats implements [sandbox.Sandboxes]. Processes is counted inside; it is 0
// if the sandbox is too busy to answer.
func (s *Service) Stats(ctx context.Context, ref string) (*sandbox.Stats, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Stats, error) {
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		h, err := s.openRecord(c.Ctx, &r)
		if err != nil {
			return nil, err
		}
		return s.usage(c.Ctx, h, &r)
	})
}
