package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/image"
	"github.com/cove-sh/cove/internal/service/call"
	"github.com/cove-sh/cove/internal/service/ids"
	"github.com/cove-sh/cove/internal/service/validate"
	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

var (
	errBuildCancelled = errors.New("the build was cancelled")
	errBuildTooLong   = errors.New("the build took too long")
)

// builds are those under way in this process.
type builds struct {
	mu      sync.Mutex
	running map[string]*building // by id; guarded by mu
	tidied  time.Time            // guarded by mu; see [Service.tidyBuilds]
	// machines are the sandboxes of builds, which have no record; guarded by mu.
	machines map[string]bool
	// ends are builds that have ended and could not be recorded; guarded by mu.
	ends map[string]store.BuildRecord
}

// building is a build under way.
type building struct {
	s      *Service
	plan   *image.Plan
	from   *store.SnapshotRecord // what it begins with, if that is a snapshot
	usage  store.Usage           // guarded by builds.mu
	log    *buildLog
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when it is over and recorded

	mu       sync.Mutex
	record   store.BuildRecord // guarded by mu
	template *sandbox.Template // guarded by mu; what it made
	err      error             // guarded by mu; why it made nothing
}

// now is the build as callers see it.
func (b *building) now() *sandbox.Build {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.record.Build
	return &out
}

// report tells how it goes. The record has the step.
func (b *building) report(step string, fraction float64, log string) {
	b.mu.Lock()
	changed := step != "" && step != b.record.Step
	if step != "" {
		b.record.Step = step
	}
	if fraction >= 0 {
		b.record.Fraction = max(b.record.Fraction, min(fraction, 1))
	}
	e := sandbox.BuildEvent{Step: b.record.Step, Fraction: b.record.Fraction, Log: log}
	r := b.record
	b.mu.Unlock()
	b.log.add(e)
	if changed {
		if err := b.s.cfg.Store.UpdateBuild(b.s.gate.Context(), r); err != nil && b.s.gate.Context().Err() == nil {
			b.s.log.Warn("record the step of a build", "build", r.ID, "error", err)
		}
	}
}

