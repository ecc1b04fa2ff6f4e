package builds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/sandbox"
)

var (
	errBuildCancelled = errors.New("the build was cancelled")
	errBuildTooLong   = errors.New("the build took too long")
)

// Config says what a [Builder] works with.
type Config struct {
	Gate      *call.Gate
	Store     store.Store
	Engine    engine.Engine
	Templates Templates
	Log       *slog.Logger
	Quota     store.Quota
	// Capacity says how large a sandbox can be.
	Capacity validate.Capacity
	// Network is the policy of templates without one.
	Network sandbox.NetworkPreset
	// Dir is for the logs of builds.
	Dir string
	// Key signs links for uploads, and UploadURL makes the address of one; if it is
	// nil, there are no links.
	Key       []byte
	UploadURL func(link string) string
	// Keeper and NetworkLog are the engine, or nil if the engine does not support them.
	Keeper     engine.Checkpointer
	NetworkLog engine.NetworkLogger
	// Slot waits for a place to create a sandbox; release gives it back.
	Slot func(ctx context.Context) (release func(), err error)
	// Hold keeps a checkpoint in place until it is released.
	Hold func(checkpoint string) (release func())
	// Prepare makes the golden checkpoint of a template for a team; nil makes none.
	Prepare func(ctx context.Context, template, team string) error
	// Roots returns the digests of root file systems that are in use. Forget stops
	// sandboxes from starting with those that were removed.
	Roots  func(ctx context.Context) (map[string]bool, error)
	Forget func(digests []string)
}

// Builder implements [sandbox.Templates], except for ListTemplates and GetTemplate. It
// is safe for concurrent use.
type Builder struct {
	cfg Config

	mu      sync.Mutex
	running map[string]*building // by id; guarded by mu
	tidied  time.Time            // guarded by mu; see [Builder.Tidy]
	// machines are the sandboxes of builds, which have no record; guarded by mu.
	machines map[string]bool
	// ends are builds whose end could not be recorded; guarded by mu.
	ends map[string]store.BuildRecord
}

// New returns a builder. [Builder.FailLost] repairs what a crash has left.
func New(cfg Config) *Builder { return &Builder{cfg: cfg} }

// building is a build under way.
type building struct {
	x      *Builder
	plan   *image.Plan
	from   *store.SnapshotRecord // what it begins with, if that is a snapshot
	usage  store.Usage           // guarded by Builder.mu
	log    *buildLog
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when it is over and recorded

	mu       sync.Mutex
	record   store.BuildRecord // guarded by mu
	template *sandbox.Template // guarded by mu; what it made
	err      error             // guarded by mu; why it made nothing
}

// now returns the build as callers see it.
func (b *building) now() *sandbox.Build {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.record.Build
	return &out
}

// report reports progress to followers, and keeps the step in the record.
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
		if err := b.x.cfg.Store.UpdateBuild(b.x.cfg.Gate.Context(), r); err != nil && b.x.cfg.Gate.Context().Err() == nil {
			b.x.cfg.Log.Warn("record the step of a build", "build", r.ID, "error", err)
		}
	}
}

