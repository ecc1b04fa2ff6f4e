package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/service/call"
	"github.com/cove-sh/cove/internal/service/ids"
	"github.com/cove-sh/cove/internal/service/validate"
	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/internal/vault"
	"github.com/cove-sh/cove/internal/webhook"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// hookTail is how much of the end of each stream a webhook tells, in bytes.
	hookTail = 16 << 10
	// hookPoll is how often a sandbox is looked for that does not run now, and
	// its record that often hookLook.
	hookPoll = 2 * time.Second
	hookLook = 30 * time.Second
	// hookWait is how long one question for the end of a job lasts, and hookAsk
	// the least time from one to the next, whatever the agent answers.
	hookWait = time.Minute
	hookAsk  = time.Second
	// hookSenders is how many webhooks are sent at once, and hookLane how many
	// of one sandbox: receivers that do not answer hold up no others.
	hookSenders = 64
	hookLane    = 4
	// trimEvery is how often old deliveries are removed.
	trimEvery = time.Hour
)

// hookNews is what a webhook tells, in the shape of standardwebhooks.com.
type hookNews struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      hookJob   `json:"data"`
}

type hookJob struct {
	SandboxID string `json:"sandbox_id"`
	JobID     string `json:"job_id"`
	// State is "exited", or "lost" for a job of which nobody knows the end:
	// its sandbox has ended before it, or was put back to before its start.
	State       string           `json:"state"`
	Reason      string           `json:"reason,omitempty"`
	ExitCode    *int             `json:"exit_code,omitempty"`
	Signal      string           `json:"signal,omitempty"`
	EndCause    sandbox.EndCause `json:"end_cause,omitempty"`
	StartedAt   *time.Time       `json:"started_at,omitempty"`
	EndedAt     *time.Time       `json:"ended_at,omitempty"`
	DurationMS  int64            `json:"duration_ms"`
	StdoutBytes int64            `json:"stdout_bytes"`
	StderrBytes int64            `json:"stderr_bytes"`
	// The ends of the streams, as text.
	StdoutTail string `json:"stdout_tail"`
	StderrTail string `json:"stderr_tail"`
}