// startBuild checks a request and begins the build that it asks for.
func (s *Service) startBuild(c *call.Call, req *sandbox.BuildTemplateRequest) (*building, error) {
	if err := checkBuild(req); err != nil {
		return nil, err
	}
	if req.Spec != nil {
		if err := validate.Largest("resources.", req.Spec.Resources, s.cfg.Largest); err != nil {
			return nil, err
		}
	}
	c.Detail = req.Name
	plan, err := s.cfg.Templates.Plan(c.Ctx, *req)
	if err != nil {
		return nil, err
	}
	if req.Login != nil && plan.Spec.From.Image == "" {
		return nil, validate.Errorf("registry_login is for the registry of an image, and template %s does not begin with one; leave it out", validate.Quote(req.Name))
	}
	now := time.Now().UTC()
	b := &building{s: s, plan: plan, cancel: func(error) {}, done: make(chan struct{}), record: store.BuildRecord{
		Team: c.Caller.Team, Build: sandbox.Build{ID: ids.New(ids.Build), Template: plan.Name, State: sandbox.BuildRunning, CreatedAt: now},
	}}
	if plan.Ready != nil {
		return b, b.alreadyThere(c.Ctx)
	}
	if ref := plan.Spec.From.Snapshot; ref != "" {
		if err := s.keeps(); err != nil {
			return nil, err
		}
		snap, err := c.Snapshot(ref)
		if err != nil {
			return nil, err
		}
		b.from = &snap
	}
	if err := s.canBuild(&plan.Spec); err != nil {
		return nil, err
	}
	claimed, err := s.cfg.Templates.Claim(plan.Name, plan.Spec.Resources)
	if err != nil {
		return nil, err
	}
	if err := s.admitBuild(c.Ctx, b); err != nil {
		claimed(sandbox.Errorf(sandbox.CodeCancelled, "it did not begin"))
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(s.gate.Context())
	b.cancel = cancel
	if err := b.begin(c.Ctx); err != nil {
		s.forgetBuild(b)
		claimed(sandbox.Errorf(sandbox.CodeCancelled, "it did not begin"))
		cancel(nil)
		return nil, err
	}
	release := func() {}
	if b.from != nil {
		release = s.use(b.from.Checkpoint)
	}
	c.Go(func() {
		defer release()
		b.run(ctx, claimed)
	})
	return b, nil
}

// begin makes the log and the record.
func (b *building) begin(ctx context.Context) (err error) {
	if b.log, err = b.s.newBuildLog(b.record.ID); err != nil {
		return err
	}
	if err := b.s.cfg.Store.CreateBuild(ctx, b.record); err != nil {
		b.log.end()
		return errors.Join(err, os.Remove(b.s.buildLogFile(b.record.ID)))
	}
	return nil
}

// alreadyThere records a build that has nothing to do.
func (b *building) alreadyThere(ctx context.Context) error {
	defer close(b.done)
	now := time.Now().UTC()
	b.template = b.plan.Ready
	b.record.State, b.record.Step, b.record.Fraction, b.record.EndedAt = sandbox.BuildReady, "ready", 1, &now
	b.record.Version = b.template.Version
	if err := b.begin(ctx); err != nil {
		return err
	}
	b.log.add(sandbox.BuildEvent{Step: "ready", Fraction: 1, Template: b.template})
	b.log.end()
	return nil
}

// admitBuild takes a place for a build, and asks the quota of its team for its
// sandbox: there is one at a time.
func (s *Service) admitBuild(ctx context.Context, b *building) error {
	used, err := s.cfg.Store.SandboxUsage(ctx, b.record.Team)
	if err != nil {
		return err
	}
	s.builds.mu.Lock()
	defer s.builds.mu.Unlock()
	if err := s.builds.room(b.record.Team); err != nil {
		return err
	}
	want := buildUsage(s.buildResources(&b.plan.Spec, nil))
	if err := s.cfg.Quota.Admit(s.builds.beside(used, b.record.Team), want); err != nil {
		return retryLater(err)
	}
	b.usage = want
	if s.builds.running == nil {
		s.builds.running = map[string]*building{}
	}
	s.builds.running[b.record.ID] = b
	return nil
}

func buildUsage(r sandbox.Resources) store.Usage {
	return store.Usage{Sandboxes: 1, VCPUs: r.VCPUs, MemoryMiB: r.MemoryMiB}
}

// room reports whether a team may have one more build. Nobody waits in a line: a
// place that gets free is for whoever asks next, which is never a team that has
// its share, however often it asks.
//
// Preconditions: mu is held.
func (bs *builds) room(team string) error {
	mine := 0
	for _, b := range bs.running {
		if b.record.Team == team { // which does not change
			mine++
		}
	}
	var err *sandbox.Error
	switch all := len(bs.running); {
	case mine >= sandbox.MaxTeamBuilds:
		err = sandbox.Errorf(sandbox.CodeQuotaExceeded, "%d templates are being built for your team, and no more are at once; try again when one is ready, or cancel one", mine)
	case all >= sandbox.MaxBuilds:
		err = sandbox.Errorf(sandbox.CodeQuotaExceeded, "%d templates are being built on this server, and no more are at once; try again when one is ready", all)
	default:
		return nil
	}
	err.RetryAfter = 10 * time.Second
	return err
}

// beside adds to what a team uses what its builds do.
//
// Preconditions: mu is held.
func (bs *builds) beside(used store.Usage, team string) store.Usage {
	for _, b := range bs.running {
		if b.record.Team == team { // which does not change
			used.Sandboxes += b.usage.Sandboxes
			used.VCPUs += b.usage.VCPUs
			used.MemoryMiB += b.usage.MemoryMiB
		}
	}
	return used
}

// growBuild asks the quota of a build's team for what its sandboxes take now
// that it is known what they begin with.
func (s *Service) growBuild(ctx context.Context, b *building, base *image.Foundation) error {
	used, err := s.cfg.Store.SandboxUsage(ctx, b.record.Team)
	if err != nil {
		return err
	}
	s.builds.mu.Lock()
	defer s.builds.mu.Unlock()
	want, before := buildUsage(s.buildResources(&b.plan.Spec, &base.Template)), b.usage
	b.usage = store.Usage{}
	if err := s.cfg.Quota.Admit(s.builds.beside(used, b.record.Team), want); err != nil {
		b.usage = before
		return err
	}
	b.usage = want
	return nil
}

// admitBesideBuilds asks a team's quota for more while it has builds, whose
// sandboxes no record counts.
func (s *Service) admitBesideBuilds(ctx context.Context, team string, more store.Usage) error {
	s.builds.mu.Lock()
	building := s.builds.beside(store.Usage{}, team) != store.Usage{}
	s.builds.mu.Unlock()
	if !building {
		return nil
	}
	used, err := s.cfg.Store.SandboxUsage(ctx, team)
	if err != nil {
		return err
	}
	s.builds.mu.Lock()
	defer s.builds.mu.Unlock()
	return retryLater(s.cfg.Quota.Admit(s.builds.beside(used, team), more))
}

func (s *Service) forgetBuild(b *building) {
	s.builds.mu.Lock()
	defer s.builds.mu.Unlock()
	delete(s.builds.running, b.record.ID)
}

// underWay returns a build that has not ended, or nil.
func (s *Service) underWay(id string) *building {
	s.builds.mu.Lock()
	defer s.builds.mu.Unlock()
	return s.builds.running[id]
}

// anyBuild reports whether one is under way.
func (s *Service) anyBuild() bool {
	s.builds.mu.Lock()
	defer s.builds.mu.Unlock()
	return len(s.builds.running) > 0
}

// run does the build and records how it ended.
func (b *building) run(ctx context.Context, claimed func(error)) {
	s := b.s
	defer close(b.done)
	defer b.cancel(nil)
	ctx, stop := context.WithTimeoutCause(ctx, sandbox.MaxBuildTime, errBuildTooLong)
	defer stop()
	t, err := s.build(ctx, b)
	if err != nil && ctx.Err() != nil {
		err = b.interrupted(ctx)
	}
	if err != nil {
		err = s.gate.Public(err, "template.build")
	}
	claimed(err)
	if err == nil {
		b.golden(ctx, t)
	}
	b.end(t, err)
}

// interrupted says why a build ended that was stopped.
func (b *building) interrupted(ctx context.Context) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errBuildCancelled):
		return sandbox.Errorf(sandbox.CodeCancelled, "the build was cancelled")
	case errors.Is(cause, errBuildTooLong):
		return sandbox.Errorf(sandbox.CodeTimeout, "the build took longer than %s; split it into templates that begin from each other", sandbox.MaxBuildTime)
	}
	return sandbox.Errorf(sandbox.CodeUnavailable, "the server ended while the template was being built; build it again")
}

