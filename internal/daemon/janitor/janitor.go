// Package janitor ends sandboxes whose time has expired and bounds the growth of the
// records. All its timers are times in the records, so they survive restarts of the daemon.
package janitor

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// Records is the part of the store that the janitor needs.
type Records interface {
	// DueSandboxes returns the ids of sandboxes whose lifetime or idle time has expired
	// according to their records.
	DueSandboxes(ctx context.Context, now time.Time) ([]string, error)
	// DeleteEndedSandboxes removes records that ended before the given time.
	DeleteEndedSandboxes(ctx context.Context, before time.Time) (int, error)
	// TrimAudit removes events older than before, and the oldest events beyond keep.
	TrimAudit(ctx context.Context, before time.Time, keep int) (int, error)
	// FillReserve refills the disk reserve for deletions, as far as there is space.
	FillReserve() error
	// TrimRequests removes requests older than before, and each team's oldest beyond keep.
	TrimRequests(ctx context.Context, before time.Time, keep int) (int, error)
	// TrimSessions removes console sessions that have expired.
	TrimSessions(ctx context.Context, now time.Time) (int, error)
}

// Keeper is the part of the service that the janitor needs.
type Keeper interface {
	// KeepTime adjusts the times in the records to how long the machine has run.
	KeepTime(ctx context.Context) error
	// Expire ends a sandbox if its time has really expired.
	Expire(ctx context.Context, id string) error
	// Repair removes what earlier calls failed to remove.
	Repair(ctx context.Context) error
}

// Config configures a [Janitor]. Zero values select the defaults given here.
type Config struct {
	Records Records
	Keeper  Keeper
	// Log receives errors; nil discards them.
	Log *slog.Logger
	// Every is how often the janitor looks for expired sandboxes: 1 s.
	Every time.Duration
	// CleanEvery is how often the records are trimmed and repaired: 1 min.
	CleanEvery time.Duration
	// Retention is how long records of ended sandboxes stay:
	// [sandbox.EndedRetention].
	Retention time.Duration
	// AuditAge and AuditEvents bound the audit record: 30 days, 100,000 events.
	AuditAge    time.Duration
	AuditEvents int
}

// atOnce is how many sandboxes are ended at the same time.
const atOnce = 4

// Janitor runs the jobs described by its [Config].
type Janitor struct{ cfg Config }

// New returns a janitor. It does nothing until Run is called.
func New(cfg Config) *Janitor {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Every = cmp.Or(cfg.Every, time.Second)
	cfg.CleanEvery = cmp.Or(cfg.CleanEvery, time.Minute)
	cfg.Retention = cmp.Or(cfg.Retention, sandbox.EndedRetention)
	cfg.AuditAge = cmp.Or(cfg.AuditAge, 30*24*time.Hour)
	cfg.AuditEvents = cmp.Or(cfg.AuditEvents, 100_000)
	return &Janitor{cfg}
}

// Run works until ctx ends. It logs failures and tries again.
func (j *Janitor) Run(ctx context.Context) {
	expire := time.NewTicker(j.cfg.Every)
	defer expire.Stop()
	clean := time.NewTicker(j.cfg.CleanEvery)
	defer clean.Stop()
	j.attempt(ctx, "expire sandboxes", j.expire)
	j.attempt(ctx, "clean the record", j.clean)
	for {
		select {
		case <-ctx.Done():
			return
		case <-expire.C:
			j.attempt(ctx, "expire sandboxes", j.expire)
		case <-clean.C:
			j.attempt(ctx, "clean the record", j.clean)
		}
	}
}

func (j *Janitor) attempt(ctx context.Context, what string, f func(context.Context) error) {
	if err := f(ctx); err != nil && ctx.Err() == nil {
		j.cfg.Log.Error("janitor task failed", "task", what, "error", err)
	}
}

// expire has the service check each due sandbox. If the clock cannot be kept, no sandbox
// expires.
func (j *Janitor) expire(ctx context.Context) error {
	if err := j.cfg.Keeper.KeepTime(ctx); err != nil {
		return err
	}
	due, err := j.cfg.Records.DueSandboxes(ctx, time.Now())
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, id := range due {
		g.Go(func() error {
			if err := j.cfg.Keeper.Expire(ctx, id); err != nil && ctx.Err() == nil {
				j.cfg.Log.Error("expire a sandbox", "sandbox", id, "error", err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (j *Janitor) clean(ctx context.Context) error {
	now := time.Now()
	errs := []error{j.cfg.Keeper.Repair(ctx)}
	ended, err := j.cfg.Records.DeleteEndedSandboxes(ctx, now.Add(-j.cfg.Retention))
	errs = append(errs, err)
	events, err := j.cfg.Records.TrimAudit(ctx, now.Add(-j.cfg.AuditAge), j.cfg.AuditEvents)
	errs = append(errs, err)
	_, err = j.cfg.Records.TrimSessions(ctx, now)
	errs = append(errs, err)
	_, err = j.cfg.Records.TrimRequests(ctx, now.Add(-limits.RequestRetention), limits.MaxRequests)
	errs = append(errs, err, j.cfg.Records.FillReserve())
	if ended > 0 || events > 0 {
		j.cfg.Log.Debug("removed old records", "sandboxes", ended, "events", events)
	}
	return errors.Join(errs...)
}
