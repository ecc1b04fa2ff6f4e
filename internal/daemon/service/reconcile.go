package service

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// repairs is how many sandboxes are repaired at the same time.
const repairs = 8

// Boot is one run of the machine, from power-on to power-off.
type Boot struct {
	ID string
	At time.Time
}

func readBoot() (Boot, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Boot{}, fmt.Errorf("read boot id: %w", err)
	}
	b := Boot{ID: strings.TrimSpace(string(id))}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Boot{}, fmt.Errorf("read boot time: %w", err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(stat)); lines.Scan(); {
		if s, ok := strings.CutPrefix(lines.Text(), "btime "); ok {
			if n, err := strconv.ParseInt(s, 10, 64); err == nil {
				b.At = time.Unix(n, 0).UTC()
			}
			break
		}
	}
	return b, nil
}

// reasonOf returns why a sandbox that should run does not, according to the engine's
// status of its instance.
func (s *Service) reasonOf(r *store.Record, st engine.Status, found bool) string {
	if !found || r.BootID != s.cfg.Boot.ID {
		return s.vanished(r)
	}
	return st.Reason
}

// reconcile compares the records with the engine and repairs the differences: the
// engine is right. It may be repeated.
func (s *Service) reconcile(ctx context.Context) error {
	statuses, err := s.cfg.Engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list the engine's instances: %w", err)
	}
	known := make(map[string]engine.Status, len(statuses))
	for _, st := range statuses {
		known[st.ID] = st
	}
	var g errgroup.Group
	g.SetLimit(repairs)
	seen := map[string]bool{}
	err = s.held(ctx, nil, func(r store.Record) {
		seen[r.Instance] = true
		s.storing(&r)
		st, found := known[r.Instance]
		g.Go(func() error { return s.repair(ctx, r, st, found) })
	})
	for id := range known {
		if err == nil && !seen[id] {
			g.Go(func() error { return s.Recovery.EndUnknown(ctx, known[id]) })
		}
	}
	// Repair tries again what failed here; the rest of the daemon can work.
	if gerr := g.Wait(); gerr != nil {
		s.log.Error("put sandboxes right at the start", "error", gerr)
	}
	s.collectSoon()
	if err != nil {
		return err
	}
	if err := s.Ports.Reopen(ctx); err != nil {
		s.log.Error("publish ports again", "error", err)
	}
	return nil
}

// repairPaused removes what is left of a paused sandbox's instance: the daemon ended
// during a pause or a resume.
func (s *Service) repairPaused(ctx context.Context, r *store.Record, found bool) error {
	if !found {
		return nil
	}
	if err := s.cfg.Engine.Destroy(ctx, r.Instance); err != nil {
		return fmt.Errorf("remove the instance of paused sandbox %s: %w", r.ID, err)
	}
	return nil
}

// repair repairs one sandbox after a restart of the daemon.
func (s *Service) repair(ctx context.Context, r store.Record, st engine.Status, found bool) error {
	switch r.State {
	case sandbox.StateCreating:
		_, err := s.fail(ctx, &r, "the daemon exited while the sandbox was being created")
		return err
	case sandbox.StatePaused:
		return s.repairPaused(ctx, &r, found)
	case sandbox.StateRunning:
		if found && st.Running {
			return s.reattach(ctx, &r)
		}
		_, err := s.fail(ctx, &r, s.reasonOf(&r, st, found))
		return err
	default: // stopping, or ended with something left
		if _, err := s.finish(ctx, &r); err != nil {
			return call.Detailed(err)
		}
	}
	return nil
}

// reattach opens a sandbox that kept running, so that its end is noticed, and finishes
// an interrupted update.
func (s *Service) reattach(ctx context.Context, r *store.Record) error {
	if _, err := s.openRecord(ctx, r); err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotRunning {
			return nil
		}
		return fmt.Errorf("open sandbox %s: %w", r.ID, call.Detailed(err))
	}
	if !r.Applying {
		return s.repush(ctx, r)
	}
	// The interrupted change may have been a merge, which gives the sandbox another
	// sandbox's instance.
	if _, err := s.settle(ctx, r); err != nil {
		return fmt.Errorf("finish the update of sandbox %s: %w", r.ID, call.Detailed(err))
	}
	return nil
}

// settleAll finishes changes of running sandboxes that were recorded but not applied.
func (s *Service) settleAll(ctx context.Context) error {
	var late []string
	err := s.held(ctx, []sandbox.State{sandbox.StateRunning}, func(r store.Record) {
		if r.Applying {
			late = append(late, r.ID)
		}
	})
	errs := []error{err}
	for _, id := range late {
		if err := s.settleOne(ctx, id); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound && sandbox.CodeOf(err) != sandbox.CodeNotRunning {
			errs = append(errs, fmt.Errorf("finish the update of sandbox %s: %w", id, call.Detailed(err)))
		}
	}
	return errors.Join(errs...)
}

// settleOne finishes an update that is no longer under way.
func (s *Service) settleOne(ctx context.Context, id string) error {
	unlock, err := s.lock(ctx, id) // whoever updates a sandbox holds this lock
	if err != nil {
		return err
	}
	defer unlock()
	r, err := s.cfg.Store.Sandbox(ctx, id)
	if err != nil || !r.Applying || r.State != sandbox.StateRunning {
		return err
	}
	_, err = s.settle(ctx, &r)
	return err
}

// repush sends the current values of secrets to the gateway of a sandbox that kept
// running: a value may have been changed just before the daemon ended.
func (s *Service) repush(ctx context.Context, r *store.Record) error {
	if len(r.Bindings) == 0 {
		return nil
	}
	if err := s.pushAgain(ctx, r.ID); err != nil {
		s.Secrets.PushLater(r.ID)
		return fmt.Errorf("tell the gateway of sandbox %s of its secrets: %w", r.ID, call.Detailed(err))
	}
	return nil
}

// Repair tries again to remove what could not be removed before, and records the end of
// sandboxes that have ended unnoticed. The janitor calls it regularly.
func (s *Service) Repair(ctx context.Context) error {
	var errs []error
	err := s.held(ctx, []sandbox.State{sandbox.StateStopping, sandbox.StateKilled, sandbox.StateFailed}, func(r store.Record) {
		if _, err := s.finish(ctx, &r); err != nil {
			errs = append(errs, call.Detailed(err))
		}
	})
	s.collectSoon()
	err = errors.Join(err, s.failLost(ctx), s.settleAll(ctx))
	return errors.Join(append(errs, err, s.Ports.Reopen(ctx), s.Secrets.PushUnpushed(ctx), s.Secrets.NoteUse(ctx), s.collectLogs(ctx), s.Builder.Tidy(ctx), s.Recovery.Trim(time.Now()))...)
}