// sealedHook is what of a webhook may be secret.
type sealedHook struct {
	Secret  string            `json:"secret,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	// Format is no secret, but is as much a part of it.
	Format sandbox.WebhookFormat `json:"format,omitempty"`
}

// checkWebhook refuses a webhook that could not be sent.
func (s *Service) checkWebhook(req *sandbox.ExecRequest) error {
	if req.Webhook == nil {
		return nil
	}
	if !req.Background {
		return validate.Errorf("a webhook tells the end of a background command; set background, or leave webhook out")
	}
	return s.hooks.Check(req.Webhook)
}

// recordWebhook keeps a job's webhook before the job begins, so that no crash
// loses it.
func (s *Service) recordWebhook(c *call.Call, h *handle, job string, hook *sandbox.Webhook) (*store.Delivery, error) {
	d := store.Delivery{Team: c.Caller.Team, Delivery: sandbox.Delivery{
		ID: ids.New(ids.Delivery), SandboxID: h.id, JobID: job, URL: hook.URL, State: store.DeliveryWaiting, CreatedAt: time.Now().UTC(),
	}}
	s.sealing.RLock()
	defer s.sealing.RUnlock()
	if err := s.sealWebhook(&d, hook); err != nil {
		return nil, err
	}
	return &d, s.cfg.Store.CreateDelivery(c.Ctx, d, sandbox.MaxSandboxWebhooks, sandbox.MaxTeamWebhooks)
}

func (s *Service) sealWebhook(d *store.Delivery, hook *sandbox.Webhook) error {
	if hook.Secret.Reveal() == "" && len(hook.Headers) == 0 && hook.Format == sandbox.WebhookStandard {
		return nil
	}
	if s.cfg.Vault == nil {
		return sandbox.Errorf(sandbox.CodeUnsupported, "this server keeps no secrets, so a webhook can have no secret, headers or format")
	}
	plain, err := json.Marshal(sealedHook{Secret: hook.Secret.Reveal(), Headers: hook.Headers, Format: hook.Format})
	if err != nil {
		return fmt.Errorf("encode a webhook: %w", err)
	}
	defer vault.Wipe(plain)
	d.Sealed, err = s.cfg.Vault.Seal(vault.Ref{Secret: d.ID}, plain)
	return err
}

func (s *Service) openWebhook(d *store.Delivery) (hook sealedHook, err error) {
	if d.Sealed == nil {
		return hook, nil
	}
	if s.cfg.Vault == nil {
		return hook, errors.New("this server keeps no secrets")
	}
	err = s.cfg.Vault.Open(vault.Ref{Secret: d.ID}, d.Sealed, func(plain []byte) error { return json.Unmarshal(plain, &hook) })
	return hook, err
}

// openLatest is [Service.openWebhook] for a delivery that may have been sealed with
// another key since it was read. The error is the store's.
func (s *Service) openLatest(ctx context.Context, d *store.Delivery) (hook sealedHook, opened bool, err error) {
	for {
		if hook, err = s.openWebhook(d); err == nil {
			return hook, true, nil
		}
		now, err := s.cfg.Store.Delivery(ctx, d.ID)
		if err != nil {
			return hook, false, err
		}
		if bytes.Equal(now.Sealed, d.Sealed) {
			return hook, false, nil
		}
		d.Sealed = now.Sealed
	}
}

// dropWebhook forgets the webhook of a job that has not begun.
func (s *Service) dropWebhook(ctx context.Context, d *store.Delivery) {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	if err := s.cfg.Store.DeleteDelivery(ctx, d.ID); err != nil {
		s.log.Error("forget the webhook of a job that did not start", "delivery", d.ID, "error", err)
	}
}

// hookLoop goes on with the webhooks that are not over, and removes old ones
// now and then.
func (s *Service) hookLoop() {
	page := sandbox.Page{Limit: sandbox.MaxPageSize}
	for {
		open, next, err := s.cfg.Store.ListDeliveries(s.gate.Context(), store.DeliveryFilter{Open: true}, page)
		if err != nil {
			s.log.Error("go on with webhooks", "error", err)
			break
		}
		for i := range open {
			s.goDeliver(&open[i])
		}
		if next == "" {
			break
		}
		page.Cursor = next
	}
	t := time.NewTicker(trimEvery)
	defer t.Stop()
	for {
		if _, err := s.cfg.Store.TrimDeliveries(s.gate.Context(), time.Now().Add(-sandbox.EndedRetention)); err != nil && s.gate.Context().Err() == nil {
			s.log.Error("remove old deliveries", "error", err)
		}
		select {
		case <-s.gate.Context().Done():
			return
		case <-t.C:
		}
	}
}

// goDeliver sees to a delivery until it is over or the service ends.
func (s *Service) goDeliver(d *store.Delivery) {
	// When the service is closed, the next start goes on with it.
	s.gate.Go(func() {
		if err := s.deliver(s.gate.Context(), d); err != nil && s.gate.Context().Err() == nil {
			s.log.Error("deliver a webhook", "delivery", d.ID, "sandbox", d.SandboxID, "error", err)
		}
	})
}

func (s *Service) deliver(ctx context.Context, d *store.Delivery) error {
	hook, opened, err := s.openLatest(ctx, d)
	if err != nil {
		return err
	}
	if !opened {
		return s.deliveryOver(ctx, d, errors.New("its secret cannot be opened any more"))
	}
	if d.State == store.DeliveryWaiting {
		news, err := s.awaitJob(ctx, d, tailOf(hook.Format))
		if err != nil {
			return err
		}
		if d.Body, err = encodeNews(news, hook.Format); err != nil {
			return fmt.Errorf("encode the end of job %s: %w", d.JobID, err)
		}
		now := time.Now().UTC()
		d.State, d.NextAt = store.DeliveryPending, &now
		if err := s.cfg.Store.UpdateDelivery(ctx, *d); err != nil {
			return err
		}
	}
	m := &webhook.Message{ID: d.ID, URL: d.URL, Header: hook.Headers, Secret: hook.Secret, Body: d.Body, Format: hook.Format}
	for {
		if err := sleepUntil(ctx, d.NextAt); err != nil {
			return err
		}
		over, err := s.attempt(ctx, d, m)
		if over || err != nil {
			return err
		}
	}
}

// attempt tries once to deliver, and records what came of it.
func (s *Service) attempt(ctx context.Context, d *store.Delivery, m *webhook.Message) (over bool, err error) {
	release, err := s.senders.enter(ctx, d.SandboxID)
	if err != nil {
		return false, err
	}
	defer release()
	r := s.hooks.Send(ctx, m)
	if ctx.Err() != nil {
		return false, ctx.Err() // it may have arrived; its id tells a repetition
	}
	d.Attempts++
	d.Status, d.Error = r.Status, ""
	switch {
	case r.Err == nil:
		return true, s.deliveryOver(ctx, d, nil)
	case r.Final || d.Attempts >= sandbox.WebhookAttempts:
		return true, s.deliveryOver(ctx, d, r.Err)
	}
	d.Error = r.Err.Error()
	next := time.Now().Add(max(s.hooks.Wait(d.Attempts), r.RetryAfter)).UTC()
	d.NextAt = &next
	return false, s.cfg.Store.UpdateDelivery(ctx, *d)
}

// deliveryOver records the end of a delivery, and forgets its secret and what
// it told.
func (s *Service) deliveryOver(ctx context.Context, d *store.Delivery, failure error) error {
	now := time.Now().UTC()
	d.State, d.EndedAt, d.NextAt, d.Body, d.Sealed = store.DeliveryDelivered, &now, nil, nil, nil
	if failure != nil {
		d.State, d.Error = store.DeliveryFailed, failure.Error()
	}
	return s.cfg.Store.UpdateDelivery(ctx, *d)
}

func sleepUntil(ctx context.Context, at *time.Time) error {
	if at == nil {
		return nil
	}
	return sleep(ctx, time.Until(*at))
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitJob returns what there is to tell when the job of a delivery has ended,
// whatever happens to its sandbox meanwhile. It does not count as use of the
// sandbox, and resumes none.
func (s *Service) awaitJob(ctx context.Context, d *store.Delivery, tail int64) (*hookNews, error) {
	for {
		r, err := s.cfg.Store.Sandbox(ctx, d.SandboxID)
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			return lost(d, "its sandbox is gone"), nil
		case err != nil:
			return nil, err
		case r.State == sandbox.StateStopping || r.State.Final():
			return lost(d, "its sandbox has ended: "+r.Reason), nil
		case r.State == sandbox.StateRunning:
			if h, err := s.openRecord(ctx, &r); err == nil {
				if news := h.awaitJob(ctx, d, tail); news != nil {
					return news, nil
				}
			}
		}
		if err := s.sleepWhileGone(ctx, &r); err != nil {
			return nil, err
		}
	}
}

// sleepWhileGone waits until it is worth looking for a sandbox again. Many may
// wait for one, so it asks the store rarely.
func (s *Service) sleepWhileGone(ctx context.Context, r *store.Record) error {
	for until := time.Now().Add(hookLook); time.Now().Before(until); {
		if err := sleep(ctx, hookPoll); err != nil {
			return err
		}
		s.mu.Lock()
		back := s.handles[r.ID] != nil
		s.mu.Unlock()
		if back || r.State == sandbox.StateRunning {
			return nil
		}
	}
	return nil
}

func lost(d *store.Delivery, reason string) *hookNews {
	return &hookNews{Type: "job.ended", Timestamp: time.Now().UTC(), Data: hookJob{SandboxID: d.SandboxID, JobID: d.JobID, State: "lost", Reason: reason}}
}

// awaitJob waits while the sandbox runs as it does now. It returns nil if it is
// to be looked for again.
func (h *handle) awaitJob(ctx context.Context, d *store.Delivery, tail int64) *hookNews {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-h.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		again := time.Now().Add(hookAsk)
		job, err := h.client.GetJob(ctx, d.JobID, hookWait)
		switch {
		case ctx.Err() != nil:
			return nil
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			// It is being started, or was never.
			if time.Since(d.CreatedAt) < hookWait {
				return nil
			}
			return lost(d, "the sandbox knows no such job any more; it was put back to before its start")
		case err != nil:
			return nil
		case job.State == sandbox.JobExited:
			return h.tell(ctx, d, job, tail)
		}
		if sleepUntil(ctx, &again) != nil {
			return nil
		}
	}
}

// tell puts the end of a job into words.
func (h *handle) tell(ctx context.Context, d *store.Delivery, job *sandbox.Job, tail int64) *hookNews {
	return &hookNews{Type: "job.ended", Timestamp: time.Now().UTC(), Data: hookJob{
		SandboxID: d.SandboxID, JobID: job.ID, State: string(job.State), ExitCode: &job.ExitCode, Signal: job.Signal, EndCause: job.EndCause,
		StartedAt: &job.StartedAt, EndedAt: job.EndedAt, DurationMS: max(0, job.Duration().Milliseconds()),
		StdoutBytes: job.StdoutBytes, StderrBytes: job.StderrBytes,
		StdoutTail: h.tail(ctx, job.ID, sandbox.Stdout, job.StdoutBytes, tail), StderrTail: h.tail(ctx, job.ID, sandbox.Stderr, job.StderrBytes, tail),
	}}
}

// tail returns the end of a job's output, at most so many bytes, as far as it
// can be had.
func (h *handle) tail(ctx context.Context, job string, stream sandbox.Stream, total, limit int64) string {
	if total == 0 {
		return ""
	}
	out, err := h.client.ReadOutput(ctx, job, &sandbox.OutputRequest{Stream: stream, Offset: max(0, total-limit), Limit: limit})
	if err != nil {
		return ""
	}
	if total > limit {
		return lastText(out.Data)
	}
	return validText(out.Data)
}

// ListDeliveries implements [sandbox.Observe].
func (s *Service) ListDeliveries(ctx context.Context, ref string, page sandbox.Page) (*sandbox.List[sandbox.Delivery], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Delivery], error) {
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		found, next, err := s.cfg.Store.ListDeliveries(c.Ctx, store.DeliveryFilter{Team: c.Caller.Team, SandboxID: r.ID}, page)
		if err != nil {
			return nil, err
		}
		list := &sandbox.List[sandbox.Delivery]{Items: make([]sandbox.Delivery, 0, len(found)), NextCursor: next}
		for i := range found {
			list.Items = append(list.Items, found[i].Delivery)
		}
		return list, nil
	})
}