// startBuild checks a request and begins the build that it asks for.
func (x *Builder) startBuild(c *call.Call, req *sandbox.BuildTemplateRequest) (*building, error) {
	if err := checkBuild(req); err != nil {
		return nil, err
	}
	if req.Spec != nil {
		if err := x.cfg.Capacity.Check("resources.", req.Spec.Resources); err != nil {
			return nil, err
		}
	}
	c.Detail = req.Name
	plan, err := x.cfg.Templates.Plan(c.Ctx, *req)
	if err != nil {
		return nil, err
	}
	if req.Login != nil && plan.Spec.From.Image == "" {
		return nil, validate.Errorf("registry_login is for the registry of an image, but template %s does not start from an image; leave it out", validate.Quote(req.Name))
	}
	now := time.Now().UTC()
	b := &building{x: x, plan: plan, cancel: func(error) {}, done: make(chan struct{}), record: store.BuildRecord{
		Team: c.Caller.Team, Build: sandbox.Build{ID: ids.New(ids.Build), Template: plan.Name, State: sandbox.BuildRunning, CreatedAt: now},
	}}
	if plan.Ready != nil {
		return b, b.alreadyThere(c.Ctx)
	}
	if ref := plan.Spec.From.Snapshot; ref != "" {
		if x.cfg.Keeper == nil {
			return nil, call.ErrNoCheckpoints
		}
		snap, err := c.Snapshot(ref)
		if err != nil {
			return nil, err
		}
		b.from = &snap
	}
	if err := x.canBuild(&plan.Spec); err != nil {
		return nil, err
	}
	claimed, err := x.cfg.Templates.Claim(plan.Name, plan.Spec.Resources)
	if err != nil {
		return nil, err
	}
	if err := x.admitBuild(c.Ctx, b); err != nil {
		claimed(sandbox.Errorf(sandbox.CodeCancelled, "it did not start"))
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(x.cfg.Gate.Context())
	b.cancel = cancel
	if err := b.begin(c.Ctx); err != nil {
		x.forgetBuild(b)
		claimed(sandbox.Errorf(sandbox.CodeCancelled, "it did not start"))
		cancel(nil)
		return nil, err
	}
	release := func() {}
	if b.from != nil {
		release = x.cfg.Hold(b.from.Checkpoint)
	}
	c.Go(func() {
		defer release()
		b.run(ctx, claimed)
	})
	return b, nil
}

// begin makes the log and the record.
func (b *building) begin(ctx context.Context) (err error) {
	if b.log, err = b.x.newBuildLog(b.record.ID); err != nil {
		return err
	}
	if err := b.x.cfg.Store.CreateBuild(ctx, b.record); err != nil {
		b.log.end()
		return errors.Join(err, os.Remove(b.x.buildLogFile(b.record.ID)))
	}
	return nil
}

// alreadyThere records a build that has nothing to do because the template is ready.
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

// admitBuild takes a place for a build, and checks the quota of its team for its
// sandbox. A build has one sandbox at a time.
func (x *Builder) admitBuild(ctx context.Context, b *building) error {
	used, err := x.cfg.Store.SandboxUsage(ctx, b.record.Team)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.room(b.record.Team); err != nil {
		return err
	}
	want := buildUsage(x.buildResources(&b.plan.Spec, nil))
	if err := x.cfg.Quota.Admit(x.beside(used, b.record.Team), want); err != nil {
		return call.RetryLater(err)
	}
	b.usage = want
	if x.running == nil {
		x.running = map[string]*building{}
	}
	x.running[b.record.ID] = b
	return nil
}

func buildUsage(r sandbox.Resources) store.Usage {
	return store.Usage{Sandboxes: 1, VCPUs: r.VCPUs, MemoryMiB: r.MemoryMiB}
}

// room returns an error unless a team may have one more build. There is no queue: a
// free place goes to the next team that asks and does not have its share yet.
//
// Preconditions: mu is held.
func (x *Builder) room(team string) error {
	mine := 0
	for _, b := range x.running {
		if b.record.Team == team { // which does not change
			mine++
		}
	}
	var err *sandbox.Error
	switch all := len(x.running); {
	case mine >= sandbox.MaxTeamBuilds:
		err = sandbox.Errorf(sandbox.CodeQuotaExceeded, "your team already has %d builds running, which is the limit; try again when one is ready, or cancel one", mine)
	case all >= sandbox.MaxBuilds:
		err = sandbox.Errorf(sandbox.CodeQuotaExceeded, "this server already has %d builds running, which is the limit; try again when one is ready", all)
	default:
		return nil
	}
	err.RetryAfter = 10 * time.Second
	return err
}

// beside adds the usage of a team's builds to used.
//
// Preconditions: mu is held.
func (x *Builder) beside(used store.Usage, team string) store.Usage {
	for _, b := range x.running {
		if b.record.Team == team { // which does not change
			used.Sandboxes += b.usage.Sandboxes
			used.VCPUs += b.usage.VCPUs
			used.MemoryMiB += b.usage.MemoryMiB
		}
	}
	return used
}

// growBuild checks the quota of a build's team again, once the base is known and with
// it what the build's sandboxes take.
func (x *Builder) growBuild(ctx context.Context, b *building, base *image.Foundation) error {
	used, err := x.cfg.Store.SandboxUsage(ctx, b.record.Team)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	want, before := buildUsage(x.buildResources(&b.plan.Spec, &base.Template)), b.usage
	b.usage = store.Usage{}
	if err := x.cfg.Quota.Admit(x.beside(used, b.record.Team), want); err != nil {
		b.usage = before
		return err
	}
	b.usage = want
	return nil
}

// Admit checks a team's quota for more usage. It counts the sandboxes of builds, which
// have no records.
func (x *Builder) Admit(ctx context.Context, team string, more store.Usage) error {
	x.mu.Lock()
	building := x.beside(store.Usage{}, team) != store.Usage{}
	x.mu.Unlock()
	if !building {
		return nil
	}
	used, err := x.cfg.Store.SandboxUsage(ctx, team)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return call.RetryLater(x.cfg.Quota.Admit(x.beside(used, team), more))
}

func (x *Builder) forgetBuild(b *building) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.running, b.record.ID)
}

// underWay returns a build that has not ended, or nil.
func (x *Builder) underWay(id string) *building {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.running[id]
}

// Any reports whether a build is under way.
func (x *Builder) Any() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.running) > 0
}

// run performs the build and records its end.
func (b *building) run(ctx context.Context, claimed func(error)) {
	x := b.x
	defer close(b.done)
	defer b.cancel(nil)
	ctx, stop := context.WithTimeoutCause(ctx, sandbox.MaxBuildTime, errBuildTooLong)
	defer stop()
	t, err := x.build(ctx, b)
	if err != nil && ctx.Err() != nil {
		err = b.interrupted(ctx)
	}
	if err != nil {
		err = x.cfg.Gate.Public(err, "template.build")
	}
	claimed(err)
	if err == nil {
		b.golden(ctx, t)
	}
	b.end(t, err)
}

