// Package janitor ends sandboxes whose time is over and keeps the record from
// growing without bound. All of its timers are times in the record, so that
// they hold through restarts of the daemon.
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

// Records is what the janitor needs of the store.
type Records interface {
	// DueSandboxes returns the ids of sandboxes whose lifetime or idle time
	// has passed by their record.
	DueSandboxes(ctx context.Context, now time.Time) ([]string, error)
	// DeleteEndedSandboxes removes records that ended before the given time.
	DeleteEndedSandboxes(ctx context.Context, before time.Time) (int, error)
	// TrimAudit removes events older than before, and the oldest over keep.
	TrimAudit(ctx context.Context, before time.Time, keep int) (int, error)
	// FillReserve makes the disk reserve for deletions whole again, as far as
	// there is room.
	FillReserve() error
	// TrimRequests removes requests older than before, and the oldest of each
	// team over keep.
	TrimRequests(ctx context.Context, before time.Time, keep int) (int, error)
	// TrimSessions removes sessions of the console that have expired by now.
	TrimSessions(ctx context.Context, now time.Time) (int, error)
}

// Keeper is what the janitor needs of the service.
type Keeper interface {
	// KeepTime brings the times in the record into line with how long the
	// machine has run.
	KeepTime(ctx context.Context) error
	// Expire ends a sandbox if its time is over indeed.
	Expire(ctx context.Context, id string) error
	// Repair removes what could not be removed before.
	Repair(ctx context.Context) error
}

// Config says what a [Janitor] works with. Zero values are the defaults.
type Config struct {
	Records Records
	Keeper  Keeper
	// Log takes what went wrong; nil discards it.
	Log *slog.Logger
	// Every is how often sandboxes are looked at: 1 s.
	Every time.Duration
	// CleanEvery is how often the record is trimmed and repaired: 1 min.
	CleanEvery time.Duration
	// Retention is how long records of ended sandboxes stay:
	// [sandbox.EndedRetention].
	Retention time.Duration
	// AuditAge and AuditEvents bound the audit record: 30 days, 100,000.
	AuditAge    time.Duration
	AuditEvents int
}

// atOnce is how many sandboxes are ended at the same time.
const atOnce = 4

// Janitor does the work of [Config].
type Janitor struct{ cfg Config }

// New returns a janitor that does nothing until it runs.
func New(cfg Config) *Janitor {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Every = cmp.Or(cfg.Every, time.Second)
	cfg.CleanEvery = cmp.Or(cfg.CleanEvery, time.Minute)
	cfg.Retention = cmp.Or(cfg.Retention, sandbox.EndedRetention)
	cfg.AuditAge = cmp.Or(cfg.AuditAge, 30*24*time.Hour)
	cfg.AuditEvents = cmp.Or(cfg.AuditEvents, 100_000)
	return &Janitor{cfg}
}

// Run works until ctx ends. What fails is logged and tried again.
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
		j.cfg.Log.Error("the janitor has failed", "task", what, "error", err)
	}
}

// expire has the service look at each sandbox that is due. None ends by a clock
// that is not kept.
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