// golden keeps the state of a first sandbox, so that others begin with it.
// Without one sandboxes are created too, only not as fast.
func (b *building) golden(ctx context.Context, t *sandbox.Template) {
	s := b.s
	if s.keeper == nil || s.cfg.Warm <= 0 {
		return
	}
	b.report("start a sandbox and keep its state", 0.96, "")
	if err := s.prepare(ctx, t.Name, b.record.Team); err != nil && ctx.Err() == nil {
		s.log.Warn("make the golden checkpoint of a template that was built", "template", t.Name, "error", err)
		b.report("", -1, "no state of a first sandbox could be kept; sandboxes boot afresh\n")
	}
}

// end records how a build ended, gives its place back and tells whoever follows
// it.
func (b *building) end(t *sandbox.Template, err error) {
	now := time.Now().UTC()
	b.mu.Lock()
	r := b.record
	b.mu.Unlock()
	r.EndedAt = &now
	last := sandbox.BuildEvent{Template: t}
	switch {
	case err == nil:
		r.State, r.Step, r.Fraction, r.Version = sandbox.BuildReady, "ready", 1, t.Version
	case sandbox.CodeOf(err) == sandbox.CodeCancelled:
		r.State, r.Reason = sandbox.BuildCancelled, sandbox.MessageOf(err)
	default:
		r.State, r.Reason = sandbox.BuildFailed, sandbox.MessageOf(err)
	}
	if last.Step, last.Fraction = r.Step, r.Fraction; err != nil {
		last.Failed = true
		last.Log = strings.TrimSuffix(r.Reason, "\n") + "\n"
	}
	ctx, cancel := call.Teardown(b.s.gate.Context())
	defer cancel()
	if uerr := b.s.cfg.Store.UpdateBuild(ctx, r); uerr != nil {
		// It is tried again. If the server ends before, the next start finds the
		// build running and says that it failed.
		b.s.keepEnd(r)
		b.s.log.Error("record the end of a build", "build", r.ID, "error", uerr)
	}
	b.over(r, last, t, err)
	b.s.log.Info("template build ended", "build", r.ID, "template", r.Template, "state", r.State, "reason", r.Reason)
}

