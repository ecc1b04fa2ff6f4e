// Package webhooks tells others when a job in the background has ended: it records a
// webhook before its job begins, waits for the end, whatever happens to the sandbox
// and the daemon meanwhile, and sends what there is to tell until it has arrived. It also
// tells what network policies ask, until that is over.
package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/internal/daemon/webhook"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// tailStandard is how much of the end of each stream a webhook tells, in bytes.
	tailStandard = 16 << 10
	// pollEvery is how often a sandbox is looked for that does not run now, and
	// its record that often lookEvery.
	pollEvery = 2 * time.Second
	lookEvery = 30 * time.Second
	// questionTime is how long one question for the end of a job lasts, and questionEvery
	// the least time from one to the next, whatever the agent answers.
	questionTime  = time.Minute
	questionEvery = time.Second
	// maxSending is how many webhooks are sent at once, and maxSendingOne how many
	// of one sandbox: receivers that do not answer hold up no others.
	maxSending    = 64
	maxSendingOne = 4
	// trimEvery is how often old deliveries are removed.
	trimEvery = time.Hour
)

// Event is what a webhook tells, in the shape of standardwebhooks.com.
type Event struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      Job       `json:"data"`
}

// Job is a job that has ended.
type Job struct {
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

// Secrets are what of a webhook may be secret.
type Secrets struct {
	Secret  string            `json:"secret,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	// Format is no secret, but is as much a part of it.
	Format sandbox.WebhookFormat `json:"format,omitempty"`
}

// Config says what a [Queue] works with.
type Config struct {
	Gate  *call.Gate
	Store store.Store
	Log   *slog.Logger
	// Sender says how webhooks are sent.
	Sender webhook.Config
	// Receivers are told what network policies ask.
	Receivers []Receiver
	// Vault seals what of a webhook is secret; nil refuses that. Sealing is held
	// from then until it is stored.
	Vault   *vault.Vault
	Sealing sync.Locker
	// Open opens a sandbox that runs by its record, and Running reports whether
	// one is open.
	Open    func(ctx context.Context, r *store.Record) (Sandbox, error)
	Running func(id string) bool
}

// Sandbox is a sandbox that runs, until Gone is closed.
type Sandbox struct {
	Client *agentclient.Client
	Gone   <-chan struct{}
}

// Queue has the webhooks that are not delivered yet. It is safe for concurrent
// use.
type Queue struct {
	cfg    Config
	gate   *call.Gate
	store  store.Store
	log    *slog.Logger
	sender *webhook.Sender
	turns  *semaphore // of those that are being sent, by sandbox

	mu sync.Mutex
	// recorded are the ids of this process's webhooks until [Queue.Run] has listed
	// those of the process before it, and nil from then on. Guarded by mu.
	recorded map[string]bool
}

// New returns a queue, of which nothing is sent before [Queue.Run].
func New(cfg Config) *Queue {
	return &Queue{
		cfg: cfg, gate: cfg.Gate, store: cfg.Store, log: cfg.Log,
		sender: webhook.New(cfg.Sender), turns: newSemaphore(maxSending, maxSendingOne), recorded: map[string]bool{},
	}
}

// Close ends the connections of the sender, when the gate is closed.
func (q *Queue) Close() { q.sender.Close() }

// Check refuses a webhook that could not be sent.
func (q *Queue) Check(req *sandbox.ExecRequest) error {
	if req.Webhook == nil {
		return nil
	}
	if !req.Background {
		return validate.Errorf("a webhook works only with a background command; set background, or leave webhook out")
	}
	return q.sender.Check(req.Webhook)
}

// Record keeps a job's webhook before the job begins, so that no crash loses it.
// Then comes [Queue.Deliver], or [Queue.Forget] if the job did not begin.
func (q *Queue) Record(c *call.Call, job string, hook *sandbox.Webhook) (*store.Delivery, error) {
	d := store.Delivery{Team: c.Caller.Team, Delivery: sandbox.Delivery{
		ID: ids.New(ids.Delivery), SandboxID: c.SandboxID, JobID: job, URL: hook.URL, State: store.DeliveryWaiting, CreatedAt: time.Now().UTC(),
	}}
	return &d, q.record(c.Ctx, &d, hook, sandbox.MaxSandboxWebhooks, sandbox.MaxTeamWebhooks)
}

// record keeps a delivery with what is secret of its webhook, if there are not too many
// of the sandbox and of the team.
func (q *Queue) record(ctx context.Context, d *store.Delivery, hook *sandbox.Webhook, ofSandbox, ofTeam int) error {
	q.cfg.Sealing.Lock()
	defer q.cfg.Sealing.Unlock()
	if err := q.seal(d, hook); err != nil {
		return err
	}
	q.mu.Lock()
	if q.recorded != nil {
		q.recorded[d.ID] = true
	}
	q.mu.Unlock()
	return q.store.CreateDelivery(ctx, *d, ofSandbox, ofTeam)
}

func (q *Queue) seal(d *store.Delivery, hook *sandbox.Webhook) error {
	if hook.Secret.Reveal() == "" && len(hook.Headers) == 0 && hook.Format == sandbox.WebhookStandard {
		return nil
	}
	if q.cfg.Vault == nil {
		return sandbox.Errorf(sandbox.CodeUnsupported, "this server has no secrets, so a webhook cannot have a secret, headers or format")
	}
	plain, err := json.Marshal(Secrets{Secret: hook.Secret.Reveal(), Headers: hook.Headers, Format: hook.Format})
	if err != nil {
		return fmt.Errorf("encode a webhook: %w", err)
	}
	defer vault.Wipe(plain)
	d.Sealed, err = q.cfg.Vault.Seal(vault.Ref{Secret: d.ID}, plain)
	return err
}

func (q *Queue) unsealOnce(d *store.Delivery) (hook Secrets, err error) {
	if d.Sealed == nil {
		return hook, nil
	}
	if q.cfg.Vault == nil {
		return hook, errors.New("this server has no secrets")
	}
	err = q.cfg.Vault.Open(vault.Ref{Secret: d.ID}, d.Sealed, func(plain []byte) error { return json.Unmarshal(plain, &hook) })
	return hook, err
}

// Unseal returns what of a webhook is secret, if it can be opened: also of one
// that has been sealed with another key since it was read. The error is the store's.
func (q *Queue) Unseal(ctx context.Context, d *store.Delivery) (hook Secrets, opened bool, err error) {
	for {
		if hook, err = q.unsealOnce(d); err == nil {
			return hook, true, nil
		}
		now, err := q.store.Delivery(ctx, d.ID)
		if err != nil {
			return hook, false, err
		}
		if bytes.Equal(now.Sealed, d.Sealed) {
			return hook, false, nil
		}
		d.Sealed = now.Sealed
	}
}

// Forget drops the webhook of a job that has not begun.
func (q *Queue) Forget(ctx context.Context, d *store.Delivery) {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	if err := q.store.DeleteDelivery(ctx, d.ID); err != nil {
		q.log.Error("forget the webhook of a job that did not start", "delivery", d.ID, "error", err)
	}
}

// Run goes on with the webhooks that an earlier process has left open, and removes
// old ones now and then.
func (q *Queue) Run() {
	q.resume()
	t := time.NewTicker(trimEvery)
	defer t.Stop()
	for {
		if _, err := q.store.TrimDeliveries(q.gate.Context(), time.Now().Add(-sandbox.EndedRetention)); err != nil && q.gate.Context().Err() == nil {
			q.log.Error("remove old deliveries", "error", err)
		}
		select {
		case <-q.gate.Context().Done():
			return
		case <-t.C:
		}
	}
}

// resume delivers the open webhooks but those of this process, which are delivered by
// the calls that recorded them.
func (q *Queue) resume() {
	defer func() {
		q.mu.Lock()
		q.recorded = nil
		q.mu.Unlock()
	}()
	for d, err := range store.All(q.gate.Context(), q.store.ListDeliveries, store.DeliveryFilter{Open: true}) {
		if err != nil {
			q.log.Error("go on with webhooks", "error", err)
			return
		}
		q.mu.Lock()
		own := q.recorded[d.ID]
		q.mu.Unlock()
		if !own {
			q.Deliver(&d)
		}
	}
}

// Deliver sees to a delivery until it is over or the service ends.
func (q *Queue) Deliver(d *store.Delivery) {
	// When the service is closed, the next start goes on with it.
	q.gate.Go(func() {
		if err := q.deliver(q.gate.Context(), d); err != nil && q.gate.Context().Err() == nil {
			q.log.Error("deliver a webhook", "delivery", d.ID, "sandbox", d.SandboxID, "error", err)
		}
	})
}

func (q *Queue) deliver(ctx context.Context, d *store.Delivery) error {
	hook, opened, err := q.Unseal(ctx, d)
	if err != nil {
		return err
	}
	if !opened {
		return q.end(ctx, d, errors.New("its secret cannot be unsealed any more"))
	}
	if d.State == store.DeliveryWaiting {
		news, err := q.awaitJob(ctx, d, tailBytes(hook.Format))
		if err != nil {
			return err
		}
		if d.Body, err = encode(news, hook.Format); err != nil {
			return fmt.Errorf("encode the end of job %s: %w", d.JobID, err)
		}
		now := time.Now().UTC()
		d.State, d.NextAt = store.DeliveryPending, &now
		if err := q.store.UpdateDelivery(ctx, *d); err != nil {
			return err
		}
	}
	m := &webhook.Message{ID: d.ID, URL: d.URL, Header: hook.Headers, Secret: hook.Secret, Body: d.Body, Format: hook.Format}
	for {
		if err := sleepUntil(ctx, d.NextAt); err != nil {
			return err
		}
		if d.Until != nil && !time.Now().Before(*d.Until) {
			return q.end(ctx, d, errors.New("what it reports was over before it was delivered"))
		}
		over, err := q.attempt(ctx, d, m)
		if over || err != nil {
			return err
		}
	}
}

// attempt tries once to deliver, and records what came of it.
func (q *Queue) attempt(ctx context.Context, d *store.Delivery, m *webhook.Message) (over bool, err error) {
	release, err := q.turns.acquire(ctx, d.SandboxID)
	if err != nil {
		return false, err
	}
	defer release()
	r := q.sender.Send(ctx, m)
	if r.Status == 0 && ctx.Err() != nil {
		return false, ctx.Err() // it may have arrived; its id tells a repetition
	}
	// What was answered is recorded also while the service ends, or the next start would
	// tell it again.
	recording, cancel := call.Teardown(ctx)
	defer cancel()
	d.Attempts++
	d.Status, d.Error = r.Status, ""
	switch {
	case r.Err == nil:
		return true, q.end(recording, d, nil)
	case r.Final || d.Attempts >= sandbox.WebhookAttempts:
		return true, q.end(recording, d, r.Err)
	}
	next := time.Now().Add(max(q.sender.Wait(d.Attempts), r.RetryAfter)).UTC()
	if d.Until != nil && !next.Before(*d.Until) {
		return true, q.end(recording, d, r.Err) // it would be over by then
	}
	d.Error, d.NextAt = r.Err.Error(), &next
	return false, q.store.UpdateDelivery(recording, *d)
}

// end records the end of a delivery, and forgets its secret and what
// it told.
func (q *Queue) end(ctx context.Context, d *store.Delivery, failure error) error {
	now := time.Now().UTC()
	d.State, d.EndedAt, d.NextAt, d.Body, d.Sealed = store.DeliveryDelivered, &now, nil, nil, nil
	if failure != nil {
		d.State, d.Error = store.DeliveryFailed, failure.Error()
	}
	return q.store.UpdateDelivery(ctx, *d)
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
func (q *Queue) awaitJob(ctx context.Context, d *store.Delivery, tail int64) (*Event, error) {
	for {
		r, err := q.store.Sandbox(ctx, d.SandboxID)
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			return lost(d, "its sandbox is gone"), nil
		case err != nil:
			return nil, err
		case r.State == sandbox.StateStopping || r.State.Final():
			return lost(d, "its sandbox has ended: "+r.Reason), nil
		case r.State == sandbox.StateRunning:
			if open, err := q.cfg.Open(ctx, &r); err == nil {
				if news := open.awaitJob(ctx, d, tail); news != nil {
					return news, nil
				}
			}
		}
		if err := q.sleepWhileGone(ctx, &r); err != nil {
			return nil, err
		}
	}
}

// sleepWhileGone waits until it is worth looking for a sandbox again. Many may
// wait for one, so it asks the store rarely.
func (q *Queue) sleepWhileGone(ctx context.Context, r *store.Record) error {
	for until := time.Now().Add(lookEvery); time.Now().Before(until); {
		if err := sleep(ctx, pollEvery); err != nil {
			return err
		}
		if q.cfg.Running(r.ID) || r.State == sandbox.StateRunning {
			return nil
		}
	}
	return nil
}

func lost(d *store.Delivery, reason string) *Event {
	return &Event{Type: "job.ended", Timestamp: time.Now().UTC(), Data: Job{SandboxID: d.SandboxID, JobID: d.JobID, State: "lost", Reason: reason}}
}

// awaitJob waits while the sandbox runs as it does now. It returns nil if it is
// to be looked for again.
func (o *Sandbox) awaitJob(ctx context.Context, d *store.Delivery, tail int64) *Event {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-o.Gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		again := time.Now().Add(questionEvery)
		job, err := o.Client.GetJob(ctx, d.JobID, questionTime)
		switch {
		case ctx.Err() != nil:
			return nil
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			// It is being started, or was never.
			if time.Since(d.CreatedAt) < questionTime {
				return nil
			}
			return lost(d, "the sandbox no longer knows this job, because it was restored to a state before the job")
		case err != nil:
			return nil
		case job.State == sandbox.JobExited:
			return o.ended(ctx, d, job, tail)
		}
		if sleepUntil(ctx, &again) != nil {
			return nil
		}
	}
}

// ended tells how a job has ended.
func (o *Sandbox) ended(ctx context.Context, d *store.Delivery, job *sandbox.Job, tail int64) *Event {
	return &Event{Type: "job.ended", Timestamp: time.Now().UTC(), Data: Job{
		SandboxID: d.SandboxID, JobID: job.ID, State: string(job.State), ExitCode: &job.ExitCode, Signal: job.Signal, EndCause: job.EndCause,
		StartedAt: &job.StartedAt, EndedAt: job.EndedAt, DurationMS: max(0, job.Duration().Milliseconds()),
		StdoutBytes: job.StdoutBytes, StderrBytes: job.StderrBytes,
		StdoutTail: o.tail(ctx, job.ID, sandbox.Stdout, job.StdoutBytes, tail), StderrTail: o.tail(ctx, job.ID, sandbox.Stderr, job.StderrBytes, tail),
	}}
}

// tail returns the end of a job's output, at most so many bytes, as far as it
// can be had.
func (o *Sandbox) tail(ctx context.Context, job string, stream sandbox.Stream, total, limit int64) string {
	if total == 0 {
		return ""
	}
	out, err := o.Client.ReadOutput(ctx, job, &sandbox.OutputRequest{Stream: stream, Offset: max(0, total-limit), Limit: limit})
	if err != nil {
		return ""
	}
	if total > limit {
		return clip.TailText(out.Data)
	}
	return clip.ToText(out.Data)
}

// ListDeliveries implements the verb of [sandbox.Observe].
func (q *Queue) ListDeliveries(ctx context.Context, ref string, page sandbox.Page) (*sandbox.List[sandbox.Delivery], error) {
	return call.Do(ctx, q.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Delivery], error) {
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		found, next, err := q.store.ListDeliveries(c.Ctx, store.DeliveryFilter{Team: c.Caller.Team, SandboxID: r.ID}, page)
		if err != nil {
			return nil, err
		}
		list := &sandbox.List[sandbox.Delivery]{Items: make([]sandbox.Delivery, 0, len(found)), NextCursor: next}
		for i := range found {
			list.Items = append(list.Items, shown(&found[i]))
		}
		return list, nil
	})
}

// shown returns a delivery as the team sees it. Where questions are told is the server's
// own, and whoever knows all of the address may be able to tell something there too.
func shown(d *store.Delivery) sandbox.Delivery {
	show := d.Delivery
	if u, err := url.Parse(d.URL); d.ApprovalID != "" && err == nil {
		show.URL = (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
	}
	return show
}