// interrupted returns the error of a build that was stopped.
func (b *building) interrupted(ctx context.Context) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errBuildCancelled):
		return sandbox.Errorf(sandbox.CodeCancelled, "the build was cancelled")
	case errors.Is(cause, errBuildTooLong):
		return sandbox.Errorf(sandbox.CodeTimeout, "the build took longer than %s; split it into templates that build on each other", sandbox.MaxBuildTime)
	}
	return sandbox.Errorf(sandbox.CodeUnavailable, "the server stopped while the template was being built; build it again")
}

// golden makes the template's golden checkpoint. Without it, sandboxes are created all
// the same, only not as fast.
func (b *building) golden(ctx context.Context, t *sandbox.Template) {
	x := b.x
	if x.cfg.Prepare == nil {
		return
	}
	b.report("start a sandbox and keep its state", 0.96, "")
	if err := x.cfg.Prepare(ctx, t.Name, b.record.Team); err != nil && ctx.Err() == nil {
		x.cfg.Log.Warn("make the golden checkpoint of a template that was built", "template", t.Name, "error", err)
		b.report("", -1, "no state of a first sandbox could be kept; sandboxes boot afresh\n")
	}
}

// end records how a build ended, gives its place back and informs its followers.
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
	ctx, cancel := call.Teardown(b.x.cfg.Gate.Context())
	defer cancel()
	if uerr := b.x.cfg.Store.UpdateBuild(ctx, r); uerr != nil {
		// recordEnds tries again. If the server ends before that, the next start finds
		// the build running and records that it failed.
		b.x.keepEnd(r)
		b.x.cfg.Log.Error("record the end of a build", "build", r.ID, "error", uerr)
	}
	b.over(r, last, t, err)
	b.x.cfg.Log.Info("template build ended", "build", r.ID, "template", r.Template, "state", r.State, "reason", r.Reason)
}

// over publishes the end of a build and removes it from those under way, at once:
// whoever learns of the end finds the place free.
func (b *building) over(r store.BuildRecord, last sandbox.BuildEvent, t *sandbox.Template, err error) {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	b.mu.Lock()
	now := &b.record // field by field: the id and the team are read without mu
	now.State, now.Reason, now.Step, now.Fraction, now.Version, now.EndedAt = r.State, r.Reason, r.Step, r.Fraction, r.Version, r.EndedAt
	b.template, b.err = t, err
	b.mu.Unlock()
	b.log.add(last)
	b.log.end()
	delete(b.x.running, r.ID)
}

// FailLost records as failed the builds that an earlier daemon left unfinished.
func (x *Builder) FailLost(ctx context.Context) error {
	for {
		lost, _, err := x.cfg.Store.ListBuilds(ctx, store.BuildFilter{Running: true}, sandbox.Page{Limit: sandbox.MaxPageSize})
		if err != nil || len(lost) == 0 {
			return err
		}
		for _, r := range lost {
			now := time.Now().UTC()
			r.State, r.Reason, r.EndedAt = sandbox.BuildFailed, "the daemon exited while the template was being built; build it again", &now
			if err := x.cfg.Store.UpdateBuild(ctx, r); err != nil {
				return fmt.Errorf("record that build %s is lost: %w", r.ID, err)
			}
		}
	}
}

// trimBuilds removes builds that ended long ago, with their logs.
func (x *Builder) trimBuilds(ctx context.Context) error {
	if _, err := x.cfg.Store.TrimBuilds(ctx, time.Now().Add(-sandbox.BuildRetention)); err != nil {
		return err
	}
	logs, err := filepath.Glob(filepath.Join(x.cfg.Dir, ids.Build+"*.log"))
	if err != nil {
		return err
	}
	for _, f := range logs {
		id := strings.TrimSuffix(filepath.Base(f), ".log")
		info, err := os.Stat(f)
		if err != nil || x.underWay(id) != nil || time.Since(info.ModTime()) < time.Hour {
			continue
		}
		if _, err := x.cfg.Store.Build(ctx, id); sandbox.CodeOf(err) == sandbox.CodeNotFound {
			if err := os.Remove(f); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	return nil
}

// buildResources returns the resources of the sandbox in which steps run.
func (x *Builder) buildResources(spec *sandbox.TemplateSpec, t *sandbox.Template) sandbox.Resources {
	if t == nil {
		t = &sandbox.Template{}
	}
	// The spec may be a definition's or an earlier build's, which no request was checked for.
	return x.cfg.Capacity.Complete(sandbox.Resources{}, sandbox.Resources{
		VCPUs: cmp.Or(spec.Resources.VCPUs, t.Resources.VCPUs), MemoryMiB: cmp.Or(spec.Resources.MemoryMiB, t.Resources.MemoryMiB),
		DiskMiB: cmp.Or(spec.Resources.DiskMiB, t.Resources.DiskMiB), MaxPIDs: cmp.Or(spec.Resources.MaxPIDs, t.Resources.MaxPIDs),
	})
}