// over tells that a build has ended, and takes it from those under way in the
// same instant: who has heard of the end, in whatever way, finds the place free.
func (b *building) over(r store.BuildRecord, last sandbox.BuildEvent, t *sandbox.Template, err error) {
	b.s.builds.mu.Lock()
	defer b.s.builds.mu.Unlock()
	b.mu.Lock()
	now := &b.record // field by field: the id and the team are read without mu
	now.State, now.Reason, now.Step, now.Fraction, now.Version, now.EndedAt = r.State, r.Reason, r.Step, r.Fraction, r.Version, r.EndedAt
	b.template, b.err = t, err
	b.mu.Unlock()
	b.log.add(last)
	b.log.end()
	delete(b.s.builds.running, r.ID)
}

// failLostBuilds records that builds ended with the daemon that ran them.
func (s *Service) failLostBuilds(ctx context.Context) error {
	for {
		lost, _, err := s.cfg.Store.ListBuilds(ctx, store.BuildFilter{Running: true}, sandbox.Page{Limit: sandbox.MaxPageSize})
		if err != nil || len(lost) == 0 {
			return err
		}
		for _, r := range lost {
			now := time.Now().UTC()
			r.State, r.Reason, r.EndedAt = sandbox.BuildFailed, "the daemon ended while the template was being built; build it again", &now
			if err := s.cfg.Store.UpdateBuild(ctx, r); err != nil {
				return fmt.Errorf("record that build %s is lost: %w", r.ID, err)
			}
		}
	}
}

// trimBuilds forgets builds that ended long ago, with their logs.
func (s *Service) trimBuilds(ctx context.Context) error {
	if _, err := s.cfg.Store.TrimBuilds(ctx, time.Now().Add(-sandbox.BuildRetention)); err != nil {
		return err
	}
	logs, err := filepath.Glob(filepath.Join(s.cfg.BuildDir, ids.Build+"*.log"))
	if err != nil {
		return err
	}
	for _, f := range logs {
		id := strings.TrimSuffix(filepath.Base(f), ".log")
		info, err := os.Stat(f)
		if err != nil || s.underWay(id) != nil || time.Since(info.ModTime()) < time.Hour {
			continue
		}
		if _, err := s.cfg.Store.Build(ctx, id); sandbox.CodeOf(err) == sandbox.CodeNotFound {
			if err := os.Remove(f); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	return nil
}

// buildResources are those of the sandbox in which steps run.
func (s *Service) buildResources(spec *sandbox.TemplateSpec, t *sandbox.Template) sandbox.Resources {
	if t == nil {
		t = &sandbox.Template{}
	}
	return validate.Clamp(sandbox.Resources{
		VCPUs:     cmp.Or(spec.Resources.VCPUs, t.Resources.VCPUs, sandbox.DefaultVCPUs),
		MemoryMiB: cmp.Or(spec.Resources.MemoryMiB, t.Resources.MemoryMiB, sandbox.DefaultMemoryMiB),
		DiskMiB:   cmp.Or(spec.Resources.DiskMiB, t.Resources.DiskMiB, sandbox.DefaultDiskMiB),
		MaxPIDs:   cmp.Or(spec.Resources.MaxPIDs, t.Resources.MaxPIDs, sandbox.DefaultMaxPIDs),
	}, s.cfg.Largest)
}

// usageOf is what new sandboxes add to what their team uses.
func usageOf(records ...store.Record) store.Usage {
	var u store.Usage
	for i := range records {
		u.Sandboxes++
		u.VCPUs += records[i].Resources.VCPUs
		u.MemoryMiB += records[i].Resources.MemoryMiB
	}
	return u
}
